//! The mmap family (src/mappings.rs), compared with the kernel's own answers in a program of its own.
//!
//! MEGAPAGE_MAPPED_CALLS says how many calls are made; 1,000,000 take some ten minutes. MEGAPAGE_MAPPED_SEED chooses them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CALLS: &str = "20000";

/// The library that this package builds; cargo does so for its tests' sake only where it is asked.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target directory");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(["build", "--quiet", "--package", "megapage-preload", "--target-dir"]).arg(target);
    assert!(build.status().expect("cargo starts").success(), "the library is built");
    target.join("debug/libmegapage.so")
}

/// The program, compiled from `tests/NAME.c` once for each test; `None`, after a loud skip, without a compiler.
fn program(name: &str, test: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
    let built = Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(here).output();
    match built {
        Ok(built) if built.status.success() => Some(program),
        failed => {
            megapage_testing::skip(&format!("needs a C compiler: {failed:?}"));
            None
        }
    }
}

fn preloaded(program: &Path, arguments: &[&str], heap: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library()).env("MEGAPAGE_HEAP", heap);
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The figure before `word`.
fn figure(said: &str, word: &str) -> u64 {
    let words: Vec<&str> = said.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|it| *it == word).unwrap_or_else(|| panic!("no {word} in: {said}"));
    words[at - 1].parse().expect("a number")
}

#[test]
fn the_mmap_family_answers_as_the_kernel_does() {
    let Some(program) = program("mapped", "calls") else { return };
    let calls = std::env::var("MEGAPAGE_MAPPED_CALLS").unwrap_or(CALLS.into());
    let seed = std::env::var("MEGAPAGE_MAPPED_SEED").unwrap_or("1".into());
    let run = preloaded(&program, &[&calls, &seed], "thp");
    let said = text(&run.stdout);
    assert!(run.status.success(), "{}: {said}{}", run.status, text(&run.stderr));
    assert_eq!(figure(&said, "calls").to_string(), calls);
    if megapage_kernel::thp_is_possible() {
        assert!(figure(&said, "advised") > 0, "nothing of the library's was at work: {said}");
    } else {
        megapage_testing::skip("needs transparent huge pages");
    }
    // Now and then the kernel does not merge what it could, by what lies beside it: on our side no more often.
    let (ours, twin) = (figure(&said, "ours"), figure(&said, "twin"));
    assert!(ours <= twin + 3 + calls.parse::<u64>().unwrap() / 10_000, "{said}");
    let without = preloaded(&program, &["5000", &seed], "none");
    assert!(without.status.success() && text(&without.stdout).contains(" 0 advised"), "{without:?}");
}

#[test]
fn what_is_mapped_within_advised_memory_moves_with_it() {
    let Some(program) = program("mapped", "merge") else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &["merge"], heap);
        let said = text(&run.stdout);
        assert!(run.status.success(), "{heap}: {said}{}", text(&run.stderr));
        assert_eq!(figure(&said, "moved"), 56, "{heap}: as without the library");
    }
}
