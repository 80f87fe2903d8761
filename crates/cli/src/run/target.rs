//! Destination of the reports of a run.

use megapage_kernel::trusted::create_report;
use megapage_units::shown::lines;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file, standard output, or nothing.
pub(crate) enum Target {
    /// No report was requested; live reports go to standard error.
    Nothing,
    /// `-`.
    Output,
    /// A file, opened before the program starts.
    File(PathBuf, File),
}

impl Target {
    /// Opens the target before the program starts, so that a target that cannot be written is found
    /// early. The message names the target and the reason.
    pub fn open(path: Option<PathBuf>) -> Result<Target, String> {
        match path {
            None => Ok(Target::Nothing),
            Some(path) if path == Path::new("-") => Ok(Target::Output),
            Some(path) => match create_report(&path) {
                Ok(file) => Ok(Target::File(path, file)),
                Err(error) => Err(format!("--report {}: {error}", path.display())),
            },
        }
    }

    /// Writes the final report. In a regular file it replaces any live one.
    pub fn write(&mut self, text: &str) -> Result<(), String> {
        let name = match self {
            Target::Nothing => return Ok(()),
            Target::Output => "-".to_string(),
            Target::File(path, _) => path.display().to_string(),
        };
        self.put(text).map_err(|error| format!("--report {name}: {error}"))
    }

    /// Writes a live report. A failure prints a message, and does not disturb the program.
    pub fn live(&mut self, text: &str) {
        let written = match self {
            Target::Nothing => io::stderr().write_all(lines(text).as_bytes()),
            _ => self.put(text),
        };
        if let Err(error) = written {
            crate::output::say(format!("live report: {error}"));
        }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        let text = lines(text);
        match self {
            Target::Nothing => Ok(()),
            Target::Output => io::stdout().write_all(text.as_bytes()),
            Target::File(path, file) => {
                let metadata = file.metadata()?;
                if metadata.is_file() && metadata.nlink() == 0 {
                    // The file was removed meanwhile, for example by a collector of reports: create
                    // another one.
                    *file = create_report(path)?;
                } else if metadata.is_file() {
                    file.set_len(0)?;
                    file.rewind()?;
                }
                file.write_all(text.as_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_report_replaces_the_last_one_also_where_that_was_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        let mut target = Target::open(Some(path.clone())).unwrap();
        target.live("the first, which is longer\n");
        target.live("the second\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "the second\n");
        fs::remove_file(&path).unwrap();
        target.write("the third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "the third\n");
    }
}
