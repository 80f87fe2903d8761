//! A section of a document that is generated, between two markers.

use crate::finding::Finding;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Contents between the markers of a document, and the message if they differ.
pub struct Section {
    /// The file, relative to the root of the repository.
    pub document: &'static str,
    /// The begin marker, on a separate line.
    pub begin: &'static str,
    /// The end marker, behind the last line.
    pub end: &'static str,
    /// The contents, in whole lines.
    pub lines: String,
    /// The message: the source from which it differs, and the command that makes it again.
    pub differs: &'static str,
}

impl Section {
    /// Returns the document with its section made again; `None` if the markers are missing.
    pub fn renewed(&self, document: &str) -> Option<String> {
        let begin = document.find(self.begin)?;
        let end = begin + document[begin..].find(self.end)?;
        Some(format!("{}{}\n{}{}", &document[..begin], self.begin, self.lines, &document[end..]))
    }

    /// Writes the section into the document.
    pub fn write(&self, root: &Path) -> Result<()> {
        let Section { document: name, begin, end, .. } = *self;
        let path = root.join(name);
        let document = fs::read_to_string(&path).context(name)?;
        let document = self.renewed(&document).with_context(|| format!("{name} lacks {begin} ... {end}"))?;
        fs::write(&path, document).context(name)
    }

    /// Checks that the document has this section.
    pub fn check(&self, root: &Path) -> Option<Finding> {
        self.compare(&fs::read_to_string(root.join(self.document)).unwrap_or_default())
    }

    /// Does the same with the document's text.
    pub fn compare(&self, document: &str) -> Option<Finding> {
        if self.renewed(document).is_some_and(|renewed| renewed == document) {
            return None;
        }
        let line = document.lines().position(|line| line == self.begin).map_or(1, |index| index + 1);
        Some(Finding::new(self.document, line, self.differs))
    }
}
