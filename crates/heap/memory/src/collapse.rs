//! Collapse of memory that the program has mapped and filled on base pages: from inside, which
//! needs no privilege.
//!
//! A *look* walks over the process's own mappings. Regions of 2 MiB that are nearly full in two
//! looks in a row are collapsed. Memory that is freed sooner would be copied for nothing. If
//! collapsed regions do not stay huge (a garbage collector that returns its pages), regions have to
//! be full for longer: [`Persistence`]. A large mapping that fills up densely is advised as a
//! whole, so that its remainder is huge from its first touch on. A part of a mapping is never
//! advised, because mremap(2) does not work across parts that differ. In the preloaded heap only
//! chunks on base pages are collapsed; the heap looks after the rest itself.

mod persistence;

use crate::chunk::BASE;
use crate::heap::HugeHeap;
use crate::mapped::Mapped;
use crate::prim::Prim;
use megapage_inside::own_mappings::own_mappings;
use megapage_inside::program_memory::{OwnPagemap, PresentRun};
use megapage_inside::{Borrowed, Errno};
use megapage_units::{BASE_PAGE, HUGE_2M};
use persistence::Persistence;
use std::time::Duration;

/// Present base pages from which on a region of 512 is collapsed: it can grow by a twentieth.
pub const LEAST_PRESENT: usize = 487;
/// The same for the preloaded heap, whose allocator has handed out the missing pages, too: a block
/// takes up to 64 KiB more than the program asked for, and up to 256 KiB once realloc has grown it.
const LEAST_PRESENT_OF_HEAP: usize = 480;
/// Present base pages from which on a region is collapsed while the missing ones fit into
/// [`Collapser::room`]. Allocators leave pages untouched behind each large block.
const LEAST_PRESENT_WITH_ROOM: usize = 448;
/// Divisor of the present bytes. Once collapses have added this share over the program's life, only
/// nearly full regions are collapsed.
const ROOM: u64 = 40;
/// Time after which a look reads the limits again between two collapses.
const MEASURED_AFTER: Duration = Duration::from_millis(100);
/// Ranges that one look stores; further ones are found once these are done.
const MOST_RANGES: usize = 512;
/// Touched bytes from which on a mapping is advised; at least a sixteenth of it must be touched,
/// too.
const ADVISE_TOUCHED: usize = 16 << 20;
/// Least untouched bytes of a mapping that is advised.
const ADVISE_UNTOUCHED: usize = 16 << 20;
/// Most regions that one call collapses: the program's own calls run between two calls. Each call
/// first drains the LRU caches of all processors, and waits for busy ones. So few large calls are
/// cheaper.
const BATCH: usize = 8;
/// Longest pause after a call; a shorter call is followed by a pause of its length.
const MOST_PAUSE: Duration = Duration::from_millis(50);
/// Calls that may fail before a look ends: each costs a huge page that was taken for nothing.
pub(crate) const MOST_FAILURES: usize = 8;
/// Untouched bytes from which on a mapping is expected to grow.
const MAY_GROW: usize = 64 << 20;

/// Ascending ranges of addresses.
#[derive(Debug)]
struct Ranges {
    ranges: [(usize, usize); MOST_RANGES],
    count: usize,
}

impl Ranges {
    const fn new() -> Ranges {
        Ranges { ranges: [(0, 0); MOST_RANGES], count: 0 }
    }

    /// Adds a region behind all others.
    fn push(&mut self, start: usize) {
        let end = start + HUGE_2M;
        match self.ranges[..self.count].last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ if self.count < MOST_RANGES => {
                self.ranges[self.count] = (start, end);
                self.count += 1;
            }
            _ => {}
        }
    }

    fn holds(&self, address: usize) -> bool {
        let ranges = &self.ranges[..self.count];
        let at = ranges.partition_point(|range| range.1 <= address);
        ranges.get(at).is_some_and(|range| range.0 <= address)
    }

    /// Removes the regions that `other` does not hold.
    fn intersect(&mut self, other: &Ranges) {
        let mut kept = Ranges::new();
        self.regions().filter(|region| other.holds(*region)).for_each(|region| kept.push(region));
        *self = kept;
    }

    /// Returns the number of regions.
    fn len(&self) -> usize {
        self.ranges[..self.count].iter().map(|range| (range.1 - range.0) / HUGE_2M).sum()
    }

    /// Returns the first addresses of all regions.
    fn regions(&self) -> impl Iterator<Item = usize> + '_ {
        self.ranges[..self.count].iter().flat_map(|range| (range.0..range.1).step_by(HUGE_2M))
    }
}

/// Fill of the regions of one mapping, from its runs of present pages in ascending order.
struct Fill<'a, K> {
    start: usize,
    end: usize,
    least: usize,
    /// Bytes that collapses of less than nearly full regions may still add.
    room: &'a mut u64,
    /// Receives the dense regions on base pages.
    dense: &'a mut Ranges,
    heap: Option<&'a HugeHeap<K>>,
    region: usize,
    present: usize,
    touched: usize,
    /// Bytes in regions that are huge or nearly full.
    full: usize,
    /// Missing bytes of the nearly full regions on base pages.
    missed: u64,
    /// Bytes that the heap has handed out and that are not present, in regions that hold something.
    /// A large block that is being filled counts with its last such region.
    left: usize,
}

impl<'a, K: Prim> Fill<'a, K> {
    /// Creates the fill of a mapping. A region is dense with `least` present base pages. It is also
    /// dense with [`LEAST_PRESENT_WITH_ROOM`] if its missing bytes fit into `room`.
    fn new(
        at: (usize, usize),
        least: usize,
        room: &'a mut u64,
        dense: &'a mut Ranges,
        heap: Option<&'a HugeHeap<K>>,
    ) -> Self {
        let ((start, end), region) = (at, at.0 & !(HUGE_2M - 1));
        Fill {
            start,
            end,
            least,
            room,
            dense,
            heap,
            region,
            present: 0,
            touched: 0,
            full: 0,
            missed: 0,
            left: 0,
        }
    }

    fn add(&mut self, run: PresentRun) {
        self.touched += run.end - run.start;
        if run.huge {
            self.full += run.end - run.start;
            return;
        }
        let mut at = run.start;
        while at < run.end {
            let region = at & !(HUGE_2M - 1);
            if region != self.region {
                self.close();
                self.region = region;
            }
            let end = run.end.min(region + HUGE_2M);
            self.present += (end - at) / BASE_PAGE;
            at = end;
        }
    }

    fn close(&mut self) {
        let inside = self.region >= self.start && self.region + HUGE_2M <= self.end;
        let missing = missing(self.present);
        if inside && self.present >= self.least {
            self.dense.push(self.region);
            self.full += HUGE_2M;
            self.missed += missing;
        } else if inside && self.present >= LEAST_PRESENT_WITH_ROOM && missing <= *self.room {
            self.dense.push(self.region);
            *self.room -= missing;
        }
        let heap = self.heap.filter(|_| self.present > 0);
        self.left += heap.map_or(0, |heap| heap.untouched_at(self.region, self.present * BASE_PAGE));
        self.present = 0;
    }

    /// Returns true if the mapping fills up densely and has far to go.
    fn is_growing(&self) -> bool {
        let len = self.end - self.start;
        self.touched >= ADVISE_TOUCHED.max(len / 16)
            && len - self.touched >= ADVISE_UNTOUCHED
            // Allows for both ends, and for the region that is being filled.
            && self.full + 3 * HUGE_2M >= self.touched / 16 * 15
    }
}

/// Returns the missing bytes of a region with `present` base pages.
fn missing(present: usize) -> u64 {
    (HUGE_2M - present * BASE_PAGE) as u64
}

/// Result of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Bytes that were collapsed.
    pub collapsed: usize,
    /// True if mappings were advised, or if regions wait for the next look.
    pub pending: bool,
    /// True if some mapping has much untouched memory.
    pub may_grow: bool,
    /// Resident memory, in bytes.
    pub resident: u64,
    /// Time that looking took. Collapsing is not counted: it pays for itself by pauses.
    pub cost: Duration,
    /// Time until the next collapse may be tried: the last one found no huge page, or took long.
    pub rest: Duration,
}

/// State of collapsing this process's own mappings. For one thread that has its own table of
/// descriptors.
#[derive(Debug)]
pub struct Collapser {
    pagemap: OwnPagemap,
    /// Regions that were full at every look of the current period.
    before: Ranges,
    now: Ranges,
    persistence: Persistence,
    /// Present bytes at the last look.
    touched: u64,
    /// Missing bytes of the nearly full regions at the last look.
    missed: u64,
}

impl Collapser {
    /// Opens the page map. Returns `None` if the kernel does not show what is present. Before Linux
    /// 6.7 it does not show what is on base pages: then the heap's chunks alone are looked at.
    pub fn new() -> Option<Collapser> {
        let pagemap = OwnPagemap::open()?;
        Some(Collapser {
            pagemap,
            before: Ranges::new(),
            now: Ranges::new(),
            persistence: Persistence::new(),
            touched: 0,
            missed: 0,
        })
    }

    /// Returns the bytes that collapses of less full regions may add. First subtracts the missing
    /// bytes of nearly full regions. Returns 0 while memory is short.
    fn room<K: Prim>(&self, heap: &HugeHeap<K>) -> u64 {
        let room = if heap.is_short() { 0 } else { self.touched / ROOM };
        room.saturating_sub(heap.filled()).saturating_sub(self.missed)
    }

    /// Looks at all mappings. Collapses regions that were dense at the last look as well, or for as
    /// long as is required.
    pub fn look<K: Prim>(&mut self, heap: &HugeHeap<K>, mapped: &Mapped) -> Result<Look, Errno> {
        let (start, outgrown) = (heap.kernel.now(), heap.is_unseen());
        let mut look = Look { resident: heap.kernel.own_resident().unwrap_or(0), ..Look::default() };
        self.now.count = 0;
        heap.measure();
        let (mut room, mut touched, mut missed) = (self.room(heap), 0, 0);
        let (pagemap, dense, persistence) = (&self.pagemap, &mut self.now, &mut self.persistence);
        let (mut left_of_heap, mut heap_on_base) = (0, 0);
        own_mappings(|mapping| {
            let Some((start, end)) = mapping.private_memory() else { return };
            if end - start < HUGE_2M {
                return;
            }
            let of_heap = |address| heap.chunk_at(address).is_some();
            let of_heap = of_heap(start) || of_heap(end - 1);
            let least = if of_heap { LEAST_PRESENT_OF_HEAP } else { LEAST_PRESENT };
            let base = |region| heap.chunk_at(region).is_some_and(|chunk| chunk.mapping() == BASE);
            if !pagemap.scans() {
                let chunks = (start.next_multiple_of(HUGE_2M)..end).step_by(HUGE_2M);
                for region in chunks.filter(|region| of_heap && base(*region)) {
                    let pages = pagemap.present(region).unwrap_or(0);
                    left_of_heap += heap.untouched_at(region, pages * BASE_PAGE);
                    heap_on_base += pages * BASE_PAGE;
                    if pages >= least {
                        dense.push(region);
                    }
                }
                return;
            }
            let mut fill = Fill::new((start, end), least, &mut room, dense, of_heap.then_some(heap));
            let scanned = pagemap.scan(start, end, |run| {
                if run.huge && !of_heap {
                    persistence.note_huge(run.start, run.end);
                }
                if of_heap && !run.huge {
                    heap_on_base += run.end - run.start;
                }
                fill.add(run);
            });
            if scanned.is_err() {
                return;
            }
            fill.close();
            left_of_heap += fill.left;
            touched += fill.touched as u64;
            missed += fill.missed;
            let advised = mapped.is_advised(start);
            let untouched = end - start - fill.touched;
            if !advised && !of_heap {
                look.may_grow |= untouched >= MAY_GROW;
                let advise = !heap.is_near_limit() && fill.is_growing() && heap.take_free(untouched).is_ok();
                look.pending |= advise && mapped.advise(&heap.kernel, start, end);
            }
        })?;
        (self.touched, self.missed) = (touched, missed);
        heap.note_untouched(left_of_heap as u64, heap_on_base as u64);
        look.cost = heap.kernel.now().saturating_sub(start);
        self.act(heap, &mut look, outgrown);
        Ok(look)
    }

    /// Collapses dense regions if a collapse is due. Stores the dense regions for the next look.
    /// The heap is `outgrown` if it grows faster than it is looked at. The next look then comes
    /// before collapses, so that more of what grows is huge at its first touch.
    fn act<K: Prim>(&mut self, heap: &HugeHeap<K>, look: &mut Look, outgrown: bool) {
        let now = heap.kernel.now();
        if self.persistence.is_due(now) {
            self.collapse(heap, look, now, outgrown);
            std::mem::swap(&mut self.before, &mut self.now);
        } else {
            self.before.intersect(&self.now);
            look.pending |= self.before.count > 0;
        }
        look.rest = self.persistence.rest(heap.kernel.now());
    }

    /// Collapses the regions that have been full for long enough; none if it is `outgrown`.
    fn collapse<K: Prim>(&mut self, heap: &HugeHeap<K>, look: &mut Look, now: Duration, outgrown: bool) {
        let kernel = &heap.kernel;
        let (mut batch, mut failures, mut measured) = (Batch::default(), 0, now);
        let (persistence, pagemap) = (&mut self.persistence, &self.pagemap);
        // A collapse would copy memory that a child keeps.
        let present =
            |region| pagemap.present_unshared(region).filter(|present| *present >= LEAST_PRESENT_WITH_ROOM);
        // Returns true if the look goes on.
        let mut collapse = |Batch { start, mut end, of_heap, missing }: Batch, look: &mut Look| {
            let len = end - start;
            if len == 0 {
                return true;
            }
            let began = kernel.now();
            let mut ready = if of_heap { heap.make_ready(len) } else { Ok(()) };
            if ready.is_err() && len > HUGE_2M {
                end = start + HUGE_2M;
                ready = heap.make_ready(HUGE_2M);
            }
            // `make_ready` may have taken long: a fork may share the regions now, or they emptied.
            if of_heap && ready.is_ok() && (start..end).step_by(HUGE_2M).any(|at| present(at).is_none()) {
                look.pending = true;
                return true;
            }
            let calls = if ready.is_ok() { kernel.now() } else { began };
            let done = ready.and_then(|()| match of_heap {
                true => heap.collapse_at(start, end - start),
                false => kernel.collapse(Borrowed::new(start, len)).map(|()| len),
            });
            let ends = kernel.now();
            let each = ends.saturating_sub(began) / ((end - start) / HUGE_2M) as u32;
            // A thread of the program may wait for the heap's lock during the whole call.
            let took = if of_heap { each.max(ends.saturating_sub(calls)) } else { each };
            let goes_on = persistence.note_try(took, done.map(drop), ends, || kernel.stalls());
            match done {
                Ok(done) => {
                    look.collapsed += done;
                    heap.note_filled(missing * done as u64 / len as u64);
                    if !of_heap {
                        persistence.note_collapsed(start, end, now);
                    }
                }
                // The kernel may have collapsed all regions but one: counts them all.
                Err(_) if !of_heap && len > HUGE_2M => heap.note_filled(missing),
                Err(_) => {}
            }
            // EINVAL is about this memory, or the kernel is too old; it costs nothing.
            failures += usize::from(done.is_err_and(|errno| errno != Errno::EINVAL));
            pause(kernel, calls);
            goes_on && failures < MOST_FAILURES
        };
        for region in self.now.regions() {
            if kernel.now().saturating_sub(measured) >= MEASURED_AFTER {
                heap.measure();
                measured = kernel.now();
            }
            // A collapse takes a huge page before it gives base pages back. While a look is wanted,
            // chunks stay on base pages until it comes.
            if outgrown || heap.is_near_limit() || heap.is_unseen() {
                look.pending = true;
                return;
            }
            let chunk = heap.chunk_at(region);
            if chunk.is_some_and(|chunk| chunk.mapping() != BASE) {
                continue;
            }
            if !self.before.holds(region) {
                look.pending = true;
                continue;
            }
            let of_heap = chunk.is_some();
            let most = if of_heap { heap.most_at_once() } else { BATCH };
            if batch.end != region || batch.of_heap != of_heap || batch.end - batch.start >= most * HUGE_2M {
                let next = Batch { start: region, end: region, of_heap, missing: 0 };
                if !collapse(std::mem::replace(&mut batch, next), look) {
                    return;
                }
            }
            if let Some(present) = present(region) {
                batch.end += HUGE_2M;
                batch.missing += missing(present);
            }
        }
        collapse(batch, look);
    }
}

/// Neighbouring regions that one call collapses.
#[derive(Clone, Copy, Default)]
struct Batch {
    start: usize,
    end: usize,
    /// True for chunks of the heap.
    of_heap: bool,
    /// Bytes that the collapse adds.
    missing: u64,
}

/// Pauses as long as a call has taken that began at `began`, at most [`MOST_PAUSE`]: the program's
/// own calls get their turn.
pub(crate) fn pause(kernel: &impl Prim, began: Duration) {
    kernel.sleep(kernel.now().saturating_sub(began).min(MOST_PAUSE));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::tests::model::Model;
    use megapage_inside::program_memory::{map_aligned, unmap};

    const START: usize = 1 << 30;

    fn run(from: usize, to: usize, huge: bool) -> PresentRun {
        PresentRun { start: START + from * BASE_PAGE, end: START + to * BASE_PAGE, huge }
    }

    fn dense_of(pages: (usize, usize), runs: &[PresentRun]) -> (Vec<usize>, bool) {
        dense_with(0, pages, runs)
    }

    fn dense_with(mut room: u64, pages: (usize, usize), runs: &[PresentRun]) -> (Vec<usize>, bool) {
        let mut dense = Ranges::new();
        let (start, end) = (START + pages.0 * BASE_PAGE, START + pages.1 * BASE_PAGE);
        let mut fill = Fill::new((start, end), LEAST_PRESENT, &mut room, &mut dense, None::<&HugeHeap>);
        runs.iter().for_each(|run| fill.add(*run));
        fill.close();
        let growing = fill.is_growing();
        (dense.regions().map(|region| (region - START) / HUGE_2M).collect(), growing)
    }

    #[test]
    fn nearly_full_regions_are_found() {
        assert_eq!(dense_of((0, 2048), &[run(0, 2048, false)]).0, [0, 1, 2, 3]);
        assert_eq!(dense_of((0, 2048), &[run(0, 487, false), run(512, 998, false)]).0, [0]);
        let pieces = [run(0, 200, false), run(210, 512, false), run(512, 1024, true), run(1024, 1600, false)];
        assert_eq!(dense_of((0, 2048), &pieces).0, [0, 2]);
        assert_eq!(dense_of((8, 1532), &[run(8, 1532, false)]).0, [1], "both ends stick out");
        assert_eq!(dense_of((0, 512), &[]).0, [0usize; 0]);
    }

    #[test]
    fn less_full_regions_are_dense_while_there_is_room_for_what_they_miss() {
        let run = |at: usize, present: usize| run(512 * at, 512 * at + present, false);
        let runs = [run(0, 447), run(1, 448), run(2, 512), run(3, 486), run(4, 487), run(5, 450)];
        let dense = |pages: u64| dense_with(pages * BASE_PAGE as u64, (0, 6 * 512), &runs).0;
        assert_eq!(dense(0), [2, 4]);
        assert_eq!(dense(63), [2, 3, 4], "64 missing pages do not fit into the room");
        assert_eq!(dense(64), [1, 2, 4]);
        assert_eq!(dense(64 + 26), [1, 2, 3, 4]);
        assert_eq!(dense(64 + 26 + 61), [1, 2, 3, 4]);
        assert_eq!(dense(64 + 26 + 62), [1, 2, 3, 4, 5]);
        assert_eq!(dense(1 << 20).len(), 5);
    }

    #[test]
    fn a_mapping_that_fills_up_is_distinguished_from_a_sparse_one() {
        let all = 64 << 8;
        assert!(dense_of((0, all), &[run(0, 5000, false)]).1);
        assert!(!dense_of((0, all), &[run(0, 4000, false)]).1, "too little is touched");
        assert!(!dense_of((0, 20 * all), &[run(0, 5000, false)]).1, "of one so large");
        assert!(!dense_of((0, 8000), &[run(0, 5000, false)]).1, "little is left");
        let sparse: Vec<PresentRun> = (0..all / 2).map(|at| run(2 * at, 2 * at + 1, false)).collect();
        assert!(!dense_of((0, all), &sparse).1);
    }

    #[test]
    fn ranges_are_bounded() {
        let mut ranges = Ranges::new();
        (0..2000).for_each(|at| ranges.push(at * 2 * HUGE_2M));
        assert_eq!(ranges.regions().count(), MOST_RANGES);
        assert!(ranges.holds(2 * HUGE_2M + 5) && !ranges.holds(3 * HUGE_2M));
        assert!(!ranges.holds(1900 * 2 * HUGE_2M));
    }

    #[test]
    fn rests_and_pauses_of_the_collapser_follow_the_kernels_clock() {
        const REGIONS: usize = 2 * BATCH;
        let Some(mut collapser) = Collapser::new() else {
            return megapage_testing::skip("needs the page map");
        };
        let heap = HugeHeap::on(Model::new());
        let kernel = &heap.kernel;
        let start = regions_with(&[512; REGIONS]);
        let mut look = |ms: u64, done| {
            kernel.collapse_takes.set(Duration::from_millis(ms));
            kernel.collapsed.set(done);
            collapser.now.count = 0;
            (0..REGIONS).for_each(|at| collapser.now.push(start + at * HUGE_2M));
            let (mut look, before) = (Look::default(), kernel.now());
            collapser.act(&heap, &mut look, false);
            let took = (kernel.now() - before).as_millis() as u64;
            (look.collapsed / HUGE_2M, took, look.rest.as_millis() as u64, look.pending)
        };
        assert_eq!(look(1, Ok(())), (0, 0, 0, true), "dense at one look only");
        assert_eq!(look(40, Ok(())), (REGIONS, 2 * (40 + 40), 0, false), "a pause after each batch");
        // From 30 ms for each region on a call is slow, and no pause is longer than 50 ms.
        assert_eq!(look(239, Ok(())), (REGIONS, 2 * (239 + 50), 0, false));
        // After a second no region is huge: from now on regions must be dense for 250 ms.
        kernel.passes(1000);
        assert_eq!(look(0, Err(Errno::ENOMEM)), (0, 0, 30, false), "a rest begins, and the look ends");
        assert_eq!(look(0, Ok(())), (0, 0, 30, true));
        kernel.passes(249);
        assert_eq!(look(0, Ok(())), (0, 0, 0, true), "a period of 250 ms is under way");
        kernel.passes(1);
        assert_eq!(look(0, Err(Errno::ENOMEM)), (0, 0, 60, false), "the rest doubles");
        kernel.passes(250);
        assert_eq!(
            look(400, Ok(())),
            (BATCH, 450, 70, false),
            "a rest of 120 ms from the call's end, less the pause"
        );
        unmap(start, REGIONS * HUGE_2M);
    }

    /// Maps a region with so many present base pages for each number. Returns the first address.
    fn regions_with(present: &[usize]) -> usize {
        let start = map_aligned(present.len() * HUGE_2M, true).unwrap();
        let all = Borrowed::new(start, present.len() * HUGE_2M);
        let _ = all.advise_no_thp();
        for (at, pages) in present.iter().enumerate() {
            all.part(at * HUGE_2M, pages * BASE_PAGE).populate().unwrap();
        }
        start
    }

    #[test]
    fn what_collapses_add_is_counted_and_regions_that_have_emptied_are_left_alone() {
        let Some(mut collapser) = Collapser::new() else {
            return megapage_testing::skip("needs the page map");
        };
        let heap = HugeHeap::on(Model::new());
        let present = [512, 500, 448, 447];
        let start = regions_with(&present);
        let mut act = |done| {
            heap.kernel.collapsed.set(done);
            collapser.now.count = 0;
            (0..present.len()).for_each(|at| collapser.now.push(start + at * HUGE_2M));
            collapser.act(&heap, &mut Look::default(), false);
            (heap.kernel.collapses.take(), heap.filled())
        };
        let added = (12 + 64) * BASE_PAGE as u64;
        assert_eq!(act(Ok(())), (vec![], 0), "dense at one look only");
        assert_eq!(act(Ok(())), (vec![3 * HUGE_2M], added));
        // A failed call counts whole: the kernel may have collapsed all regions but one.
        assert_eq!(act(Err(Errno::EINVAL)), (vec![3 * HUGE_2M], 2 * added));
        (collapser.touched, collapser.missed) = (40 << 20, 0);
        assert_eq!(collapser.room(&heap), (1 << 20) - 2 * added);
        collapser.missed = 2 << 20;
        assert_eq!(collapser.room(&heap), 0, "the room is kept for nearly full regions");
        unmap(start, present.len() * HUGE_2M);
    }

    #[test]
    fn a_heap_that_outgrows_the_looks_is_collapsed_later() {
        let Some(mut collapser) = Collapser::new() else {
            return megapage_testing::skip("needs the page map");
        };
        let heap = HugeHeap::on(Model::new());
        let start = regions_with(&[512]);
        let mut act = |outgrown| {
            collapser.now.count = 0;
            collapser.now.push(start);
            let mut look = Look::default();
            collapser.act(&heap, &mut look, outgrown);
            (look.collapsed / HUGE_2M, look.pending)
        };
        assert_eq!([act(true), act(true)], [(0, true); 2]);
        assert_eq!(act(false), (1, false), "dense at the look before");
        unmap(start, HUGE_2M);
    }
}
