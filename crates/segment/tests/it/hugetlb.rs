//! Segments on hugetlb pages: behaviour that only these can show.

use megapage_kernel::mounts::mount_hugetlbfs;
use megapage_kernel::smaps::read_own_smaps;
use megapage_kernel::{KernelRoot, hugetlb};
use megapage_segment::heap::{Depth, Heap, Request, Tag};
use megapage_segment::upgrade::{Extras, Listener, take_over};
use megapage_segment::{Layout, Name, Options, Pool, Segment, SegmentError, Unlink};
use megapage_testing::PoolGuard;
use megapage_testing::unmount;
use megapage_units::{Bytes, PageSize};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const TAG: Tag = Tag::named("test/1");

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The application of one test, on a separate hugetlbfs, which is unmounted when the test ends in
/// any way.
struct Application {
    pool: Pool,
    /// Behind the pool: dropped after it, whose open directory keeps the file system busy.
    _mounted: Mounted,
}

struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0.path()) {
            eprintln!("{} was not unmounted: {error}", self.0.path().display());
        }
    }
}

impl Application {
    fn open(size: PageSize) -> Application {
        let point = tempfile::tempdir().unwrap();
        mount_hugetlbfs(point.path(), size).unwrap();
        let mounted = Mounted(point);
        let parent = std::fs::canonicalize(mounted.0.path()).unwrap();
        let pool = Pool::open_in(&parent, &name("app"), size).unwrap();
        Application { pool, _mounted: mounted }
    }
}

fn available(size: PageSize) -> u64 {
    let counts = hugetlb::counts(&KernelRoot::live(), size, hugetlb::PoolScope::Machine).unwrap();
    counts.available().unwrap()
}

#[test]
fn pages_are_kept_by_name_and_given_back_by_removal() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 12) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    assert!(pool.is_on_hugetlb());
    for layout in [Layout::SingleFile, Layout::FilePerPage] {
        let before = available(PageSize::HUGE_2M);
        let options = Options { layout, node: Some(0), ..Options::new(name("one"), Bytes(4 * PAGE)).reuse() };
        let plan = pool.plan(&options).unwrap();
        assert_eq!((plan.new_pages, plan.available_pages.is_some_and(|pages| pages >= 12)), (4, true));
        let segment = pool.open_segment(&options).unwrap();
        assert_eq!(available(PageSize::HUGE_2M), before - 4, "taken when it is opened, not later");
        assert_eq!(segment.node_of(3).unwrap(), 0);
        segment.words(3 * PAGE, 1).unwrap()[0].store(9, Relaxed);
        drop(segment);
        assert_eq!(available(PageSize::HUGE_2M), before - 4, "kept");
        let plan = pool.plan(&options).unwrap();
        assert_eq!((plan.reused_pages, plan.new_pages), (4, 0));
        let again = pool.open_segment(&options).unwrap();
        assert_eq!(again.words(3 * PAGE, 1).unwrap()[0].load(Relaxed), 9);
        assert_eq!((again.opened().dirty_pages, again.opened().clean_pages), (1, 3));
        drop(again);
        assert_eq!(pool.remove_segment(&name("one")).unwrap().memory, Bytes(4 * PAGE));
        assert_eq!(available(PageSize::HUGE_2M), before, "given back");
        let gone = Options { unlink: Unlink::Always, layout, ..Options::new(name("one"), Bytes(2 * PAGE)) };
        let segment = pool.open_segment(&gone).unwrap();
        assert_eq!(available(PageSize::HUGE_2M), before - 2);
        drop(segment);
        assert_eq!(available(PageSize::HUGE_2M), before);
    }
}

/// Returns the bytes of the segment that this process's page tables have entries for.
fn resident(segment: &Segment) -> u64 {
    let (from, to) = (segment.address() as u64, segment.address() as u64 + segment.size().0);
    let all = read_own_smaps(&KernelRoot::live()).unwrap();
    let ours = all.iter().filter(|one| one.range.start() >= from && one.range.end() <= to);
    ours.map(|one| one.hugetlb.0).sum()
}

/// Takes all pages that are free, until it is dropped. Returns `None` if there are more than a test
/// should take.
fn take_all(pool: &Pool) -> Option<Segment> {
    let free = Some(available(PageSize::HUGE_2M)).filter(|free| (1..256).contains(free))?;
    let options = Options { unlink: Unlink::Always, ..Options::new(name("all"), Bytes(free * PAGE)) };
    Some(pool.open_segment(&options).unwrap())
}

fn word(segment: &Segment, page: u64) -> &AtomicU64 {
    &segment.words((page + 1) * PAGE - 8, 1).unwrap()[0]
}

#[test]
fn what_is_found_again_is_mapped_without_a_fault() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 8) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    for layout in [Layout::SingleFile, Layout::FilePerPage] {
        let options = Options { layout, ..Options::new(name("one"), Bytes(6 * PAGE)).reuse() };
        let first = pool.open_segment(&options).unwrap();
        assert_eq!(resident(&first), 6 * PAGE, "fresh pages are there at once");
        assert!(first.address().is_multiple_of(1 << 30), "as shared page tables demand");
        word(&first, 3).store(9, Relaxed);
        drop(first);
        let before = available(PageSize::HUGE_2M);
        let again = pool.open_segment(&options).unwrap();
        // The header and the states lie in the first page.
        assert_eq!(resident(&again), PAGE, "{layout:?}");
        assert_eq!((again.opened().dirty_pages, again.opened().clean_pages), (1, 5));
        assert_eq!(word(&again, 3).load(Relaxed), 9);
        assert_eq!(word(&again, 5).swap(8, Relaxed), 0);
        assert_eq!(resident(&again), 3 * PAGE);
        assert_eq!(available(PageSize::HUGE_2M), before, "a fault takes no page");
        drop(again);
        let whole = pool.open_segment(&Options { populate: true, ..options.clone() }).unwrap();
        assert_eq!((resident(&whole), whole.opened().dirty_pages), (6 * PAGE, 2));
        assert_eq!((word(&whole, 3).load(Relaxed), word(&whole, 5).load(Relaxed)), (9, 8));
        drop(whole);
        pool.remove_segment(&name("one")).unwrap();
    }
}

#[test]
fn pages_that_the_file_lacks_are_taken_when_it_is_opened() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 8) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    let options = Options::new(name("one"), Bytes(4 * PAGE)).reuse();
    let first = pool.open_segment(&options).unwrap();
    word(&first, 1).store(5, Relaxed);
    drop(first);
    // As long as before, and its last two pages are a hole.
    let hole = || {
        let file = std::fs::File::options().write(true).open(pool.path().join("one/pages")).unwrap();
        file.set_len(2 * PAGE).unwrap();
        file.set_len(4 * PAGE).unwrap();
    };
    hole();
    let before = available(PageSize::HUGE_2M);
    let again = pool.open_segment(&options).unwrap();
    assert_eq!(available(PageSize::HUGE_2M), before - 2, "no fault has to take them");
    assert_eq!((word(&again, 1).load(Relaxed), word(&again, 3).load(Relaxed)), (5, 0));
    drop(again);
    // With no page available it is an error, not a signal.
    hole();
    let others = take_all(pool);
    let counts = hugetlb::counts(&KernelRoot::live(), PageSize::HUGE_2M, hugetlb::PoolScope::Machine);
    if others.is_some() && counts.unwrap().overcommit.unwrap_or(0) == 0 {
        let error = pool.open_segment(&options).unwrap_err();
        assert!(matches!(error, SegmentError::Short { .. }), "{error}");
    }
    drop(others);
    assert_eq!(word(&pool.open_segment(&options).unwrap(), 1).load(Relaxed), 5);
}

#[test]
fn a_mount_is_found() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 1) else { return };
    let _mounted = Application::open(PageSize::HUGE_2M);
    let application = name(&format!("found-{}", std::process::id()));
    let pool = Pool::open(&application, PageSize::HUGE_2M).unwrap();
    assert!(pool.is_on_hugetlb() && pool.page_size() == PageSize::HUGE_2M);
    let again = Pool::open(&application, PageSize::HUGE_2M).unwrap();
    assert_eq!(again.path(), pool.path());
    std::fs::remove_dir(pool.path()).unwrap();
    assert!(matches!(Pool::open(&application, PageSize::BASE), Err(SegmentError::Request(_))));
}

#[test]
fn a_short_pool_is_an_error_and_nothing_is_taken() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 4) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    let before = available(PageSize::HUGE_2M);
    let counts = guard.counts();
    let on_demand = counts.overcommit.unwrap_or(0).saturating_sub(counts.surplus);
    let more = before + on_demand + 3;
    for layout in [Layout::SingleFile, Layout::FilePerPage] {
        let options = Options { layout, ..Options::new(name("one"), Bytes(more * PAGE)) };
        let plan = pool.plan(&options).unwrap();
        assert!(plan.available_pages.unwrap() < plan.new_pages);
        let error = pool.open_segment(&options).unwrap_err();
        assert!(matches!(error, SegmentError::Short { .. }), "{error}");
        assert!(error.to_string().contains("megapage pool set 2m=+"), "{error}");
        assert_eq!(available(PageSize::HUGE_2M), before, "{layout:?}");
        // The same holds for a growth that goes too far: the segment is unchanged.
        let small =
            Options { size: Bytes(2 * PAGE), most: Some(Bytes(more * PAGE)), layout, ..options.clone() };
        let segment = pool.open_segment(&small).unwrap();
        assert!(matches!(segment.grow(Bytes(more * PAGE)), Err(SegmentError::Short { .. })));
        assert_eq!((segment.pages(), available(PageSize::HUGE_2M)), (2, before - 2));
        segment.grow(Bytes(3 * PAGE)).unwrap();
        segment.words(2 * PAGE, 1).unwrap()[0].store(1, Relaxed);
        drop(segment);
        pool.remove_segment(&name("one")).unwrap();
    }
}

#[test]
fn no_zeroed_allocation_returns_an_old_byte() {
    // DPDK 22.11 records the dirtiness of a single file for its first page only; then all of this
    // would return old bytes.
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 40) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    for layout in [Layout::SingleFile, Layout::FilePerPage] {
        for start in 0..3u64 {
            // A new heap in the pages of the one before, which grows a step further each time.
            let size = Bytes((4 + 8 * start) * PAGE);
            let most = Some(Bytes(36 * PAGE));
            let options = Options { layout, most, ..Options::new(name("old"), size).reuse() };
            let heap = Heap::format(pool.open_segment(&options).unwrap()).unwrap();
            for round in 0..3 {
                let handles: Vec<_> = [3 * PAGE + 4096, 5 * PAGE, 100_000]
                    .map(|len| heap.allocate(Request::new(len, TAG).zeroed()).unwrap())
                    .into();
                for handle in &handles {
                    let words = heap.block(*handle, TAG).unwrap().words();
                    let is_zero = |word: &AtomicU64| word.swap(u64::MAX, Relaxed) == 0;
                    assert!(words.iter().all(is_zero), "{layout:?}, start {start}, round {round}");
                }
                handles.into_iter().for_each(|handle| heap.free(handle).unwrap());
                heap.grow(Bytes(2 * PAGE)).unwrap();
            }
            heap.verify(Depth::Memory).unwrap();
        }
        pool.remove_segment(&name("old")).unwrap();
    }
}

#[test]
fn one_application_never_touches_anothers_files() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 6) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let ours = &application.pool;
    let parent = ours.path().parent().unwrap();
    let theirs = Pool::open_in(parent, &name("other"), PageSize::HUGE_2M).unwrap();
    let options = Options::new(name("one"), Bytes(PAGE)).reuse();
    let segment = theirs.open_segment(&options).unwrap();
    segment.words(PAGE - 8, 1).unwrap()[0].store(42, Relaxed);
    drop(segment);
    // In every mode, with the same name, and with pages that the others do not use at the moment.
    for unlink in [Unlink::Existing, Unlink::Always, Unlink::Never] {
        drop(ours.open_segment(&Options { unlink, ..options.clone() }).unwrap());
    }
    ours.remove_segment(&name("one")).unwrap();
    let segment = theirs.open_segment(&options).unwrap();
    assert_eq!(segment.words(PAGE - 8, 1).unwrap()[0].load(Relaxed), 42);
}

#[test]
fn memory_files_have_huge_pages_too() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 4) else { return };
    let before = available(PageSize::HUGE_2M);
    let size = Bytes(2 * PAGE);
    let segment = Segment::in_memory(name("file"), PageSize::HUGE_2M, true, size, Bytes(4 * PAGE)).unwrap();
    assert!(segment.is_on_hugetlb());
    let heap = Heap::format(segment).unwrap();
    let handle = heap.allocate(Request::new(3 * PAGE, TAG).zeroed()).unwrap();
    heap.set_root(Some(handle)).unwrap();
    assert!(available(PageSize::HUGE_2M) < before);
    // Opened again: the descriptor itself shares the owner's lock.
    let file = megapage_kernel::directory::reopen(&heap.segment().descriptor().unwrap().unwrap()).unwrap();
    drop(heap);
    let heap = Heap::open(Segment::of_memory_file(&file, false).unwrap()).unwrap();
    assert_eq!(heap.root().unwrap(), Some(handle));
    drop((heap, file));
    assert_eq!(available(PageSize::HUGE_2M), before);
}

#[test]
fn an_upgrade_takes_no_second_page() {
    const PAGES: u64 = 9;
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, PAGES) else { return };
    let application = Application::open(PageSize::HUGE_2M);
    let pool = &application.pool;
    let size = Bytes(2 * PAGE);
    let single = Options::new(name("single"), size).reuse();
    let pages = Options { layout: Layout::FilePerPage, ..Options::new(name("pages"), size).reuse() };
    let unlinked = Options { unlink: Unlink::Always, ..Options::new(name("unlinked"), size) };
    let mut segments: Vec<Segment> =
        [single, pages, unlinked].iter().map(|options| pool.open_segment(options).unwrap()).collect();
    segments.push(Segment::in_memory(name("memory"), PageSize::HUGE_2M, true, size, size).unwrap());
    segments.iter().zip(1..).for_each(|(segment, value)| word(segment, 1).store(value, Relaxed));
    // A copy of any page would fail.
    let _others = take_all(pool);
    let before = available(PageSize::HUGE_2M);
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("upgrade");
    let patience = Duration::from_secs(60);
    let listener = Listener::bind(&path).unwrap();
    let taken = std::thread::scope(|scope| {
        let successor = scope.spawn(|| take_over(&path, patience).unwrap().unwrap());
        let connected = listener.wait(patience).unwrap().unwrap();
        let handed = listener.hand_over(connected, segments, &Extras::default(), patience).unwrap();
        assert!(handed.confirmed);
        successor.join().unwrap()
    });
    assert!(taken.orderly && taken.segments.iter().all(Segment::is_on_hugetlb));
    assert_eq!(taken.segments.iter().map(|one| word(one, 1).load(Relaxed)).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(available(PageSize::HUGE_2M), before);
    for named in ["single", "pages"] {
        let error = pool.open_segment(&Options::new(name(named), size).reuse()).unwrap_err();
        assert!(matches!(error, SegmentError::InUse { .. }), "{error}");
        assert!(matches!(pool.remove_segment(&name(named)), Err(SegmentError::InUse { .. })));
    }
    drop(taken);
    assert_eq!(available(PageSize::HUGE_2M), before + 4, "those without a name are gone, the others kept");
}

#[test]
fn a_gigabyte_page_is_a_segment() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_1G, 1) else { return };
    let application = Application::open(PageSize::HUGE_1G);
    let options = Options::new(name("one"), Bytes::gib(1)).reuse();
    let heap = Heap::format(application.pool.open_segment(&options).unwrap()).unwrap();
    assert_eq!(heap.segment().page_size(), PageSize::HUGE_1G);
    let handle = heap.allocate(Request::new(100, TAG)).unwrap();
    heap.set_root(Some(handle)).unwrap();
    drop(heap);
    let heap = Heap::open(application.pool.open_segment(&options).unwrap()).unwrap();
    assert_eq!(heap.root().unwrap(), Some(handle));
}
