//! Paths in JSON. A path of Linux may hold any byte but NUL, while a string of JSON is Unicode.
//! serde refuses a path that is not Unicode. So a file that another user has named would end a
//! report.

use serde::Serializer;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Serialises a path as a string in which each byte that is no UTF-8 is `\xNN`, with two
/// hexadecimal digits. Meant for
/// `#[serde(serialize_with = "megapage_kernel::json_path::escaped")]`, which `cargo xtask tidy`
/// wants at each path.
pub fn escaped<S: Serializer>(path: impl AsRef<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&of_bytes(path.as_ref().as_os_str().as_bytes()))
}

fn of_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_escaped_and_all_else_is_as_it_is() {
        for (bytes, text) in [
            (&b"/mnt/a b\x1b[2J"[..], "/mnt/a b\x1b[2J"),
            (b"\xff", "\\xff"),
            (b"/x/\xc3\xa9\xc3/\xe2\x82", "/x/é\\xc3/\\xe2\\x82"),
            (b"", ""),
        ] {
            assert_eq!(of_bytes(bytes), text);
        }
    }
}
