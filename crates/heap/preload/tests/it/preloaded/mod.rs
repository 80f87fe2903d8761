//! Programs in C that run with the library preloaded.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library that this package builds; cargo does so for its tests' sake only where it is asked.
pub fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target directory");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(["build", "--quiet", "--package", "megapage-preload", "--target-dir"]).arg(target);
    assert!(build.status().expect("cargo starts").success(), "the library is built");
    target.join("debug/libmegapage.so")
}

/// The program, compiled from `tests/NAME.c` once for each test; `None`, after a loud skip, without a compiler.
pub fn program(name: &str, test: &str) -> Option<PathBuf> {
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

/// What the program says and how it ends, with its heap as `heap` (MEGAPAGE_HEAP) says.
pub fn preloaded(program: &Path, arguments: &[&str], heap: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library()).env("MEGAPAGE_HEAP", heap);
    command.output().expect("the program starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A part of `tests/NAME.c` ends well, with the heap on huge pages and without.
pub fn passes(name: &str, part: &str) {
    let Some(program) = program(name, part) else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part], heap);
        assert!(run.status.success(), "{part}, {heap}: {}: {}", run.status, text(&run.stderr));
    }
}
