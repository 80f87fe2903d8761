//! `megapage doctor --log`: messages of programs about huge pages, and their meaning.

use super::text::wrapped;
use crate::output::answer;
use anyhow::{Context, Result};
use megapage_kernel::trusted::open_given;
use megapage_launch::messages::{Explained, explain};
use megapage_systemd::{UnitName, journal};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SCHEMA: &str = "megapage.doctor-log/1";
/// Most bytes of a log that are read, from its start: programs report on memory when they start.
const LONGEST: u64 = 64 << 20;

#[derive(Serialize)]
struct Found {
    /// The known messages, each once.
    messages: Vec<Explained>,
}

/// Source of the messages.
#[derive(Debug)]
pub enum Source {
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
    let found = Found { messages: explain(&text) };
    let any = !found.messages.is_empty();
    answer(json, SCHEMA, &found, || human(&found.messages))?;
    Ok(ExitCode::from(u8::from(any)))
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

fn human(messages: &[Explained]) -> String {
    if messages.is_empty() {
        return "No known message about huge pages.\n".into();
    }
    let mut text = String::new();
    for message in messages {
        let times = if message.times == 1 { "once".into() } else { format!("{} times", message.times) };
        text += &wrapped(&format!("{}, {times}: {}", message.program, message.line), "", "    ");
        text += &wrapped(message.meaning, "    means  ", "           ");
        text += &wrapped(message.remedy, "    helps  ", "           ");
    }
    text
}
