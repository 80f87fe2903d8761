//! Names of service units, and the directories of their drop-ins (systemd.unit(5)).

use crate::error::SystemdError;
use std::fmt;

/// The longest name of a unit (UNIT_NAME_MAX).
const LONGEST: usize = 255;
const SUFFIX: &str = ".service";

/// The name of a service unit, such as `redis-server.service` or `postgresql@15-main.service`. The
/// name of a template, such as `postgresql@.service`, stands for all its instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitName(String);

/// Other kinds of units; most start a service or hold one.
const OTHER_KINDS: [&str; 10] =
    [".socket", ".timer", ".path", ".target", ".slice", ".scope", ".mount", ".automount", ".swap", ".device"];

impl UnitName {
    /// Reads a name, with or without `.service`.
    pub fn parse(text: &str) -> Result<UnitName, SystemdError> {
        if let Some(stem) = OTHER_KINDS.iter().find_map(|kind| text.strip_suffix(kind)) {
            return Err(SystemdError::Refused(format!(
                "'{text}' is not a service: name the service that it starts, such as {stem}.service"
            )));
        }
        let stem = text.strip_suffix(SUFFIX).unwrap_or(text);
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
        let sound = stem.chars().all(is_allowed) && !stem.is_empty() && !stem.starts_with(['@', '.']);
        if !sound || stem.len() + SUFFIX.len() > LONGEST {
            return Err(SystemdError::Refused(format!("'{text}' is not the name of a unit")));
        }
        Ok(UnitName(format!("{stem}{SUFFIX}")))
    }

    /// Returns the whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name without `.service`.
    pub fn stem(&self) -> &str {
        self.0.strip_suffix(SUFFIX).unwrap_or(&self.0)
    }

    /// Returns the part before the first `@`, such as `postgresql`.
    pub fn prefix(&self) -> &str {
        self.stem().split_once('@').map_or(self.stem(), |(prefix, _)| prefix)
    }

    /// Returns the part after the first `@`; empty for a template, `None` for a name without `@`.
    pub fn instance(&self) -> Option<&str> {
        self.stem().split_once('@').map(|(_, instance)| instance)
    }

    /// Returns the template of an instance; `None` for other names.
    pub fn template(&self) -> Option<UnitName> {
        let instance = self.instance()?;
        (!instance.is_empty()).then(|| UnitName(format!("{}@{SUFFIX}", self.prefix())))
    }

    /// Returns the names of its drop-in directories, the most specific first: `foo-bar.service.d`,
    /// `foo-.service.d`. The directory of all services (`service.d`) is not among them.
    pub fn drop_in_directories(&self) -> Vec<String> {
        let mut names = vec![format!("{}.d", self.0)];
        names.extend(self.template().map(|template| format!("{template}.d")));
        let end = if self.instance().is_some() { format!("@{SUFFIX}.d") } else { format!("{SUFFIX}.d") };
        let prefix = self.prefix();
        let dashes = prefix.char_indices().filter(|(at, c)| *c == '-' && *at + 1 < prefix.len());
        let mut truncated: Vec<String> = dashes.map(|(at, _)| format!("{}{end}", &prefix[..=at])).collect();
        truncated.reverse();
        names.extend(truncated);
        names
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_pieces() {
        let name = UnitName::parse("postgresql@15-main").unwrap();
        assert_eq!(name.as_str(), "postgresql@15-main.service");
        assert_eq!((name.prefix(), name.instance()), ("postgresql", Some("15-main")));
        assert_eq!(name.template().unwrap().as_str(), "postgresql@.service");
        assert_eq!(UnitName::parse("postgresql@.service").unwrap().template(), None);
        let name = UnitName::parse("a-b-c.service").unwrap();
        assert_eq!(name.drop_in_directories(), ["a-b-c.service.d", "a-b-.service.d", "a-.service.d"]);
        let name = UnitName::parse("a-b@1").unwrap();
        assert_eq!(name.drop_in_directories(), ["a-b@1.service.d", "a-b@.service.d", "a-@.service.d"]);
    }

    #[test]
    fn what_is_no_service_is_refused() {
        for text in ["", "a/b", "a b", "@x", "..", ".service", "ä", "a\nb"] {
            let error = UnitName::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' is not the name of a unit"));
        }
        assert!(UnitName::parse(&"x".repeat(300)).is_err());
        let error = UnitName::parse("dbus.socket").unwrap_err();
        assert!(error.to_string().ends_with("such as dbus.service"), "{error}");
    }
}
