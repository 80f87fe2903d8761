//! What the checks find.

use std::fmt;

/// One breach of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the root of the repository.
    pub path: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what to do about it where that is not plain.
    pub what: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line, what: what.into() }
    }
}

/// `path:line: what`, as compilers print it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}
