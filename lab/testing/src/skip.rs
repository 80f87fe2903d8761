//! Skips that cannot be overlooked.

use std::fs::OpenOptions;
use std::io::Write;

/// Environment variable: a file to which every skip is appended as a line.
pub const SKIPPED_VARIABLE: &str = "MEGAPAGE_SKIPPED";
/// Environment variable: when set, a skip fails the test.
pub const NO_SKIP_VARIABLE: &str = "MEGAPAGE_NO_SKIP";

/// Environment variable: when set, tests may change state of the whole machine, such as pools of
/// hugetlb pages, for their duration. `scripts/with-usual-settings` sets it.
pub const MACHINE_VARIABLE: &str = "MEGAPAGE_TEST_MACHINE";

/// Prints `SKIPPED: TEST: why` on standard error, where libtest cannot capture it, and in the file
/// that `MEGAPAGE_SKIPPED` names. The caller then returns.
///
/// # Panics
/// If `MEGAPAGE_NO_SKIP` is set, or the file cannot be written.
pub fn skip(why: &str) {
    skip_scarce(why);
    assert!(std::env::var_os(NO_SKIP_VARIABLE).is_none(), "{NO_SKIP_VARIABLE} is set: {why}");
}

/// Skips as [`skip`] does, and fails no test. It is for a resource that a running machine may lack
/// without a fault. An example is a free page of 1 GiB some time after the boot.
///
/// # Panics
/// If the file cannot be written.
pub fn skip_scarce(why: &str) {
    let thread = std::thread::current();
    let child = std::env::var(crate::refuse::CHILD_VARIABLE).ok();
    let test = child.as_deref().or(thread.name()).unwrap_or("(unnamed thread)");
    let line = format!("SKIPPED: {test}: {why}\n");
    // Only the print macros are captured; the handle itself is not. Losing the line to a closed
    // descriptor is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(SKIPPED_VARIABLE) {
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("{SKIPPED_VARIABLE}={}: {error}", path.display());
        }
    }
}

/// Returns true if the effective user is root.
pub fn is_root() -> bool {
    megapage_kernel::effective_uid() == 0
}

/// Checks that tests may change the machine: as root, and if [`MACHINE_VARIABLE`] is set. The error
/// has the reason.
pub fn may_change_machine() -> Result<(), String> {
    if !is_root() {
        return Err("not root".into());
    }
    match std::env::var_os(MACHINE_VARIABLE) {
        Some(_) => Ok(()),
        None => Err(format!("{MACHINE_VARIABLE} is not set (make test)")),
    }
}

/// Returns true if tests may change the machine; skips if they may not.
pub fn require_machine() -> bool {
    let may = may_change_machine();
    if let Err(why) = &may {
        skip(why);
    }
    may.is_ok()
}

/// Returns true if the effective user is root; skips if it is not.
pub fn require_root() -> bool {
    if !is_root() {
        skip("needs root");
    }
    is_root()
}
