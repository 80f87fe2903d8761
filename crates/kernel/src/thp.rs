//! The settings of transparent huge pages.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, PageSize};

const DIRECTORY: &str = "sys/kernel/mm/transparent_hugepage";

/// Declares an enum whose variants are the words of one kernel file.
macro_rules! words {
    ($(#[$attribute:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            fn from_word(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        /// The kernel's word.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $($name::$variant => $word,)+
                })
            }
        }
    };
}

words! {
    /// Who gets huge pages for anonymous memory: `enabled`, global or of one size.
    ThpEnabled {
        /// Every process.
        Always = "always",
        /// Ranges that asked with madvise(MADV_HUGEPAGE).
        Madvise = "madvise",
        /// Nobody.
        Never = "never",
        /// As the global setting says. Of one size only.
        Inherit = "inherit",
    }
}

words! {
    /// How hard a page fault tries when no huge page is free: `defrag`.
    ThpDefrag {
        /// Reclaims and compacts in the fault, for everybody.
        Always = "always",
        /// Wakes kswapd and kcompactd; the fault itself falls back to base pages.
        Defer = "defer",
        /// As `defer`, but ranges that asked with madvise reclaim and compact in the fault.
        DeferMadvise = "defer+madvise",
        /// Only ranges that asked with madvise reclaim and compact in the fault.
        Madvise = "madvise",
        /// Takes what is free and does nothing for more.
        Never = "never",
    }
}

words! {
    /// Who gets huge pages for shared anonymous memory, SysV shm and memfds: `shmem_enabled`.
    ThpShmem {
        /// Everybody.
        Always = "always",
        /// Where the huge page lies within the file's size, or the range asked with madvise.
        WithinSize = "within_size",
        /// Ranges that asked with madvise.
        Advise = "advise",
        /// Nobody.
        Never = "never",
        /// Nobody, tmpfs mounts with `huge=` included.
        Deny = "deny",
        /// Everybody, tmpfs mounts included; for testing.
        Force = "force",
        /// As the global setting says. Of one size only.
        Inherit = "inherit",
    }
}

/// The settings of one size of page (`hugepages-<size>kB/`, Linux 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThpSize {
    /// The size, mTHP or 2 MiB.
    pub page_size: PageSize,
    /// For anonymous memory.
    pub enabled: ThpEnabled,
    /// For shared memory (Linux 6.11).
    pub shmem: Option<ThpShmem>,
}

/// The settings of the kernel thread that collapses base pages to huge ones in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Khugepaged {
    /// Whether it may compact and reclaim to get a huge page.
    pub defrag: bool,
    /// How many of a region's base pages may be absent and are then filled with zeros.
    pub max_ptes_none: u64,
    /// Base pages looked at in one round.
    pub pages_to_scan: u64,
    /// Pause between rounds, in milliseconds.
    pub scan_sleep_ms: u64,
    /// Regions collapsed since boot.
    pub pages_collapsed: u64,
}

/// All settings of transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThpSettings {
    /// The global setting for anonymous memory.
    pub enabled: ThpEnabled,
    /// How hard a fault tries.
    pub defrag: ThpDefrag,
    /// The global setting for shared memory; `None` on a kernel without it.
    pub shmem: Option<ThpShmem>,
    /// The size that a page-table entry of the second level maps: 2 MiB on x86-64.
    pub pmd_size: Bytes,
    /// The settings by size, ascending; empty before Linux 6.8.
    pub sizes: Vec<ThpSize>,
    /// The background thread; `None` where the kernel shows no settings for it.
    pub khugepaged: Option<Khugepaged>,
    /// Whether under memory pressure underused huge pages are split (Linux 6.12).
    pub shrink_underused: Option<bool>,
}

/// The full path of one of the settings, such as `enabled` or `khugepaged/defrag`, as the user would name it.
pub fn path(name: &str) -> String {
    format!("/{DIRECTORY}/{name}")
}

impl ThpSettings {
    /// Reads the settings; `Ok(None)` on a kernel without transparent huge pages.
    pub fn read(root: &KernelRoot) -> Result<Option<ThpSettings>, KernelError> {
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
                .map(|figure| figure != 0),
        }))
    }

    /// What applies to anonymous memory in pages of `size`: `Always`, `Madvise` or `Never`.
    pub fn anonymous(&self, size: PageSize) -> ThpEnabled {
        match self.sizes.iter().find(|entry| entry.page_size == size) {
            Some(ThpSize { enabled: ThpEnabled::Inherit, .. }) => self.enabled,
            Some(entry) => entry.enabled,
            // Before there were settings by size, the global one was for this size alone.
            None if size.bytes() == self.pmd_size => self.enabled,
            None => ThpEnabled::Never,
        }
    }

    /// What applies to shared memory in pages of `size`; `Never` where the kernel has no such setting.
    pub fn shared(&self, size: PageSize) -> ThpShmem {
        let global = self.shmem.unwrap_or(ThpShmem::Never);
        // These two override the settings by size.
        if matches!(global, ThpShmem::Deny | ThpShmem::Force) {
            return global;
        }
        match self.sizes.iter().find(|entry| entry.page_size == size).and_then(|entry| entry.shmem) {
            Some(ThpShmem::Inherit) => global,
            Some(own) => own,
            None if size.bytes() == self.pmd_size => global,
            None => ThpShmem::Never,
        }
    }
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
    Ok(sizes)
}

fn khugepaged(root: &KernelRoot) -> Result<Khugepaged, KernelError> {
    let figure = |name: &str| root.read_u64(format!("{DIRECTORY}/khugepaged/{name}"));
    Ok(Khugepaged {
        defrag: figure("defrag")? != 0,
        max_ptes_none: figure("max_ptes_none")?,
        pages_to_scan: figure("pages_to_scan")?,
        scan_sleep_ms: figure("scan_sleep_millisecs")?,
        pages_collapsed: figure("pages_collapsed")?,
    })
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
        let settings = ThpSettings::read(&root).unwrap().unwrap();
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
        let settings = ThpSettings::read(&root).unwrap().unwrap();
        assert_eq!(settings.anonymous(PageSize::HUGE_2M), ThpEnabled::Always);
        assert_eq!(settings.shared(PageSize::HUGE_2M), ThpShmem::Never);
        assert_eq!(settings.khugepaged, None);
    }

    #[test]
    fn no_thp_is_none_and_an_unknown_word_is_an_error() {
        let (_keep, root) = tree(&[]);
        assert_eq!(ThpSettings::read(&root).unwrap(), None);
        let (_keep, root) = tree(&[("enabled", "[perhaps]\n"), ("defrag", "[never]\n")]);
        let error = ThpSettings::read(&root).unwrap_err();
        assert!(error.to_string().contains("enabled: line 1: expected one known word"), "{error}");
    }

    #[test]
    fn the_running_machine_can_be_read() {
        ThpSettings::read(&KernelRoot::live()).unwrap();
    }
}
