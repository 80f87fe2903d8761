//! Which processes that run are of builds that a trial speaks against.

use super::{Build, Verdict, unit_of};
use crate::profile::Store;
use megapage_kernel::KernelRoot;
use megapage_kernel::process::{read_exe, read_start_time};
use megapage_units::Pid;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

/// Processes that are remembered, at most: then all are looked up again.
const MOST_KNOWN: usize = 8192;

/// Looks each process up once, and again when it has executed another program or the store has changed.
#[derive(Debug)]
pub struct Forbidden {
    /// `None`: there is none to read.
    store: Option<Store>,
    /// When the store was changed last.
    changed: Option<SystemTime>,
    is_empty: bool,
    known: BTreeMap<Pid, Known>,
}

/// One process.
#[derive(Debug)]
struct Known {
    /// When it was started, in ticks since boot.
    start: u64,
    program: PathBuf,
    /// The verdict in words, where that forbids.
    why: Option<String>,
}

impl Forbidden {
    /// By the verdicts of a store, of which it takes note when they change.
    pub fn new(store: Option<Store>) -> Forbidden {
        Forbidden { store, changed: None, is_empty: true, known: BTreeMap::new() }
    }

    /// Why a process is not to be promoted, in one sentence; `None` where no trial speaks against it.
    pub fn why(&mut self, root: &KernelRoot, pid: Pid) -> Option<String> {
        self.refresh();
        let store = self.store.as_ref().filter(|_| !self.is_empty)?;
        let (start, program) = (read_start_time(root, pid).ok()?, read_exe(root, pid).ok()?);
        if let Some(known) = self.known.get(&pid).filter(|it| it.start == start && it.program == program) {
            return known.why.clone();
        }
        let build = Build::of_process(root, pid, &program).ok();
        let verdict = build.and_then(|build| Verdict::find(root, store, &build).ok().flatten());
        let why = verdict.filter(Verdict::forbids).map(|verdict| verdict.in_words());
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(pid, Known { start, program, why: why.clone() });
        why
    }

    /// Forgets what was looked up where a verdict has come or gone since.
    fn refresh(&mut self) {
        let Some(store) = &self.store else { return };
        // Files are replaced by renaming, which changes the directory.
        let changed = std::fs::metadata(store.path()).and_then(|it| it.modified()).ok();
        if changed != self.changed {
            self.changed = changed;
            self.is_empty = store.keys().is_ok_and(|keys| keys.is_empty());
            self.known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::verdict;
    use super::*;
    use megapage_judge::Decision;

    #[test]
    fn a_process_is_forbidden_as_long_as_a_verdict_says_so() {
        let (base, root) = (tempfile::tempdir().unwrap(), KernelRoot::live());
        let path = base.path().join("trials");
        let own = Pid(std::process::id().cast_signed());
        let mut forbidden = Forbidden::new(Some(Store::at(path.clone())));
        assert_eq!(forbidden.why(&root, own), None, "there is no store");
        let store = Store::at(path);
        let build = Build::of_process(&root, own, &read_exe(&root, own).unwrap()).unwrap();
        assert_eq!(build, Build::of(&unit_of(&root, own), &std::env::current_exe().unwrap()).unwrap());
        let keep = |decision| {
            // The clock by which the kernel stamps directories ticks some hundred times a second.
            std::thread::sleep(std::time::Duration::from_millis(20));
            Verdict { build: build.clone(), ..verdict(decision) }.keep(&store).unwrap()
        };
        let file = keep(Decision::Hurts);
        let why = forbidden.why(&root, own).unwrap();
        assert!(why.contains("found that it hurts"), "{why}");
        assert_eq!(forbidden.why(&root, own), Some(why), "from memory");
        keep(Decision::Gains);
        assert_eq!(forbidden.why(&root, own), None);
        keep(Decision::NoGain);
        assert!(forbidden.why(&root, own).is_some());
        std::fs::remove_file(file).unwrap();
        assert_eq!(forbidden.why(&root, own), None, "it was forgotten");
        assert_eq!(Forbidden::new(None).why(&root, own), None);
    }
}
