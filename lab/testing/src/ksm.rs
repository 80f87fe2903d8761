//! KSM, the kernel thread that merges equal pages of memory that programs marked for it. Reads its
//! settings and counters, and changes the settings for a while.
//!
//! Source: Documentation/admin-guide/mm/ksm.rst.

pub use crate::settings_change::Recovered;
use crate::settings_change::{Group, SettingsChange};
use megapage_kernel::process::{list_processes, read_stat};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::Pid;
use std::time::Duration;

/// Files that are changed, in the order in which they are written. The advisor comes first: beside
/// it the kernel refuses `pages_to_scan`. `run` comes last, so that ksmd starts with all of them.
const FILES: [&str; 6] =
    [ADVISOR_MODE, "pages_to_scan", "sleep_millisecs", SMART_SCAN, "use_zero_pages", RUN];
const ADVISOR_MODE: &str = "advisor_mode";
const SMART_SCAN: &str = "smart_scan";
const RUN: &str = "run";
const GROUP: Group = Group {
    directory: "sys/kernel/mm/ksm",
    files: &FILES,
    optional: &[ADVISOR_MODE, SMART_SCAN],
    main: RUN,
    lock: "ksm.lock",
    record: "ksm-change",
};

/// Work that ksmd is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KsmRun {
    /// No work; merged pages stay merged.
    Stop,
    /// Merge.
    Merge,
    /// No work. All merged pages, of all programs, are separated again, and ksmd forgets what it
    /// knows of pages.
    Unmerge,
}

/// Settings to write; `None`: as it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KsmControls {
    /// `advisor_mode`: true if the kernel is to choose `pages_to_scan` itself, so that a scan takes
    /// `advisor_target_scan_time`. Since Linux 6.8. No effect on a kernel without it, which chooses
    /// nothing.
    pub advisor: Option<bool>,
    /// `pages_to_scan`: base pages that ksmd looks at before it sleeps. Refused with EINVAL beside
    /// the advisor.
    pub pages_to_scan: Option<u64>,
    /// `sleep_millisecs`: time that it sleeps then, in whole milliseconds.
    pub sleep: Option<Duration>,
    /// `smart_scan`: true to skip, for some scans, pages that several times did not merge. Since
    /// Linux 6.7. No effect on a kernel without it, which skips none.
    pub smart_scan: Option<bool>,
    /// `use_zero_pages`: true to replace pages of zeros by the shared page of zeros, instead of
    /// merging them like others.
    pub use_zero_pages: Option<bool>,
    /// `run`.
    pub run: Option<KsmRun>,
}

impl KsmControls {
    /// Returns the texts for [`FILES`].
    fn texts(&self) -> [Option<String>; 6] {
        let bit = |on: bool| u8::from(on).to_string();
        [
            self.advisor.map(|on| if on { "scan-time" } else { "none" }.to_string()),
            self.pages_to_scan.map(|pages| pages.to_string()),
            self.sleep.map(|time| time.as_millis().to_string()),
            self.smart_scan.map(bit),
            self.use_zero_pages.map(bit),
            self.run.map(|run| (run as u8).to_string()),
        ]
    }

    /// Returns shell lines that set the same.
    pub fn shell_lines(&self) -> Vec<String> {
        GROUP.shell_lines(self.texts())
    }
}

/// The right to change KSM's settings. They are put back when the value is dropped, also when this
/// process is killed. If its guard is killed as well, the next owner of the right puts them back.
/// Settings of transparent huge pages work the same way ([`crate::thp_change::ThpChange`]). Pages
/// merged meanwhile stay merged.
#[derive(Debug)]
pub struct KsmChange(SettingsChange);

impl KsmChange {
    /// Takes the right. Puts back settings that a killed process had changed
    /// ([`KsmChange::recovered`]), and then reads the settings. Fails with ENOENT on a
    /// kernel without KSM. Fails with [`std::io::ErrorKind::WouldBlock`] if another process keeps
    /// the right for two seconds.
    pub fn begin(root: &KernelRoot) -> Result<KsmChange, KernelError> {
        SettingsChange::begin(root, &GROUP).map(KsmChange)
    }

    /// Returns the settings that a killed process had left. They were put back before the settings
    /// were noted.
    pub fn recovered(&self) -> &[Recovered] {
        self.0.recovered()
    }

    /// Sets `controls`, and everything else as it was found. If one setting is refused, all are put
    /// back.
    pub fn set(&mut self, controls: &KsmControls) -> Result<(), KernelError> {
        self.0.set(controls.texts())
    }
}

/// State and counters of KSM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ksm {
    /// True if ksmd merges: `run` is 1.
    pub runs: bool,
    /// Base pages that stand for others that are equal (`pages_shared`).
    pub pages_shared: u64,
    /// Base pages scanned since boot; 0 before Linux 6.6, which does not count them.
    pub pages_scanned: u64,
    /// Number of scans of all marked memory since boot.
    pub full_scans: u64,
}

/// Reads the state and counters of KSM. `Ok(None)` on a kernel without it.
pub fn read(root: &KernelRoot) -> Result<Option<Ksm>, KernelError> {
    let value = |file: &str| root.read_u64(GROUP.relative(file));
    let runs = match value(RUN) {
        Err(error) if error.is_gone() => return Ok(None),
        run => run? == 1,
    };
    let pages_scanned = match value("pages_scanned") {
        Err(error) if error.is_gone() => 0,
        pages => pages?,
    };
    Ok(Some(Ksm {
        runs,
        pages_shared: value("pages_shared")?,
        pages_scanned,
        full_scans: value("full_scans")?,
    }))
}

/// Returns the kernel thread that merges. `None` if there is none, as in a container that sees only
/// its own processes.
pub fn thread(root: &KernelRoot) -> Result<Option<Pid>, KernelError> {
    let is_ksmd = |pid: &Pid| {
        // A process that has ended meanwhile does not count.
        read_stat(root, *pid).is_ok_and(|stat| stat.is_kernel_thread && stat.name == "ksmd")
    };
    Ok(list_processes(root)?.into_iter().find(is_ksmd))
}

/// Returns the processes whose memory ksmd scans while it runs: marked for it (shown since Linux
/// 6.16), or scanned already (since Linux 6.1). Reading this of others needs the right to trace
/// them. A process that may not be looked at is left out.
pub fn users(root: &KernelRoot) -> Result<Vec<Pid>, KernelError> {
    let is_scanned = |pid: &Pid| {
        // A process that has ended meanwhile does not count.
        root.read(format!("proc/{pid}/ksm_stat")).is_ok_and(|text| names_a_user(&text))
    };
    Ok(list_processes(root)?.into_iter().filter(is_scanned).collect())
}

/// Returns true if a process's `ksm_stat` says that it is one of [`users`].
fn names_a_user(text: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("ksm_rmap_items"), Some(pages)) => pages != "0",
            (Some("ksm_mergeable:" | "ksm_merge_any:"), Some(word)) => word == "yes",
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings_change::captured_tree;

    const FOUND: [(&str, &str); 9] = [
        ("sys/kernel/mm/ksm/advisor_mode", "none [scan-time]\n"),
        ("sys/kernel/mm/ksm/pages_to_scan", "100\n"),
        ("sys/kernel/mm/ksm/sleep_millisecs", "20\n"),
        ("sys/kernel/mm/ksm/smart_scan", "1\n"),
        ("sys/kernel/mm/ksm/use_zero_pages", "0\n"),
        ("sys/kernel/mm/ksm/run", "0\n"),
        ("sys/kernel/mm/ksm/pages_shared", "7\n"),
        ("sys/kernel/mm/ksm/pages_scanned", "1234\n"),
        ("sys/kernel/mm/ksm/full_scans", "3\n"),
    ];
    const HARD: KsmControls = KsmControls {
        advisor: Some(false),
        pages_to_scan: Some(1 << 20),
        sleep: Some(Duration::ZERO),
        smart_scan: None,
        use_zero_pages: Some(true),
        run: Some(KsmRun::Merge),
    };

    #[test]
    fn settings_are_changed_and_put_back() {
        let (_keep, root) = captured_tree(&FOUND);
        let found = || FILES.map(|file| root.read(GROUP.relative(file)).unwrap().trim().to_string());
        let mut change = KsmChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        assert_eq!(found(), ["none", "1048576", "0", "1", "1", "1"]);
        assert!(read(&root).unwrap().unwrap().runs);
        assert!(KsmChange::begin(&root).is_err(), "one at a time");
        change.set(&KsmControls { run: Some(KsmRun::Unmerge), ..KsmControls::default() }).unwrap();
        assert_eq!(found(), ["scan-time", "100", "20", "1", "0", "2"]);
        drop(change);
        assert_eq!(found(), ["scan-time", "100", "20", "1", "0", "0"]);
        let lines = HARD.shell_lines();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(lines[0], "echo none > /sys/kernel/mm/ksm/advisor_mode");
        assert_eq!(lines[4], "echo 1 > /sys/kernel/mm/ksm/run");
    }

    #[test]
    fn a_guard_and_the_next_change_put_back_as_well() {
        let (keep, root) = captured_tree(&FOUND);
        let mut change = KsmChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        drop(change.0.guard.take());
        assert_eq!(root.read(GROUP.relative(RUN)).unwrap(), "0");
        drop(change);
        // Neither the owner nor its guard puts the settings back: the record is left.
        let mut change = KsmChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        change.0.guard.take().unwrap().release();
        change.0.lock.take().unwrap().release();
        std::mem::forget(change);
        assert!(keep.path().join("run/megapage/ksm-change").exists());
        let next = KsmChange::begin(&root).unwrap();
        assert!(next.recovered().iter().any(|setting| setting.path == "/sys/kernel/mm/ksm/run"));
        assert_eq!(root.read(GROUP.relative(RUN)).unwrap(), "0");
    }

    #[test]
    fn counters_are_read_where_the_kernel_has_them() {
        let (keep, root) = captured_tree(&FOUND);
        let all = Ksm { runs: false, pages_shared: 7, pages_scanned: 1234, full_scans: 3 };
        assert_eq!(read(&root).unwrap(), Some(all));
        for newer in ["advisor_mode", "smart_scan", "pages_scanned"] {
            std::fs::remove_file(keep.path().join(GROUP.relative(newer))).unwrap();
        }
        assert_eq!(read(&root).unwrap(), Some(Ksm { pages_scanned: 0, ..all }));
        let mut change = KsmChange::begin(&root).unwrap();
        change.set(&HARD).unwrap();
        drop(change);
        let (_keep, none) = captured_tree(&[("proc/none", "")]);
        assert_eq!(read(&none).unwrap(), None);
        assert!(KsmChange::begin(&none).unwrap_err().is_gone());
    }

    #[test]
    fn programs_that_are_marked_or_scanned_are_its_users() {
        let stat = |pages: u32, marked: &str| {
            format!("ksm_rmap_items {pages}\nksm_zero_pages 0\nksm_merge_any: no\nksm_mergeable: {marked}\n")
        };
        let (none, marked, scanned) = (stat(0, "no"), stat(0, "yes"), stat(9, "no"));
        let (_keep, root) = captured_tree(&[
            ("proc/3/ksm_stat", &none),
            ("proc/5/ksm_stat", &marked),
            ("proc/8/ksm_stat", &scanned),
            // Before Linux 6.1.
            ("proc/9/stat", ""),
        ]);
        assert_eq!(users(&root).unwrap(), [Pid(5), Pid(8)]);
    }

    #[test]
    fn its_thread_is_told_from_programs_of_its_name() {
        let stat = |pid: i32, flags: u32| {
            format!("{pid} (ksmd) S 2 0 0 0 -1 {flags} 0 0 0 0 5 6 0 0 25 5 1 0 36 0 0 {}\n", "0 ".repeat(28))
        };
        let (program, thread_stat) = (stat(7, 0x0040_0000), stat(37, 0x0020_8040));
        let (_keep, root) = captured_tree(&[("proc/7/stat", &program), ("proc/37/stat", &thread_stat)]);
        assert_eq!(thread(&root).unwrap(), Some(Pid(37)));
    }
}
