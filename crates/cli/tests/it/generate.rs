//! The manual pages and completions that `megapage generate` writes, judged by their readers: man,
//! mandoc, lexgrog, and the shells.

use crate::user;

use megapage_testing::skip;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use user::MEGAPAGE;

/// The directory `share` of a prefix, with its files installed.
struct Share(tempfile::TempDir);

impl Share {
    fn new() -> Share {
        let share = Share(tempfile::tempdir().unwrap());
        let output = Command::new(MEGAPAGE)
            .args(["generate", "--date", "2026-11-24"])
            .arg(share.0.path().join("share"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        share
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("share").join(name)
    }

    fn pages(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("man/man1")).unwrap();
        let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        pages.sort();
        pages
    }
}

/// A command line below `megapage`, with the options that its help names.
struct Shown {
    words: Vec<String>,
    flags: BTreeSet<String>,
}

/// Returns all commands as a user finds them: by the help of each.
fn commands() -> Vec<Shown> {
    let (mut found, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(words) = open.pop() {
        let help = Command::new(MEGAPAGE).args(&words).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let section = |title: &'static str| {
            help.lines().skip_while(move |line| *line != title).skip(1).take_while(|line| !line.is_empty())
        };
        for line in section("Commands:") {
            // A name is indented by two columns; deeper lines continue a description.
            let Some(name) = line.strip_prefix("  ").filter(|name| !name.starts_with(' ')) else { continue };
            let name = name.split_whitespace().next().unwrap().to_string();
            if name != "help" {
                open.push(words.iter().cloned().chain([name]).collect());
            }
        }
        let flags = help.lines().map(str::trim).filter_map(|line| {
            let line = line.strip_prefix("-h, ").or(line.strip_prefix("-V, ")).unwrap_or(line);
            line.starts_with("--").then(|| line.split([' ', '[', '=']).next().unwrap().to_string())
        });
        let flags = flags.filter(|flag| flag.len() > 2).collect();
        found.push(Shown { words, flags });
    }
    assert!(found.len() > 20, "{}", found.len());
    assert!(found.iter().any(|shown| shown.flags.contains("--heap")));
    found
}

/// Returns true if a tool is installed; skips the test if not.
fn has(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()));
    if !found {
        skip(&format!("there is no {tool} (scripts/install-deps test)"));
    }
    found
}

/// Runs a tool without a terminal and in plain English, and returns its output.
fn ran(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "100").output().unwrap()
}

fn accepted(command: &mut Command) -> String {
    let output = ran(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_has_a_page_with_every_option() {
    let share = Share::new();
    let mut names = BTreeSet::new();
    for Shown { words, flags } in commands() {
        let name = ["megapage".to_string()].into_iter().chain(words).collect::<Vec<_>>().join("-") + ".1";
        let page = fs::read_to_string(share.path("man/man1").join(&name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        // Pages escape a hyphen.
        let page = page.replace("\\-", "-");
        for flag in flags {
            assert!(page.contains(&format!("\\fB{flag}\\fR")), "{name} lacks {flag}");
        }
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "FILES"] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} lacks {section}");
        }
        names.insert(name);
    }
    let written: BTreeSet<String> =
        share.pages().iter().map(|page| page.file_name().unwrap().to_str().unwrap().to_string()).collect();
    assert_eq!(written, names, "a page for each command, and no other");
}

#[test]
fn pages_name_only_pages_that_are_there() {
    let share = Share::new();
    let mut references = 0;
    for page in share.pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix(".BR ")) {
            let name = line.split_whitespace().next().unwrap().replace("\\-", "-");
            assert!(share.path("man/man1").join(format!("{name}.1")).exists(), "{}: {name}", page.display());
            references += 1;
        }
    }
    assert!(references > share.pages().len());
}

#[test]
fn man_formats_every_page_without_a_warning() {
    if !has("man") {
        return;
    }
    let share = Share::new();
    for page in share.pages() {
        let text = accepted(Command::new("man").args(["--warnings=w", "-l"]).arg(&page));
        assert!(text.contains("SYNOPSIS") && text.contains("--help"), "{}: {text}", page.display());
    }
}

#[test]
fn mandoc_finds_nothing_wrong_with_a_page() {
    if !has("mandoc") {
        return;
    }
    let share = Share::new();
    let output = ran(Command::new("mandoc").args(["-Tlint", "-Wwarning"]).args(share.pages()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn whatis_can_index_every_page() {
    if !has("lexgrog") {
        return;
    }
    let share = Share::new();
    for page in share.pages() {
        let said = accepted(Command::new("lexgrog").arg(&page));
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(said.contains(&format!("\"{name} - ")), "{said}");
    }
}

#[test]
fn shells_accept_their_completions() {
    let share = Share::new();
    for (shell, path) in [
        ("bash", "bash-completion/completions/megapage"),
        ("zsh", "zsh/site-functions/_megapage"),
        ("fish", "fish/vendor_completions.d/megapage.fish"),
    ] {
        let path = share.path(path);
        assert!(path.exists(), "{}", path.display());
        if has(shell) {
            accepted(Command::new(shell).arg("-n").arg(path));
        }
    }
}

/// Returns the words that bash offers when Tab follows `line`.
fn offered_by_bash(script: &Path, line: &str) -> BTreeSet<String> {
    let ask = r#"
        source "$1"
        COMP_WORDS=($2) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$2 COMP_POINT=${#2}
        [[ $2 != *' ' ]] || { COMP_WORDS+=(''); COMP_CWORD=$((COMP_CWORD + 1)); }
        _megapage megapage "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let words = accepted(Command::new("bash").args(["--norc", "-c", ask, "bash"]).arg(script).arg(line));
    words.lines().map(str::to_string).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    if !has("bash") {
        return;
    }
    let share = Share::new();
    let script = share.path("bash-completion/completions/megapage");
    let is = |line: &str, wanted: &[&str]| {
        let wanted: BTreeSet<String> = wanted.iter().map(ToString::to_string).collect();
        assert_eq!(offered_by_bash(&script, line), wanted, "{line}");
    };
    is("megapage do", &["doctor"]);
    is("megapage gen", &[""]); // hidden from users
    is("megapage pool per", &["persist"]);
    is("megapage run --req", &["--require"]);
    is("megapage pool persist --loader ", &["auto", "grub", "systemd-boot"]);
    let offered = offered_by_bash(&script, "megapage ");
    for Shown { words, .. } in commands().iter().filter(|shown| shown.words.len() == 1) {
        assert!(offered.contains(&words[0]), "{} is not among {offered:?}", words[0]);
    }
}

#[test]
fn fish_completes_commands_and_options() {
    if !has("fish") {
        return;
    }
    let share = Share::new();
    let script = share.path("fish/vendor_completions.d/megapage.fish");
    for (line, wanted) in
        [("megapage do", "doctor"), ("megapage pool per", "persist"), ("megapage run --req", "--require")]
    {
        let output = ran(Command::new("fish")
            .args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"])
            .arg(&script)
            .arg(line)
            .env("HOME", share.path("")));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.lines().any(|line| line.split('\t').next() == Some(wanted)), "{line}: {said}");
    }
}
