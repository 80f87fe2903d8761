//! Shell lines that a user can paste.

use megapage_units::shown::shell_word;
use std::path::Path;

/// `path` as one word of a shell command.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    // A leading dash would be taken for an option.
    let text = if text.starts_with('-') { format!("./{text}") } else { text.into_owned() };
    shell_word(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_names_stay_one_word() {
        assert_eq!(quoted(Path::new("/usr/bin/g++-12")), "/usr/bin/g++-12");
        assert_eq!(quoted(Path::new("/a b'c")), r"'/a b'\''c'");
        assert_eq!(quoted(Path::new("-f")), "./-f");
    }
}
