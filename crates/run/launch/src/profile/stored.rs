//! The stored profiles, to be shown or removed.

use super::{Profile, Store};
use std::path::{Path, PathBuf};

/// Digits of a key that name it.
const LEAST_DIGITS: usize = 8;

/// A profile and its file.
#[derive(Debug)]
pub struct Stored {
    /// Its key.
    pub key: String,
    /// Its file.
    pub file: PathBuf,
    /// What is in it, or what is wrong with it.
    pub profile: Result<Profile, String>,
}

impl Stored {
    /// All of a store, those of one program beside each other.
    pub fn all(store: &Store) -> std::io::Result<Vec<Stored>> {
        let stored = |key: String| {
            let read = store.read(&key).map_err(|error| error.to_string());
            let bytes = read.and_then(|bytes| bytes.ok_or_else(|| "it is gone".into()));
            Stored { file: store.file(&key), profile: bytes.and_then(|bytes| Profile::parse(&bytes)), key }
        };
        let mut all: Vec<Stored> = store.keys()?.into_iter().map(stored).collect();
        all.sort_by(|a, b| (a.program(), &a.key).cmp(&(b.program(), &b.key)));
        Ok(all)
    }

    /// The program that it is of; nothing where it cannot be read.
    pub fn program(&self) -> &str {
        self.profile.as_ref().map_or("", |profile| profile.identity.program.as_str())
    }

    /// Whether a user means it by `name`: a program's path or file name, or the first digits of the key.
    pub fn is_meant_by(&self, name: &str) -> bool {
        let path = Path::new(self.program());
        path == Path::new(name)
            || path.file_name().is_some_and(|file| file == name)
            || (name.len() >= LEAST_DIGITS && self.key.starts_with(name))
    }
}
