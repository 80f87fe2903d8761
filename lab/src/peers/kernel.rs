//! The kernel as a peer: only settings of transparent huge pages, without any program of
//! megapage's.

use megapage_kernel::thp::ThpEnabled;
use megapage_testing::thp_change::ThpControls;
use std::time::Duration;

/// One setting of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSetting {
    /// Its name on the command line and in every table.
    pub name: &'static str,
    /// The settings.
    pub controls: ThpControls,
    /// The reason why it is a peer, or the purpose for which it is the best setting.
    pub why: &'static str,
}

/// Address of the description of the settings.
pub const KERNEL_SOURCE: &str = "https://docs.kernel.org/admin-guide/mm/transhuge.html";
/// Name of the setting with base pages only.
pub const NEVER: &str = "thp-never";
/// Name of khugepaged at its defaults.
pub const ALWAYS: &str = "thp-always";
/// Name of khugepaged without a pause, for which no waste in a huge page is too large.
pub const HARD: &str = "thp-hard";

/// Returns the setting of khugepaged without a pause, which makes huge all regions with at most
/// `max_ptes_none` base pages missing.
const fn hard(name: &'static str, max_ptes_none: u64, why: &'static str) -> KernelSetting {
    let controls = ThpControls {
        enabled: Some(ThpEnabled::Always),
        // 4 GiB in one go.
        pages_to_scan: Some(1 << 20),
        scan_sleep: Some(Duration::ZERO),
        alloc_sleep: Some(Duration::ZERO),
        max_ptes_none: Some(max_ptes_none),
        shrink_underused: Some(true),
    };
    KernelSetting { name, controls, why }
}

const fn enabled(name: &'static str, enabled: ThpEnabled, why: &'static str) -> KernelSetting {
    KernelSetting { name, controls: ThpControls { enabled: Some(enabled), ..ThpControls::AS_FOUND }, why }
}

/// khugepaged tuned: it scans as hard as it can; the settings differ in the emptiness of a huge
/// page. Each gate against it uses the setting that is best by the gate's quantity.
pub const TUNED: [KernelSetting; 4] = [
    hard(
        "thp-hard-0",
        0,
        "khugepaged collapses only fully present memory; reclaim splits any huge page with a base page of zeros: least memory",
    ),
    hard(
        "thp-hard-64",
        64,
        "an eighth of a huge page may be missing: little extra memory, most well-filled heaps collapse",
    ),
    hard(
        "thp-hard-255",
        255,
        "half of a huge page may be missing: more huge pages, and bloat at most doubles a range",
    ),
    hard(
        HARD,
        511,
        "one base page suffices: huge soonest, most memory; at 511 the kernel does not split underused pages",
    ),
];

/// All settings of the kernel alone, in the order of a round.
pub const KERNEL_SETTINGS: [KernelSetting; 7] = [
    enabled(NEVER, ThpEnabled::Never, "base pages, with which all others are compared"),
    enabled(
        "thp-madvise",
        ThpEnabled::Madvise,
        "the default of most distributions: huge pages only where a program asks",
    ),
    enabled(
        ALWAYS,
        ThpEnabled::Always,
        "memory is huge from the first touch; khugepaged at its defaults collapses the rest",
    ),
    TUNED[0],
    TUNED[1],
    TUNED[2],
    TUNED[3],
];

/// Returns true if `name` is khugepaged tuned.
pub fn is_tuned(name: &str) -> bool {
    TUNED.iter().any(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuned_settings_differ_in_how_empty_a_page_may_be_alone() {
        let bare = |setting: &KernelSetting| ThpControls { max_ptes_none: None, ..setting.controls };
        assert!(TUNED.iter().all(|setting| bare(setting) == bare(&TUNED[0])), "{TUNED:?}");
        assert_eq!(TUNED.map(|setting| setting.controls.max_ptes_none.unwrap()), [0, 64, 255, 511]);
        assert!(is_tuned("thp-hard") && !is_tuned(ALWAYS));
    }
}
