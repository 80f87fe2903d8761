//! `megapage doctor --log`: messages of programs about huge pages, and their meaning.

use super::text::wrapped;
use crate::output::print;
use anyhow::{Context, Result};
use megapage_launch::messages::{Explained, explain};
use serde::Serialize;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

const SCHEMA: &str = "megapage.doctor-log/1";
/// Only the start of a longer log is read: programs report on memory when they start.
const LONGEST: u64 = 64 << 20;

#[derive(Serialize)]
struct Found {
    /// The messages that are known, each once.
    messages: Vec<Explained>,
}

/// 0 without a known message, 1 with one.
pub fn main(path: &Path, json: bool) -> Result<ExitCode> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".into() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let read = match is_input {
        true => std::io::stdin().take(LONGEST).read_to_end(&mut bytes),
        false => std::fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)),
    };
    read.with_context(|| format!("--log {name}"))?;
    let found = Found { messages: explain(&String::from_utf8_lossy(&bytes)) };
    let any = !found.messages.is_empty();
    if json {
        print(&(megapage_report::json(SCHEMA, &found) + "\n"))?;
    } else {
        print(&human(&found.messages))?;
    }
    Ok(ExitCode::from(u8::from(any)))
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
