//! What every bench does with its progress and its report.

use anyhow::{Context, Result};
use megapage_kernel::trusted::create_report;
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// The schema of all reports.
const SCHEMA: &str = "megapage.bench/1";

/// Progress for `say`: all of it on a terminal, else only what is left out because it is not installed.
pub fn progress(say: fn(&str)) -> impl FnMut(&str) {
    let on_terminal = io::stderr().is_terminal();
    move |line| {
        if on_terminal || line.starts_with("absent:") {
            say(line);
        }
    }
}

/// The file that `--save` names, opened before the runs: after them it would be a pity if it could not be written.
#[derive(Debug)]
pub struct Save(Option<File>);

impl Save {
    /// Opens `path`, if any.
    pub fn open(path: Option<&Path>) -> Result<Save> {
        let open = |path: &Path| create_report(path).with_context(|| path.display().to_string());
        Ok(Save(path.map(open).transpose()?))
    }

    /// The report as JSON, which the file then holds, too.
    pub fn write(self, report: &impl Serialize) -> Result<String> {
        let json = megapage_report::json(SCHEMA, report) + "\n";
        if let Some(mut file) = self.0 {
            file.write_all(json.as_bytes()).context("the file for --save")?;
        }
        Ok(json)
    }
}
