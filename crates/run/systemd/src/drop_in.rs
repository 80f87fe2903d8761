//! The drop-in: its text, and the facts about itself that it holds.

use sha2::{Digest, Sha256};

/// File name of the drop-in. The administrator's own files come after it (`systemctl edit` writes
/// `override.conf`).
pub const DROP_IN: &str = "50-megapage.conf";
/// The first line of every drop-in that megapage has written.
pub const MARKER: &str = "# Written by megapage enable; megapage disable takes it away.";
const OPTIONS: &str = "# Options: ";
/// Text that stands for no options.
const NO_OPTIONS: &str = "none";
const DIRECTORY: &str = "# Directory: ";
const SUM: &str = "# Checksum: ";
/// Hexadecimal digits of the checksum.
const DIGITS: usize = 16;

/// The content of a drop-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// The options of `megapage enable`, as shell words; for the reader, and for `status`.
    pub options: String,
    /// True if its directory was made for it.
    pub made_directory: bool,
    /// The assignments of `[Service]`, one per line.
    pub lines: Vec<String>,
}

/// A file with the drop-in's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Ours, unchanged since megapage wrote it.
    Whole(DropIn),
    /// Ours by its first line, but changed since megapage wrote it.
    Changed,
    /// A file of another program.
    Other,
}

impl DropIn {
    /// Returns the whole text.
    pub fn text(&self) -> String {
        let directory = if self.made_directory { "made" } else { "found" };
        let options = if self.options.is_empty() { NO_OPTIONS } else { &self.options };
        let mut rest = format!("{OPTIONS}{options}\n{DIRECTORY}{directory}\n[Service]\n");
        for line in &self.lines {
            rest.push_str(line);
            rest.push('\n');
        }
        format!("{MARKER}\n{SUM}{}\n{rest}", sum(&rest))
    }

    /// Reads a text back. Checks its first line and its checksum.
    pub(crate) fn read(text: &str) -> Held {
        let Some(rest) = text.strip_prefix(MARKER).and_then(|rest| rest.strip_prefix('\n')) else {
            return Held::Other;
        };
        DropIn::whole(rest).map_or(Held::Changed, Held::Whole)
    }

    fn whole(text: &str) -> Option<DropIn> {
        let (head, rest) = text.split_once('\n')?;
        if head.strip_prefix(SUM)? != sum(rest) {
            return None;
        }
        let (options, rest) = rest.strip_prefix(OPTIONS)?.split_once('\n')?;
        let (directory, rest) = rest.strip_prefix(DIRECTORY)?.split_once('\n')?;
        let lines = rest.strip_prefix("[Service]\n")?.lines().map(String::from).collect();
        let options = if options == NO_OPTIONS { "" } else { options };
        Some(DropIn { options: options.into(), made_directory: directory == "made", lines })
    }
}

fn sum(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..DIGITS].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_a_change_is_seen() {
        let drop_in = DropIn {
            options: "--heap thp".into(),
            made_directory: true,
            lines: vec!["Environment=A=1".into(), "ExecPaths=/x".into()],
        };
        let text = drop_in.text();
        assert_eq!(DropIn::read(&text), Held::Whole(drop_in.clone()));
        let plain = DropIn { options: String::new(), made_directory: false, ..drop_in };
        assert!(!plain.text().contains(" \n") && DropIn::read(&plain.text()) == Held::Whole(plain.clone()));
        assert!(text.lines().next().is_some_and(|line| line == MARKER), "{text}");
        assert_eq!(DropIn::read(&text.replace("A=1", "A=2")), Held::Changed);
        assert_eq!(DropIn::read(&text[..text.len() - 1]), Held::Changed);
        assert_eq!(DropIn::read(MARKER), Held::Other, "the line has no end");
        assert_eq!(DropIn::read("[Service]\n"), Held::Other);
    }
}
