//! Priming, as the page tables of a process that maps the file show it.

use crate::programs;

use megapage_kernel::{KernelRoot, smaps};
use megapage_remap::RemapError;
use megapage_remap::check::check;
use megapage_remap::layout::linker_flags;
use megapage_remap::prime::{Outcome, prime, undo};
use megapage_testing::{MachineLock, skip, wait_for};
use megapage_units::Pid;
use programs::{build, on_disk, output, patiently};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const MIB: u64 = 1 << 20;

/// The program, running, past its first output. It is killed when dropped.
struct Running {
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path) -> Running {
        let mut child = patiently(|| {
            Command::new(program).arg("wait").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        });
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.ends_with("wait\n"), "{}: {line}", program.display());
        Running { child, _out: out }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the bytes of files that `pid` has mapped by 2 MiB entries.
fn huge_of(pid: i32) -> u64 {
    let mappings = smaps::read_smaps(&KernelRoot::live(), Pid(pid)).unwrap();
    mappings.iter().map(|mapping| mapping.file_pmd.0 + mapping.shmem_pmd.0).sum()
}

/// Primes `path`. Returns `None`, after a loud skip, on a file system without large folios.
fn primed(path: &Path) -> Option<Outcome> {
    let outcome = prime(&KernelRoot::live(), path, false).unwrap();
    if let Some(why) = outcome.missing.as_deref().filter(|why| why.contains("in a folio of 2 MiB")) {
        assert_eq!(outcome.obtained_bytes, Some(0));
        skip(&format!("needs a file system with large folios: {why}"));
        return None;
    }
    assert!(outcome.is_complete() && outcome.missing.is_none(), "{outcome:?}");
    Some(outcome)
}

/// Undoes it until nothing is left. The kernel itself may hold a page for a moment, which then
/// stays.
fn let_go(path: &Path) {
    wait_for("its pages go", || undo(&KernelRoot::live(), path, false).unwrap().left_bytes == Some(0));
}

/// A program at fixed addresses: 6 MiB of code and 5 of constants, of which at least 6 MiB lie in
/// whole blocks.
#[test]
fn a_process_started_afterwards_has_its_code_on_huge_pages() {
    let _lock = MachineLock::take();
    let directory = on_disk();
    let built = build(directory.path(), "primed", &["-no-pie"]).unwrap();
    let expected = output(&built);
    let Some(outcome) = primed(&built) else { return };
    assert_eq!(huge_of(Running::start(&built).pid()), outcome.possible_bytes);
    assert!(outcome.possible_bytes >= 6 * MIB);
    assert_eq!(output(&built), expected);

    // Blocks that are huge are not touched, and check sees them.
    let again = primed(&built).unwrap();
    assert!(again.commands.is_empty() && again.before_bytes == Some(outcome.possible_bytes), "{again:?}");
    assert_eq!(check(&KernelRoot::live(), &built).unwrap().now_bytes, Some(outcome.possible_bytes));

    // A process keeps its pages; after its end they can be dropped.
    let running = Running::start(&built);
    let undone = undo(&KernelRoot::live(), &built, false).unwrap();
    assert!(undone.users.iter().any(|user| user.pid == running.pid()), "{undone:?}");
    assert_eq!(undone.left_bytes, Some(outcome.possible_bytes), "{undone:?}");
    assert_eq!(huge_of(running.pid()), outcome.possible_bytes);
    drop(running);
    let_go(&built);
    assert_eq!(huge_of(Running::start(&built).pid()), 0);
    assert_eq!(output(&built), expected);
}

/// Position-independent, and linked by lld. Packed, it is neither placed nor congruent; with the
/// options that `check` names, it is both.
#[test]
fn a_program_linked_for_2_mib_has_its_code_on_huge_pages() {
    let _lock = MachineLock::take();
    let directory = on_disk();
    let options = ["-fPIE", "-pie", "-fuse-ld=lld"];
    let Some(built) = build(directory.path(), "packed", &options) else { return };
    let error = prime(&KernelRoot::live(), &built, false).unwrap_err();
    assert!(matches!(&error, RemapError::Unfit { .. }), "{error}");
    let options = [&options[..], &[linker_flags(Some("lld")).flags]].concat();
    let out = build(directory.path(), "out", &options).unwrap();
    let Some(outcome) = primed(&out) else { return };
    assert_eq!(outcome.possible_bytes, check(&KernelRoot::live(), &out).unwrap().prime_bytes);
    assert_eq!(huge_of(Running::start(&out).pid()), outcome.possible_bytes);
    assert_eq!(output(&out), output(&built));
}

#[test]
fn pages_that_a_process_uses_are_told() {
    let _lock = MachineLock::take();
    let directory = on_disk();
    let built = build(directory.path(), "busy", &["-no-pie"]).unwrap();
    File::open(&built).unwrap().sync_all().unwrap();
    let_go(&built);
    // The file comes in by faults, in small folios.
    let running = Running::start(&built);
    let outcome = prime(&KernelRoot::live(), &built, false).unwrap();
    assert!(!outcome.is_complete(), "{outcome:?}");
    let user = outcome.users.iter().find(|user| user.pid == running.pid()).expect("it runs");
    assert!(user.mapped_bytes > 0 && user.command == "busy", "{user:?}");
    let why = outcome.missing.unwrap();
    assert!(why.contains(&format!("are in use by busy {}", running.pid())), "{why}");
}

#[test]
fn a_dry_run_changes_nothing_and_its_lines_do_the_same() {
    let _lock = MachineLock::take();
    if Command::new("python3").arg("--version").output().is_err() {
        return megapage_testing::skip("needs python3");
    }
    let directory = on_disk();
    let built = build(directory.path(), "dry run", &["-no-pie"]).unwrap();
    if primed(&built).is_none() {
        return;
    }
    let root = KernelRoot::live();
    let_go(&built);
    let plan = prime(&root, &built, true).unwrap();
    assert!(plan.dry_run && plan.obtained_bytes.is_none() && !plan.commands.is_empty());
    assert_eq!(check(&root, &built).unwrap().now_bytes, Some(0));
    let shell = Command::new("sh").arg("-ec").arg(plan.commands.join("\n")).output().unwrap();
    let said = String::from_utf8_lossy(&shell.stderr).into_owned();
    assert!(shell.status.success(), "{said}");
    assert_eq!(check(&root, &built).unwrap().now_bytes, Some(plan.possible_bytes));
    // The lines that undo it do the same.
    let undone = undo(&root, &built, true).unwrap();
    assert!(undone.left_bytes.is_none());
    let shell = Command::new("sh").arg("-ec").arg(undone.commands.join("\n")).output().unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
    assert_eq!(check(&root, &built).unwrap().now_bytes, Some(0));
}

#[test]
fn what_cannot_be_primed_is_refused() {
    let directory = on_disk();
    let refused = |path: &Path, what: &str| {
        for error in [
            prime(&KernelRoot::live(), path, false).unwrap_err().to_string(),
            prime(&KernelRoot::live(), path, true).unwrap_err().to_string(),
        ] {
            assert!(error.contains(what) && !error.contains('\n'), "{error}");
        }
    };
    refused(Path::new("/bin/ls"), "no part of it can be mapped by huge pages");
    refused(Path::new("/etc/passwd"), "not an ELF executable or library");
    refused(Path::new("/etc"), "not a regular file");
    refused(Path::new("/nothing/there"), "No such file");
    let built = build(directory.path(), "unplaced", &["-fPIE", "-pie", "-fuse-ld=bfd"]).unwrap();
    refused(&built, "use megapage run --text thp, which moves its code");
}
