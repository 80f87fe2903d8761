//! Programs as a test starts them, and waits for their effects.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Checks that a program refused its request: with this exit status, nothing on standard output,
/// and one line on standard error. The line begins with the name of one of ours and holds
/// `expected`.
///
/// # Panics
/// If one of these does not hold.
#[track_caller]
pub fn assert_refused(output: &Output, status: i32, expected: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{:?}: {message}", output.status.signal());
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(message.starts_with("megapage"), "{message}");
    assert!(message.contains(expected), "expected '{expected}' in: {message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

/// Copies a program by another process. A child that another test starts may hold our descriptor
/// open for writing. A file that is open for writing cannot be executed (ETXTBSY).
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copied(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").args([from, to]).status().expect("cp(1)");
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

/// Writes an executable script, also by another process.
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn script(path: &Path, content: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "rm -f \"$0\" && cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh(1)");
    writer.stdin.take().expect("piped").write_all(content.as_bytes()).expect("sh(1) reads");
    assert!(writer.wait().expect("a child").success(), "{}", path.display());
}

/// Longest wait of a test for an event that always comes: on a busy machine it may take very long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `of` returns a value.
///
/// # Panics
/// If it has not within [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, of: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, of)
}

/// Does the same with another patience.
///
/// # Panics
/// If it has not returned one by then.
#[track_caller]
pub fn until_within<T>(patience: Duration, what: &str, mut of: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = of() {
            return value;
        }
        assert!(start.elapsed() < patience, "{what}: not within {patience:?}");
        sleep(Duration::from_millis(10));
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn only_a_refusal_in_one_line_is_one() {
        let ended = |script: &str| Command::new("sh").args(["-c", script]).output().unwrap();
        assert_refused(&ended("echo megapage: no such pool >&2; exit 2"), 2, "no such pool");
        for other in [
            "echo megapage: no such pool >&2; exit 1",
            "echo megapage: no such pool; exit 2",
            "echo megapage: a pool >&2; exit 2",
            "echo no such pool >&2; exit 2",
            "echo megapage: no such pool >&2; echo note >&2; exit 2",
        ] {
            let output = ended(other);
            assert!(catch_unwind(|| assert_refused(&output, 2, "no such pool")).is_err(), "{other}");
        }
    }

    #[test]
    fn a_script_is_written_and_copied_and_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        script(&first, "#!/bin/sh\nexit 7\n");
        copied(&first, &second);
        assert_eq!(Command::new(&second).status().unwrap().code(), Some(7));
    }

    #[test]
    fn waiting_ends_with_the_answer_or_with_its_time() {
        let mut count = 0;
        wait_for("three", || {
            count += 1;
            count == 3
        });
        assert_eq!(count, 3);
        assert!(catch_unwind(|| until_within(Duration::ZERO, "nothing", || None::<()>)).is_err());
    }
}
