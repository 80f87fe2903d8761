//! Pools and segments on an ordinary file system: their behaviour does not depend on the pages
//! behind them.

use megapage_segment::heap::{Depth, Heap, HeapError, Request, Tag};
use megapage_segment::{Layout, Name, Options, PageState, Pool, Segment, SegmentError, Unlink};
use megapage_units::{Bytes, PageSize};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const LAYOUTS: [Layout; 2] = [Layout::SingleFile, Layout::FilePerPage];

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Makes an application's pool in a separate directory, which is removed with the first value.
fn pool() -> (tempfile::TempDir, PathBuf, Pool) {
    let tree = tempfile::tempdir().unwrap();
    let parent = fs::canonicalize(tree.path()).unwrap();
    let pool = Pool::open_in(&parent, &name("app"), PageSize::HUGE_2M).unwrap();
    (tree, parent, pool)
}

fn options(layout: Layout, unlink: Unlink, pages: u64) -> Options {
    let options = Options::new(name("one"), Bytes(pages * PAGE));
    Options { layout, unlink, most: Some(Bytes(8 * PAGE)), ..options }
}

/// Writes to the last word of a page, and returns its former value.
fn touch(segment: &Segment, page: u64, value: u64) -> u64 {
    segment.words((page + 1) * PAGE - 8, 1).unwrap()[0].swap(value, Relaxed)
}

/// Maps segment one as another process does. Another test of this process may have its addresses
/// for a while.
fn share(pool: &Pool) -> Segment {
    for _ in 0..3000 {
        match pool.share_segment(&name("one")) {
            Err(SegmentError::Address { .. }) => std::thread::sleep(Duration::from_millis(10)),
            shared => return shared.unwrap(),
        }
    }
    panic!("its addresses are never free");
}

fn files(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn each_mode_leaves_what_it_should() {
    for layout in LAYOUTS {
        let (_tree, _, pool) = pool();
        let path = pool.path().join("one");
        // Never: new the first time, reused the second, each page with its own state.
        let first = pool.open_segment(&options(layout, Unlink::Never, 3)).unwrap();
        assert_eq!((first.opened().fresh_pages, first.opened().dirty_pages), (3, 0));
        assert!(first.opened().warning(first.page_size()).is_none());
        assert_eq!(touch(&first, 1, 77), 0);
        let address = first.address();
        drop(first);
        let second = pool.open_segment(&options(layout, Unlink::Never, 3)).unwrap();
        let opened = second.opened();
        assert_eq!((opened.fresh_pages, opened.dirty_pages, opened.clean_pages), (0, 1, 2), "{layout:?}");
        assert_eq!(opened.same_address, second.address() == address);
        assert!(opened.warning(second.page_size()).unwrap().starts_with("1 pages of 2m are reused"));
        assert_eq!(second.page_state(1), PageState::Dirty);
        assert_eq!(second.page_state(2), PageState::Clean);
        assert_eq!(second.page_state(8), PageState::Dirty, "one that is not there");
        assert_eq!(touch(&second, 1, 78), 77);
        drop(second);
        // More is asked for: the new pages are fresh, the others as they were.
        let grown = pool.open_segment(&options(layout, Unlink::Never, 5)).unwrap();
        let opened = grown.opened();
        assert_eq!((opened.fresh_pages, opened.dirty_pages, opened.clean_pages), (2, 1, 2));
        assert_eq!((touch(&grown, 1, 79), touch(&grown, 4, 1)), (78, 0));
        drop(grown);
        // Existing: nothing is left of the old, and the files stay.
        let fresh = pool.open_segment(&options(layout, Unlink::Existing, 2)).unwrap();
        assert_eq!(fresh.opened().fresh_pages, 2);
        assert!(fresh.opened().removed >= Bytes(PAGE), "{:?}", fresh.opened());
        assert_eq!(touch(&fresh, 1, 80), 0);
        drop(fresh);
        assert!(!files(&path).is_empty());
        // Always: nothing stays, not even while it is in use; it grows all the same.
        let gone = pool.open_segment(&options(layout, Unlink::Always, 2)).unwrap();
        assert_eq!(touch(&gone, 1, 81), 0);
        assert_eq!(files(pool.path()), Vec::<String>::new());
        gone.grow(Bytes(4 * PAGE)).unwrap();
        assert_eq!(touch(&gone, 3, 1), 0);
        assert_eq!(files(pool.path()), Vec::<String>::new());
    }
}

#[test]
fn only_the_same_shape_is_reused() {
    let (_tree, _, pool) = pool();
    drop(pool.open_segment(&options(Layout::SingleFile, Unlink::Never, 2)).unwrap());
    let refused = |options: Options| {
        let error = pool.open_segment(&options).unwrap_err();
        assert!(matches!(error, SegmentError::Different { .. }), "{error}");
        error.to_string()
    };
    let same = options(Layout::SingleFile, Unlink::Never, 2);
    assert!(refused(options(Layout::FilePerPage, Unlink::Never, 2)).contains("its layout is SingleFile"));
    assert!(refused(Options { node: Some(0), ..same.clone() }).contains("bound to no node, not node 0"));
    assert!(refused(Options { most: Some(Bytes(9 * PAGE)), ..same.clone() }).contains("may grow to 8 pages"));
    let error = pool.open_segment(&Options { node: Some(77), ..same.clone() }).unwrap_err().to_string();
    assert!(error.contains("there is no node 77"), "{error}");
    let larger = Options { size: Bytes(9 * PAGE), most: None, ..same.clone() };
    assert!(matches!(pool.open_segment(&larger), Err(SegmentError::Full { .. })));
    for bad in [Options { size: Bytes::ZERO, most: None, ..same.clone() }, Options { mode: 0o400, ..same }] {
        assert!(matches!(pool.open_segment(&bad), Err(SegmentError::Request(_))));
    }
    assert!(Pool::open_in(Path::new("/tmp"), &name("x"), PageSize::BASE).is_err());
}

#[test]
fn a_segment_is_bound_to_its_node_and_grows_to_its_most() {
    let (_tree, _, pool) = pool();
    for layout in LAYOUTS {
        let bound = Options { node: Some(0), ..options(layout, Unlink::Existing, 1) };
        let segment = pool.open_segment(&bound).unwrap();
        assert_eq!(segment.node_of(0).unwrap(), 0);
        segment.grow(Bytes(3 * PAGE)).unwrap();
        assert_eq!((segment.pages(), segment.node_of(2).unwrap()), (3, 0));
        assert!(segment.node_of(3).is_err());
        let error = segment.grow(Bytes(9 * PAGE)).unwrap_err();
        assert!(matches!(error, SegmentError::Full { .. }), "{error}");
        assert_eq!(segment.pages(), 3);
        assert!(segment.words(0, 1).is_none(), "what the segment says about itself is not handed out");
        assert!(segment.words(3 * PAGE, 1).is_none());
    }
}

#[test]
fn states_are_counted_beyond_the_last_whole_word() {
    let (_tree, _, pool) = pool();
    for pages in [1, 7, 8, 9, 17] {
        let options = Options { populate: true, ..Options::new(name("many"), Bytes(pages * PAGE)).reuse() };
        let segment = pool.open_segment(&options).unwrap();
        (0..pages).step_by(3).for_each(|page| assert_eq!(touch(&segment, page, 1), 0));
        drop(segment);
        let opened = pool.open_segment(&options).unwrap().opened();
        let dirty = pages.div_ceil(3);
        assert_eq!((opened.dirty_pages, opened.clean_pages), (dirty, pages - dirty), "{pages} pages");
        pool.remove_segment(&name("many")).unwrap();
    }
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let (_tree, _, pool) = pool();
    let first = pool.open_segment(&options(Layout::SingleFile, Unlink::Never, 1)).unwrap();
    for unlink in [Unlink::Never, Unlink::Existing, Unlink::Always] {
        let error = pool.open_segment(&options(Layout::SingleFile, unlink, 1)).unwrap_err();
        assert!(matches!(error, SegmentError::InUse { .. }), "{error}");
    }
    assert!(matches!(pool.remove_segment(&name("one")), Err(SegmentError::InUse { .. })));
    // Another segment of the same pool is another matter.
    let other = Options::new(name("two"), Bytes(PAGE));
    drop(pool.open_segment(&other).unwrap());
    drop(first);
    assert!(pool.remove_segment(&name("one")).unwrap().memory >= Bytes(PAGE));
    assert!(matches!(pool.remove_segment(&name("one")), Err(SegmentError::Missing { .. })));
    assert_eq!(files(pool.path()), ["two"], "and it stays");
}

#[test]
fn whoever_shares_keeps_it_from_being_removed() {
    let (_tree, _, pool) = pool();
    for layout in LAYOUTS {
        let owner = pool.open_segment(&options(layout, Unlink::Existing, 2)).unwrap();
        touch(&owner, 1, 5);
        // In this process the addresses are taken.
        assert!(matches!(pool.share_segment(&name("one")), Err(SegmentError::Address { .. })));
        let address = owner.address();
        drop(owner);
        let shared = share(&pool);
        assert_eq!((shared.address(), shared.is_owner()), (address, false));
        assert_eq!(touch(&shared, 1, 6), 5);
        assert!(shared.grow(Bytes(3 * PAGE)).is_err());
        assert!(matches!(pool.remove_segment(&name("one")), Err(SegmentError::InUse { .. })));
        let again = pool.open_segment(&options(layout, Unlink::Existing, 2));
        assert!(matches!(again, Err(SegmentError::InUse { .. })));
        // An owner that reuses it takes nothing away; it lies elsewhere, in this process.
        let owner = pool.open_segment(&options(layout, Unlink::Never, 2)).unwrap();
        assert!(!owner.opened().same_address);
        assert_eq!(touch(&owner, 1, 7), 6);
        assert_eq!(touch(&shared, 1, 8), 7);
        drop((owner, shared));
        pool.remove_segment(&name("one")).unwrap();
    }
    assert!(matches!(pool.share_segment(&name("none")), Err(SegmentError::Missing { .. })));
}

#[test]
fn truncated_and_foreign_files_are_refused() {
    for layout in LAYOUTS {
        let (_tree, _, pool) = pool();
        let reuse = options(layout, Unlink::Never, 3);
        let file = |page: u64| {
            let name = if layout == Layout::SingleFile { "pages".into() } else { format!("page.{page}") };
            pool.path().join("one").join(name)
        };
        let damaged = |what: &str| {
            let error = pool.open_segment(&reuse).unwrap_err();
            assert!(matches!(error, SegmentError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert!(pool.share_segment(&name("one")).is_err());
            // Fresh memory is available all the same.
            drop(pool.open_segment(&options(layout, Unlink::Existing, 3)).unwrap());
        };
        drop(pool.open_segment(&reuse).unwrap());
        let last = if layout == Layout::SingleFile { 0 } else { 2 };
        File::options().write(true).open(file(last)).unwrap().set_len(PAGE - 4096).unwrap();
        damaged("2093056");
        File::options().write(true).open(file(0)).unwrap().set_len(100).unwrap();
        damaged("truncated to 100 bytes");
        let text = File::options().write(true).open(file(0)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&text, &[b'x'; 8192], 0).unwrap();
        damaged("it does not begin as a segment does");
        if layout == Layout::FilePerPage {
            fs::remove_file(file(1)).unwrap();
            damaged("this page of the segment is missing");
        }
        // A header of another name.
        fs::rename(pool.path().join("one"), pool.path().join("two")).unwrap();
        let other = Options { name: name("two"), ..reuse.clone() };
        assert!(pool.open_segment(&other).unwrap_err().to_string().contains("it is segment one"));
        fs::rename(pool.path().join("two"), pool.path().join("one")).unwrap();
        // Foreign files are not removed in any mode.
        fs::write(pool.path().join("one/diary"), "expensive diary").unwrap();
        for unlink in [Unlink::Never, Unlink::Existing, Unlink::Always] {
            let error = pool.open_segment(&options(layout, unlink, 3)).unwrap_err();
            assert!(matches!(error, SegmentError::Foreign { .. }), "{error}");
        }
        assert!(pool.remove_segment(&name("one")).is_err());
        assert!(file(0).exists() && pool.path().join("one/diary").exists());
    }
}

#[test]
fn links_lead_nowhere() {
    let (tree, parent, pool) = pool();
    let treasure = parent.join("treasure");
    fs::write(&treasure, vec![7; 3 * PAGE as usize]).unwrap();
    let refused = |options: Options| {
        let error = pool.open_segment(&options).unwrap_err();
        assert!(matches!(error, SegmentError::Foreign { .. }), "{error}");
    };
    for unlink in [Unlink::Never, Unlink::Existing, Unlink::Always] {
        // The file of the pages, by a symbolic link and by a second name.
        let path = pool.path().join("one");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        symlink(&treasure, path.join("pages")).unwrap();
        refused(options(Layout::SingleFile, unlink, 1));
        fs::remove_file(path.join("pages")).unwrap();
        fs::hard_link(&treasure, path.join("pages")).unwrap();
        refused(options(Layout::SingleFile, unlink, 1));
        fs::remove_dir_all(&path).unwrap();
        // The directory of the segment.
        let elsewhere = parent.join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        refused(options(Layout::SingleFile, unlink, 1));
        assert!(pool.remove_segment(&name("one")).is_err());
        fs::remove_file(&path).unwrap();
        // One that lets others in.
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        refused(options(Layout::SingleFile, unlink, 1));
        fs::remove_dir(&path).unwrap();
    }
    assert_eq!(fs::read(&treasure).unwrap(), vec![7; 3 * PAGE as usize]);
    // The directory of the application, and the way there.
    let link = parent.join("link");
    symlink(tree.path(), &link).unwrap();
    assert!(matches!(
        Pool::open_in(&link, &name("app"), PageSize::HUGE_2M),
        Err(SegmentError::Foreign { .. })
    ));
    let uid = fs::metadata(&treasure).map(|file| std::os::unix::fs::MetadataExt::uid(&file)).unwrap();
    symlink(&parent, parent.join(format!("megapage.{uid}.other"))).unwrap();
    let other = Pool::open_in(&parent, &name("other"), PageSize::HUGE_2M);
    assert!(matches!(other, Err(SegmentError::Foreign { .. })));
    fs::set_permissions(pool.path(), Permissions::from_mode(0o755)).unwrap();
    let open = Pool::open_in(&parent, &name("app"), PageSize::HUGE_2M);
    assert!(open.unwrap_err().to_string().contains("0755, so that others get in"));
}

#[test]
fn another_users_directory_is_not_ours() {
    if !megapage_testing::require_root() {
        return;
    }
    let (_tree, parent, pool) = pool();
    drop(pool.open_segment(&options(Layout::SingleFile, Unlink::Never, 1)).unwrap());
    std::os::unix::fs::chown(pool.path().join("one/pages"), Some(65534), None).unwrap();
    let error = pool.open_segment(&options(Layout::SingleFile, Unlink::Never, 1)).unwrap_err();
    assert!(error.to_string().contains("it belongs to user 65534"), "{error}");
    std::os::unix::fs::chown(pool.path(), Some(65534), None).unwrap();
    let error = Pool::open_in(&parent, &name("app"), PageSize::HUGE_2M).unwrap_err();
    assert!(error.to_string().contains("it belongs to user 65534"), "{error}");
}

#[test]
fn what_an_interrupted_growth_has_left_is_cut_off() {
    for layout in LAYOUTS {
        let (_tree, _, pool) = pool();
        drop(pool.open_segment(&options(layout, Unlink::Never, 2)).unwrap());
        let path = pool.path().join("one");
        match layout {
            Layout::SingleFile => {
                File::options().write(true).open(path.join("pages")).unwrap().set_len(5 * PAGE).unwrap();
            }
            Layout::FilePerPage => fs::write(path.join("page.2"), "half").unwrap(),
        }
        let segment = pool.open_segment(&options(layout, Unlink::Never, 3)).unwrap();
        assert_eq!((segment.pages(), segment.opened().fresh_pages), (3, 1));
        assert_eq!(touch(&segment, 2, 1), 0);
        drop(segment);
        // A segment whose removal was interrupted is no segment any more.
        let first = if layout == Layout::SingleFile { "pages" } else { "page.0" };
        fs::remove_file(path.join(first)).unwrap();
        let segment = pool.open_segment(&options(layout, Unlink::Never, 1)).unwrap();
        assert_eq!(segment.opened().fresh_pages, 1);
    }
}

#[test]
fn a_plan_tells_before() {
    let (_tree, _, pool) = pool();
    let plan = pool.plan(&options(Layout::SingleFile, Unlink::Never, 3)).unwrap();
    assert_eq!((plan.pages, plan.reused_pages, plan.new_pages), (3, 0, 3));
    assert!(plan.available_pages.is_none());
    drop(pool.open_segment(&options(Layout::SingleFile, Unlink::Never, 2)).unwrap());
    let plan = pool.plan(&options(Layout::SingleFile, Unlink::Never, 3)).unwrap();
    assert_eq!((plan.pages, plan.reused_pages, plan.new_pages), (3, 2, 1));
    let plan = pool.plan(&options(Layout::SingleFile, Unlink::Existing, 3)).unwrap();
    assert_eq!((plan.reused_pages, plan.new_pages), (0, 3));
    assert_eq!(files(pool.path()), ["one"]);
}

/// Checks against the fault of DPDK 22.11. Behind the first page of a single file it does not
/// record that memory is dirty. Its zeroed allocations return old bytes.
#[test]
fn no_zeroed_allocation_returns_an_old_byte_whatever_went_before() {
    const TAG: Tag = Tag::named("test/old");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let (_tree, _, pool) = pool();
    let (mut starts, mut checked) = (0, 0);
    for start in 0..24u64 {
        // Two segments alternate, one of a file for each page: neither knows of the other.
        let layout = LAYOUTS[(start % 2) as usize];
        let unlink = if below(6) == 0 { Unlink::Existing } else { Unlink::Never };
        let name = name(["single", "pages"][(start % 2) as usize]);
        let options =
            Options { layout, unlink, most: Some(Bytes(10 * PAGE)), ..Options::new(name, Bytes(2 * PAGE)) };
        let segment = pool.open_segment(&options).unwrap();
        // The existing heap with its contents, or another one in its pages.
        let heap = match below(2) {
            0 => Heap::format(segment).unwrap(),
            _ => Heap::open_or_format(segment).unwrap().0,
        };
        starts += u64::from(unlink == Unlink::Never && heap.segment().opened().dirty_pages > 0);
        let mut mine: Vec<_> = heap.blocks().unwrap().iter().map(|block| block.handle).collect();
        for _ in 0..12 {
            let zeroed = below(3) > 0;
            let most = [600, 70_000, 3 * PAGE][below(3) as usize];
            let len = 1 + below(most);
            let request = Request { zeroed, ..Request::new(len, TAG) };
            match heap.allocate(request) {
                Ok(handle) => {
                    let words = heap.block(handle, TAG).unwrap().words();
                    let old = words.iter().filter(|word| word.swap(u64::MAX, Relaxed) != 0).count();
                    assert!(!zeroed || old == 0, "start {start}: {old} of {} words are old", words.len());
                    checked += u64::from(zeroed);
                    mine.push(handle);
                }
                Err(error) => assert!(matches!(error, HeapError::Full { .. }), "{error}"),
            }
            while mine.len() > 6 || (!mine.is_empty() && below(2) == 0) {
                let which = below(mine.len() as u64) as usize;
                heap.free(mine.swap_remove(which)).unwrap();
            }
        }
        heap.verify(Depth::Memory).unwrap();
    }
    assert!(starts > 8 && checked > 80, "{starts} starts on old memory, {checked} allocations of zeros");
}
