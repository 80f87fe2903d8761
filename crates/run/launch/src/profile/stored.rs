//! The stored profiles, to be shown or removed.

use super::{Profile, Store};
use std::path::{Path, PathBuf};

/// Digits of a key that name it.
const LEAST_DIGITS: usize = 8;

/// A file of a store.
#[derive(Debug)]
pub struct Stored<T> {
    /// Its key.
    pub key: String,
    /// Its path.
    pub file: PathBuf,
    /// What is in it, or what is wrong with it.
    pub content: Result<T, String>,
}

impl Store {
    /// Everything that is in it, as `parse` reads it.
    pub fn all<T>(&self, parse: fn(&[u8]) -> Result<T, String>) -> std::io::Result<Vec<Stored<T>>> {
        let stored = |key: String| {
            let read = self.read(&key).map_err(|error| error.to_string());
            let bytes = read.and_then(|bytes| bytes.ok_or_else(|| "it is gone".into()));
            Stored { file: self.file(&key), content: bytes.and_then(|bytes| parse(&bytes)), key }
        };
        Ok(self.keys()?.into_iter().map(stored).collect())
    }
}

impl Stored<Profile> {
    /// The profiles of a store, those of one program beside each other.
    pub fn all(store: &Store) -> std::io::Result<Vec<Stored<Profile>>> {
        let mut all = store.all(Profile::parse)?;
        all.sort_by(|a, b| (a.program(), &a.key).cmp(&(b.program(), &b.key)));
        Ok(all)
    }

    /// The program that it is of; nothing where it cannot be read.
    pub fn program(&self) -> &str {
        self.content.as_ref().map_or("", |profile| profile.identity.program.as_str())
    }

    /// Whether a user means it by `name`: a program's path or file name, or the first digits of the key.
    pub fn is_meant_by(&self, name: &str) -> bool {
        let path = Path::new(self.program());
        // One that cannot be read has no program.
        !name.is_empty()
            && (path == Path::new(name)
                || path.file_name().is_some_and(|file| file == name)
                || (name.len() >= LEAST_DIGITS && self.key.starts_with(name)))
    }
}
