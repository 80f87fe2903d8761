//! The library does not disturb its program: in programs that each try one thing.

use crate::preloaded;

use preloaded::{compile, passes, preloaded, program, text};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

#[test]
fn a_signals_handler_forks_in_the_midst_of_malloc() {
    passes("guest", "fork_in_malloc");
}

#[test]
fn a_signals_handler_forks_in_the_midst_of_mmap() {
    passes("guest", "fork_in_mmap");
}

#[test]
fn a_signals_handler_forks_beside_a_thread_of_the_librarys() {
    passes("guest", "fork_beside_a_thread");
}

#[test]
fn a_signals_handler_forks_in_a_thread_that_shares_heaps() {
    passes("guest", "fork_in_young_threads");
}

#[test]
fn a_signals_handler_forks_beside_threads_that_give_memory_back() {
    passes("guest", "fork_beside_returns");
}

#[test]
fn a_program_that_forbids_itself_system_calls_lives() {
    passes("guest", "confined");
}

#[test]
fn a_program_that_forbids_all_its_threads_system_calls_lives() {
    passes("guest", "confined_with_all_threads");
}

#[test]
fn a_program_is_executed_from_a_small_stack() {
    passes("guest", "small_stack");
}

#[test]
fn malloc_tells_what_is_in_use() {
    passes("guest", "statistics");
}

#[test]
fn a_block_that_is_freed_twice_in_a_row_ends_the_program() {
    let [tcache, larger] =
        ["free(): double free detected in tcache 2\n", "double free or corruption (!prev)\n"];
    for (part, glibcs) in
        [("free_twice_small", tcache), ("free_twice_medium", larger), ("free_twice_large", larger)]
    {
        let Some(program) = program("guest", part) else { return };
        let run = preloaded(&program, &[part], "thp");
        assert_eq!(run.status.signal(), Some(libc::SIGABRT), "{part}: {}", run.status);
        assert_eq!(text(&run.stderr), glibcs);
    }
}

#[test]
fn a_deeply_bound_library_finds_its_own_functions_and_our_malloc() {
    let part = "deeply_bound";
    let Some(program) = program("guest", part) else { return };
    let plugin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-plugin.so");
    if !compile("plugin", &plugin, &["-shared", "-fPIC"]) {
        return;
    }
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part, plugin.to_str().unwrap()], heap);
        assert!(run.status.success(), "{heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn names_that_a_program_defines_are_not_called() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-own-names");
    if !compile("own_names", &program, &["-fno-builtin", "-rdynamic"]) {
        return;
    }
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[], heap);
        assert!(run.status.success(), "{heap}: {}: {}", run.status, text(&run.stderr));
    }
}

/// Runs a program with the library that executes these words. Returns the exit status, and the text
/// on stderr.
fn executed(starter: &Path, words: &[&str], path: &Path) -> (Option<i32>, String) {
    let mut command = preloaded::command(starter, "thp");
    let run = command.args(words).arg("look").env("PATH", path).output().expect("it starts");
    (run.status.code(), text(&run.stderr))
}

const WITH: (Option<i32>, String) = (Some(3), String::new());
const WITHOUT: (Option<i32>, String) = (Some(4), String::new());

#[test]
fn the_library_goes_along_where_the_executed_program_loads_it() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let file = |name: &str| -> PathBuf { here.join(name) };
    let script = |name: &str, text: String| {
        std::fs::write(file(name), text).unwrap();
        std::fs::set_permissions(file(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    if !compile("executed", &file("dynamic"), &[]) || !compile("executed", &file("static"), &["-static"]) {
        return;
    }
    for kind in ["dynamic", "static"] {
        script(&format!("{kind}-script"), format!("#! {} look\n", file(kind).display()));
        script(&format!("{kind}-twice"), format!("#!{}\n", file(&format!("{kind}-script")).display()));
    }
    for form in ["", "-script", "-twice"] {
        for (kind, expected) in [("dynamic", WITH), ("static", WITHOUT)] {
            let name = format!("{kind}{form}");
            let path = file(&name).display().to_string();
            let starter = file("dynamic");
            assert_eq!(executed(&starter, &[&name], here), expected, "{name} by its name");
            assert_eq!(executed(&starter, &[&path], here), expected, "{name} by its path");
        }
    }
}

#[test]
fn a_program_in_a_new_root_is_started_without_a_word() {
    if !megapage_testing::require_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    if !compile("executed", &root.path().join("dynamic"), &[]) {
        return;
    }
    let loaders = ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"];
    let directories = ["lib64", "usr/lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];
    let libraries = directories.map(|directory| format!("{directory}/libc.so.6"));
    for file in libraries.iter().map(String::as_str).chain(loaders) {
        let to = root.path().join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        // Each machine has one of the loaders, and the library at one place.
        let _ = std::fs::copy(Path::new("/").join(file), to);
    }
    let starter = root.path().join("dynamic");
    let at = root.path().to_str().unwrap();
    let plain = std::process::Command::new(&starter).args(["-r", at, "/dynamic", "look"]).output().unwrap();
    if plain.status.code() != Some(4) {
        megapage_testing::skip(&format!("needs a new root to start in: {plain:?}"));
        return;
    }
    assert_eq!(executed(&starter, &["-r", at, "/dynamic"], Path::new("/")), WITHOUT);
}
