//! The file that `--save` names.

use anyhow::{Context, Result};
use megapage_kernel::trusted::open_report;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

/// The file, opened before the runs, so that an unwritable one is refused at once. It keeps its
/// former content until the end.
#[derive(Debug)]
pub struct Save(Option<File>);

impl Save {
    /// Opens `path`, if there is one.
    pub fn open(path: Option<&Path>) -> Result<Save> {
        let open = |path: &Path| open_report(path).with_context(|| path.display().to_string());
        Ok(Save(path.map(open).transpose()?))
    }

    /// Writes a report's JSON to the file.
    pub fn write(self, json: &str) -> Result<()> {
        self.0.map_or(Ok(()), |file| replace(file, json.as_bytes())).context("the file for --save")
    }
}

/// Replaces a file's content by `bytes`. A pipe or a terminal has no content to replace.
fn replace(mut file: File, bytes: &[u8]) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.rewind()?;
    }
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_report_is_replaced_at_the_end_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("idle.json");
        let long = "long".repeat(100);
        Save::open(Some(&path)).unwrap().write(&long).unwrap();
        drop(Save::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), long);
        Save::open(Some(&path)).unwrap().write("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before_anything_runs() {
        let error = format!("{:#}", Save::open(Some(Path::new("/nonexistent/x.json"))).unwrap_err());
        assert!(error.starts_with("/nonexistent/x.json: "), "{error}");
    }
}
