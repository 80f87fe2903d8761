//! A program that is killed at any moment, over and over, and started again: no data that it had
//! stored is lost or torn.
//!
//! 100 cycles; 1000 if the environment has MEGAPAGE_SOAK, as `make soak` sets it.

use megapage_segment::heap::{Depth, Handle, Heap, HeapError, Request, Tag};
use megapage_segment::{Layout, Name, Options, Pool, Segment, SegmentError};
use megapage_units::{Bytes, PageSize};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Variable that names the place at which the child works.
const PLACE: &str = "MEGAPAGE_TEST_KILL_PLACE";
const TABLE: Tag = Tag::named("kill/table");
const BLOCK: Tag = Tag::named("kill/block");
const THREADS: usize = 2;
/// Slots of the table, of two words each: offset and serial number of a block; zero if there is
/// none.
const SLOTS: usize = 64;
const PAGE: u64 = 2 << 20;

/// One test at a time: a process that a test starts has, until it executes its program, the locks
/// of the others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn pool(place: &Path) -> Pool {
    Pool::open_in(place, &name("kill"), PageSize::HUGE_2M).unwrap()
}

fn options(layout: Layout) -> Options {
    let options = Options::new(name("store"), Bytes(PAGE)).reuse();
    Options { layout, most: Some(Bytes(4 * PAGE)), ..options }
}

/// Numbers that look random, and are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns the content of word `at` of the block with this number.
fn content(serial: u64, at: usize) -> u64 {
    (serial ^ (at as u64) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn table(heap: &Heap) -> &[AtomicU64] {
    heap.block(heap.root().unwrap().unwrap(), TABLE).unwrap().words()
}

fn slot(table: &[AtomicU64], number: usize) -> Option<Handle> {
    let serial = table[2 * number + 1].load(Ordering::Acquire);
    (serial != 0).then(|| Handle { offset: table[2 * number].load(Ordering::Acquire), serial })
}

/// Returns true if a block holds the values that were written to it.
fn is_whole(heap: &Heap, handle: Handle) -> bool {
    let block = heap.block(handle, BLOCK).unwrap();
    block
        .words()
        .iter()
        .enumerate()
        .all(|(at, word)| word.load(Ordering::Relaxed) == content(handle.serial, at))
}

/// Runs the program: it allocates, fills and publishes blocks, and takes others back, on two
/// threads, until it is killed.
#[test]
#[ignore = "started by the other tests, to be killed"]
fn program() {
    let place = std::env::var(PLACE).unwrap();
    let (layout, place) = place.split_once(':').unwrap();
    let layout = if layout == "file" { Layout::SingleFile } else { Layout::FilePerPage };
    let segment = pool(Path::new(place)).open_segment(&options(layout)).unwrap();
    let (heap, _) = Heap::open_or_format(segment).unwrap();
    if heap.root().unwrap().is_none() {
        let table = heap.allocate(Request::new((16 * SLOTS) as u64, TABLE).zeroed()).unwrap();
        heap.set_root(Some(table)).unwrap();
    }
    println!("ready");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let heap = &heap;
            scope.spawn(move || {
                let table = table(heap);
                let mut random = Random((u64::from(std::process::id()) << 8) + thread as u64 + 1);
                loop {
                    let number = random.below((SLOTS / THREADS) as u64) as usize * THREADS + thread;
                    step(heap, table, number, &mut random);
                }
            });
        }
    });
}

fn step(heap: &Heap, table: &[AtomicU64], number: usize, random: &mut Random) {
    let withdraw = || table[2 * number + 1].store(0, Ordering::Release);
    let publish = |handle: Handle| {
        table[2 * number].store(handle.offset, Ordering::Release);
        table[2 * number + 1].store(handle.serial, Ordering::Release);
    };
    let fill = |handle: Handle| {
        let words = heap.block(handle, BLOCK).unwrap().words();
        words
            .iter()
            .enumerate()
            .for_each(|(at, word)| word.store(content(handle.serial, at), Ordering::Relaxed));
    };
    let len =
        if random.below(10) == 0 { 8 * (1 + random.below(20_000)) } else { 8 * (1 + random.below(300)) };
    match slot(table, number) {
        Some(handle) if random.below(3) == 0 => {
            withdraw();
            let handle = heap.resize(handle, len).unwrap_or(handle);
            fill(handle);
            publish(handle);
        }
        Some(handle) => {
            assert!(is_whole(heap, handle));
            withdraw();
            heap.free(handle).unwrap();
        }
        None => {
            let request = Request { zeroed: random.below(2) == 0, ..Request::new(len, BLOCK) };
            match heap.allocate(request.aligned(64 << random.below(7))) {
                Ok(handle) => {
                    fill(handle);
                    publish(handle);
                }
                Err(error) => assert!(matches!(error, HeapError::Full { .. }), "{error}"),
            }
        }
    }
}

/// The program as a process; killed when it is dropped.
struct Program(Child);

impl Program {
    fn start(place: &str) -> Program {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["kill::program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(PLACE, place)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        Program(child.unwrap())
    }

    /// Waits until it works. Only this test ends it: an earlier end means that it failed, and has
    /// printed the reason.
    fn wait_until_ready(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")), "the program ended by itself");
    }

    fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the program ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks all blocks as its next owner, and frees those to which no handle was stored. Returns the
/// number of blocks.
fn check(segment: Segment) -> usize {
    if !Heap::is_in(&segment).unwrap() {
        return 0;
    }
    let heap = Heap::open(segment).unwrap();
    heap.verify(Depth::Memory).unwrap();
    let Some(root) = heap.root().unwrap() else { return 0 };
    let published: Vec<Handle> = (0..SLOTS).filter_map(|number| slot(table(&heap), number)).collect();
    for handle in &published {
        assert!(is_whole(&heap, *handle), "a block was torn");
    }
    for block in heap.blocks().unwrap() {
        if block.handle != root && !published.contains(&block.handle) {
            heap.free(block.handle).unwrap();
        }
    }
    assert_eq!(heap.verify(Depth::Memory).unwrap().blocks, 1 + published.len() as u64);
    published.len()
}

fn cycles(place: &Path, layout: Layout, count: u64) {
    let word = if layout == Layout::SingleFile { "file" } else { "pages" };
    let argument = format!("{word}:{}", place.display());
    let mut random = Random(42);
    let mut kept = 0;
    for cycle in 0..count {
        let mut program = Program::start(&argument);
        // Some cycles kill it while it is starting, the others while it works.
        if cycle % 4 != 3 {
            program.wait_until_ready();
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
        } else {
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
        }
        program.kill();
        // Its lock has gone with it.
        kept += check(pool(place).open_segment(&options(layout)).unwrap());
    }
    assert!(kept > 0, "nothing was ever published");
    println!("{word}: killed and opened again {count} times; {kept} blocks found, none lost or torn");
}

fn count() -> u64 {
    if std::env::var_os("MEGAPAGE_SOAK").is_some() { 1000 } else { 100 }
}

#[test]
fn nothing_is_lost_or_torn_in_one_file() {
    let _alone = alone();
    let tree = tempfile::tempdir().unwrap();
    cycles(&std::fs::canonicalize(tree.path()).unwrap(), Layout::SingleFile, count());
}

#[test]
fn nothing_is_lost_or_torn_in_a_file_for_each_page() {
    let _alone = alone();
    let tree = tempfile::tempdir().unwrap();
    cycles(&std::fs::canonicalize(tree.path()).unwrap(), Layout::FilePerPage, count() / 4);
}

#[test]
fn whoever_shares_sees_what_the_owner_writes() {
    let _alone = alone();
    let tree = tempfile::tempdir().unwrap();
    let place = std::fs::canonicalize(tree.path()).unwrap();
    let pool = pool(&place);
    let mut program = Program::start(&format!("file:{}", place.display()));
    program.wait_until_ready();
    let error = pool.open_segment(&options(Layout::SingleFile)).unwrap_err().to_string();
    assert!(error.contains("is in use by"), "{error}");
    // At the owner's address, while the owner is changing it. Another test may have a segment there
    // for a while.
    let mut tries = (0..3000).map(|_| pool.share_segment(&name("store")));
    let shared = tries.find(|shared| {
        let is_taken = matches!(shared, Err(SegmentError::Address { .. }));
        std::thread::sleep(Duration::from_millis(if is_taken { 10 } else { 0 }));
        !is_taken
    });
    let heap = Heap::open(shared.expect("its addresses are free once").unwrap()).unwrap();
    let table = table(&heap);
    let mut seen = 0;
    for round in 0.. {
        for handle in (0..SLOTS).filter_map(|number| slot(table, number)) {
            // It may be freed, moved or beyond the part that was mapped by now; there is no other
            // error.
            match heap.block(handle, BLOCK) {
                Ok(block) => seen += block.len(),
                Err(error) => assert!(matches!(error, HeapError::Stale(_)), "{error}"),
            }
        }
        if seen > 100_000 {
            break;
        }
        assert!(round < 60_000, "nothing was ever published");
        std::thread::sleep(Duration::from_millis(1));
    }
    program.kill();
    // The owner is gone, the mapping is not, and it keeps the files from being removed.
    assert!(pool.remove_segment(&name("store")).is_err());
    drop(heap);
    pool.remove_segment(&name("store")).unwrap();
}
