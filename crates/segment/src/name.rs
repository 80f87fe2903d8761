//! Names of pools and segments: they become names of directories.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes: the header of a segment has room for it.
pub const LONGEST_NAME: usize = 64;

/// 1 to 64 letters, digits, `-`, `_` and `.`, of ASCII, that begin with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    /// Parses a name. The error says in one line what is wrong.
    fn from_str(text: &str) -> Result<Name, String> {
        let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || text.len() > LONGEST_NAME || !text.chars().all(is_fine) {
            let what = "give 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or digit";
            return Err(format!("'{}' is no name: {what}", text.escape_debug()));
        }
        Ok(Name(text.to_string()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for good in ["a", "index-1", "Redis_7.2", &"x".repeat(64)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/", "a b", "a\0b", "é", "-x", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().unwrap_err().contains("is no name"), "{bad:?}");
        }
    }
}
