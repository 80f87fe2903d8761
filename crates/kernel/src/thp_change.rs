//! Changing the settings of transparent huge pages for a while: all or none, and back again.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

use crate::guard::Guard;
use crate::thp::{ThpEnabled, path};
use crate::{KernelError, KernelRoot};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::time::Duration;

/// What to set; `None`: as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThpControls {
    /// `enabled`.
    pub enabled: Option<ThpEnabled>,
    /// `khugepaged/pages_to_scan`: base pages that khugepaged looks at in one go.
    pub pages_to_scan: Option<u64>,
    /// `khugepaged/scan_sleep_millisecs`: how long it sleeps then; whole milliseconds.
    pub scan_sleep: Option<Duration>,
    /// `khugepaged/alloc_sleep_millisecs`: how long it sleeps after it got no huge page; whole milliseconds.
    pub alloc_sleep: Option<Duration>,
}

/// The files that are changed, in the order in which they are written.
const FILES: [&str; 4] = [
    "khugepaged/pages_to_scan",
    "khugepaged/scan_sleep_millisecs",
    "khugepaged/alloc_sleep_millisecs",
    "enabled",
];

impl ThpControls {
    /// The texts for [`FILES`].
    fn texts(&self) -> [Option<String>; 4] {
        let milliseconds = |time: Duration| time.as_millis().to_string();
        [
            self.pages_to_scan.map(|pages| pages.to_string()),
            self.scan_sleep.map(milliseconds),
            self.alloc_sleep.map(milliseconds),
            self.enabled.map(|enabled| enabled.to_string()),
        ]
    }

    /// Shell lines that set the same.
    pub fn shell_lines(&self) -> Vec<String> {
        let lines = FILES.iter().zip(self.texts());
        lines.filter_map(|(file, text)| Some(format!("echo {} > {}", text?, path(file)))).collect()
    }
}

/// The right to change the settings. They are put back when the value is dropped, and also when this process is killed
/// ([`Guard`]). One at a time on a machine: the file `enabled` is locked (flock(2)).
#[derive(Debug)]
pub struct ThpChange {
    root: KernelRoot,
    former: Vec<(&'static str, String)>,
    guard: Option<Guard>,
    lock: File,
}

impl ThpChange {
    /// Notes the settings and changes nothing yet. ENOENT on a kernel without transparent huge pages, EAGAIN where
    /// another process holds the right.
    pub fn begin(root: &KernelRoot) -> Result<ThpChange, KernelError> {
        ThpChange::of(root, &FILES)
    }

    /// The same for `enabled` alone: what else is set meanwhile, by whomever, stays. The other fields of what is given to
    /// [`ThpChange::set`] are of no effect.
    pub fn begin_enabled(root: &KernelRoot) -> Result<ThpChange, KernelError> {
        ThpChange::of(root, &FILES[3..])
    }

    fn of(root: &KernelRoot, files: &[&'static str]) -> Result<ThpChange, KernelError> {
        let io_error = |source: io::Error| KernelError::Io { path: path("enabled").into(), source };
        let lock = File::open(root.path(relative("enabled"))).map_err(io_error)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| io_error(errno.into()))?;
        let mut former = Vec::new();
        for file in files.iter().copied() {
            let text = root.read(relative(file))?;
            // A choice shows all words, the chosen one in brackets; a figure stands alone.
            let chosen =
                text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
            former.push((file, chosen.unwrap_or(text.trim()).to_string()));
        }
        let files = former.iter().map(|(file, text)| (root.path(relative(file)), text.clone())).collect();
        let guard = Guard::of_files(files).map_err(io_error)?;
        Ok(ThpChange { root: root.clone(), former, guard: Some(guard), lock })
    }

    /// Sets `controls`, and everything else as it was found. Where one setting is refused, all are put back.
    pub fn set(&mut self, controls: &ThpControls) -> Result<(), KernelError> {
        let texts: Vec<(&str, Option<String>)> = FILES.into_iter().zip(controls.texts()).collect();
        for (file, former) in &self.former {
            let text = texts.iter().find(|(name, _)| name == file).and_then(|(_, text)| text.as_ref());
            let text = text.unwrap_or(former);
            if let Err(error) = self.root.write(relative(file), text) {
                self.put_back();
                return Err(error);
            }
        }
        Ok(())
    }

    /// As everything was found. There is nothing to do about a file that refuses its own former text.
    fn put_back(&self) {
        for (file, former) in &self.former {
            self.root.write(relative(file), former).ok();
        }
    }
}

impl Drop for ThpChange {
    fn drop(&mut self) {
        self.put_back();
        if let Some(guard) = self.guard.take() {
            guard.release().ok();
        }
        // A child of another thread may hold the file open until it executes its program.
        flock(&self.lock, FlockOperation::Unlock).ok();
    }
}

/// Relative to a [`KernelRoot`].
fn relative(file: &str) -> String {
    path(file).trim_start_matches('/').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    fn tree() -> (tempfile::TempDir, KernelRoot) {
        captured_tree(&[
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "4096\n"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "10000\n"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs", "60000\n"),
        ])
    }

    const HARD: ThpControls = ThpControls {
        enabled: Some(ThpEnabled::Always),
        pages_to_scan: Some(1 << 20),
        scan_sleep: Some(Duration::ZERO),
        alloc_sleep: Some(Duration::from_millis(1)),
    };

    #[test]
    fn settings_are_changed_and_put_back() {
        let (_keep, root) = tree();
        let found = || FILES.map(|file| root.read(relative(file)).unwrap());
        let mut change = ThpChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        assert_eq!(found(), ["1048576", "0", "1", "always"]);
        let never = ThpControls { enabled: Some(ThpEnabled::Never), ..ThpControls::default() };
        change.set(&never).unwrap();
        assert_eq!(found(), ["4096", "10000", "60000", "never"], "the rest is as it was found");
        drop(change);
        assert_eq!(found(), ["4096", "10000", "60000", "madvise"]);
        assert_eq!(HARD.shell_lines().len(), 4);
        assert_eq!(never.shell_lines(), [format!("echo never > {}", path("enabled"))]);
    }

    #[test]
    fn only_what_was_taken_is_put_back() {
        let (_keep, root) = tree();
        let mut change = ThpChange::begin_enabled(&root).unwrap();
        change.set(&HARD).unwrap();
        assert_eq!(root.read(relative("enabled")).unwrap(), "always");
        assert_eq!(root.read(relative("khugepaged/pages_to_scan")).unwrap().trim(), "4096");
        root.write(relative("khugepaged/pages_to_scan"), "8192").unwrap();
        drop(change);
        assert_eq!(root.read(relative("enabled")).unwrap(), "madvise");
        assert_eq!(root.read(relative("khugepaged/pages_to_scan")).unwrap(), "8192");
    }

    #[test]
    fn one_at_a_time() {
        let (_keep, root) = tree();
        let first = ThpChange::begin(&root).unwrap();
        let error = ThpChange::begin(&root).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
        drop(first);
        ThpChange::begin(&root).unwrap();
    }

    #[test]
    fn a_refusal_puts_all_back() {
        let (keep, root) = tree();
        let mut change = ThpChange::begin(&root).unwrap();
        let file = |name: &str| keep.path().join(relative(name));
        std::fs::remove_file(file("enabled")).unwrap();
        assert!(change.set(&HARD).unwrap_err().is_gone());
        assert_eq!(std::fs::read_to_string(file("khugepaged/pages_to_scan")).unwrap(), "4096");
    }

    #[test]
    fn an_owner_that_is_killed_is_stood_in_for() {
        let (_keep, root) = tree();
        let mut change = ThpChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        // What the end of the owner's pipe sets off, without the writes of the owner's own.
        drop(change.guard.take());
        assert_eq!(root.read(relative("enabled")).unwrap(), "madvise");
        assert_eq!(root.read(relative("khugepaged/scan_sleep_millisecs")).unwrap(), "10000");
    }

    #[test]
    fn a_kernel_without_is_told() {
        let (_keep, root) = captured_tree(&[("proc/none", "")]);
        assert!(ThpChange::begin(&root).unwrap_err().is_gone());
    }
}
