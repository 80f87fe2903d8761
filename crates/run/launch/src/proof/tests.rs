use super::*;
use crate::report::{ByKind, WhyNotMore};

fn moment(hugetlb_2m: u64, thp: u64, base: u64) -> Moment {
    let mib = |n: u64| n << 20;
    let heap = Backed {
        hugetlb_2m_bytes: mib(hugetlb_2m),
        thp_bytes: mib(thp),
        base_bytes: mib(base),
        total_bytes: mib(hugetlb_2m + thp + base),
        ..Backed::default()
    };
    Moment {
        at_ms: 0,
        age_ms: 0,
        unseen_bytes: 0,
        peak_seen_percent: 100.0,
        resident: heap,
        anonymous: heap,
        shared: None,
        heap: Some(heap),
        own_mappings: None,
        kinds: ByKind::new(),
    }
}

#[test]
fn each_kind_is_measured_by_its_own_pages() {
    let thp = moment(0, 100, 0);
    assert_eq!(short_of("end", &thp, Heap::Thp, true), None);
    assert_eq!(short_of("end", &thp, Heap::Auto, true), None);
    let said = short_of("end", &thp, Heap::Hugetlb2M, true).unwrap();
    assert_eq!(said, "at the end, 100 MiB of the heap's 100 MiB were not on hugetlb pages");
    let hugetlb = moment(100, 0, 0);
    assert_eq!(short_of("end", &hugetlb, Heap::Hugetlb2M, true), None);
    assert!(short_of("end", &hugetlb, Heap::Hugetlb1G, true).unwrap().contains("1 GiB hugetlb pages"));
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
fn a_small_heap_does_not_prove_a_program() {
    let mut end = moment(0, 100, 0);
    end.anonymous = moment(0, 100, 100).anonymous;
    assert_eq!(most_is_not_huge(&end), None);
    assert!(short_of_all(&end).unwrap().contains("100 MiB of 200 MiB"));
    end.anonymous = moment(0, 100, 101).anonymous;
    assert!(most_is_not_huge(&end).unwrap().contains("101 MiB of 201 MiB"));
    // The sentence names each kind, the largest first, from malloc or not.
    for (kind, mib, reason) in
        [(Kind::OwnMappings, 3, "sparse"), (Kind::Heap, 104, "not-advised"), (Kind::Text, 9, "x")]
    {
        let memory = moment(0, 0, mib).anonymous;
        let why_not_more = vec![WhyNotMore { reason, bytes: None }];
        end.kinds.insert(kind, KindReport { memory, why_not_more });
    }
    let said = most_is_not_huge(&end).unwrap();
    assert!(
        said.ends_with(": 104 MiB of the heap (not-advised), 3 MiB of the own mappings (sparse)"),
        "{said}"
    );
    end.anonymous = moment(0, 0, 8).anonymous;
    assert_eq!((most_is_not_huge(&end), short_of_all(&end)), (None, None), "a small program");
}

#[test]
fn shared_memory_counts_with_its_reasons() {
    let mib = |n: u64| n << 20;
    let mut memory = SharedMemory {
        resident_bytes: mib(200),
        huge_bytes: mib(190),
        sparse_bytes: mib(1),
        ..SharedMemory::default()
    };
    assert_eq!(shared_not_huge(&memory), None, "one in twenty");
    memory.huge_bytes = mib(100);
    memory.reasons.push("the rest is misplaced".into());
    assert_eq!(
        shared_not_huge(&memory).unwrap(),
        "100 MiB of 200 MiB of shared memory were not on huge pages; 1 MiB lie in ranges of 2 MiB that are less than \
             half full; the rest is misplaced"
    );
    assert_eq!(shared_not_huge(&SharedMemory::default()), None);
}

#[test]
fn shared_memory_that_was_asked_for_is_measured_by_its_pages() {
    let of = |hugetlb: u64, thp: u64, base: u64| *moment(hugetlb, thp, base).heap.as_ref().unwrap();
    assert_eq!(shared_short_of("end", &of(92, 0, 8), 92 << 20), None, "a little may be on base pages");
    let said = shared_short_of("peak", &of(64, 36, 0), 64 << 20).unwrap();
    assert!(said.starts_with("at the peak, 36 MiB of 100 MiB of shared memory were not on"), "{said}");
}

#[test]
fn swapped_memory_is_not_on_huge_pages() {
    let mut swapped = moment(0, 100, 2);
    swapped.heap.as_mut().unwrap().swapped_bytes = 152 << 20;
    let said = short_of("end", &swapped, Heap::Auto, true).unwrap();
    assert_eq!(
        said,
        "at the end, 154 MiB of the heap's 254 MiB were not on huge pages, 152 MiB of them swapped out"
    );
}

#[test]
fn what_was_not_seen_is_not_taken_for_proved() {
    let mut seen = moment(0, 100, 0);
    seen.unseen_bytes = 8 << 20;
    assert_eq!(too_little_seen(&seen), None);
    seen.unseen_bytes += 1;
    seen.peak_seen_percent = 92.6;
    seen.age_ms = 40;
    let said = too_little_seen(&seen).unwrap();
    assert!(
        said.starts_with("only 100 MiB of the program's largest memory of 108 MiB was seen (92.6 %), 40 ms"),
        "{said}"
    );
    let mut large = moment(0, 950, 0);
    large.unseen_bytes = 50 << 20;
    assert_eq!(too_little_seen(&large), None, "one in twenty");
    large.unseen_bytes += 1 << 20;
    assert!(too_little_seen(&large).is_some());
}

#[test]
fn the_last_sample_may_be_so_old() {
    let old =
        |age_ms, watched| too_old(&Moment { at_ms: watched - age_ms, age_ms, ..moment(0, 100, 0) }).is_some();
    assert!(!old(20, 40) && old(21, 40), "half of a short run");
    assert!(!old(2000, 10_000) && old(2001, 10_000), "two seconds");
    assert!(!old(5000, 100_000) && old(5001, 100_000), "a twentieth of a long run");
}

#[test]
fn reasons_matter_by_what_was_asked() {
    let matters_without = |reason, heap| matters(reason, heap, false);
    assert!(!matters_without("too-small", Heap::Hugetlb1G) && !matters("too-small", Heap::Hugetlb1G, true));
    assert!(matters_without("pool-short-2m", Heap::Hugetlb2M));
    assert!(!matters_without("pool-short-2m", Heap::Auto));
    assert!(matters_without("thp-off", Heap::Auto) && matters_without("other", Heap::Hugetlb2M));
    assert!(!matters_without("other", Heap::Auto), "where that leaves base pages the samples show it");
    for reason in ["cgroup-limit", "memory-policy", "cpuset", "kernel-too-old", "refused-unexplained"] {
        assert!(matters_without(reason, Heap::Hugetlb2M) && !matters_without(reason, Heap::Auto), "{reason}");
    }
    assert!(matters("kernel-too-old", Heap::Auto, true), "a broker's pages were asked for");
    assert!(!matters_without("fork", Heap::Auto) && matters("fork", Heap::Auto, true));
    assert!(matters("broker-empty", Heap::Auto, true) && !matters("pool-short-2m", Heap::Auto, true));
}
