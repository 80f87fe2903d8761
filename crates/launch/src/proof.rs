//! Whether a run obtained what was asked for, by the kernel's figures.

use crate::report::{Backed, Moment, RunReport};
use crate::request::{Heap, Mechanism};
use megapage_units::Bytes;

/// Base pages that a heap may hold however small it is: its first chunks are on base pages on purpose, so
/// that small programs stay small.
const BASE_ALLOWANCE: Bytes = Bytes::mib(8);
/// Base pages that a larger heap may hold, as a share: one in twenty.
const BASE_SHARE: u64 = 20;

/// What was asked and not obtained, each in words.
pub fn not_obtained(report: &RunReport) -> Vec<String> {
    let mut missing = report.text.iter().flat_map(|text| text.not_obtained()).collect();
    if report.asked.heap == Heap::None {
        return missing;
    }
    heap_not_obtained(report, &mut missing);
    missing
}

fn heap_not_obtained(report: &RunReport, missing: &mut Vec<String>) {
    if report.mechanisms.is_empty() && report.java.is_none() {
        missing.push("no mechanism applies to the program".to_string());
    }
    let preloaded = report.mechanisms.contains(&Mechanism::Preload);
    if preloaded && report.account.is_none() {
        missing.push(
            "the preloaded library does not report: it was not loaded, or the program has become another"
                .into(),
        );
    }
    let pool = report.pool.is_some();
    missing
        .extend(report.pool.iter().filter(|pool| !pool.used).map(|pool| format!("--pool: {}", pool.reason)));
    for fall_back in report.account.iter().flat_map(|account| &account.fall_backs) {
        if matters(fall_back.reason, report.asked.heap, pool) {
            let bytes = Bytes(fall_back.bytes);
            missing.push(format!("{bytes} fell back: {} ({})", fall_back.explanation, fall_back.reason));
        }
    }
    // Promotion comes after the memory: what it obtained shows at the end.
    let by_promotion_alone = report.mechanisms == [Mechanism::Outside];
    for (name, moment) in [("peak", &report.peak), ("end", &report.end)] {
        match moment {
            _ if name == "peak" && by_promotion_alone => {}
            Some(moment) => missing.extend(short_of(name, moment, report.asked.heap, preloaded)),
            // One without the other does not occur: the last sample is the peak when it is the only one.
            None if name == "end" => missing.push("the kernel's figures could not be read".into()),
            None => {}
        }
    }
}

/// Whether a fall-back for this reason is short of what was asked. The first chunks of every heap are too
/// small, and with `auto` a plainer huge page is still what was asked. Where pages of a broker were asked for, leaving them
/// counts.
fn matters(reason: &str, heap: Heap, pool: bool) -> bool {
    match reason {
        "too-small" => false,
        "fork" | "kernel-too-old" if pool => true,
        "pool-short-1g"
        | "pool-short-2m"
        | "cgroup-limit"
        | "memory-policy"
        | "cpuset"
        | "kernel-too-old"
        | "refused-unexplained"
        | "fork" => !matches!(heap, Heap::Auto | Heap::Thp),
        _ => true,
    }
}

/// What one moment's memory is short of.
fn short_of(name: &str, moment: &Moment, asked: Heap, preloaded: bool) -> Option<String> {
    // The preloaded heap, and Java's, answer for their own memory; without one, all anonymous memory does. One that has
    // never outgrown the first chunks maps nothing huge, and nothing was refused to it.
    let heap: Backed = match (preloaded, &moment.heap) {
        (_, Some(heap)) => *heap,
        (true, None) => return None,
        (false, None) => moment.anonymous,
    };
    let obtained = match asked {
        Heap::None => return None,
        Heap::Huge1G => heap.hugetlb_1g_bytes,
        Heap::Huge2M => heap.hugetlb_1g_bytes + heap.hugetlb_2m_bytes,
        Heap::Auto | Heap::Thp => heap.total_bytes - heap.base_bytes,
    };
    let lacking = heap.total_bytes - obtained;
    let allowed = BASE_ALLOWANCE.0.max(heap.total_bytes / BASE_SHARE);
    (lacking > allowed).then(|| {
        format!(
            "at the {name}, {} of the heap's {} were not on {}",
            Bytes(lacking),
            Bytes(heap.total_bytes),
            match asked {
                Heap::Huge1G => "1 GiB hugetlb pages",
                Heap::Huge2M => "hugetlb pages",
                _ => "huge pages",
            }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(hugetlb_2m: u64, thp: u64, base: u64) -> Moment {
        let mib = |n: u64| n << 20;
        let heap = Backed {
            hugetlb_2m_bytes: mib(hugetlb_2m),
            thp_bytes: mib(thp),
            base_bytes: mib(base),
            total_bytes: mib(hugetlb_2m + thp + base),
            ..Backed::default()
        };
        Moment { at_ms: 0, age_ms: 0, resident: heap, anonymous: heap, heap: Some(heap), swapped_bytes: 0 }
    }

    #[test]
    fn each_kind_is_measured_by_its_own_pages() {
        let thp = moment(0, 100, 0);
        assert_eq!(short_of("end", &thp, Heap::Thp, true), None);
        assert_eq!(short_of("end", &thp, Heap::Auto, true), None);
        let said = short_of("end", &thp, Heap::Huge2M, true).unwrap();
        assert_eq!(said, "at the end, 100 MiB of the heap's 100 MiB were not on hugetlb pages");
        let hugetlb = moment(100, 0, 0);
        assert_eq!(short_of("end", &hugetlb, Heap::Huge2M, true), None);
        assert!(short_of("end", &hugetlb, Heap::Huge1G, true).unwrap().contains("1 GiB hugetlb pages"));
    }

    #[test]
    fn a_little_on_base_pages_is_allowed() {
        assert_eq!(short_of("end", &moment(0, 0, 8), Heap::Auto, true), None, "a small program");
        assert!(short_of("end", &moment(0, 0, 9), Heap::Auto, true).is_some());
        assert_eq!(short_of("end", &moment(0, 950, 50), Heap::Thp, true), None, "one in twenty");
        assert!(short_of("end", &moment(0, 949, 51), Heap::Thp, true).is_some());
    }

    #[test]
    fn a_preloaded_heap_answers_for_itself_alone() {
        let mut small = moment(0, 0, 50);
        small.heap = None;
        assert_eq!(short_of("end", &small, Heap::Auto, true), None);
        assert!(short_of("end", &small, Heap::Auto, false).is_some());
    }

    #[test]
    fn reasons_matter_by_what_was_asked() {
        let matters_without = |reason, heap| matters(reason, heap, false);
        assert!(!matters_without("too-small", Heap::Huge1G) && !matters("too-small", Heap::Huge1G, true));
        assert!(matters_without("pool-short-2m", Heap::Huge2M));
        assert!(!matters_without("pool-short-2m", Heap::Auto));
        assert!(matters_without("thp-off", Heap::Auto) && matters_without("other", Heap::Thp));
        for reason in ["cgroup-limit", "memory-policy", "cpuset", "kernel-too-old", "refused-unexplained"] {
            assert!(
                matters_without(reason, Heap::Huge2M) && !matters_without(reason, Heap::Auto),
                "{reason}"
            );
        }
        assert!(matters("kernel-too-old", Heap::Auto, true), "a broker's pages were asked for");
        assert!(!matters_without("fork", Heap::Auto) && matters("fork", Heap::Auto, true));
        assert!(matters("broker-empty", Heap::Auto, true) && !matters("pool-short-2m", Heap::Auto, true));
    }
}
