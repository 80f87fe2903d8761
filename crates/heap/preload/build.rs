//! Compiles mimalloc, with our patches and OS primitives, into the library.
//! Links it so that it loads with old C libraries.

#[path = "../glibc/link.rs"]
mod link;

use diffy::patch_set::{FileOperation, ParseOptions, PatchSet};
use diffy::{Hunk, Line};
use std::fs;
use std::path::{Path, PathBuf};

/// Vendored sources, whose files stay as upstream made them.
const VENDORED: &str = "vendor/mimalloc";

/// Changes to a copy of them: unified diffs, applied in the order of their names. Each begins with
/// its reason.
const PATCHES: &str = "patches";

/// Returns a copy of the vendored sources with the patches. A patch that does not fit fails the
/// build.
fn patched_sources() -> PathBuf {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("mimalloc");
    copy(Path::new(VENDORED), &out);
    let entries = fs::read_dir(PATCHES).expect("the patches");
    let mut patches: Vec<PathBuf> = entries.map(|entry| entry.expect("the patches").path()).collect();
    // An editor may have left other files there.
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    patches.sort();
    for patch in patches {
        let name = patch.display();
        let text = fs::read_to_string(&patch).expect("a patch");
        let mut files = 0;
        for of_file in PatchSet::parse(&text, ParseOptions::unidiff()) {
            let of_file = of_file.unwrap_or_else(|error| panic!("{name}: {error}"));
            let FileOperation::Modify { original, .. } = of_file.operation().strip_prefix(1) else {
                panic!("{name}: it may change files alone");
            };
            let file = out.join(&*original);
            let source =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {original}: {error}"));
            let of_text = of_file.patch().as_text().expect("a patch of text");
            let fits = of_text.hunks().iter().all(|hunk| fits_exactly(hunk, &source));
            assert!(fits, "{name} does not fit {VENDORED}/{original}");
            let changed =
                diffy::apply(&source, of_text).unwrap_or_else(|error| panic!("{name}: {original}: {error}"));
            fs::write(&file, changed).expect("OUT_DIR can be written");
            files += 1;
        }
        assert!(files > 0, "{name}: no diff of a file");
    }
    out
}

/// Returns true if the lines that a hunk takes as old are at its line of `source`: elsewhere the
/// same lines may mean something else.
fn fits_exactly(hunk: &Hunk<'_, str>, source: &str) -> bool {
    let old = hunk.lines().iter().filter_map(|line| match line {
        Line::Context(text) | Line::Delete(text) => Some(*text),
        Line::Insert(_) => None,
    });
    let mut there = source.split_inclusive('\n').skip(hunk.old_range().start().saturating_sub(1));
    old.into_iter().all(|line| there.next() == Some(line))
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
    for file in ["build.rs", "patches", "src", "vendor"] {
        println!("cargo:rerun-if-changed={file}");
    }
    link::link_for_old_glibc("../glibc".as_ref());
    let mimalloc = patched_sources();
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
        // MI_SHOW_ERRORS is not defined: with any value, warnings would go to the program's stderr.
        .define("MI_PROFILE", "0")
        // Arenas are committed slice by slice, so that our primitive sees every commit.
        .define("MI_DEFAULT_ARENA_EAGER_COMMIT", "0")
        // 1: purge by slice. The `memory` crate decides if that splits a huge page.
        .define("MI_DEFAULT_ALLOW_THP", "1")
        .flag_if_supported("-ftls-model=initial-exec")
        .flag("-fvisibility=hidden")
        .flag("-fno-builtin-malloc")
        .flag("-pthread")
        .warnings(false)
        .compile("megapage_mimalloc");
}
