//! `megapage remap align`.

use crate::output::{print, shown_path};
use anyhow::Result;
use megapage_remap::align::{Outcome, align};
use megapage_report::json;
use megapage_units::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// Change the layout of an executable or library for pages of 2 MiB, without linking it again
///
/// OUT is FILE with its segments moved within the file, or its header changed, so that file offsets and addresses agree
/// modulo 2 MiB. Addresses do not change. Prime OUT afterwards.
///
/// Exit status: 0 OUT was written; 2 it is not possible, with the reason.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The executable or shared library (ELF, 64-bit); it is only read
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file to write; an existing one is replaced
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Change nothing; print the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.remap-align/1)
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let outcome = align(&args.file, &args.out, args.dry_run)?;
    let text = match (args.json, args.dry_run) {
        (true, _) => json("megapage.remap-align/1", &outcome) + "\n",
        (false, true) => outcome.commands.iter().map(|command| format!("{command}\n")).collect(),
        (false, false) => human(&outcome),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn human(outcome: &Outcome) -> String {
    let out = shown_path(&outcome.out);
    let after = Bytes(outcome.after_bytes);
    let mut text = if outcome.is_copy() {
        format!("{out}: a plain copy; {after} could be on huge pages before, too\n")
    } else {
        format!(
            "{out}: {after} can be on huge pages, once primed (before: {})\n",
            Bytes(outcome.before_bytes)
        )
    };
    if outcome.moved_segments > 0 {
        let (before, now) = (Bytes(outcome.size_before), Bytes(outcome.size_after));
        text += &format!(
            "  {} segments moved within the file; its length, holes included: {now} (before: {before})\n",
            outcome.moved_segments
        );
    }
    if outcome.extended_bytes > 0 {
        text += &format!("  {} of padding complete the last blocks\n", Bytes(outcome.extended_bytes));
    }
    for note in &outcome.notes {
        text += &format!("  {note}\n");
    }
    text
}
