//! Programs in C that run with the library preloaded.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the workspace and returns the path of a library of it.
pub fn built(library: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target directory");
    megapage_testing::build_programs(&target.join("debug"));
    target.join("debug").join(library)
}

/// Compiles the program from `tests/NAME.c`, once for each test. Returns `None`, after a loud skip,
/// without a compiler.
pub fn program(name: &str, test: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
    compile(name, &program, &["-rdynamic"]).then_some(program)
}

/// Compiles `tests/NAME.c` to `to`. Returns false, after a loud skip, without a compiler.
pub fn compile(name: &str, to: &Path, options: &[&str]) -> bool {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let built =
        Command::new("cc").args(["-O1", "-w", "-pthread"]).args(options).arg("-o").arg(to).arg(here).output();
    match built {
        Ok(built) if built.status.success() => true,
        Ok(failed) => panic!("{name}.c does not compile: {}", text(&failed.stderr)),
        Err(error) => {
            megapage_testing::skip(&format!("needs a C compiler: {error}"));
            false
        }
    }
}

/// Returns the command of a program whose heap is as `heap` (MEGAPAGE_HEAP) says.
pub fn command(program: &Path, heap: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", built("libmegapage.so")).env("MEGAPAGE_HEAP", heap);
    command
}

/// Runs the program, with its heap as `heap` says, until it ends.
pub fn preloaded(program: &Path, arguments: &[&str], heap: &str) -> Output {
    command(program, heap).args(arguments).output().expect("the program starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that a part of `tests/NAME.c` ends well, with the heap on huge pages and without.
pub fn passes(name: &str, part: &str) {
    let Some(program) = program(name, part) else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part], heap);
        assert!(run.status.success(), "{part}, {heap}: {}: {}", run.status, text(&run.stderr));
    }
}
