//! The settings of transparent huge pages.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

use crate::{KernelError, KernelRoot};
pub use megapage_snapshot::thp::{Khugepaged, ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, ThpSize};
use megapage_units::{Bytes, PageSize};

const DIRECTORY: &str = "sys/kernel/mm/transparent_hugepage";

/// The full path of one of the settings, such as `enabled` or `khugepaged/defrag`, as the user would name it.
pub fn path(name: &str) -> String {
    format!("/{DIRECTORY}/{name}")
}

/// Reads the settings; `Ok(None)` on a kernel without transparent huge pages.
pub fn settings(root: &KernelRoot) -> Result<Option<ThpSettings>, KernelError> {
    let enabled = match selected(root, "enabled", ThpEnabled::from_word) {
        Err(error) if error.is_gone() => return Ok(None),
        other => other?,
    };
    Ok(Some(ThpSettings {
        enabled,
        defrag: selected(root, "defrag", ThpDefrag::from_word)?,
        shmem: optional(selected(root, "shmem_enabled", ThpShmem::from_word))?,
        pmd_size: optional(root.read_u64(format!("{DIRECTORY}/hpage_pmd_size")))?
            .map_or(PageSize::HUGE_2M.bytes(), Bytes),
        sizes: sizes(root)?,
        khugepaged: optional(khugepaged(root))?,
        shrink_underused: optional(root.read_u64(format!("{DIRECTORY}/shrink_underused")))?
            .map(|number| number != 0),
    }))
}

/// The word in brackets: `always [madvise] never`.
fn selected<T>(
    root: &KernelRoot,
    name: impl std::fmt::Display,
    from_word: impl Fn(&str) -> Option<T>,
) -> Result<T, KernelError> {
    let path = format!("{DIRECTORY}/{name}");
    let text = root.read(&path)?;
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    word.and_then(from_word).ok_or_else(|| KernelError::Parse {
        path: root.path(&path),
        line: 1,
        what: format!("expected one known word in brackets, found '{}'", text.trim()),
    })
}

fn optional<T>(result: Result<T, KernelError>) -> Result<Option<T>, KernelError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
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
        let Some(enabled) = optional(selected(root, format!("{name}/enabled"), ThpEnabled::from_word))?
        else {
            continue;
        };
        let shmem = optional(selected(root, format!("{name}/shmem_enabled"), ThpShmem::from_word))?;
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

/// How far khugepaged goes to collapse a region, and how far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollapseLimits {
    /// How many of a region's base pages may be swapped out, and are then read back.
    pub max_ptes_swap: u64,
    /// How many may be shared with other processes (Linux 5.8; earlier kernels have no such limit: 512).
    pub max_ptes_shared: u64,
    /// How often it has been through all memory since boot.
    pub full_scans: u64,
}

/// Reads khugepaged's limits; `Ok(None)` on a kernel without.
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
    fn no_thp_is_none_and_an_unknown_word_is_an_error() {
        let (_keep, root) = tree(&[]);
        assert_eq!(settings(&root).unwrap(), None);
        let (_keep, root) = tree(&[("enabled", "[perhaps]\n"), ("defrag", "[never]\n")]);
        let error = settings(&root).unwrap_err();
        assert!(error.to_string().contains("enabled: line 1: expected one known word"), "{error}");
    }

    #[test]
    fn the_running_machine_can_be_read() {
        settings(&KernelRoot::live()).unwrap();
    }
}
