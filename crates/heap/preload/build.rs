//! Compiles mimalloc, with our OS primitives and finer size classes, into the library.
//! Links it so that it loads with old C libraries.

#[path = "../glibc/link.rs"]
mod link;

use std::fs;
use std::path::{Path, PathBuf};

/// Where the vendored sources are, whose files stay as upstream made them.
const VENDORED: &str = "vendor/mimalloc";

/// The size classes: eight in each doubling instead of four, so that a block is at most an eighth larger than was asked for.
/// Upstream's quarter is what a database of 4,368-byte pages pays nearly in full. Up to 128 bytes all multiples of 16 are
/// classes, as upstream; they end with the largest blocks of a page, 512 KiB. The last one stands for all larger ones.
const BINS: usize = 112;
/// Three classes more, in words: 1,040, 4,384 and 8,256 bytes, for 1 KiB, a base page of a database
/// and 8 KiB (CPython's arenas of a compiler) with what describes them.
const AND_HEADER: [usize; 3] = [130, 548, 1032];

/// A text of a vendored file, which occurs once, and what comes in its place.
struct Change(&'static str, &'static str, String);

/// What is changed in a copy of the sources before it is compiled. A newer version in which a text is not found fails the
/// build.
fn changes() -> Vec<Change> {
    let and_header = AND_HEADER.map(|words| format!(" + (wsize >= {words})")).concat();
    let types = "include/mimalloc/types.h";
    let process = "src/heap/process.c";
    let stats = "src/util/stats.c";
    vec![
        Change("include/mimalloc-stats.h", "(73U)", format!("({BINS}U)")),
        Change(types, "#if MI_BIN_HUGE != 73U", format!("#if MI_BIN_HUGE != {BINS}U")),
        Change(types, "(MI_LARGE_MAX_OBJ_WSIZE >= 655360)", "(MI_LARGE_MAX_OBJ_WSIZE > 65536)".into()),
        Change(types, "MI_MAX_SINGLETON_BIN   (60)", format!("MI_MAX_SINGLETON_BIN   ({})", BINS - 1)),
        Change(
            "src/alloc/page-queue.c",
            "const size_t bin = ((b << 2) + ((wsize >> (b - 2)) & 0x03)) - 3;",
            format!(
                "const size_t bin = (b < 4 ? ((b << 2) + ((wsize >> (b - 2)) & 0x03)) - 3 \
                 : ((b << 3) + ((wsize >> (b - 3)) & 0x07)) - 19){and_header};"
            ),
        ),
        Change(process, "#define MI_PAGE_QUEUES_EMPTY \\", queues()),
        // Zeros for all that is not named.
        Change(process, "{ MI_INIT74(MI_STAT_COUNT_NULL) },  /* malloc_bins */", "{ {0,0,0} },".into()),
        Change(process, "{ MI_INIT74(MI_STAT_COUNT_NULL) },  /* page bins   */", "{ {0,0,0} },".into()),
        // No one reads the statistics: half of what each thread has, which it would clear, and add to
        // those of the process under a lock when it ends.
        Change("include/mimalloc-stats.h", "malloc_bins[MI_BIN_HUGE+1]", "malloc_bins[1]".into()),
        Change("include/mimalloc-stats.h", "page_bins[MI_BIN_HUGE+1]", "page_bins[1]".into()),
        Change("include/mimalloc-stats.h", "chunk_bins[MI_CBIN_COUNT]", "chunk_bins[1]".into()),
        Change(stats, "  if (amount == 0) return;\n  // add atomically\n", "  return;\n".into()),
        Change(stats, "  if (amount == 0) return;\n  // add thread local\n", "  return;\n".into()),
        Change(stats, "  if (amount == 0) return;\n  // adjust atomically\n", "  return;\n".into()),
        Change(stats, "  if (amount == 0) return;\n  stat->current += amount;\n", "  return;\n".into()),
        Change(stats, "if (stats==NULL || src==NULL || stats==src) return;", "return;".into()),
        // Blocks from 3 KiB on come from pages of 512 KiB, not from 10 KiB on: of one of 64 KiB, 4 KiB in front are lost to
        // blocks that are aligned to base pages, and 4,096 and 8,192 bytes are what databases ask for.
        Change(
            types,
            "((MI_SMALL_PAGE_SIZE-MI_PAGE_OSPAGE_BLOCK_ALIGN2)/6)",
            "((MI_SMALL_PAGE_SIZE-MI_PAGE_OSPAGE_BLOCK_ALIGN2)/20)".into(),
        ),
        // A range of the system is as long as was asked for: limits on addresses and locked
        // memory count it. The map of pages would be 192 KiB longer.
        Change(
            "src/prim/os.c",
            "size = _mi_os_good_alloc_size(size);\n  alignment = mi_align_up(alignment, _mi_os_page_size());",
            "size = mi_align_up(size, _mi_os_page_size());\n  alignment = mi_align_up(alignment, _mi_os_page_size());"
                .into(),
        ),
        // A thread that ends holds up those that start no longer than it takes to leave the list of
        // heaps: its pages are its own, and no one walks the pages of all heaps.
        Change(process, "mi_lock(&heap->theaps_lock) { // keep page queues stable", "{ MI_UNUSED(heap); //".into()),
        // The map of pages is two tables: 512 KiB, and 256 KiB for each 2 GiB of addresses in use,
        // instead of 2 MiB and 64 KiB for each 512 MiB. A program that locks its memory has all of
        // them (mlockall(2)), and a limit on addresses counts them.
        Change("include/mimalloc/heap/page-map.h", "MI_PAGE_MAP_SUB_SHIFT     (13)", "MI_PAGE_MAP_SUB_SHIFT     (15)".into()),
        // Pages of medium and large blocks are shorter where addresses are short (mimalloc.c).
        Change("src/arena/arena-page.c", "_mi_slice_count_of_size(MI_MEDIUM_PAGE_SIZE)", "slices_of_page(MI_MEDIUM_PAGE_SIZE)".into()),
        Change("src/arena/arena-page.c", "mi_arenas_page_regular_alloc(theap, _mi_slice_count_of_size(MI_LARGE_PAGE_SIZE)", "large_page_alloc(theap".into()),
        // Slices of a page that were committed before stay so: what waits is counted by them, and
        // they need not be committed again.
        Change(
            "src/arena/arena-alloc.c",
            "      mi_bitmap_setN(arena->slices_committed, slice_index, slice_count, &already_committed_count);\n      \
             mi_bitmap_clearN(arena->slices_committed, slice_index, slice_count);\n",
            String::new(),
        ),
        // Threads that have asked for little share heaps (young.c).
        Change("src/alloc/alloc-generic.c", "  // initialize if necessary\n", "  TRY_SHARED\n".into()),
        // The bytes that pages have linked (waiting.c).
        Change("src/alloc/page.c", "mi_theap_stat_increase(theap, page_committed, extend * bsize)", "note_linked(extend * bsize)".into()),
        Change("src/arena/arena-page.c", "// unregister page\n", "note_unlinked(page);\n".into()),
        // A page of small blocks may touch less than what lay there before (mimalloc.c).
        Change("src/arena/arena-page.c", "// mi_assert_internal(mi_page_theap(page) ==", "clean_page(page); //".into()),
        // A large block begins at one of 32 places within a base page, for which it takes a slice
        // of 64 KiB more. Of a huge page that slice is resident, whatever is touched of it: only
        // blocks take it for which it is little.
        Change(
            "src/arena/arena-page.c",
            "mi_page_block_can_cache_offset(block_size, os_align) ? MI_PAGE_CACHE_OFFSET_MAX",
            "block_size >= 8*MI_MiB && mi_page_block_can_cache_offset(block_size, os_align) ? MI_PAGE_CACHE_OFFSET_MAX"
                .into(),
        ),
        // Blocks are linked, and so touched, up to the end of one base page: each thread has a page of
        // each size that it uses.
        Change(
            "src/alloc/page.c",
            "(bsize >= MI_MAX_EXTEND_SIZE ? MI_MIN_EXTEND : MI_MAX_EXTEND_SIZE/bsize)",
            "(4096 - ((size_t)mi_page_start(page) + page->capacity*bsize) % 4096)/bsize".into(),
        ),
    ]
}

/// The table of empty queues, in words; upstream's stays beside it under another name.
fn queues() -> String {
    let mut words = vec![1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16];
    for doubling in 4..16 {
        words.extend((9..=16).map(|eighth| eighth << (doubling - 3)));
    }
    words.extend(AND_HEADER);
    words.sort_unstable();
    assert_eq!(words.len(), BINS);
    let queues: String = words.iter().map(|words| format!("QNULL({words}), ")).collect();
    format!(
        "#define MI_PAGE_QUEUES_EMPTY {{ {queues}QNULL(MI_LARGE_MAX_OBJ_WSIZE + 1), QNULL(MI_LARGE_MAX_OBJ_WSIZE + 2) }}\n\
         #define MI_UPSTREAM_PAGE_QUEUES_EMPTY \\"
    )
}

/// A copy of the vendored sources with these changes.
fn changed_sources() -> PathBuf {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("mimalloc");
    copy(Path::new(VENDORED), &out);
    for Change(name, from, to) in changes() {
        let file = out.join(name);
        let text = fs::read_to_string(&file).expect("a vendored source");
        assert_eq!(text.matches(from).count(), 1, "{VENDORED}/{name}: `{from}` occurs once");
        fs::write(&file, text.replacen(from, &to, 1)).expect("OUT_DIR can be written");
    }
    out
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("OUT_DIR can be written");
    for entry in fs::read_dir(from).expect("the vendored sources") {
        let entry = entry.expect("the vendored sources");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("OUT_DIR can be written");
        }
    }
}

fn main() {
    for file in ["build.rs", "src", "vendor"] {
        println!("cargo:rerun-if-changed={file}");
    }
    link::link_for_old_glibc("../glibc".as_ref());
    let mimalloc = changed_sources();
    cc::Build::new()
        .file("src/mimalloc.c")
        .file("src/interpose.c")
        .include(mimalloc.join("include"))
        .include(mimalloc.join("src"))
        .opt_level(3)
        .debug(true)
        .define("NDEBUG", None)
        .define("MI_BUILD_RELEASE", None)
        .define("MI_DEBUG", "0")
        // MI_SHOW_ERRORS is not defined, whatever its value: if it is, warnings go to the program's stderr.
        .define("MI_PROFILE", "0")
        // Arenas are committed slice by slice, so that our primitive sees every commit.
        .define("MI_DEFAULT_ARENA_EAGER_COMMIT", "0")
        // 1: purge by slice. Whether that splits a huge page is decided in the `memory` crate.
        .define("MI_DEFAULT_ALLOW_THP", "1")
        .flag_if_supported("-ftls-model=initial-exec")
        .flag("-fvisibility=hidden")
        .flag("-fno-builtin-malloc")
        .flag("-pthread")
        .warnings(false)
        .compile("megapage_mimalloc");
}
