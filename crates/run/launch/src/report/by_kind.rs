//! The program's memory by its purpose, as a report shows it.

use super::{Backed, FallBackCounts, HeapAccount, SharedAccount};
use crate::kinds::{Kind, KindMemory, Kinds};
use crate::why::Why;
use megapage_units::Bytes;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One kind of memory at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindReport {
    /// The memory, by the pages that back it.
    #[serde(flatten)]
    pub memory: Backed,
    /// The reasons why no more of it is on huge pages, the one for most bytes first; empty if all
    /// of it is.
    pub why_not_more: Vec<WhyNotMore>,
}

/// A reason for memory on base pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WhyNotMore {
    /// A reason of `megapage doctor --why` (docs/doctor.md), or of the preloaded heap
    /// (docs/run-report.md); `unexplained` if neither has one.
    pub reason: &'static str,
    /// The bytes of the kind that it explains; `None` if several reasons of the preloaded heap
    /// share them.
    pub bytes: Option<u64>,
}

/// The kinds with any memory.
pub type ByKind = BTreeMap<Kind, KindReport>;

/// Returns the kinds with their reasons: from the kernel's values, and from the preloaded library's
/// accounts of the heap and of shared memory.
pub(super) fn by_kind(kinds: &Kinds, (heap, shm): (Option<&HeapAccount>, Option<&SharedAccount>)) -> ByKind {
    let heap = reasons(heap.map(|account| account.fall_backs.as_slice()));
    let shm = reasons(shm.map(|account| account.fall_backs.as_slice()));
    let report = |(kind, it): (Kind, &KindMemory)| {
        let mut why_not_more = why_not_more(it, &heap);
        if kind == Kind::Shared && !why_not_more.is_empty() {
            // The refusals come first, then the reasons why the memory got instead is not huge.
            let refused = shm.iter().map(|reason| WhyNotMore { reason, bytes: None });
            why_not_more.splice(0..0, refused);
        }
        (kind, KindReport { memory: it.memory.into(), why_not_more })
    };
    kinds.present().map(report).collect()
}

/// Returns the reasons in an account, the one for most bytes first.
fn reasons(fall_backs: Option<&[FallBackCounts]>) -> Vec<&'static str> {
    let mut all: Vec<(u64, &'static str)> =
        fall_backs.unwrap_or_default().iter().map(|it| (it.bytes, it.reason)).collect();
    all.sort_by_key(|(bytes, _)| Reverse(*bytes));
    all.into_iter().map(|(_, reason)| reason).collect()
}

fn why_not_more(of: &KindMemory, own: &[&'static str]) -> Vec<WhyNotMore> {
    let mut all: Vec<WhyNotMore> = Vec::new();
    let mut add = |reason: &'static str, bytes: Option<Bytes>| {
        let bytes = bytes.map(|bytes| bytes.0);
        match all.iter_mut().find(|it| it.reason == reason) {
            Some(known) => known.bytes = known.bytes.zip(bytes).map(|(one, other)| one + other),
            None => all.push(WhyNotMore { reason, bytes }),
        }
    };
    for (why, bytes) in of.base.reasons() {
        match (why, own) {
            (Why::HeapsChoice, []) => add(Why::Unexplained.name(), Some(bytes)),
            (Why::HeapsChoice, [only]) => add(only, Some(bytes)),
            (Why::HeapsChoice, several) => several.iter().for_each(|reason| add(reason, None)),
            _ => add(why.name(), Some(bytes)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Memory;
    use crate::why::Base;
    use megapage_kernel::smaps::BackingBytes;

    fn kind(reasons: &[(Why, u64)]) -> KindMemory {
        let mut base = Base::default();
        reasons.iter().for_each(|(why, bytes)| base.add(*why, Bytes(*bytes)));
        let present = Bytes(reasons.iter().map(|(_, bytes)| bytes).sum());
        let present = BackingBytes { base: present, ..BackingBytes::default() };
        KindMemory { memory: Memory { present, swapped: Bytes::ZERO }, base }
    }

    fn shown(reasons: &[(Why, u64)], own: &[&'static str]) -> Vec<(&'static str, Option<u64>)> {
        why_not_more(&kind(reasons), own).into_iter().map(|it| (it.reason, it.bytes)).collect()
    }

    #[test]
    fn the_heaps_own_reasons_stand_for_what_it_did_not_ask_for() {
        let both = [(Why::MappingEdge, 5), (Why::HeapsChoice, 9)];
        assert_eq!(shown(&both, &[]), [("unexplained", Some(9)), ("mapping-edge", Some(5))]);
        assert_eq!(shown(&both, &["too-small"]), [("too-small", Some(9)), ("mapping-edge", Some(5))]);
        let several = shown(&both, &["sparse", "too-small"]);
        assert_eq!(several, [("sparse", None), ("too-small", None), ("mapping-edge", Some(5))]);
        let same = [(Why::Sparse, 10), (Why::HeapsChoice, 9)];
        assert_eq!(shown(&same, &["sparse"]), [("sparse", Some(19))], "each reason once");
        assert_eq!(shown(&same, &["sparse", "fork"]), [("sparse", None), ("fork", None)]);
        assert!(shown(&[], &["sparse"]).is_empty(), "nothing is on base pages");
    }
}
