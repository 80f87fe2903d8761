//! What every bench does with its progress and its report.

use crate::run::{Former, Judged};
use anyhow::{Context, Result};
use megapage_kernel::trusted::{open_report, read_regular};
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
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

/// A former report that is larger is not looked at, in bytes.
const LARGEST: u64 = 64 << 20;

/// The file that `--save` names, opened before the runs: after them it would be a pity if it could not be written. What is in
/// it stays until then.
#[derive(Debug)]
pub struct Save {
    file: Option<File>,
    former: Former,
}

impl Save {
    /// Opens `path`, if any.
    pub fn open(path: Option<&Path>) -> Result<Save> {
        let open = |path: &Path| open_report(path).with_context(|| path.display().to_string());
        let former = path.and_then(|path| String::from_utf8(read_regular(path, LARGEST).ok()?).ok());
        let former = Former::read(&former.unwrap_or_default());
        Ok(Save { file: path.map(open).transpose()?, former })
    }

    /// Adds to the gates of `bench` what the file, a former report of it, says they were.
    pub fn carry(&mut self, bench: &str, gates: &mut [Judged]) {
        std::mem::take(&mut self.former).carry(bench, gates);
    }

    /// The report as JSON, which the file then holds, too.
    pub fn write(self, report: &impl Serialize) -> Result<String> {
        let json = megapage_report::json(SCHEMA, report) + "\n";
        if let Some(file) = self.file {
            replace(file, json.as_bytes()).context("the file for --save")?;
        }
        Ok(json)
    }
}

/// Puts `bytes` in the place of what a file holds. A pipe or a terminal holds nothing.
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
    use crate::run::Gate;
    use serde_json::{Value, json};
    use std::fs;

    fn saved(path: &Path, found: &str, holds: bool) {
        let mut save = Save::open(Some(path)).unwrap();
        let mut gates = [Judged::from(Gate { case: "x", demand: "fast".into(), found: found.into(), holds })];
        save.carry("idle", &mut gates);
        save.write(&json!({ "bench": "idle", "gates": gates })).unwrap();
    }

    #[test]
    fn a_report_is_replaced_at_the_end_and_its_failed_gates_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("idle.json");
        saved(&path, "slow, with much to say about it", false);
        let first = fs::read_to_string(&path).unwrap();
        // One that is not written leaves what is there.
        drop(Save::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), first);
        saved(&path, "fast", true);
        let report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let gate = &report["gates"][0];
        assert_eq!((gate["found"].as_str(), gate["holds"].as_bool()), (Some("fast"), Some(true)));
        assert_eq!(gate["was"][0]["found"], "slow, with much to say about it");
        assert_eq!(report["schema"], SCHEMA);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before_anything_runs() {
        let error = format!("{:#}", Save::open(Some(Path::new("/nonexistent/x.json"))).unwrap_err());
        assert!(error.starts_with("/nonexistent/x.json: "), "{error}");
    }
}
