//! `megapage remap` as a user meets it: reports, messages, exit statuses.

use crate::user;

use megapage_report::WIDTH;
use megapage_testing::{MachineLock, skip};
use std::fs;
use std::path::Path;
use std::process::Command;
use user::{MEGAPAGE, Said, megapage};

fn remap(arguments: &[&str]) -> Said {
    megapage(&[&["remap"][..], arguments].concat())
}

fn refused(arguments: &[&str], expected: &str) {
    user::refused(&[&["remap"][..], arguments].concat(), expected);
}

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["check", "/nothing/there"], "/nothing/there: No such file");
    refused(&["check", "/etc/passwd"], "not an ELF executable or library");
    refused(&["check", "/etc"], "/etc: not a regular file");
    refused(&["check"], "required arguments were not provided");
    refused(&["prime", "/bin/ls"], "no part of it can be mapped by huge pages");
    refused(&["prime", "--undo", "/etc/passwd"], "not an ELF executable or library");
    refused(&["prime", "--keep", "/bin/ls"], "unexpected argument '--keep'");
    refused(&["align", "/bin/ls", "out"], "remap align is gone: megapage run --text thp");
    refused(&["move", "/bin/ls"], "unrecognized subcommand 'move'");
}

#[test]
fn a_check_fits_the_width_and_its_json_has_the_same() {
    let said = remap(&["check", MEGAPAGE, "/bin/ls"]);
    // There is nothing to gain in ls.
    assert_eq!((said.status, said.err.as_str()), (1, ""));
    assert!(said.out.lines().all(|line| line.starts_with('/') || line.chars().count() <= WIDTH as usize));
    assert!(said.out.contains("position-independent executable") && said.out.contains("r-x"), "{}", said.out);
    let said = remap(&["check", "--json", MEGAPAGE, "/bin/ls", "/etc/passwd"]);
    assert_eq!(said.status, 1);
    assert!(said.err.contains("/etc/passwd") && said.err.lines().count() == 1, "{}", said.err);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["schema"], "megapage.remap-check/2");
    let files = json["files"].as_array().unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!((&files[0]["file"], &files[0]["placement"]), (&MEGAPAGE.into(), &"independent".into()));
    let segments = files[0]["segments"].as_array().unwrap();
    let code = segments.iter().find(|segment| segment["execute"] == true).unwrap();
    assert_eq!(code["write"], false);
    assert!(code["file_size"].as_u64().unwrap() > 2 << 20);
    assert_eq!((&files[1]["prime_bytes"], &files[1]["anonymous_bytes"]), (&0.into(), &0.into()));
}

/// Compiles a program with 8 MiB of code at fixed addresses. Returns `None` without a compiler.
fn large(directory: &Path, name: &str) -> Option<String> {
    let (source, program) = (directory.join("large.c"), directory.join(name));
    fs::write(&source, "int main(void) { return 0; }\n__asm__(\".text\\n.skip 8 << 20, 0x90\\n\");\n")
        .unwrap();
    let compiled = Command::new("gcc").arg("-no-pie").arg(&source).arg("-o").arg(&program).output().ok()?;
    assert!(compiled.status.success(), "{compiled:?}");
    Some(program.to_str().unwrap().to_string())
}

#[test]
fn priming_says_the_same_in_all_its_forms() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(out) = large(directory.path(), "large") else { return skip("needs gcc") };
    let out = out.as_str();
    let said = remap(&["check", "--json", out]);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let after = json["files"][0]["prime_bytes"].as_u64().unwrap();
    assert!(after >= 6 << 20, "{}", said.out);
    // The dry run shows the possible gain, and primes nothing.
    let said = remap(&["prime", "--json", "--dry-run", out]);
    assert_eq!((said.status, said.err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (&json["schema"], &json["files"][0]["dry_run"]),
        (&"megapage.remap-prime/1".into(), &true.into())
    );
    assert_eq!(json["files"][0]["possible_bytes"], after);
    assert_eq!(json["files"][0]["obtained_bytes"], serde_json::Value::Null);
    // Status and report agree, with or without large folios in the file system.
    let said = remap(&["prime", out]);
    assert!(said.out.contains(" on huge pages (before: "), "{}", said.out);
    assert_eq!(said.status == 0, !said.out.contains("the remainder: "), "{}", said.out);
    // The kernel itself may hold a page for a moment, so that the page stays.
    let gone = (0..50).any(|_| {
        let said = remap(&["prime", "--undo", out]);
        assert_eq!(said.status == 0, said.out.contains("nothing of it is on huge pages now"), "{}", said.out);
        said.status == 0
    });
    assert!(gone, "50 times something stayed");
}

/// Returns a shipped file for systemd, filled in for `program`.
fn shipped(name: &str, program: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd").join(name);
    fs::read_to_string(path).unwrap().replace("@PREFIX@/bin/megapage", program)
}

#[test]
fn the_units_that_keep_a_file_primed_are_understood_by_systemd() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["megapage-prime@.service", "megapage-prime@.timer"] {
        // A program that exists, so that only the units are judged.
        fs::write(directory.path().join(name), shipped(name, "/bin/true")).unwrap();
    }
    for name in ["megapage-prime@.service", "megapage-prime@.timer"] {
        let path = directory.path().join(name);
        let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
        let Ok(said) = verify else { return skip("there is no systemd-analyze to judge the units") };
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!errors.contains("megapage-prime@"), "{errors}");
    }
    // A file system that hangs does not block the service, and the service has few rights.
    assert!(shipped("megapage-prime@.service", "").lines().any(|line| line.starts_with("TimeoutStartSec=")));
    let mut exposure = Command::new("systemd-analyze");
    exposure.args(["security", "--offline=true", "--threshold=25"]);
    let said = exposure.arg(directory.path().join("megapage-prime@.service")).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn what_the_unit_runs_brings_back_what_was_evicted() {
    let _lock = MachineLock::take();
    // Not on a file system in memory, where a file cannot be primed.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let unit = shipped("megapage-prime@.service", MEGAPAGE);
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap().to_string();
    let program = |name: &str| large(directory.path(), name);
    let (Some(file), Some(other)) = (program("file"), program("other")) else { return skip("needs gcc") };
    let on_huge_pages = |file: &str| {
        let check: serde_json::Value = serde_json::from_str(&remap(&["check", "--json", file]).out).unwrap();
        check["files"][0]["now_bytes"].as_u64().unwrap_or(0) > 0
    };
    // Runs the unit's command. Returns true if any of the file is on huge pages then.
    let primed = |file: &str| {
        let line = line.replace("%f", file);
        let words: Vec<&str> = line.split(' ').collect();
        let ran = Command::new(words[0]).args(&words[1..]).output().unwrap();
        // As in the unit, 1 is a success, too.
        assert!(matches!(ran.status.code(), Some(0 | 1)), "{ran:?}");
        on_huge_pages(file)
    };
    let undone = |file: &str| remap(&["prime", "--undo", file]);
    if !primed(&other) {
        return skip("needs a file system with large folios, and free huge pages");
    }
    assert!(primed(&file));
    undone(&file);
    assert!(!on_huge_pages(&file));
    assert!(primed(&file), "it was not brought back");
}
