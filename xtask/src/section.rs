//! A section of a document that is made from something else, between two markers.

use crate::finding::Finding;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// What stands between the markers of a document, and what is said where it does not.
pub struct Section {
    /// The file, relative to the root of the repository.
    pub document: &'static str,
    /// A line of its own.
    pub begin: &'static str,
    /// What follows the last line.
    pub end: &'static str,
    /// Whole lines.
    pub lines: String,
    /// What it differs from, and what makes it anew.
    pub differs: &'static str,
}

impl Section {
    /// The document with its section made anew; `None` where the markers are missing.
    pub fn renewed(&self, document: &str) -> Option<String> {
        let begin = document.find(self.begin)?;
        let end = begin + document[begin..].find(self.end)?;
        Some(format!("{}{}\n{}{}", &document[..begin], self.begin, self.lines, &document[end..]))
    }

    /// Writes it.
    pub fn write(&self, root: &Path) -> Result<()> {
        let Section { document: name, begin, end, .. } = *self;
        let path = root.join(name);
        let document = fs::read_to_string(&path).context(name)?;
        let document = self.renewed(&document).with_context(|| format!("{name} lacks {begin} ... {end}"))?;
        fs::write(&path, document).context(name)
    }

    /// Whether the one that is there is this one.
    pub fn check(&self, root: &Path) -> Option<Finding> {
        self.compare(&fs::read_to_string(root.join(self.document)).unwrap_or_default())
    }

    /// The same of the document's text.
    pub fn compare(&self, document: &str) -> Option<Finding> {
        if self.renewed(document).is_some_and(|renewed| renewed == document) {
            return None;
        }
        let line = document.lines().position(|line| line == self.begin).map_or(1, |index| index + 1);
        Some(Finding::new(self.document, line, self.differs))
    }
}
