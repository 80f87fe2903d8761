//! Temporary change of the settings of transparent huge pages: all or none, and back again.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

pub use crate::settings_change::Recovered;
use crate::settings_change::{self, Group, SettingsChange};
use megapage_kernel::thp::{DIRECTORY, ThpEnabled};
use megapage_kernel::{KernelError, KernelRoot};
use std::time::Duration;

/// Settings to write; `None`: as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThpControls {
    /// `enabled`.
    pub enabled: Option<ThpEnabled>,
    /// `khugepaged/pages_to_scan`: base pages that khugepaged scans in one pass.
    pub pages_to_scan: Option<u64>,
    /// `khugepaged/scan_sleep_millisecs`: sleep of khugepaged after that; whole milliseconds.
    pub scan_sleep: Option<Duration>,
    /// `khugepaged/alloc_sleep_millisecs`: sleep of khugepaged after it got no huge page; whole
    /// milliseconds.
    pub alloc_sleep: Option<Duration>,
    /// `khugepaged/max_ptes_none`: most base pages, of the 512 of a huge page, that may be absent
    /// for khugepaged to collapse it.
    pub max_ptes_none: Option<u64>,
    /// `shrink_underused`: true if reclaim splits huge pages in which more than `max_ptes_none`
    /// base pages hold only zeros. Since Linux 6.12; it has no effect on a kernel without it, which
    /// splits none.
    pub shrink_underused: Option<bool>,
}

/// Files that are changed, in the order in which they are written.
const FILES: [&str; 6] = [
    "khugepaged/pages_to_scan",
    "khugepaged/scan_sleep_millisecs",
    "khugepaged/alloc_sleep_millisecs",
    MAX_PTES_NONE,
    SHRINK_UNDERUSED,
    ENABLED,
];
const MAX_PTES_NONE: &str = "khugepaged/max_ptes_none";
const SHRINK_UNDERUSED: &str = "shrink_underused";
const ENABLED: &str = "enabled";
const GROUP: Group = Group {
    directory: DIRECTORY,
    files: &FILES,
    optional: &[MAX_PTES_NONE, SHRINK_UNDERUSED],
    main: ENABLED,
    lock: "thp.lock",
    record: "thp-change",
};

impl ThpControls {
    /// Controls that set everything as it was found.
    pub const AS_FOUND: ThpControls = ThpControls {
        enabled: None,
        pages_to_scan: None,
        scan_sleep: None,
        alloc_sleep: None,
        max_ptes_none: None,
        shrink_underused: None,
    };

    /// Returns the texts for [`FILES`].
    fn texts(&self) -> [Option<String>; 6] {
        let milliseconds = |time: Duration| time.as_millis().to_string();
        [
            self.pages_to_scan.map(|pages| pages.to_string()),
            self.scan_sleep.map(milliseconds),
            self.alloc_sleep.map(milliseconds),
            self.max_ptes_none.map(|pages| pages.to_string()),
            self.shrink_underused.map(|on| u8::from(on).to_string()),
            self.enabled.map(|enabled| enabled.to_string()),
        ]
    }

    /// Returns shell lines that set the same.
    pub fn shell_lines(&self) -> Vec<String> {
        GROUP.shell_lines(self.texts())
    }
}

/// Right to change the settings. Dropping the value puts them back. If this process is killed, a
/// shell does so. If the shell is killed as well, as with a whole control group, the next owner of
/// the right does. For that, `/run/megapage/thp-change` records the texts found and set, if it can
/// be written. Only one process on a machine has the right: it locks `/run/megapage/thp.lock`,
/// which only root can open.
#[derive(Debug)]
pub struct ThpChange(SettingsChange);

impl ThpChange {
    /// Takes the right. Undoes the changes of a process that was killed
    /// ([`ThpChange::recovered`]), and then reads the settings. Fails with ENOENT on a
    /// kernel without transparent huge pages. Fails with [`std::io::ErrorKind::WouldBlock`] if
    /// another process keeps the right for two seconds.
    pub fn begin(root: &KernelRoot) -> Result<ThpChange, KernelError> {
        SettingsChange::begin(root, &GROUP).map(ThpChange)
    }

    /// Returns the settings that a killed process had changed, and that were put back before the
    /// settings were noted.
    pub fn recovered(&self) -> &[Recovered] {
        self.0.recovered()
    }

    /// Sets `controls`, and everything else as it was found. If one setting is refused, all are put
    /// back. ENOENT if `max_ptes_none` is given and this kernel has none.
    pub fn set(&mut self, controls: &ThpControls) -> Result<(), KernelError> {
        if controls.max_ptes_none.is_some() {
            self.0.require(MAX_PTES_NONE)?;
        }
        self.0.set(controls.texts())
    }
}

/// Puts back the settings that the record of a killed process lists.
#[doc(hidden)]
pub fn recover(root: &KernelRoot) -> Vec<Recovered> {
    settings_change::recover(root, &GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings_change::captured_tree;
    use megapage_kernel::thp::path;

    fn relative(file: &str) -> String {
        GROUP.relative(file)
    }

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
        ..ThpControls::AS_FOUND
    };
    /// Files of [`tree`].
    const THERE: [&str; 4] = [FILES[0], FILES[1], FILES[2], ENABLED];

    #[test]
    fn how_empty_a_huge_page_may_be_is_set_where_the_kernel_has_such_settings() {
        let sparse = ThpControls { max_ptes_none: Some(64), shrink_underused: Some(true), ..HARD };
        let (_keep, root) = tree();
        let mut change = ThpChange::begin(&root).unwrap();
        assert!(change.set(&sparse).unwrap_err().is_gone(), "a setting that is asked for is not skipped");
        drop(change);
        let directory = "sys/kernel/mm/transparent_hugepage";
        let write = |file: &str, text: &str| {
            std::fs::write(root.path(format!("{directory}/{file}")), text).unwrap();
        };
        write(MAX_PTES_NONE, "511\n");
        let found = |file: &str| root.read(relative(file)).unwrap().trim().to_string();
        // No kernel before Linux 6.12 splits, so none needs the setting.
        let mut change = ThpChange::begin(&root).unwrap();
        change.set(&sparse).unwrap();
        assert_eq!(found(MAX_PTES_NONE), "64");
        drop(change);
        write(SHRINK_UNDERUSED, "0\n");
        let mut change = ThpChange::begin(&root).unwrap();
        change.set(&sparse).unwrap();
        assert_eq!((found(MAX_PTES_NONE), found(SHRINK_UNDERUSED)), ("64".into(), "1".into()));
        drop(change);
        assert_eq!((found(MAX_PTES_NONE), found(SHRINK_UNDERUSED)), ("511".into(), "0".into()));
        let lines = sparse.shell_lines();
        assert!(lines.contains(&format!("echo 64 > {}", path(MAX_PTES_NONE))), "{lines:?}");
        assert_eq!(lines.last(), Some(&format!("echo always > {}", path(ENABLED))));
    }

    #[test]
    fn settings_are_changed_and_put_back() {
        let (_keep, root) = tree();
        let found = || THERE.map(|file| root.read(relative(file)).unwrap());
        let never = ThpControls { enabled: Some(ThpEnabled::Never), ..ThpControls::default() };
        let mut change = ThpChange::begin(&root).unwrap();
        change.set(&never).unwrap();
        assert_eq!(found(), ["4096\n", "10000\n", "60000\n", "never"], "no other file is written to");
        change.set(&HARD).unwrap();
        assert_eq!(found(), ["1048576", "0", "1", "always"]);
        change.set(&never).unwrap();
        assert_eq!(found(), ["4096", "10000", "60000", "never"], "the rest is as it was found");
        drop(change);
        assert_eq!(found(), ["4096", "10000", "60000", "madvise"]);
        assert_eq!(HARD.shell_lines().len(), 4);
        assert_eq!(never.shell_lines(), [format!("echo never > {}", path("enabled"))]);
    }

    #[test]
    fn one_at_a_time() {
        let (_keep, root) = tree();
        let first = ThpChange::begin(&root).unwrap();
        let error = ThpChange::begin(&root).unwrap_err();
        assert!(error.to_string().contains(" holds it; wait for its end"), "{error}");
        // A user who may only read the settings cannot keep others from changing them.
        drop(first);
        let reader = std::fs::File::open(root.path(relative("enabled"))).unwrap();
        reader.try_lock().unwrap();
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
        // The guard sees the end of the owner's pipe. The owner itself writes nothing here.
        drop(change.0.guard.take());
        assert_eq!(root.read(relative("enabled")).unwrap(), "madvise");
        assert_eq!(root.read(relative("khugepaged/scan_sleep_millisecs")).unwrap(), "10000");
    }

    #[test]
    fn the_next_change_puts_back_what_a_killed_process_and_guard_left() {
        let (keep, root) = tree();
        // sysfs shows a choice with all its words; this tree shows the text written last.
        let set = |file: &str| root.read(relative(file)).unwrap().trim().to_string();
        let end = |mut change: ThpChange| {
            // Excludes the writes of the owner and of the guard.
            change.0.guard.take().unwrap().release();
            change.0.lock.take().unwrap().release();
            std::mem::forget(change);
        };
        let record = keep.path().join("run/megapage/thp-change");
        let mut killed = ThpChange::begin(&root).unwrap();
        assert!(!record.exists(), "nothing is set yet");
        killed.set(&HARD).unwrap();
        killed.set(&ThpControls { enabled: Some(ThpEnabled::Never), ..ThpControls::default() }).unwrap();
        end(killed);
        assert!(record.exists());
        // The process was killed within a change, and another process has set one file since.
        root.write(relative("khugepaged/pages_to_scan"), "1048576").unwrap();
        root.write(relative("khugepaged/scan_sleep_millisecs"), "333").unwrap();
        let next = ThpChange::begin(&root).unwrap();
        let lines: Vec<String> = next.recovered().iter().map(Recovered::to_string).collect();
        let (scan, enabled) = (path("khugepaged/pages_to_scan"), path("enabled"));
        assert_eq!(
            lines,
            [
                format!("{scan} is 4096 again: a process that was killed had left 1048576"),
                format!("{enabled} is madvise again: a process that was killed had left never")
            ]
        );
        assert_eq!((set("enabled"), set("khugepaged/pages_to_scan")), ("madvise".into(), "4096".into()));
        assert_eq!(set("khugepaged/scan_sleep_millisecs"), "333");
        drop(next);
        assert!(!record.exists());
        assert!(ThpChange::begin(&root).unwrap().recovered().is_empty());
        // A record of an earlier boot, or a damaged one, says nothing about this boot.
        let mut killed = ThpChange::begin(&root).unwrap();
        killed.set(&ThpControls { enabled: Some(ThpEnabled::Never), ..ThpControls::default() }).unwrap();
        end(killed);
        let text = std::fs::read_to_string(&record).unwrap();
        std::fs::write(&record, text.replacen('\n', " of another boot\n", 1)).unwrap();
        assert!(ThpChange::begin(&root).unwrap().recovered().is_empty());
        assert_eq!(set("enabled"), "never");
        std::fs::write(&record, text.replace("enabled ", "../../../enabled ").replace(' ', "\t")).unwrap();
        assert!(ThpChange::begin(&root).unwrap().recovered().is_empty());
        assert!(!record.exists(), "it is of no use any more");
    }

    #[test]
    fn an_owner_that_ends_leaves_no_record() {
        let (keep, root) = tree();
        let record = keep.path().join("run/megapage/thp-change");
        for is_killed in [false, true] {
            let mut change = ThpChange::begin(&root).unwrap();
            change.set(&HARD).unwrap();
            assert!(record.exists());
            if is_killed {
                drop(change.0.guard.take());
                assert!(!record.exists(), "the guard's");
            }
            drop(change);
            assert!(!record.exists());
        }
    }

    #[test]
    fn a_kernel_without_is_reported() {
        let (_keep, root) = captured_tree(&[("proc/none", "")]);
        assert!(ThpChange::begin(&root).unwrap_err().is_gone());
    }
}
