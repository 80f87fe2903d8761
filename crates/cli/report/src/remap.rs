//! Code and constants of programs on huge pages: possible gains of files, and results.

use crate::text::{cells, lines};
use crate::{shown_path, table};
use megapage_remap::check::Check;
use megapage_remap::prime::{Outcome, Undone};
use megapage_remap::{Placement, User};
use megapage_units::Bytes;
use megapage_units::shown::one_line;

/// Returns the segments of a file with their possible gains.
pub fn check(check: &Check) -> String {
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
        let rights: String =
            [right(segment.read, 'r'), right(segment.write, 'w'), right(segment.execute, 'x')]
                .iter()
                .collect();
        cells![
            rights,
            format!("{:#x}", segment.offset),
            format!("{:#x}", segment.address),
            Bytes(segment.file_size),
            Bytes(part.bss_bytes),
            Bytes(segment.align),
            if part.congruent { "yes" } else { "no" },
            Bytes(part.prime_bytes),
            Bytes(part.anonymous_bytes),
        ]
    });
    text +=
        &table(&["", "OFFSET", "ADDRESS", "IN FILE", "BSS", "ALIGN", "AGREE", "PRIME", "ANONYMOUS"], rows);
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

/// Returns the result of priming a file.
pub fn primed(outcome: &Outcome) -> String {
    let file = shown_path(&outcome.file);
    let possible = Bytes(outcome.possible_bytes);
    if outcome.dry_run {
        let before = outcome.before_bytes.map_or(String::new(), |b| format!(", {} are now", Bytes(b)));
        let head = format!("# {file}: {possible} could be on huge pages{before}\n");
        return head + &lines(&outcome.commands);
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

/// Returns the result of dropping a file's cached pages.
pub fn undone(undone: &Undone) -> String {
    let file = shown_path(&undone.file);
    if undone.dry_run {
        return lines(&undone.commands);
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
    let listed = users
        .iter()
        .take(MOST_LISTED)
        .map(|user| cells![user.pid, user.command, Bytes(user.mapped_bytes), Bytes(user.huge_bytes)]);
    let mut text = table(&["RUNNING", "COMMAND", "MAPPED", "HUGE"], listed);
    if users.len() > MOST_LISTED {
        text += &format!("  and {} more processes\n", users.len() - MOST_LISTED);
    }
    text
}
