//! `megapage thp`: settings shown, refused and kept. No setting of this machine is changed.

use crate::user;

use std::fs;
use user::{megapage, refused};

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["thp", "set"], "no setting is named");
    refused(&["thp", "set", "enabled"], "'enabled' is not a setting; write NAME=VALUE");
    refused(
        &["thp", "set", "enabled=sometimes"],
        "enabled: 'sometimes' is not one of always, madvise, never",
    );
    refused(&["thp", "set", "../../x=1"], "this kernel has no setting '../../x'");
    refused(&["thp", "set", "enabled=never", "enabled=never"], "enabled is given twice");
    refused(&["thp", "get", "nothing"], "this kernel has no setting 'nothing'; it has");
    refused(&["thp", "persist"], "required");
    refused(
        &["thp", "persist", "enabled=never", "--root", "/nonexistent"],
        "'/nonexistent' is not a directory",
    );
    refused(&["thp", "persist", "enabled=never", "--remove"], "cannot be used with");
}

#[test]
fn settings_are_shown_and_a_dry_run_prints_shell_lines() {
    let shown = megapage(&["thp", "get", "enabled", "--json"]);
    assert_eq!(shown.status, 0, "{}", shown.err);
    let document: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert!(shown.out.contains("\"schema\": \"megapage.thp-get/1\""), "{}", shown.out);
    let text = document.to_string();
    let now = ["always", "madvise", "never"]
        .into_iter()
        .find(|word| text.contains(&format!("\"value\":\"{word}\"")));
    let other = if now == Some("never") { "madvise" } else { "never" };
    let dry = megapage(&["thp", "set", &format!("enabled={other}"), "--dry-run"]);
    assert_eq!(
        (dry.status, dry.out.starts_with(&format!("echo {other} > /"))),
        (0, true),
        "{}{}",
        dry.out,
        dry.err
    );
    let same = megapage(&["thp", "set", &format!("enabled={}", now.unwrap()), "--dry-run"]);
    assert!(same.out.starts_with("# enabled is "), "{}", same.out);
    assert_eq!(megapage(&["thp", "get", "enabled", "--json"]).out, shown.out, "nothing was changed");
    assert!(megapage(&["thp", "get"]).out.lines().count() > 5);
}

#[test]
fn settings_are_kept_below_another_root_and_removed() {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().to_str().unwrap();
    let file = top.path().join("etc/tmpfiles.d/60-megapage-thp.conf");
    let dry = megapage(&["thp", "persist", "enabled=madvise", "--root", root, "--dry-run"]);
    assert!(
        dry.status == 0 && dry.out.contains(" - - - - madvise\n") && !file.exists(),
        "{}{}",
        dry.out,
        dry.err
    );
    let kept = megapage(&["thp", "persist", "enabled=madvise", "--root", root]);
    assert!(kept.status == 0 && kept.out.starts_with("wrote "), "{}{}", kept.out, kept.err);
    assert!(dry.out.contains(&fs::read_to_string(&file).unwrap()), "{}", dry.out);
    fs::create_dir_all(top.path().join("etc/tuned/mine")).unwrap();
    fs::write(top.path().join("etc/tuned/active_profile"), "mine\n").unwrap();
    fs::write(top.path().join("etc/tuned/mine/tuned.conf"), "[vm]\ntransparent_hugepages=always\n").unwrap();
    let again = megapage(&["thp", "persist", "enabled=madvise", "--root", root]);
    assert!(
        again.out.contains("already as requested") && again.out.contains("# Note: tuned's profile mine"),
        "{}",
        again.out
    );
    let removed = megapage(&["thp", "persist", "--remove", "--root", root]);
    assert!(removed.out.starts_with("removed ") && !file.exists(), "{}{}", removed.out, removed.err);
    fs::write(&file, "w /x - - - - y\n").unwrap();
    refused(&["thp", "persist", "--remove", "--root", root], "was not written by megapage");
}
