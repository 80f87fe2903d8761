//! `megapage prime`.

use crate::flags::DryRun;
use crate::output::say;
use crate::remap::{each, prime::report};
use anyhow::{Result, bail};
use megapage_kernel::KernelRoot;
use megapage_observe::select_processes;
use megapage_remap::{mapped_files, prime::prime_any};
use megapage_units::Pid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Put cached pages of files (indexes, model weights, code) into blocks of 2 MiB, which the kernel
/// maps as huge pages
///
/// Every process that maps a file afterwards, shared or private read-only, shares the file's huge
/// pages with all others. In executables and libraries, only code and constants become huge, as
/// with megapage remap prime. The kernel may evict the pages: repeat the command by a timer
/// (megapage-prime@.timer). Huge blocks are skipped. Since Linux 7.2, pages that running processes
/// have mapped become huge too; on older kernels those processes keep small pages.
///
/// Exit status: 0 everything possible is huge; 1 a part; 2 nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files or PIDs. A PID means all files of which the process maps 2 MiB or more, largest first
    /// (write ./NAME for a file of digits)
    #[arg(value_name = "FILE|PID", required = true)]
    what: Vec<PathBuf>,
    #[command(flatten)]
    dry_run: DryRun,
    /// Print JSON (schema megapage.prime/1)
    #[arg(long)]
    json: bool,
}

const SCHEMA: &str = "megapage.prime/1";
/// Most files that are primed for processes.
const MOST_FILES: usize = 4096;

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut pids: BTreeSet<Pid> = BTreeSet::new();
    for what in args.what {
        match process(&what) {
            Some(pid) => pids.extend(select_processes(&root, &[pid])?),
            None => files.push(what),
        }
    }
    let (mut mapped, mut failed) = (Vec::new(), false);
    for pid in pids {
        match mapped_files(&root, pid) {
            Ok(of_process) => mapped.extend(of_process),
            Err(error) => {
                say(format!("process {pid}: {error}"));
                failed = true;
            }
        }
    }
    mapped.sort_by(|a, b| b.mapped.cmp(&a.mapped).then(a.path.cmp(&b.path)));
    let mut seen: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let new: Vec<PathBuf> =
        mapped.into_iter().map(|file| file.path).filter(|path| seen.insert(path.clone())).collect();
    if new.len() > MOST_FILES {
        say(format!("{} files are mapped: the {MOST_FILES} largest are primed", new.len()));
        failed = true;
    }
    if files.is_empty() && new.is_empty() {
        bail!("no file of 2 MiB or more is mapped there that could be opened by its name");
    }
    let (mut outcomes, unfit) = each(&files, |file| prime_any(&root, file, args.dry_run.asked));
    let new: Vec<PathBuf> = new.into_iter().take(MOST_FILES).collect();
    // A library that cannot be on huge pages prints a line. It does not fail the command: the user
    // named the process, not the library.
    let (of_processes, _) = each(&new, |file| prime_any(&root, file, args.dry_run.asked));
    let none = outcomes.is_empty() && of_processes.is_empty();
    outcomes.extend(of_processes);
    report(&outcomes, failed || unfit || none, args.json.then_some(SCHEMA))
}

/// Returns the number of a process, if `what` is digits only.
fn process(what: &Path) -> Option<String> {
    let text = what.to_str()?;
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_process_and_all_else_a_file() {
        assert_eq!(process(Path::new("4711")).as_deref(), Some("4711"));
        for file in ["./4711", "4711.bin", "", "/47"] {
            assert_eq!(process(Path::new(file)), None, "{file}");
        }
    }
}
