//! Old C libraries: the versions that the preloaded libraries need, and programs whose C library
//! lacks them.

use crate::run_support;
use crate::text_support;

use megapage_launch::versions;
use run_support::{compile, library, run, text};
use serde_json::Value;
use std::process::Command;
use text_support::text_library;

/// The oldest glibc that the libraries load with (docs/machines.md).
const OLDEST: (u32, u32) = (2, 17);

#[test]
fn the_preloaded_libraries_need_no_newer_glibc_than_is_promised() {
    for library in [library(), text_library()] {
        let needed = versions::needed(library).unwrap();
        assert!(!needed["libc.so.6"].is_empty(), "{needed:?}");
        for (file, versions) in &needed {
            let newer = |version: &&String| {
                let number = version.strip_prefix("GLIBC_").and_then(|number| number.split_once('.'));
                let part = |text: &str| text.split('.').next().unwrap().parse::<u32>().unwrap();
                number.is_some_and(|(major, minor)| (part(major), part(minor)) > OLDEST)
            };
            let newer: Vec<&String> = versions.iter().filter(newer).collect();
            assert!(
                newer.is_empty(),
                "{}: of {file} it needs {newer:?}; readelf -W --dyn-syms shows which symbols; \
                 crates/heap/glibc/symbols says what to do",
                library.display()
            );
        }
    }
}

#[test]
fn a_program_whose_c_library_is_too_old_runs_without_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let script = at.join("versions");
    std::fs::write(&script, "GLIBC_2.999 { global: answer; };\n").unwrap();
    let script = format!("-Wl,--version-script={}", script.display());
    let shared = ["-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed"];
    let newer = [&shared[..], &["-Wl,-soname,libc.so.6", &script]].concat();
    let Some(libc) = compile("gcc", at, "libc.so.6", "int answer(void) { return 42; }", &newer) else {
        return;
    };
    let source = "int answer(void); int ask(void) { return answer(); }";
    let arguments = [&shared[..], &[&libc]].concat();
    let Some(library) = compile("gcc", at, "libnewer.so", source, &arguments) else { return };
    let refused = Command::new("true").env("LD_PRELOAD", &library).output().unwrap();
    assert!(!refused.status.success() && text(&refused.stderr).contains("GLIBC_2.999"), "{refused:?}");

    let mut command = run(&["--json", "--report", "-", "--", "sh", "-c", "exit 3"]);
    let output = command.env("MEGAPAGE_LIBRARY", &library).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let considered = report["considered"].as_array().unwrap();
    let preload = considered.iter().find(|it| it["mechanism"] == "preload").unwrap();
    let reason = preload["reason"].as_str().unwrap();
    assert!(reason.starts_with("its libc.so.6 goes up to GLIBC_2."), "{reason}");
    assert!(reason.ends_with(", and the library needs GLIBC_2.999"), "{reason}");
}
