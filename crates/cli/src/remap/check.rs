//! `megapage remap check`.

use super::{each, status};
use crate::output::{answer, shown_path};
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_remap::Placement;
use megapage_remap::check::{Check, check};
use megapage_report::table;
use megapage_units::Bytes;
use megapage_units::shown::one_line;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what executables and libraries would gain: segments, alignment, sizes, linker flags
///
/// Executes and changes nothing. PRIME is what 2 MiB entries could map after megapage remap prime, ANONYMOUS what megapage
/// run --text thp could move onto huge pages.
///
/// Exit status: 0 something to gain; 1 nothing in at least one file; 2 no file could be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Executables or shared libraries (ELF, 64-bit)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON (schema megapage.remap-check/2)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    files: &'a [Check],
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let (checks, failed) = each(&args.files, |file| check(&root, file));
    answer(args.json, "megapage.remap-check/2", &Report { files: &checks }, || {
        checks.iter().map(human).collect::<Vec<_>>().join("\n")
    })?;
    Ok(status(checks.len(), failed, checks.iter().all(Check::gains)))
}

fn human(check: &Check) -> String {
    let placement = match check.placement {
        Placement::Fixed => "executable at fixed addresses",
        Placement::Independent => "position-independent executable",
        Placement::Library => "shared library",
    };
    let linker =
        check.linker.as_deref().map_or(String::new(), |linker| format!(", linked by {}", one_line(linker)));
    let mut text = format!("{}: {placement}{linker}\n", shown_path(&check.file));
    let rows = check.segments.iter().map(|part| {
        let segment = &part.segment;
        let right = |set: bool, letter: char| if set { letter } else { '-' };
        [
            [right(segment.read, 'r'), right(segment.write, 'w'), right(segment.execute, 'x')]
                .iter()
                .collect(),
            format!("{:#x}", segment.offset),
            format!("{:#x}", segment.address),
            Bytes(segment.file_size).to_string(),
            Bytes(part.bss_bytes).to_string(),
            Bytes(segment.align).to_string(),
            if part.congruent { "yes" } else { "no" }.to_string(),
            Bytes(part.prime_bytes).to_string(),
            Bytes(part.anonymous_bytes).to_string(),
        ]
    });
    text += &table(
        &["", "OFFSET", "ADDRESS", "IN FILE", "BSS", "ALIGN", "AGREE", "PRIME", "ANONYMOUS"],
        rows.map(|row: [String; 9]| row.to_vec()),
    );
    let mut line = |what: &str, value: String| text += &format!("  {what:<24}{value}\n");
    if let Some(relro) = check.relro {
        line("RELRO", format!("{} at {:#x}", Bytes(relro.bytes), relro.address));
    }
    line("on huge pages now", check.now_bytes.map_or("only root and its owner can see".into(), size));
    let prime = if check.placed_at_huge { "" } else { " (its segments are not aligned to 2 MiB)" };
    line("megapage remap prime", format!("{}{prime}", size(check.prime_bytes)));
    let least = if check.placed_at_huge || check.anonymous_bytes == 0 { "" } else { "at least " };
    line("megapage run --text thp", format!("{least}{}", size(check.anonymous_bytes)));
    if check.relinked_bytes > check.prime_bytes {
        line("linked again", format!("{}, by {} with", size(check.relinked_bytes), check.flags.linker));
        line("", check.flags.flags.to_string());
        for other in check.other_flags.iter().filter(|other| other.flags != check.flags.flags) {
            line("", format!("{}: {}", other.linker, other.flags));
        }
    }
    text
}

fn size(bytes: u64) -> String {
    if bytes == 0 { "nothing".to_string() } else { Bytes(bytes).to_string() }
}
