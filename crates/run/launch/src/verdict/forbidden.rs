//! Which processes that run are of builds that a trial speaks against.

use super::{Store, Verdict, all, processor, unit_of};
use megapage_kernel::KernelRoot;
use megapage_kernel::program_file::ProgramFile;
use megapage_units::Pid;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// The store is read again when it has changed, and after this time: a program's file may have come back.
const REREAD: Duration = Duration::from_secs(60);

/// The programs that are not to be promoted. Processes are told by the file that they execute, of which nothing is read: it may
/// be another user's, on a file system that does not answer.
#[derive(Debug)]
pub struct Forbidden {
    /// `None`: there is none to read.
    store: Option<Store>,
    /// When the store was changed last, and read.
    changed: Option<SystemTime>,
    read: Option<Instant>,
    programs: Vec<Program>,
}

/// One of them, in a unit.
#[derive(Debug)]
struct Program {
    file: ProgramFile,
    unit: String,
    /// The verdict in words.
    why: String,
}

impl Forbidden {
    /// By the verdicts of a store, of which it takes note when they change.
    pub fn new(store: Option<Store>) -> Forbidden {
        Forbidden { store, changed: None, read: None, programs: Vec::new() }
    }

    /// Why a process is not to be promoted, in one sentence; `None` where no trial speaks against it.
    pub fn why(&mut self, root: &KernelRoot, pid: Pid) -> Option<String> {
        self.refresh(root);
        if self.programs.is_empty() {
            return None;
        }
        let file = ProgramFile::of_process(root, pid).ok()?;
        let found = self.programs.iter().find(|it| it.file == file && it.unit == unit_of(root, pid));
        found.map(|it| it.why.clone())
    }

    fn refresh(&mut self, root: &KernelRoot) {
        let Some(store) = &self.store else { return };
        // Files are replaced by renaming, which changes the directory.
        let changed = std::fs::metadata(store.path()).and_then(|it| it.modified()).ok();
        if changed == self.changed && self.read.is_some_and(|read| read.elapsed() < REREAD) {
            return;
        }
        (self.changed, self.read) = (changed, Some(Instant::now()));
        let processor = processor(root);
        let verdicts = all(store).unwrap_or_default().into_iter().filter_map(|it| it.content.ok());
        let forbid = verdicts.filter(|it| it.forbids() && it.processor == processor && it.is_current());
        self.programs = forbid.filter_map(program).collect();
    }
}

fn program(verdict: Verdict) -> Option<Program> {
    let file = ProgramFile::at(Path::new(&verdict.build.program)).ok()?;
    Some(Program { file, why: verdict.in_words(), unit: verdict.build.unit })
}

#[cfg(test)]
mod tests {
    use super::super::Build;
    use super::super::tests::verdict;
    use super::*;
    use megapage_decide::judge::Decision;

    #[test]
    fn a_process_is_forbidden_as_long_as_a_verdict_says_so() {
        let (base, root) = (tempfile::tempdir().unwrap(), KernelRoot::live());
        let path = base.path().join("trials");
        let own = Pid(std::process::id().cast_signed());
        let mut forbidden = Forbidden::new(Some(Store::at(path.clone())));
        assert_eq!(forbidden.why(&root, own), None, "there is no store");
        let store = Store::at(path);
        let (unit, program) = (unit_of(&root, own), std::env::current_exe().unwrap());
        let keep = |unit: &str, decision| {
            // The clock by which the kernel stamps directories ticks some hundred times a second.
            std::thread::sleep(Duration::from_millis(20));
            let build = Build::of(unit, &program).unwrap();
            Verdict { build, ..verdict(decision) }.keep(&store).unwrap()
        };
        keep("another.service", Decision::Hurts);
        assert_eq!(forbidden.why(&root, own), None, "in another unit");
        let file = keep(&unit, Decision::Hurts);
        let why = forbidden.why(&root, own).unwrap();
        assert!(why.contains("found that it hurts"), "{why}");
        assert_eq!(forbidden.why(&root, own), Some(why), "from memory");
        keep(&unit, Decision::Gains);
        assert_eq!(forbidden.why(&root, own), None);
        keep(&unit, Decision::NoGain);
        assert!(forbidden.why(&root, own).is_some());
        std::thread::sleep(Duration::from_millis(20));
        std::fs::remove_file(file).unwrap();
        assert_eq!(forbidden.why(&root, own), None, "it was forgotten");
        assert_eq!(Forbidden::new(None).why(&root, own), None);
    }
}
