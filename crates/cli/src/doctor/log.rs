//! `megapage doctor --log`: messages of programs about huge pages, and their meaning.

use crate::output::answer;
use anyhow::{Context, Result};
use megapage_kernel::trusted::open_given;
use megapage_launch::messages::explain;
use megapage_report::doctor::messages;
use megapage_systemd::{UnitName, journal};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SCHEMA: &str = "megapage.doctor-log/1";
/// Most bytes of a log that are read, from its start: programs report on memory when they start.
const LONGEST: u64 = 64 << 20;

/// Source of the messages.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file; `-` is standard input.
    File(PathBuf),
    /// The journal of a service.
    Unit(String),
}

/// Runs the command. Returns 0 without a known message, 1 with one.
pub fn main(source: &Source, json: bool) -> Result<ExitCode> {
    let text = match source {
        Source::File(path) => file(path)?,
        Source::Unit(unit) => journal(&UnitName::parse(unit)?, LONGEST)?,
    };
    let found = explain(&text);
    answer(json, SCHEMA, &BTreeMap::from([("messages", &found)]), || messages(&found))?;
    Ok(ExitCode::from(u8::from(!found.is_empty())))
}

fn file(path: &Path) -> Result<String> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".into() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let read = match is_input {
        true => std::io::stdin().take(LONGEST).read_to_end(&mut bytes),
        false => open_given(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)),
    };
    read.with_context(|| format!("--log {name}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
