//! A synthetic process: its files in a captured tree, its accesses in a tracker, its time in a
//! clock.

use megapage_kernel::KernelRoot;
use megapage_kernel::page_tables::HeldBits;
use megapage_kernel::pagemap::Region as Held;
use megapage_observe::tracker::{PART_PAGES, PageBits, RegionBits, Selected, TrackError, Tracker, part};
use megapage_observe::{Clock, Leaf, ObserveError, Observer, Options, TrackerKind};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage, Pid, VirtRange};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Process identifier.
pub const PID: Pid = Pid(4711);
/// Start of its first mapping.
pub const BASE: u64 = 0x4000_0000;
/// Entry of a present page.
pub const PRESENT: u64 = 1 << 63;
/// Entry of a page that no other process maps.
pub const EXCLUSIVE: u64 = 1 << 56;
/// Cost of a first access, in seconds: high, so that a small process is enough.
const FIRST_ACCESS: f64 = 7.52e-6;

/// Seconds that the process has run before, on one processor.
const AGE: f64 = 100.0;

/// Kind of failure of the tracker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    GoneAtClear,
    GoneAtRead,
    ReplacedAtClear,
    Denied,
}

#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

struct State {
    tree: tempfile::TempDir,
    now: Duration,
    cpu: f64,
    processors: f64,
    start_ticks: u64,
    start_stack: u64,
    state: char,
    exec_at: Option<Duration>,
    fault: Option<Fault>,
    kind: TrackerKind,
    leaves_shared: bool,
    clears_parts: bool,
    reads_tables: bool,
    /// Number of readings of the page tables for the observer.
    readings: usize,
    tracker_takes: Duration,
    worked: Duration,
    /// Accesses a second, evenly over all regions. The first one to each page counts.
    touched_per_second: u64,
    regions: BTreeMap<u64, Leaf>,
    /// Time of the last clearing, by region.
    cleared: BTreeMap<u64, Duration>,
    /// Regions of the last clearing; below, true if a part of each was cleared, and the number of
    /// clearings.
    last: Vec<u64>,
    in_part: bool,
    clearings: usize,
    /// Seconds lost to each sample.
    samples: Vec<f64>,
    /// Seconds lost to regions before they were cleared again.
    finished: f64,
}

impl World {
    pub fn new() -> World {
        let state = State {
            tree: tempfile::tempdir().unwrap(),
            now: Duration::from_secs(5000),
            cpu: AGE,
            processors: 1.0,
            start_ticks: ((5000.0 - AGE) * 100.0) as u64,
            start_stack: 0x7ffc_0000_0000,
            state: 'S',
            exec_at: None,
            fault: None,
            kind: TrackerKind::Bpf,
            leaves_shared: false,
            clears_parts: false,
            reads_tables: false,
            readings: 0,
            tracker_takes: Duration::ZERO,
            worked: Duration::ZERO,
            touched_per_second: 0,
            regions: BTreeMap::new(),
            cleared: BTreeMap::new(),
            last: Vec::new(),
            in_part: false,
            clearings: 0,
            samples: Vec::new(),
            finished: 0.0,
        };
        state.write("proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 8000000 kB\n");
        state.write("proc/buddyinfo", "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n");
        state.write("proc/4711/cgroup", "0::/synthetic\n");
        state.write("proc/4711/task/4711/children", "");
        state.write_stat();
        let world = World(Arc::new(Mutex::new(state)));
        world.map_base(0);
        world
    }

    /// Creates a world with one mapping of `regions` regions of base pages, and
    /// `touched_per_second` base pages touched a second.
    pub fn of_base(regions: usize, touched_per_second: u64) -> World {
        let world = World::new();
        world.map_base(regions);
        world.set_touched_per_second(touched_per_second);
        world
    }

    /// Creates a world with one mapping of `regions` huge pages, and `touched_per_second` base
    /// pages touched a second.
    pub fn of_huge(regions: usize, touched_per_second: u64) -> World {
        let world = World::new();
        world.map_huge(regions);
        world.set_touched_per_second(touched_per_second);
        world
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn observer(&self, options: Options) -> Observer {
        self.try_observer(options).unwrap()
    }

    pub fn try_observer(&self, options: Options) -> Result<Observer, ObserveError> {
        let root = KernelRoot::captured(self.lock().tree.path());
        let selected = Selected {
            tracker: Box::new(SyntheticTracker(self.clone())),
            skipped: Vec::new(),
            first_access_ns: FIRST_ACCESS * 1e9,
        };
        Observer::with_parts(&root, options, Some(selected), Box::new(SyntheticClock(self.clone())))
    }

    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.lock().pass(time);
    }

    /// Returns the processor time of the process since the world began, in seconds.
    pub fn cpu(&self) -> f64 {
        self.lock().cpu - AGE
    }

    /// Returns the cost of all first accesses after clearings so far, in seconds.
    pub fn lost(&self) -> f64 {
        let state = self.lock();
        state.finished + state.cleared.keys().map(|start| state.cost(*start)).sum::<f64>()
    }

    /// Returns the cost of the accesses to the regions of each sample until the next sample.
    pub fn samples(&self) -> Vec<f64> {
        let mut state = self.lock();
        state.charge();
        state.samples.clone()
    }

    pub fn cleared_times(&self) -> usize {
        self.lock().clearings
    }

    /// Returns the regions that the last clearing covered.
    pub fn cleared_regions(&self) -> Vec<u64> {
        self.lock().last.clone()
    }

    /// Returns the time that the tracker took.
    pub fn worked(&self) -> Duration {
        self.lock().worked
    }

    pub fn set_touched_per_second(&self, pages: u64) {
        self.lock().touched_per_second = pages;
    }

    pub fn set_processors(&self, processors: f64) {
        self.lock().processors = processors;
    }

    pub fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    pub fn set_kind(&self, kind: TrackerKind) {
        self.lock().kind = kind;
    }

    pub fn set_leaves_shared(&self, leaves: bool) {
        self.lock().leaves_shared = leaves;
    }

    pub fn set_clears_parts(&self, clears: bool) {
        self.lock().clears_parts = clears;
    }

    /// Makes the tracker read page tables for snapshots, too.
    pub fn set_reads_tables(&self) {
        self.lock().reads_tables = true;
    }

    /// Returns the number of readings of the page tables since the last call.
    pub fn take_readings(&self) -> usize {
        std::mem::take(&mut self.lock().readings)
    }

    pub fn set_tracker_takes(&self, time: Duration) {
        self.lock().tracker_takes = time;
    }

    /// Makes one mapping of `regions` regions on base pages, all of them present.
    pub fn map_base(&self, regions: usize) {
        self.map_one(regions, Leaf::Base);
    }

    /// Makes one mapping of `regions` huge pages.
    pub fn map_huge(&self, regions: usize) {
        self.map_one(regions, Leaf::Huge2m);
    }

    fn map_one(&self, regions: usize, leaf: Leaf) {
        let mut state = self.lock();
        let end = BASE + (regions * HUGE_2M) as u64;
        let line = format!("{BASE:x}-{end:x} rw-p 00000000 00:00 0 \n");
        let lines = if regions > 0 { line } else { String::new() };
        let kib = (regions * HUGE_2M) >> 10;
        let huge = if leaf == Leaf::Huge2m { kib } else { 0 };
        let smaps = format!("{lines}Rss: {kib} kB\nAnonHugePages: {huge} kB\nVmFlags: rd wr\n");
        state.write("proc/4711/maps", &lines);
        state.write("proc/4711/smaps", if regions > 0 { &smaps } else { "" });
        state.set_regions(regions, leaf);
    }

    /// Makes mappings one after the other: the text after the range in maps, name, VmFlags,
    /// regions.
    pub fn map(&self, mappings: &[(&str, &str, &str, usize)]) {
        let mut state = self.lock();
        let (mut maps, mut smaps, mut at) = (String::new(), String::new(), BASE);
        for (rest, name, flags, regions) in mappings {
            let end = at + (regions * HUGE_2M) as u64;
            let line = format!("{at:x}-{end:x} {rest} {name}\n");
            smaps += &format!("{line}Rss: 4 kB\nVmFlags: {flags}\n");
            maps += &line;
            at = end;
        }
        state.write("proc/4711/maps", &maps);
        state.write("proc/4711/smaps", &smaps);
        state.set_regions(mappings.iter().map(|mapping| mapping.3).sum(), Leaf::Base);
    }

    /// Writes maps alone.
    pub fn set_maps(&self, text: &str) {
        self.lock().write("proc/4711/maps", text);
    }

    /// Sets entries of the page map.
    pub fn set_pages(&self, region: u64, pages: Range<u64>, entry: u64) {
        let state = self.lock();
        let file = File::options().write(true).open(state.tree.path().join("proc/4711/pagemap")).unwrap();
        let first = (BASE + region * HUGE_2M as u64) / BASE_PAGE as u64;
        for page in pages {
            file.write_all_at(&entry.to_ne_bytes(), (first + page) * 8).unwrap();
        }
    }

    pub fn exec(&self) {
        let mut state = self.lock();
        state.start_stack += 0x1000;
        state.write_stat();
    }

    /// Takes the memory from the process, which is about to end.
    pub fn lose_memory(&self) {
        let mut state = self.lock();
        state.start_stack = 0;
        state.write_stat();
    }

    pub fn exec_after(&self, time: Duration) {
        let mut state = self.lock();
        state.exec_at = Some(state.now + time);
    }

    /// Gives the number to another process.
    pub fn restart(&self) {
        let mut state = self.lock();
        state.start_ticks += 1000;
        state.write_stat();
    }

    pub fn end(&self, zombie: bool) {
        let mut state = self.lock();
        if zombie {
            state.state = 'Z';
            state.write_stat();
        } else {
            state.gone();
        }
    }

    /// Creates a child with the process's stack.
    pub fn fork(&self) {
        let state = self.lock();
        state.write("proc/4711/task/4711/children", "4712 ");
        let text = state.stat_text("4712", 4711, 0);
        state.write("proc/4712/stat", &text);
    }
}

impl State {
    fn write(&self, path: &str, text: &str) {
        let path = self.tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn stat_text(&self, pid: &str, parent: u32, ticks: u64) -> String {
        let (state, start, stack) = (self.state, self.start_ticks, self.start_stack);
        format!(
            "{pid} (synthetic) {state} {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {start} 0 0 0 0 0 {stack}\n"
        )
    }

    fn write_stat(&self) {
        if self.state != 'X' {
            // The kernel counts in hundredths of a second on x86-64.
            self.write("proc/4711/stat", &self.stat_text("4711", 1, (self.cpu * 100.0) as u64));
        }
    }

    fn set_regions(&mut self, regions: usize, leaf: Leaf) {
        let starts = (0..regions as u64).map(|number| BASE + number * HUGE_2M as u64);
        self.regions = starts.map(|start| (start, leaf)).collect();
        // Regions that stay keep their bits.
        self.cleared.retain(|start, _| self.regions.contains_key(start));
        let kib = (regions * HUGE_2M) >> 10;
        self.write(
            "proc/4711/status",
            &format!("Name:\tmade up\nTgid:\t4711\nUid:\t0 0 0 0\nVmRSS:\t{kib} kB\n"),
        );
        let path = self.tree.path().join("proc/4711/pagemap");
        let file = File::options().create(true).truncate(true).write(true).open(path).unwrap();
        let entries: Vec<u8> = (PRESENT | EXCLUSIVE).to_ne_bytes().repeat(regions * 512);
        file.write_all_at(&entries, BASE / BASE_PAGE as u64 * 8).unwrap();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.cpu += self.processors * time.as_secs_f64();
        if self.exec_at.is_some_and(|at| self.now >= at) {
            self.exec_at = None;
            self.start_stack += 0x1000;
        }
        self.write_stat();
    }

    /// Returns the number of pages of a region that were accessed since its bits were cleared.
    fn accessed(&self, start: u64) -> u16 {
        let since = self.cleared.get(&start).map_or(self.now, |cleared| self.now - *cleared);
        let each = self.touched_per_second as f64 / self.regions.len() as f64;
        let most = if self.in_part { f64::from(PART_PAGES) } else { 512.0 };
        (each * since.as_secs_f64() * most / 512.0).min(most) as u16
    }

    /// Returns the seconds lost to a region since it was cleared.
    fn cost(&self, start: u64) -> f64 {
        let entries = match self.regions.get(&start) {
            Some(Leaf::Base) => self.accessed(start),
            Some(_) => self.accessed(start).min(1),
            None => 0,
        };
        f64::from(entries) * FIRST_ACCESS
    }

    /// Adds the cost of the last clearing until now.
    fn charge(&mut self) {
        let lost = self.last.iter().map(|start| self.cost(*start)).sum::<f64>();
        if let Some(sample) = self.samples.last_mut() {
            *sample = sample.max(lost);
        }
    }

    /// Ends the process, so that a tracker finds nothing.
    fn gone(&mut self) -> TrackError {
        self.state = 'X';
        fs::remove_dir_all(self.tree.path().join("proc/4711")).unwrap();
        TrackError::Gone(PID)
    }

    fn work(&mut self) {
        self.worked += self.tracker_takes;
        self.pass(self.tracker_takes);
    }
}

struct SyntheticClock(World);

impl Clock for SyntheticClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep(&self, time: Duration) {
        self.0.pass(time);
    }
}

struct SyntheticTracker(World);

impl Tracker for SyntheticTracker {
    fn kind(&self) -> TrackerKind {
        self.0.lock().kind
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    fn leaves_shared(&self) -> bool {
        self.0.lock().leaves_shared
    }

    fn clears_parts(&self) -> bool {
        self.0.lock().clears_parts
    }

    fn held(&mut self, pid: Pid, ranges: &[VirtRange], asked: &[VirtRange]) -> Option<HeldBits> {
        let state = self.0.lock();
        let all = state.reads_tables.then(|| starts(&state, ranges))?;
        drop(state);
        let bits = self.read(pid, asked).ok()?;
        let held = |page| Held { present: 512, ..Held::empty(page, Some(false)) };
        Some((all.into_iter().map(HugePage::containing).map(held).collect(), bits))
    }

    fn clear_part(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        self.clear(pid, ranges)?;
        self.0.lock().in_part = true;
        Ok(())
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        let mut state = self.0.lock();
        match state.fault {
            Some(Fault::GoneAtClear) => return Err(state.gone()),
            Some(Fault::ReplacedAtClear) => return Err(TrackError::Gone(pid)),
            Some(Fault::Denied) => return Err(TrackError::Denied { pid, what: "needs CAP_SYS_NICE".into() }),
            _ => {}
        }
        state.charge();
        state.work();
        let starts: Vec<u64> = starts(&state, ranges);
        let now = state.now;
        let again = starts.iter().filter(|start| state.cleared.contains_key(start));
        let finished: f64 = again.map(|start| state.cost(*start)).sum();
        state.finished += finished;
        state.in_part = false;
        state.cleared.extend(starts.iter().map(|start| (*start, now)));
        state.last = starts;
        state.clearings += 1;
        state.samples.push(0.0);
        Ok(())
    }

    fn read(&mut self, _pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut state = self.0.lock();
        if state.fault == Some(Fault::GoneAtRead) {
            return Err(state.gone());
        }
        state.readings += 1;
        state.work();
        let read = |start: u64| {
            let (page, leaf) = (HugePage::containing(start), state.regions[&start]);
            let accessed = state.accessed(start);
            let accessed = if leaf.is_huge() && accessed > 0 { 512 } else { accessed };
            let mut bits: PageBits = [0; 8];
            let first = if state.in_part { usize::from(part(page).start) } else { 0 };
            (first..first + usize::from(accessed)).for_each(|at| bits[at / 64] |= 1 << (at % 64));
            let (present, bits) = (512, Some(bits));
            RegionBits { page, leaf, present, zero_page: 0, swapped: 0, accessed: Some(accessed), bits }
        };
        Ok(starts(&state, ranges).into_iter().map(read).collect())
    }
}

fn starts(state: &State, ranges: &[VirtRange]) -> Vec<u64> {
    let inside = |start: &u64| ranges.iter().any(|range| range.start() <= *start && *start < range.end());
    state.regions.keys().copied().filter(inside).collect()
}
