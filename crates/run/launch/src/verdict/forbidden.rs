//! Finds the running processes whose builds a trial forbids to promote.

use super::{Store, Verdict, all, processor, unit_of};
use megapage_kernel::KernelRoot;
use megapage_kernel::program_file::ProgramFile;
use megapage_units::Pid;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Time after which the store is read again even if it has not changed: a program's file may be
/// back.
const REREAD: Duration = Duration::from_secs(60);

/// The programs that are not to be promoted. A process is recognised by the file that it executes.
/// Nothing of the file is read: it may be another user's, on a file system that does not answer.
#[derive(Debug)]
pub struct Forbidden {
    /// The verdicts; `None`: there are none to read.
    store: Option<Store>,
    /// Times of the store's last change, and of its last reading.
    changed: Option<SystemTime>,
    read: Option<Instant>,
    programs: Vec<Program>,
}

/// One such program, in a unit.
#[derive(Debug)]
struct Program {
    file: ProgramFile,
    unit: String,
    /// The verdict in words.
    why: String,
}

impl Forbidden {
    /// Uses the verdicts of a store, and notices when they change.
    pub fn new(store: Option<Store>) -> Forbidden {
        Forbidden { store, changed: None, read: None, programs: Vec::new() }
    }

    /// Returns the reason why a process is not to be promoted, in one sentence; `None` if no trial
    /// forbids it.
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
            // The kernel's clock for directory times ticks some hundred times a second.
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
