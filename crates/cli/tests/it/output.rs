//! Readers that go away before everything is printed, as `head` does: that is no failure.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let own = std::process::id().to_string();
    let commands: [&[&str]; 5] = [
        &["doctor", "--only-read"],
        &["doctor", "--only-read", "--json"],
        &["doctor", "--why", &own],
        &["pool", "list"],
        &["pool", "list", "--json"],
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_megapage"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.is_empty(), "{arguments:?}: {said}");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {:?}", output.status);
    }
}

#[test]
fn without_a_command_the_commands_are_listed() {
    let output = Command::new(env!("CARGO_BIN_EXE_megapage")).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    for command in ["run", "doctor", "advise", "map", "top"] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{said}");
    }
}
