//! Specifiers of unit files (systemd.unit(5), "SPECIFIERS") that the unit's name determines.

use crate::name::UnitName;

/// Replaces the specifiers in `text`; `None` if the name does not determine one of them.
pub(crate) fn resolved(text: &str, name: &UnitName) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next()? {
            '%' => out.push('%'),
            'n' => out += name.as_str(),
            'N' => out += name.stem(),
            'p' => out += name.prefix(),
            'P' => out += &unescaped(name.prefix()),
            'i' => out += name.instance().filter(|instance| !instance.is_empty())?,
            'I' => out += &unescaped(name.instance().filter(|instance| !instance.is_empty())?),
            _ => return None,
        }
    }
    Some(out)
}

/// Undoes systemd-escape(1): `-` is a slash, `\xNN` a byte.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let byte = rest.strip_prefix("\\x").and_then(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok());
        match (c, byte) {
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = &rest[4..];
                continue;
            }
            ('-', None) => bytes.push(b'/'),
            (c, None) => bytes.extend(c.to_string().into_bytes()),
        }
        rest = &rest[c.len_utf8()..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_the_name_is_filled_in() {
        let name = UnitName::parse("db@15-main\\x2da").unwrap();
        let of = |text: &str| resolved(text, &name);
        assert_eq!(of("/run/%p/%i.pid").as_deref(), Some("/run/db/15-main\\x2da.pid"));
        assert_eq!(of("%I").as_deref(), Some("15/main-a"));
        assert_eq!(of("%n %N 100%%").as_deref(), Some("db@15-main\\x2da.service db@15-main\\x2da 100%"));
        assert_eq!(of("%h/bin"), None, "the home of the service's user does not");
        assert_eq!(of("end%"), None);
        let template = UnitName::parse("db@").unwrap();
        assert_eq!(resolved("/etc/%i", &template), None, "a template has no instance");
    }
}
