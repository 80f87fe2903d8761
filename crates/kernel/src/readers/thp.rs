//! The settings of transparent huge pages.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

use crate::ability::THP;
use crate::process::Status;
use crate::{KernelError, KernelRoot, meminfo, optional};
pub use megapage_snapshot::thp::{Khugepaged, ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, ThpSize};
use megapage_units::{Bytes, PageSize};

/// Directory of the settings, relative to a [`KernelRoot`].
pub const DIRECTORY: &str = "sys/kernel/mm/transparent_hugepage";

/// Returns the full path of one of the settings, such as `enabled` or `khugepaged/defrag`, as the
/// user would name it.
pub fn path(name: &str) -> String {
    format!("/{DIRECTORY}/{name}")
}

/// Returns true if the kernel was built with transparent huge pages. `None` where nothing shows it,
/// as in a chroot without /sys and a sandbox that makes its own /proc.
pub(crate) fn is_built(root: &KernelRoot) -> Option<bool> {
    let counts = meminfo(root).is_ok_and(|memory| memory.anon_huge.is_some());
    if counts || root.path(DIRECTORY).exists() {
        return Some(true);
    }
    // The kernel makes the parent directory whatever it was built with.
    root.path("sys/kernel/mm").exists().then_some(false)
}

/// Returns true if the process of `status` has transparent huge pages switched off by prctl(2). A
/// kernel without them shows THP_enabled 0 for every process.
pub fn is_switched_off(root: &KernelRoot, status: &Status) -> bool {
    status.thp_enabled == Some(false) && THP.is_there(root)
}

/// Reads the settings; `Ok(None)` where they are not there: on a kernel without transparent huge
/// pages, or without /sys ([`THP`] distinguishes them).
pub fn settings(root: &KernelRoot) -> Result<Option<ThpSettings>, KernelError> {
    let Some(enabled) = optional(selected(root, "enabled", ThpEnabled::parse))? else { return Ok(None) };
    Ok(Some(ThpSettings {
        enabled,
        defrag: selected(root, "defrag", ThpDefrag::parse)?,
        shmem: optional(selected(root, "shmem_enabled", ThpShmem::parse))?,
        pmd_size: optional(root.read_u64(format!("{DIRECTORY}/hpage_pmd_size")))?
            .map_or(PageSize::HUGE_2M.bytes(), Bytes),
        sizes: sizes(root)?,
        khugepaged: optional(khugepaged(root))?,
        shrink_underused: optional(root.read_u64(format!("{DIRECTORY}/shrink_underused")))?
            .map(|number| number != 0),
    }))
}

/// Returns the setting that applies to anonymous memory in pages of 2 MiB. Same as
/// [`ThpSettings::anonymous`], but reads only two files. `Ok(None)` as for [`settings`].
pub fn anonymous_2m(root: &KernelRoot) -> Result<Option<ThpEnabled>, KernelError> {
    let Some(global) = optional(selected(root, "enabled", ThpEnabled::parse))? else { return Ok(None) };
    let by_size = optional(selected(root, "hugepages-2048kB/enabled", ThpEnabled::parse))?;
    Ok(Some(by_size.filter(|own| *own != ThpEnabled::Inherit).unwrap_or(global)))
}

/// Reads the word in brackets: `always [madvise] never`.
fn selected<T>(
    root: &KernelRoot,
    name: impl std::fmt::Display,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, KernelError> {
    let path = format!("{DIRECTORY}/{name}");
    let text = root.read(&path)?;
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    word.and_then(|word| parse(word.as_bytes())).ok_or_else(|| KernelError::Parse {
        path: root.path(&path),
        line: 1,
        what: format!("expected one known word in brackets, found '{}'", text.trim()),
    })
}

fn sizes(root: &KernelRoot) -> Result<Vec<ThpSize>, KernelError> {
    let mut sizes = Vec::new();
    for name in root.list(DIRECTORY)? {
        let kib = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(page_size) = kib.and_then(|kib| PageSize::new(kib.parse::<u64>().ok()?.checked_mul(1024)?))
        else {
            continue;
        };
        // Sizes above the second level have a setting for shared memory only.
        let Some(enabled) = optional(selected(root, format!("{name}/enabled"), ThpEnabled::parse))? else {
            continue;
        };
        let shmem = optional(selected(root, format!("{name}/shmem_enabled"), ThpShmem::parse))?;
        sizes.push(ThpSize { page_size, enabled, shmem });
    }
    sizes.sort_by_key(|size| size.page_size);
    sizes.dedup_by_key(|size| size.page_size);
    Ok(sizes)
}

fn khugepaged(root: &KernelRoot) -> Result<Khugepaged, KernelError> {
    let number = |name: &str| root.read_u64(format!("{DIRECTORY}/khugepaged/{name}"));
    Ok(Khugepaged {
        defrag: number("defrag")? != 0,
        max_ptes_none: number("max_ptes_none")?,
        pages_to_scan: number("pages_to_scan")?,
        scan_sleep_ms: number("scan_sleep_millisecs")?,
        pages_collapsed: number("pages_collapsed")?,
    })
}

/// A setting that can be written: its name below the directory of the settings, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSetting {
    /// The name, such as `enabled`, `khugepaged/max_ptes_none`, `hugepages-64kB/enabled`.
    pub name: String,
    /// The value: the word in brackets, or a number.
    pub value: String,
    /// The words that it takes; empty for numbers.
    pub words: Vec<String>,
}

/// Settings of khugepaged that only count.
const COUNTS: [&str; 2] = ["pages_collapsed", "full_scans"];

/// Returns all settings that can be written, in the order of a directory listing. First come those
/// of all sizes, then khugepaged's, then those of each size. Empty on a kernel without transparent
/// huge pages.
pub fn raw_settings(root: &KernelRoot) -> Result<Vec<RawSetting>, KernelError> {
    let Some(top) = optional(root.list(DIRECTORY))? else { return Ok(Vec::new()) };
    let below = |directory: &str| -> Result<Vec<String>, KernelError> {
        let names = optional(root.list(format!("{DIRECTORY}/{directory}")))?.unwrap_or_default();
        Ok(names.into_iter().map(|name| format!("{directory}/{name}")).collect())
    };
    let mut names: Vec<String> = top.iter().filter(|name| *name != "hpage_pmd_size").cloned().collect();
    names.retain(|name| *name != "khugepaged" && !name.starts_with("hugepages-"));
    let counts = |name: &String| COUNTS.iter().any(|count| name.ends_with(count));
    names.extend(below("khugepaged")?.into_iter().filter(|name| !counts(name)));
    let mut sizes: Vec<(u64, &String)> = top.iter().filter_map(|name| Some((kib(name)?, name))).collect();
    sizes.sort();
    for (_, size) in sizes {
        // Beside its settings a size has a directory of counters.
        names.extend(below(size)?.into_iter().filter(|name| name.ends_with("enabled")));
    }
    let mut settings = Vec::new();
    for name in names {
        let Ok(text) = root.read(format!("{DIRECTORY}/{name}")) else { continue };
        let words: Vec<String> = text.split_whitespace().map(String::from).collect();
        let chosen = words.iter().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        settings.push(match chosen {
            Some(chosen) => RawSetting {
                value: chosen.into(),
                words: words.iter().map(|word| word.trim_matches(['[', ']']).into()).collect(),
                name,
            },
            None => RawSetting { name, value: text.trim().into(), words: Vec::new() },
        });
    }
    Ok(settings)
}

fn kib(name: &str) -> Option<u64> {
    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
}

/// Writes one of [`raw_settings`].
pub fn write_setting(root: &KernelRoot, name: &str, value: &str) -> Result<(), KernelError> {
    root.write(format!("{DIRECTORY}/{name}"), value)
}

/// Returns the words of the kernel's command line that set transparent huge pages.
pub fn boot_words(root: &KernelRoot) -> Vec<String> {
    const NAMES: [&str; 6] = [
        "transparent_hugepage=",
        "transparent_hugepage_shmem=",
        "transparent_hugepage_tmpfs=",
        "thp_anon=",
        "thp_shmem=",
        "thp_file=",
    ];
    let text = root.read("proc/cmdline").unwrap_or_default();
    let words = text.split_whitespace().filter(|word| NAMES.iter().any(|name| word.starts_with(name)));
    words.map(String::from).collect()
}

/// Limits within which khugepaged collapses a region, and its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollapseLimits {
    /// Base pages of a region that may be swapped out; khugepaged reads them back.
    pub max_ptes_swap: u64,
    /// Base pages that may be shared with other processes (Linux 5.8; earlier kernels have no such
    /// limit: 512).
    pub max_ptes_shared: u64,
    /// Number of scans of all memory since boot.
    pub full_scans: u64,
}

/// Reads khugepaged's limits; `Ok(None)` on a kernel without them.
pub fn collapse_limits(root: &KernelRoot) -> Result<Option<CollapseLimits>, KernelError> {
    let number = |name: &str| optional(root.read_u64(format!("{DIRECTORY}/khugepaged/{name}")));
    let Some(max_ptes_swap) = number("max_ptes_swap")? else { return Ok(None) };
    Ok(Some(CollapseLimits {
        max_ptes_swap,
        max_ptes_shared: number("max_ptes_shared")?.unwrap_or(512),
        full_scans: number("full_scans")?.unwrap_or(0),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, KernelRoot) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(DIRECTORY).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = KernelRoot::captured(directory.path());
        (directory, root)
    }

    #[test]
    fn a_recent_kernel_has_settings_by_size() {
        let (_keep, root) = tree(&[
            ("enabled", "always [madvise] never\n"),
            ("defrag", "always defer [defer+madvise] madvise never\n"),
            ("shmem_enabled", "always within_size [advise] never deny force\n"),
            ("hpage_pmd_size", "2097152\n"),
            ("shrink_underused", "1\n"),
            ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
            ("hugepages-2048kB/shmem_enabled", "always [inherit] within_size advise never\n"),
            ("hugepages-64kB/enabled", "[always] inherit madvise never\n"),
            ("hugepages-64kB/shmem_enabled", "always inherit within_size advise [never]\n"),
            ("khugepaged/defrag", "1\n"),
            ("khugepaged/max_ptes_none", "511\n"),
            ("khugepaged/pages_to_scan", "4096\n"),
            ("khugepaged/scan_sleep_millisecs", "10000\n"),
            ("khugepaged/pages_collapsed", "3\n"),
        ]);
        let settings = settings(&root).unwrap().unwrap();
        assert_eq!(collapse_limits(&root).unwrap(), None);
        let small = PageSize::new(64 << 10).unwrap();
        assert_eq!(settings.defrag, ThpDefrag::DeferMadvise);
        assert_eq!(
            settings.sizes.iter().map(|size| size.page_size).collect::<Vec<_>>(),
            [small, PageSize::HUGE_2M]
        );
        assert_eq!(settings.anonymous(PageSize::HUGE_2M), ThpEnabled::Madvise);
        assert_eq!(anonymous_2m(&root).unwrap(), Some(ThpEnabled::Madvise));
        assert_eq!(settings.anonymous(small), ThpEnabled::Always);
        assert_eq!(settings.anonymous(PageSize::HUGE_1G), ThpEnabled::Never);
        assert_eq!(settings.shared(PageSize::HUGE_2M), ThpShmem::Advise);
        assert_eq!(settings.shared(small), ThpShmem::Never);
        assert_eq!(settings.khugepaged.unwrap().scan_sleep_ms, 10_000);
        assert_eq!(settings.shrink_underused, Some(true));
        let denied = ThpSettings { shmem: Some(ThpShmem::Deny), ..settings };
        assert_eq!(denied.shared(small), ThpShmem::Deny);
    }

    #[test]
    fn an_old_kernel_has_the_global_setting_alone() {
        let (_keep, root) =
            tree(&[("enabled", "[always] madvise never\n"), ("defrag", "always madvise [never]\n")]);
        let settings = settings(&root).unwrap().unwrap();
        assert_eq!(settings.anonymous(PageSize::HUGE_2M), ThpEnabled::Always);
        assert_eq!(settings.shared(PageSize::HUGE_2M), ThpShmem::Never);
        assert_eq!(settings.khugepaged, None);
    }

    #[test]
    fn the_limits_of_khugepaged_are_read() {
        let (_keep, root) = tree(&[("khugepaged/max_ptes_swap", "64\n"), ("khugepaged/full_scans", "17\n")]);
        let expected = CollapseLimits { max_ptes_swap: 64, max_ptes_shared: 512, full_scans: 17 };
        assert_eq!(collapse_limits(&root).unwrap(), Some(expected));
    }

    #[test]
    fn settings_that_can_be_written_are_listed() {
        let (keep, root) = tree(&[
            ("enabled", "always [madvise] never\n"),
            ("hpage_pmd_size", "2097152\n"),
            ("use_zero_page", "1\n"),
            ("khugepaged/max_ptes_none", "511\n"),
            ("khugepaged/pages_collapsed", "3\n"),
            ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
            ("hugepages-64kB/enabled", "always inherit madvise [never]\n"),
            ("hugepages-64kB/stats/split", "0\n"),
        ]);
        let found = raw_settings(&root).unwrap();
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "enabled",
                "use_zero_page",
                "khugepaged/max_ptes_none",
                "hugepages-64kB/enabled",
                "hugepages-2048kB/enabled"
            ]
        );
        assert_eq!((found[0].value.as_str(), found[0].words.len()), ("madvise", 3));
        assert_eq!((found[2].value.as_str(), found[2].words.len()), ("511", 0));
        fs::create_dir_all(keep.path().join("proc")).unwrap();
        fs::write(keep.path().join("proc/cmdline"), "quiet transparent_hugepage=never thp_anon=64K:always\n")
            .unwrap();
        assert_eq!(boot_words(&root), ["transparent_hugepage=never", "thp_anon=64K:always"]);
        let (_keep, root) = tree(&[]);
        assert!(raw_settings(&root).unwrap().is_empty() && boot_words(&root).is_empty());
    }

    #[test]
    fn no_thp_is_none_and_an_unknown_word_is_an_error() {
        let (_keep, root) = tree(&[]);
        assert_eq!((settings(&root).unwrap(), anonymous_2m(&root).unwrap()), (None, None));
        let (_keep, root) = tree(&[("enabled", "[perhaps]\n"), ("defrag", "[never]\n")]);
        let error = settings(&root).unwrap_err();
        assert!(error.to_string().contains("enabled: line 1: expected one known word"), "{error}");
    }

    #[test]
    fn the_running_machine_can_be_read() {
        settings(&KernelRoot::live()).unwrap();
    }
}
