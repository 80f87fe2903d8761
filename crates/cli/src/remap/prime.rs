//! `megapage remap prime`.

use super::{each, status};
use crate::output::{answer, print, shown_path};
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_remap::User;
use megapage_remap::prime::{Outcome, Undone, prime, undo};
use megapage_report::{json, table};
use megapage_units::Bytes;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bring the cached pages of executables and libraries into folios of 2 MiB, which the kernel maps by huge pages
///
/// Every process that maps the file afterwards has its code and constants on huge pages, shared with all others;
/// nothing in it is remapped. Eviction undoes this: repeat it by a timer. It skips what is huge already. Running
/// processes keep the pages that they have mapped.
///
/// Exit status: 0 all that is possible was obtained; 1 some; 2 nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Executables or shared libraries (ELF, 64-bit)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Drop the files' cached pages instead, so that they come back in small folios
    #[arg(long)]
    undo: bool,
    /// Change nothing; print the equivalent shell lines
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.remap-prime/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a, T> {
    files: &'a [T],
}

const SCHEMA: &str = "megapage.remap-prime/1";

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    if args.undo {
        let (undone, failed) = each(&args.files, |file| undo(&root, file, args.dry_run));
        answer(args.json, SCHEMA, &Report { files: &undone }, || {
            undone.iter().map(human_undone).collect::<String>()
        })?;
        return Ok(status(undone.len(), failed, undone.iter().all(|file| file.left_bytes.unwrap_or(0) == 0)));
    }
    let (outcomes, failed) = each(&args.files, |file| prime(&root, file, args.dry_run));
    report(&outcomes, failed, args.json.then_some(SCHEMA))
}

/// Prints the results of priming, as JSON if a schema is given. Returns the exit status.
pub fn report(outcomes: &[Outcome], failed: bool, schema: Option<&str>) -> Result<ExitCode> {
    if let Some(schema) = schema {
        print(&(json(schema, &Report { files: outcomes }) + "\n"))?;
    } else {
        print(&outcomes.iter().map(human).collect::<String>())?;
    }
    let done = outcomes.iter().filter(|outcome| outcome.dry_run || outcome.obtained_bytes > Some(0)).count();
    for outcome in outcomes.iter().filter(|outcome| outcome.obtained_bytes == Some(0)) {
        if let Some(why) = &outcome.missing {
            crate::output::say(format!("{}: nothing is on huge pages: {why}", shown_path(&outcome.file)));
        }
    }
    Ok(status(done, failed || done < outcomes.len(), outcomes.iter().all(Outcome::is_complete)))
}

fn human(outcome: &Outcome) -> String {
    let file = shown_path(&outcome.file);
    let possible = Bytes(outcome.possible_bytes);
    if outcome.dry_run {
        let before = outcome.before_bytes.map_or(String::new(), |b| format!(", {} are now", Bytes(b)));
        let mut text = format!("# {file}: {possible} could be on huge pages{before}\n");
        for command in &outcome.commands {
            text += &format!("{command}\n");
        }
        return text;
    }
    let obtained = Bytes(outcome.obtained_bytes.unwrap_or(0));
    // Huge folios that no mapping can have by 2 MiB entries do not count as before.
    let before = match outcome.before_bytes.filter(|_| outcome.folio_bytes == outcome.obtained_bytes) {
        Some(before) => format!(" (before: {})", Bytes(before)),
        None => String::new(),
    };
    let mut text = format!("{file}: {obtained} of {possible} on huge pages{before}\n");
    if let Some(missing) = &outcome.missing {
        text += &format!("  the remainder: {missing}\n");
    }
    for user in outcome.users.iter().filter_map(User::barred).take(MOST_LISTED) {
        text += &format!("  stays on base pages there: {user}\n");
    }
    text + &users(&outcome.users)
}

fn human_undone(undone: &Undone) -> String {
    let file = shown_path(&undone.file);
    if undone.dry_run {
        return undone.commands.iter().map(|command| format!("{command}\n")).collect();
    }
    let left = match undone.left_bytes {
        Some(0) => "nothing of it is on huge pages now".to_string(),
        Some(left) if undone.users.is_empty() => {
            format!("{} stay on huge pages: another process uses them that this user cannot see", Bytes(left))
        }
        Some(left) => format!("{} stay on huge pages until the processes below end", Bytes(left)),
        None => "dropped, as far as no process maps it".to_string(),
    };
    format!("{file}: {left}\n{}", users(&undone.users))
}

/// Most users that are listed; `--json` has all.
const MOST_LISTED: usize = 10;

fn users(users: &[User]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let listed = users.iter().take(MOST_LISTED).map(|user| {
        [
            user.pid.to_string(),
            user.command.clone(),
            Bytes(user.mapped_bytes).to_string(),
            Bytes(user.huge_bytes).to_string(),
        ]
    });
    let mut text = table(&["RUNNING", "COMMAND", "MAPPED", "HUGE"], listed);
    if users.len() > MOST_LISTED {
        text += &format!("  and {} more processes\n", users.len() - MOST_LISTED);
    }
    text
}
