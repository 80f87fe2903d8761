//! Compiles mimalloc, with our OS primitives, into the library.

fn main() {
    println!("cargo:rerun-if-changed=src/mimalloc.c");
    println!("cargo:rerun-if-changed=src/thread_cache.c");
    println!("cargo:rerun-if-changed=src/waiting.c");
    println!("cargo:rerun-if-changed=src/interpose.c");
    println!("cargo:rerun-if-changed=vendor");
    cc::Build::new()
        .file("src/mimalloc.c")
        .file("src/interpose.c")
        .include("vendor/mimalloc/include")
        .include("vendor/mimalloc/src")
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
