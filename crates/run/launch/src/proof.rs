//! Checks by the kernel's values that a run obtained what was requested.

use crate::backed::{Backed, allowance};
use crate::kind::Kind;
use crate::report::{KindReport, Moment, Pieces, RunReport};
use crate::request::{Heap, Mechanism, Shm};
use megapage_act::promote::SharedMemory;
use megapage_units::Bytes;
use std::cmp::Reverse;
use std::time::Duration;

/// Oldest age of the last sample, if the program did not wait for a sample at its exit: half of the
/// run, at most this.
const LONGEST_UNSEEN: Duration = Duration::from_secs(2);
/// Oldest age of the last sample of a longer run, as a share of it: one part in twenty.
const UNSEEN_SHARE: u64 = 20;

/// Advice that makes sure that the end is seen.
const WAITS: &str = "to be seen to the end, a program has to be dynamic and end by exit(3), or run longer";

/// Returns the report of these pieces, with the unmet requests.
pub(crate) fn proved(pieces: Pieces<'_>) -> RunReport {
    let mut report = pieces.report();
    report.not_obtained = not_obtained(&report);
    report
}

/// Returns the unmet requests of a report, each in words.
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
    // Promotion follows the memory's growth: its result shows late, but before the program frees
    // the memory.
    let by_promotion_alone = report.mechanisms == [Mechanism::Outside];
    for (name, moment) in [("peak", &report.peak), ("end", &report.end)] {
        match moment {
            Some(_) if by_promotion_alone => {}
            Some(moment) => missing.extend(short_of(name, moment, report.asked.heap, preloaded)),
            // Both exist or neither does: if there is only one sample, it is also the peak.
            None if name == "end" => missing.push(nothing_seen(report)),
            None => {}
        }
    }
    let reached = report.mechanisms.contains(&Mechanism::Outside);
    missing.extend(match (&report.last_full, &report.end) {
        (Some(full), _) if by_promotion_alone => short_of("last full sample", full, report.asked.heap, false),
        (Some(full), _) if reached => short_of_all(full),
        (_, Some(end)) if preloaded => most_is_not_huge(end),
        _ => None,
    });
    missing.extend(report.shared_memory.as_ref().and_then(shared_not_huge));
    shm_not_obtained(report, missing);
    // The high watermark of an attached process may be from a time before sampling.
    let seen = report.peak.as_ref().filter(|_| report.totals.is_some()).and_then(too_little_seen);
    let unseen_end =
        || report.end.as_ref().filter(|_| !report.running && !report.end_is_final).and_then(too_old);
    missing.extend(seen.or_else(unseen_end));
    missing.extend(report.others_peak_rss_bytes.map(|others| {
        format!(
            "one of the program's children, or what the process was before an exec, had {} of resident memory, of which \
             nothing was seen",
            Bytes(others)
        )
    }));
}

/// Returns the reason why a report without a sample proves nothing.
fn nothing_seen(report: &RunReport) -> String {
    match report.totals {
        Some(totals) => {
            format!("the program had ended after {} ms, before any of its memory was seen", totals.elapsed_ms)
        }
        None => "the kernel's values could not be read".into(),
    }
}

/// Returns a sentence if the fullest sample shows too little of the program's largest memory.
fn too_little_seen(peak: &Moment) -> Option<String> {
    let largest = peak.peak_bytes();
    (peak.unseen_bytes > allowance(largest)).then(|| {
        format!(
            "only {} of the program's largest memory of {} was seen ({:.1} %), {} ms before the end: what backed the rest is \
             not known; {WAITS}",
            Bytes(peak.resident.total_bytes),
            Bytes(largest),
            peak.peak_seen_percent,
            peak.age_ms
        )
    })
}

/// Returns a sentence if the last sample, which is not from the program's exit, is too old.
fn too_old(end: &Moment) -> Option<String> {
    let watched = end.at_ms + end.age_ms;
    let allowed = (watched / 2).min(LONGEST_UNSEEN.as_millis() as u64).max(watched / UNSEEN_SHARE);
    (end.age_ms > allowed).then(|| format!("the last {} of {watched} ms were not seen; {WAITS}", end.age_ms))
}

/// Returns a sentence if external promotion left too much on base pages. It reaches all private
/// anonymous memory.
fn short_of_all(late: &Moment) -> Option<String> {
    let (total, lacking) = not_huge(&late.anonymous);
    (lacking > allowance(total)).then(|| {
        format!(
            "{} ms before the end, {} of {} of private anonymous memory were not on huge pages",
            late.age_ms,
            Bytes(lacking),
            Bytes(total)
        )
    })
}

/// Returns a sentence if external promotion left too much shared memory on base pages, with the
/// reasons.
fn shared_not_huge(memory: &SharedMemory) -> Option<String> {
    let lacking = memory.base_bytes();
    (lacking > allowance(memory.resident_bytes)).then(|| {
        let reasons: String = memory.reasons.iter().map(|reason| format!("; {reason}")).collect();
        let sparse = match memory.sparse_bytes {
            0 => String::new(),
            sparse => format!("; {} lie in ranges of 2 MiB that are less than half full", Bytes(sparse)),
        };
        format!(
            "{} of {} of shared memory were not on huge pages{sparse}{reasons}",
            Bytes(lacking),
            Bytes(memory.resident_bytes)
        )
    })
}

/// Adds the unmet part of `--shm`, by the library's account and by the kernel's values. Those count
/// the memory that the program itself has touched.
fn shm_not_obtained(report: &RunReport, missing: &mut Vec<String>) {
    for fall_back in report.shm.iter().flat_map(|shm| &shm.fall_backs) {
        missing.push(format!(
            "{} of shared memory fell back: {} ({})",
            Bytes(fall_back.bytes),
            fall_back.explanation,
            fall_back.reason
        ));
    }
    let pages: fn(&Backed) -> u64 = match report.asked.shm {
        Shm::None | Shm::Auto => return,
        // Pages of 1 GiB count too: the program may have mapped such pages itself.
        Shm::Hugetlb2M => |it| it.hugetlb_1g_bytes + it.hugetlb_2m_bytes,
        Shm::Thp => |it| it.total_bytes - it.base_bytes,
    };
    for (name, moment) in [("peak", &report.peak), ("end", &report.end)] {
        let shared = moment.as_ref().and_then(|moment| moment.kinds.get(&Kind::Shared));
        missing.extend(shared.and_then(|it| shared_short_of(name, &it.memory, pages(&it.memory))));
    }
}

fn shared_short_of(name: &str, shared: &Backed, obtained: u64) -> Option<String> {
    let total = shared.total_bytes + shared.swapped_bytes;
    let lacking = total - obtained.min(total);
    (lacking > allowance(total)).then(|| {
        format!(
            "at the {name}, {} of {} of shared memory were not on the huge pages that --shm asks for",
            Bytes(lacking),
            Bytes(total)
        )
    })
}

/// Returns a sentence with the reasons if most of the memory is not huge: the success of the
/// preloaded heap then means little.
fn most_is_not_huge(end: &Moment) -> Option<String> {
    let (total, lacking) = not_huge(&end.anonymous);
    (lacking > allowance(total) && lacking > total / 2).then(|| {
        let anonymous = [Kind::Heap, Kind::OwnMappings, Kind::RuntimeHeap];
        let mut kinds: Vec<(&Kind, &KindReport)> =
            end.kinds.iter().filter(|(kind, _)| anonymous.contains(kind)).collect();
        kinds.retain(|(_, it)| not_huge(&it.memory).1 > 0);
        kinds.sort_by_key(|(_, it)| Reverse(not_huge(&it.memory).1));
        let say = |(kind, it): (&Kind, &KindReport)| {
            let why = it.why_not_more.first().map_or("unexplained", |reason| reason.reason);
            format!("{} of the {} ({why})", Bytes(not_huge(&it.memory).1), kind.name().replace('_', " "))
        };
        format!(
            "at the end, {} of {} of private anonymous memory were not on huge pages: {}",
            Bytes(lacking),
            Bytes(total),
            match kinds.is_empty() {
                true => "why is not known".into(),
                false => kinds.into_iter().map(say).collect::<Vec<_>>().join(", "),
            }
        )
    })
}

/// Returns all bytes, present or swapped out, and those of them that are not on huge pages.
fn not_huge(memory: &Backed) -> (u64, u64) {
    (memory.total_bytes + memory.swapped_bytes, memory.base_bytes + memory.swapped_bytes)
}

/// Returns true if a fall-back for this reason does not meet the request. The first chunks of every
/// heap are too small to count. With `auto`, a smaller huge page still meets the request. If a
/// broker's pages were requested, leaving them counts.
fn matters(reason: &str, heap: Heap, pool: bool) -> bool {
    match reason {
        "too-small" | "sparse" => false,
        "fork" | "kernel-too-old" if pool => true,
        "pool-short-1g"
        | "pool-short-2m"
        | "cgroup-limit"
        | "memory-policy"
        | "cpuset"
        | "kernel-too-old"
        | "refused-unexplained"
        | "other"
        | "fork" => !matches!(heap, Heap::Auto | Heap::Thp),
        _ => true,
    }
}

/// Returns a sentence if the memory of one moment does not meet the request.
fn short_of(name: &str, moment: &Moment, asked: Heap, preloaded: bool) -> Option<String> {
    // The preloaded heap and the Java heap count alone; without one, all anonymous memory counts. A
    // preloaded heap that never outgrew its first chunks maps nothing huge, and was refused
    // nothing.
    let heap: Backed = match (preloaded, &moment.heap) {
        (_, Some(heap)) => *heap,
        (true, None) => return None,
        (false, None) => moment.anonymous,
    };
    let obtained = match asked {
        Heap::None => return None,
        Heap::Hugetlb1G => heap.hugetlb_1g_bytes,
        Heap::Hugetlb2M => heap.hugetlb_1g_bytes + heap.hugetlb_2m_bytes,
        Heap::Auto | Heap::Thp => heap.total_bytes - heap.base_bytes,
    };
    let total = heap.total_bytes + heap.swapped_bytes;
    let lacking = total - obtained;
    (lacking > allowance(total)).then(|| {
        format!(
            "at the {name}, {} of the heap's {} were not on {}{}",
            Bytes(lacking),
            Bytes(total),
            match asked {
                Heap::Hugetlb1G => "1 GiB hugetlb pages",
                Heap::Hugetlb2M => "hugetlb pages",
                _ => "huge pages",
            },
            match heap.swapped_bytes {
                0 => String::new(),
                swapped => format!(", {} of them swapped out", Bytes(swapped)),
            }
        )
    })
}

#[cfg(test)]
mod tests;
