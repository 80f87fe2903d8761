//! Programs and libraries of other packages, which cargo builds only for tests that ask.

use std::env::var_os;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

/// Builds the workspace's programs and libraries in `directory` (`target/debug`, `target/release`).
/// In one run of cargo-nextest the first test that asks builds.
///
/// # Panics
/// Panics if they do not build.
pub fn build_programs(directory: &Path) {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let target = directory.parent().expect("a profile's directory lies in the target directory");
        // Names the run; each test of it is a process.
        let run = var_os("NEXTEST_RUN_ID").unwrap_or_default().into_encoded_bytes();
        let note = target.join("tmp/programs-built-in-run");
        if !run.is_empty() && fs::read(&note).is_ok_and(|built| built == run) {
            return;
        }
        // All members, or features of dependencies would differ and most would be compiled again.
        let mut build = Command::new(var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--workspace", "--exclude", "xtask", "--target-dir"]).arg(target);
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success(), "the programs and libraries are built");
        // Without the note the next test asks cargo again.
        let _ = fs::write(note, run);
    });
}
