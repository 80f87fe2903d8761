//! Allocators whose sources a crate carries. Each is built as a library to preload, in a separate
//! package beside the other peers.

use super::carry_out;
use anyhow::{Context, Result, ensure};
use megapage_bench::libraries::{Library, Package, crate_libraries};
use std::fs;
use std::process::Command;

/// The package. Its only dependency is the crate, whose build script compiles the allocator (five
/// minutes).
const MANIFEST: &str = r#"[package]
name = "peer"
version = "0.0.0"
edition = "2024"
publish = false

[lib]
crate-type = ["cdylib"]

[dependencies]
CRATE = { version = "=VERSION", features = ["8k_pages"] }

[profile.release]
panic = "abort"

[workspace]
"#;

/// The C names that Google's tcmalloc has for malloc(3) and its family if it does not replace them:
/// the crate builds it so.
const FUNCTIONS: [(&str, &str, &str, &str); 10] = [
    ("malloc", "TCMallocInternalMalloc", "a: usize", "*mut c_void"),
    ("free", "TCMallocInternalFree", "a: *mut c_void", "()"),
    ("calloc", "TCMallocInternalCalloc", "a: usize, b: usize", "*mut c_void"),
    ("realloc", "TCMallocInternalRealloc", "a: *mut c_void, b: usize", "*mut c_void"),
    ("memalign", "TCMallocInternalMemalign", "a: usize, b: usize", "*mut c_void"),
    ("aligned_alloc", "TCMallocInternalAlignedAlloc", "a: usize, b: usize", "*mut c_void"),
    ("posix_memalign", "TCMallocInternalPosixMemalign", "a: *mut *mut c_void, b: usize, c: usize", "c_int"),
    ("valloc", "TCMallocInternalValloc", "a: usize", "*mut c_void"),
    ("pvalloc", "TCMallocInternalPvalloc", "a: usize", "*mut c_void"),
    ("malloc_usable_size", "TCMallocInternalMallocSize", "a: *mut c_void", "usize"),
];

/// Returns the library's source: each name of malloc(3)'s family calls the allocator's.
fn source() -> String {
    let mut text = String::from(
        "use std::ffi::{c_int, c_void};\n\n// Linked for its static library.\nextern crate libtcmalloc_sys as _;\n",
    );
    for (name, internal, arguments, result) in FUNCTIONS {
        let passed: Vec<&str> =
            arguments.split(", ").map(|argument| argument.split(':').next().unwrap_or_default()).collect();
        let (keyword, call) = ("unsafe", passed.join(", "));
        text += &format!(
            "\n{keyword} extern \"C\" {{\n    fn {internal}({arguments}) -> {result};\n}}\n\
             #[{keyword}(no_mangle)]\npub {keyword} extern \"C\" fn {name}({arguments}) -> {result} {{\n    \
             {keyword} {{ {internal}({call}) }}\n}}\n"
        );
    }
    text
}

/// Builds `library` if its package is a crate, and puts it into the place in which
/// [`Library::find`] looks.
pub(super) fn build(library: Library, say: &mut dyn FnMut(&str)) -> Result<()> {
    let Package::Crate(name, version) = library.package else { return Ok(()) };
    let target = crate_libraries();
    let package = target.join(format!("{name}-{version}"));
    fs::create_dir_all(package.join("src")).with_context(|| package.display().to_string())?;
    let manifest = MANIFEST.replace("CRATE", name).replace("VERSION", version);
    fs::write(package.join("Cargo.toml"), manifest).context("the package's manifest")?;
    fs::write(package.join("src/lib.rs"), source()).context("the package's source")?;
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--manifest-path"]).arg(package.join("Cargo.toml"));
    // The settings of the caller's build must not reach this one.
    for variable in ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(variable);
    }
    carry_out(&mut command, say)?;
    let built = package.join("target/release/libpeer.so");
    ensure!(built.exists(), "cargo built no {}", built.display());
    fs::copy(&built, target.join(library.file)).with_context(|| built.display().to_string())?;
    // Its build files are as large as all other peers together.
    fs::remove_dir_all(package.join("target")).context("what the build has left")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_the_family_calls_the_allocators() {
        let text = source();
        assert!(
            text.contains("fn posix_memalign(a: *mut *mut c_void, b: usize, c: usize) -> c_int {")
                && text.contains("{ TCMallocInternalPosixMemalign(a, b, c) }"),
            "{text}"
        );
        assert!(text.contains("fn TCMallocInternalFree(a: *mut c_void) -> ();"), "{text}");
        assert_eq!(text.matches("no_mangle").count(), FUNCTIONS.len());
        let names: std::collections::BTreeSet<_> = FUNCTIONS.iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), FUNCTIONS.len());
    }
}
