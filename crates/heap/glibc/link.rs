//! Links a shared library so that it also loads with old C libraries, down to glibc 2.17. Build
//! scripts include this file.
//!
//! A linker takes the newest version of each symbol that the build machine's C library has. The
//! loader of an older one then ends the program. So the linker gets stubs: libraries without code
//! that define the symbols of glibc 2.17 (`symbols`). The options go to the shared library alone:
//! tests and rlibs of the same package are linked as before.

use std::collections::BTreeMap;
use std::env::var;
use std::fs::{create_dir_all, write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds the options, from the files of `source`. Does nothing for C libraries other than glibc,
/// which have no such versions, and for fuzzers, which need more of the C library.
pub fn link_for_old_glibc(source: &Path) {
    for file in ["link.rs", "symbols", "later.c"] {
        println!("cargo:rerun-if-changed={}", source.join(file).display());
    }
    let arch = var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let is_glibc = var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let is_fuzzed = var("CARGO_CFG_FUZZING").is_ok() || var("CARGO_CFG_SANITIZE").is_ok();
    if !is_glibc || is_fuzzed || !["x86_64", "aarch64"].contains(&arch.as_str()) {
        return;
    }
    let to = PathBuf::from(var("OUT_DIR").expect("cargo sets it")).join("glibc");
    create_dir_all(&to).expect("OUT_DIR can be written");
    let later = source.join("later.c");
    cc::Build::new().file(later).cargo_metadata(false).out_dir(&to).compile("later");
    let compiler = cc::Build::new().get_compiler();
    let list = std::fs::read_to_string(source.join("symbols")).expect("the list of symbols");
    let made: Vec<String> = libraries(&list, &arch)
        .iter()
        .map(|(name, versions)| quoted(&library(compiler.to_command(), &to, name, versions)))
        .collect();
    // The part of glibc that is always linked statically: pthread_atfork and atexit.
    let archive = compiler.to_command().arg("-print-file-name=libc_nonshared.a").output().expect("cc starts");
    let archive = PathBuf::from(String::from_utf8_lossy(&archive.stdout).trim());
    let group =
        [quoted(&to.join("liblater.a")), quoted(&archive), format!("AS_NEEDED ( {} )", made.join(" "))];
    write(to.join("libc.so"), format!("GROUP ( {} )\n", group.join(" "))).expect("OUT_DIR can be written");
    // Ahead of all other directories, those that other packages name among them.
    let directory = to.display().to_string().replace(' ', "\\ ");
    let specs = format!("%rename link link_before\n\n*link:\n%(link_before) -L{directory}\n");
    write(to.join("specs"), specs).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-specs={}", to.join("specs").display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}

/// Symbols by their version, by library.
type Libraries<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a str>>>;

/// Reads the list. On arm64 every version is the first one that glibc had there.
fn libraries<'a>(list: &'a str, arch: &str) -> Libraries<'a> {
    let (mut libraries, mut name) = (Libraries::new(), "");
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(file) = line.strip_prefix('[') {
            name = file.trim_end_matches(']');
            continue;
        }
        let (version, symbols) = line.split_once(' ').expect("VERSION NAME...");
        let version = if arch == "aarch64" { "2.17" } else { version };
        let versions = libraries.entry(name).or_default();
        versions.entry(version).or_default().extend(symbols.split(' '));
    }
    let loader = format!("ld-linux-{}.so", arch.replace('_', "-"));
    libraries.retain(|name, _| !name.starts_with("ld-linux") || name.starts_with(&loader));
    libraries
}

/// Makes a library of this name that defines these symbols.
fn library(mut cc: Command, to: &Path, name: &str, versions: &BTreeMap<&str, Vec<&str>>) -> PathBuf {
    let (mut code, mut script) = (String::from(".text\n"), String::new());
    for (version, symbols) in versions {
        script += &format!("GLIBC_{version} {{ global: {}; }};\n", symbols.join("; "));
        for symbol in symbols {
            code += &format!(".globl {symbol}\n.type {symbol}, %function\n{symbol}:\n");
        }
    }
    let made = to.join(name);
    let (source, versions) = (made.with_added_extension("s"), made.with_added_extension("map"));
    write(&source, code + ".section .note.GNU-stack,\"\",%progbits\n").expect("OUT_DIR can be written");
    write(&versions, script).expect("OUT_DIR can be written");
    cc.args(["-shared", "-nostdlib", "-o"]).arg(&made).arg(&source);
    cc.arg(format!("-Wl,-soname,{name}")).arg(format!("-Wl,--version-script={}", versions.display()));
    let ended = cc.status().expect("cc starts");
    assert!(ended.success(), "{name} cannot be made: {cc:?}");
    made
}

/// Returns a path as linker scripts take it.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}
