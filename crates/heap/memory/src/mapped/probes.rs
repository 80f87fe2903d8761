//! Density with which a program fills its mappings: the probes of one kind of requests, and their
//! results.

use super::advised::Range;
use crate::prim::Prim;
use megapage_units::HUGE_2M;

/// Memory of probes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Bytes that huge pages would back.
    seen: u64,
    /// Bytes of it that the program has touched.
    touched: u64,
}

/// Probes of a kind that are stored.
const PROBES: usize = 8;

/// Requests of one kind, and the knowledge about them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Sixteenths that must be touched for further requests to be served huge.
    enough: u64,
    /// Bytes mapped so far.
    pub(super) mapped: u64,
    /// Bytes of probes since the last look at them.
    unjudged: usize,
    /// Bytes that may still be served huge before the next probe; at 0 the next request is a probe.
    pub(super) left: usize,
    probes: [Range; PROBES],
    next_probe: usize,
    /// Bytes of probes after which they are looked at.
    window: usize,
}

impl Kind {
    /// Bytes that a program maps before anything is done for it.
    const START: u64 = 4 << 20;

    pub(super) const fn new(enough: u64, window: usize) -> Kind {
        Kind { enough, mapped: 0, unjudged: 0, left: 0, probes: [(0, 0); PROBES], next_probe: 0, window }
    }

    pub(super) fn note_probe(&mut self, range: Range) {
        self.probes[self.next_probe] = range;
        self.next_probe = (self.next_probe + 1) % PROBES;
        self.unjudged = self.unjudged.saturating_add(range.1 - range.0);
    }

    /// Looks at the probes, if enough of them have come since the last look.
    pub(super) fn judge(&mut self, calls: &impl Prim) {
        if self.left > 0 || self.mapped < Kind::START || self.unjudged < self.window {
            return;
        }
        self.unjudged = 0;
        if calls.is_confined() {
            return;
        }
        let (mut looked, mut found) = (0, Found::default());
        for (start, end) in self.probes.into_iter().filter(|probe| probe.0 < probe.1) {
            // A probe that is gone shows nothing.
            if let Some(seen) = look(calls, start, end) {
                looked += end - start;
                found.seen += seen.seen;
                found.touched += seen.touched;
            }
        }
        self.probes = [(0, 0); PROBES];
        if looked < self.window || found.seen == 0 {
            return;
        }
        if found.touched >= found.seen / 16 * self.enough {
            self.left = stretch(self.mapped);
        }
    }
}

/// Looks how densely a mapping is filled where huge pages would back it: untouched regions of 2 MiB
/// would cost nothing. Requests below 2 MiB share their huge pages with others, and count whole.
/// Returns `None` if some of the mapping is gone.
fn look(calls: &impl Prim, start: usize, end: usize) -> Option<Found> {
    let mut found = Found::default();
    let mut at = start;
    while at < end {
        let next = if end - start < HUGE_2M { end } else { end.min((at + 1).next_multiple_of(HUGE_2M)) };
        let present = calls.resident(at, next - at)?;
        if present > 0 || end - start < HUGE_2M {
            found.seen += (next - at) as u64;
            found.touched += present as u64;
        }
        at = next;
    }
    Some(found)
}

/// Returns the bytes that are served huge on the strength of one look at probes. They are a
/// twentieth of the bytes that the program has mapped, within 8 MiB and 32 MiB.
pub(super) fn stretch(mapped: u64) -> usize {
    (mapped / 20).clamp(8 << 20, 32 << 20) as usize
}

#[cfg(test)]
mod tests {
    use super::super::Mapped;
    use super::super::tests::{Fake, MIB};
    use super::*;
    use megapage_units::HugePage;

    #[test]
    fn of_large_mappings_untouched_regions_do_not_count() {
        let served = |percent: usize, len: usize| {
            let (calls, mapped) = (Fake::striped(percent), Mapped::new());
            (0..200).filter(|_| calls.request(&mapped, len).1).count()
        };
        assert!(served(100, 8 * MIB) > 50 && served(82, 8 * MIB) > 50);
        assert_eq!(served(80, 8 * MIB), 0, "sparse where it was touched");
        assert_eq!(served(0, 8 * MIB), 0, "nothing is known");
        // From the middle of a touched region to the middle of the next one.
        let calls = Fake::striped(100);
        let found = |start: usize, len: usize| look(&calls, start, start + len).unwrap();
        let whole = HugePage::SIZE;
        assert_eq!(found(MIB, 2 * HUGE_2M), Found { seen: whole, touched: whole });
        assert_eq!(found(HUGE_2M, MIB), Found { seen: whole / 2, touched: 0 }, "small ones share huge pages");
    }
}
