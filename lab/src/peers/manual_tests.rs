//! Tests that docs/lab.md has the tables of peers.

use super::{KERNEL_SETTINGS, KERNEL_SOURCE, PEERS};

/// Returns the allocators and ways to start as a table in Markdown.
fn allocators_table() -> String {
    let mut text = String::from("| peer | settings | why |\n|---|---|---|\n");
    for peer in PEERS {
        let why = match peer.source.starts_with("https:") {
            true => format!("{} ([source]({}))", peer.why, peer.source),
            false => peer.why.to_string(),
        };
        text += &format!("| {} | `{}` | {why} |\n", peer.name, peer.recipe());
    }
    text
}

/// Returns the kernel's settings as a table in Markdown.
fn kernel_table() -> String {
    let mut text = String::from("| setting | transparent huge pages | why |\n|---|---|---|\n");
    for setting in KERNEL_SETTINGS {
        let lines = setting.controls.shell_lines();
        let short = |line: &String| {
            let (value, path) = line.trim_start_matches("echo ").split_once(" > ").unwrap_or((line, ""));
            let file = path.rsplit('/').next().unwrap_or(path);
            format!("{file} {value}")
        };
        let settings: Vec<String> = lines.iter().map(short).collect();
        text += &format!("| {} | {} | {} |\n", setting.name, settings.join(", "), setting.why);
    }
    text + &format!("\nThe [kernel's documentation]({KERNEL_SOURCE}) describes these settings.\n")
}

#[test]
fn every_peer_and_setting_has_a_row() {
    let (allocators, kernel) = (allocators_table(), kernel_table());
    assert_eq!(allocators.lines().count(), PEERS.len() + 2);
    for peer in PEERS {
        assert!(allocators.contains(&format!("\n| {} | `", peer.name)), "{allocators}");
    }
    let row = "| thp-hard-64 | pages_to_scan 1048576, scan_sleep_millisecs 0, alloc_sleep_millisecs 0, \
               max_ptes_none 64, shrink_underused 1, enabled always | ";
    assert!(kernel.contains(row), "{kernel}");
    assert!(kernel.contains("| thp-never | enabled never | "), "{kernel}");
}

#[test]
fn the_manual_has_both_tables() {
    let manual = include_str!("../../../docs/lab.md");
    for table in [allocators_table(), kernel_table()] {
        assert!(manual.contains(&table), "docs/lab.md: replace the table of peers by\n{table}");
    }
}
