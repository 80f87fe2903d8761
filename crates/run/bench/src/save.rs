//! The file that `--save` names.

use anyhow::{Context, Result};
use megapage_kernel::trusted::open_report;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;

/// The schema of all reports.
const SCHEMA: &str = "megapage.bench/1";

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

    /// Returns the report as JSON, and writes it to the file.
    pub fn write(self, report: &impl Serialize) -> Result<String> {
        let json = megapage_report::json(SCHEMA, report) + "\n";
        if let Some(file) = self.0 {
            replace(file, json.as_bytes()).context("the file for --save")?;
        }
        Ok(json)
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
    use serde_json::json;
    use std::fs;

    #[test]
    fn a_report_is_replaced_at_the_end_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("idle.json");
        let long = Save::open(Some(&path)).unwrap().write(&json!({ "found": "long".repeat(100) })).unwrap();
        drop(Save::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), long);
        let short = Save::open(Some(&path)).unwrap().write(&json!({ "found": "short" })).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), short);
        assert!(short.contains(SCHEMA));
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before_anything_runs() {
        let error = format!("{:#}", Save::open(Some(Path::new("/nonexistent/x.json"))).unwrap_err());
        assert!(error.starts_with("/nonexistent/x.json: "), "{error}");
    }
}
