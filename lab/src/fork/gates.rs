//! Gates: speed-ups of Java's start of a child that does nothing, with large pages against normal
//! ones, by the size of the heap.

use super::jvm::{ORDINARY, ROOT};
use super::native::NativeRow;
use super::{ConcurrentRow, ForkFound, JvmReport, JvmRow};
use crate::bench::Gate;
use megapage_units::Bytes;

/// The heap, its name, and the factor by which large pages are to be faster.
const DEMANDS: [(Bytes, &str, f64); 4] = [
    (Bytes::mib(128), "128m", 3.7),
    (Bytes::mib(256), "256m", 4.2),
    (Bytes::mib(512), "512m", 7.9),
    (Bytes::gib(1), "1g", 17.0),
];
/// Share of an ordinary user's heap from which on it counts as huge.
const HUGE_SHARE: f64 = 0.95;
/// Threads that start children at the same time.
const THREADS: u32 = 4;

/// Judges the rows that ran: heaps of other sizes have no gates.
pub(super) fn judge(found: &ForkFound) -> Vec<Gate> {
    DEMANDS
        .iter()
        .flat_map(|&(heap, case, times)| {
            let jvm = found.jvm.as_ref();
            [
                native(&found.native, heap, case, times),
                concurrent(&found.concurrent, heap, case, times),
                jvm.and_then(|jvm| java(jvm, heap, case, times)),
                jvm.and_then(|jvm| ordinary(jvm, heap, case)),
            ]
        })
        .flatten()
        .collect()
}

fn native(rows: &[NativeRow], heap: Bytes, case: &'static str, times: f64) -> Option<Gate> {
    let of = |pages: &str| {
        let row = rows.iter().find(|row| row.heap_bytes == heap.0 && row.pages == pages)?;
        Some(row.whole.get("fork")?.median_ns.median / 1e6)
    };
    let (base, huge) = (of("base")?, of("hugetlb-private")?);
    let ratio = base / huge;
    Some(Gate {
        case,
        demand: format!("fork and exec, hugetlb: {times} times as fast as base pages"),
        found: format!("{ratio:.1}: {huge:.2} ms, not {base:.2}"),
        holds: ratio >= times,
    })
}

/// Judges threads, which have to gain as much as one does alone.
fn concurrent(rows: &[ConcurrentRow], heap: Bytes, case: &'static str, times: f64) -> Option<Gate> {
    let of =
        |pages: &str| rows.iter().find(|row| row.heap_bytes == heap.0 && row.pages == pages)?.rate(THREADS);
    let (base, huge) = (of("base")?, of("hugetlb-private")?);
    let ratio = huge / base;
    Some(Gate {
        case,
        demand: format!("{THREADS} threads fork, hugetlb: {times} times the children of base pages"),
        found: format!("{ratio:.1}: {huge:.0} a second, not {base:.0}"),
        holds: ratio >= times,
    })
}

fn find<'a>(jvm: &'a JvmReport, user: &str, how: &str, heap: Bytes, pages: &str) -> Option<&'a JvmRow> {
    let wanted = |row: &&JvmRow| {
        row.user == user && row.mechanism == how && row.heap_bytes == heap.0 && row.pages == pages
    };
    jvm.rows.iter().find(wanted)
}

fn milliseconds(row: &JvmRow) -> Option<f64> {
    Some(row.launch.as_ref()?.median_ns.median / 1e6)
}

fn java(jvm: &JvmReport, heap: Bytes, case: &'static str, times: f64) -> Option<Gate> {
    let of = |how, pages| milliseconds(find(jvm, ROOT, how, heap, pages)?);
    let (normal, large) = (of("FORK", "normal")?, of("FORK", "large")?);
    let ratio = normal / large;
    let mut found = format!("{ratio:.1}: {large:.2} ms, not {normal:.2}");
    // A launch that copies no page table takes this time on any pages: no page size can save it.
    if let Some(least) = of("VFORK", "normal").filter(|_| ratio < times) {
        found += &format!("; {least:.2} without any copying");
    }
    Some(Gate {
        case,
        demand: format!("JVM, FORK, large pages: {times} times as fast as normal ones"),
        found,
        holds: ratio >= times,
    })
}

fn ordinary(jvm: &JvmReport, heap: Bytes, case: &'static str) -> Option<Gate> {
    let row = find(jvm, ORDINARY, "FORK", heap, "large")?;
    let share = row.huge_share.map_or(0.0, |share| share.min);
    Some(Gate {
        case,
        demand: format!("an ordinary user's JVM: {:.0} % of its heap on large pages", 100.0 * HUGE_SHARE),
        found: format!("{:.0} % in every run", 100.0 * share),
        holds: share >= HUGE_SHARE,
    })
}

#[cfg(test)]
mod tests {
    use super::super::ThreadsRow;
    use super::super::latency::{Latency, Launches};
    use super::*;
    use crate::bench::Spread;

    fn launch(ms: f64) -> Latency {
        let mut launches = Launches::default();
        launches.add(&[(ms * 1e6) as u64]);
        launches.latency().unwrap()
    }

    fn row(user: &'static str, mechanism: &'static str, pages: &'static str, ms: f64, share: f64) -> JvmRow {
        JvmRow {
            user,
            mechanism,
            heap_bytes: 1 << 30,
            pages,
            touched_share: Spread::of([0.9]),
            huge_share: Spread::of([share]),
            launch: Some(launch(ms)),
            notes: Vec::new(),
        }
    }

    fn jvm(large_ms: f64, share: f64) -> JvmReport {
        let rows = vec![
            row(ROOT, "FORK", "normal", 51.0, 0.0),
            row(ROOT, "FORK", "large", large_ms, 1.0),
            row(ROOT, "VFORK", "normal", 2.5, 0.0),
            row(ORDINARY, "FORK", "large", 3.0, share),
        ];
        JvmReport { version: None, absent: None, switches: Vec::new(), rows }
    }

    #[test]
    fn a_gate_that_fails_says_what_no_page_size_makes_less() {
        let holds = java(&jvm(2.9, 1.0), Bytes::gib(1), "1g", 17.0).unwrap();
        assert!(holds.holds && !holds.found.contains("without"), "{holds:?}");
        let fails = java(&jvm(3.4, 1.0), Bytes::gib(1), "1g", 17.0).unwrap();
        assert!(!fails.holds);
        assert_eq!(fails.found, "15.0: 3.40 ms, not 51.00; 2.50 without any copying");
        assert_eq!(java(&jvm(2.9, 1.0), Bytes::mib(128), "128m", 3.7), None, "no such heap ran");
    }

    #[test]
    fn an_ordinary_user_has_to_get_the_whole_heap() {
        assert!(ordinary(&jvm(3.0, 0.99), Bytes::gib(1), "1g").unwrap().holds);
        assert!(!ordinary(&jvm(3.0, 0.9), Bytes::gib(1), "1g").unwrap().holds);
    }

    fn threads(pages: &'static str, rates: &[(u32, f64)]) -> ConcurrentRow {
        let of = |&(threads, rate): &(u32, f64)| ThreadsRow {
            threads,
            whole: launch(1.0),
            children_per_second: Spread::of([rate]).unwrap(),
        };
        ConcurrentRow {
            heap_bytes: 1 << 30,
            pages,
            huge_share: None,
            by_threads: rates.iter().map(of).collect(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn four_threads_have_to_gain_as_much_as_one() {
        let judge = |huge| {
            let rows = [threads("base", &[(1, 1.0), (4, 40.0)]), threads("hugetlb-private", &[(4, huge)])];
            concurrent(&rows, Bytes::gib(1), "1g", 17.0)
        };
        let holds = judge(680.0).unwrap();
        assert!(holds.holds && holds.found == "17.0: 680 a second, not 40", "{holds:?}");
        assert!(!judge(679.0).unwrap().holds);
        let rows = [threads("base", &[(4, 40.0)]), threads("hugetlb-private", &[(2, 680.0)])];
        assert_eq!(concurrent(&rows, Bytes::gib(1), "1g", 17.0), None, "four threads have no result");
        assert_eq!(concurrent(&rows, Bytes::mib(512), "512m", 7.9), None, "no such heap ran");
    }
}
