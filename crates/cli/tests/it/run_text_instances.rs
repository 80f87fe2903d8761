//! `megapage run --text`: the memory for the code of several instances of one program, by the
//! kernel's smaps.

use crate::run_support;
use crate::text_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_testing::{PoolGuard, skip};
use megapage_units::{HUGE_2M, PageSize, Pid};
use run_support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;
use text_support::*;

const INSTANCES: u64 = 4;
/// Whole blocks of the program's code.
const CODE: u64 = 8 * MIB;

/// A program with a little more code than [`CODE`], which reads a byte of each page of it before it
/// is ready.
const SEVERAL: &str = r#"
#include <unistd.h>
__asm__(".text\n.globl first\nfirst: lea 1(%rdi), %eax\n ret\n .skip 8 << 20, 0x90\n"
        ".globl last\nlast: ret\n");
__attribute__((visibility("hidden"))) extern const char first[], last[];
int main(void) {
    volatile int sum = 0;
    char byte;
    for (const char *code = first; code < last; code += 4096) sum += *code;
    write(1, "ready\n", 6);
    while (read(0, &byte, 1) > 0) {}
    return 3;
}
"#;

/// Backing of the code of one instance, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Code {
    rss: u64,
    /// Its share of shared pages.
    pss: u64,
    file_huge: u64,
    anonymous_huge: u64,
    hugetlb_private: u64,
    hugetlb_shared: u64,
}

impl Code {
    fn of(path: &str, pid: u32) -> Code {
        let is_its = |mapping: &&Mapping| {
            // Moved code has no file, or a file of the pool.
            let is_moved = !mapping.name.starts_with('/') || mapping.hugetlb.0 > 0;
            let is_kernels = ["[vdso]", "[vsyscall]"].contains(&mapping.name.as_str());
            mapping.permissions.contains('x') && (mapping.name == path || is_moved) && !is_kernels
        };
        let mappings = read_smaps(&KernelRoot::live(), Pid(pid as i32)).unwrap();
        let mut code = Code::default();
        for mapping in mappings.iter().filter(is_its) {
            code.rss += mapping.rss.0;
            code.pss += mapping.pss.0;
            code.file_huge += mapping.file_pmd.0;
            code.anonymous_huge += mapping.anon_huge.0;
            code.hugetlb_shared += mapping.hugetlb_shared.0;
            code.hugetlb_private += mapping.hugetlb.0 - mapping.hugetlb_shared.0;
        }
        code
    }
}

/// Returns the code of each of several instances that run at the same time. Returns `None`, after a
/// loud skip, if one of them did not get all of its huge pages: memory, the pool, or the file
/// system has none.
fn instances(kind: &str, directory: &Path, path: &str) -> Option<Vec<Code>> {
    let file = |number: u64| directory.join(format!("{kind}.{number}"));
    let launch = |number| {
        let report = file(number);
        let asked = ["--text", kind, "--json", "--report", report.to_str().unwrap(), "--", path];
        start(command(&asked))
    };
    let launchers: Vec<_> = (0..INSTANCES).map(launch).collect();
    let codes = launchers.iter().map(|launcher| Code::of(path, child_of(launcher.id()))).collect();
    for launcher in launchers {
        let output = finish(launcher);
        assert_eq!(status(&output), 3, "{output:?}");
    }
    for number in 0..INSTANCES {
        let report: Value = serde_json::from_str(&fs::read_to_string(file(number)).unwrap()).unwrap();
        let text_file = &report["text"]["files"][0];
        let why = text_file["missing"].as_str().or(text_file["reason"].as_str());
        if let Some(why) = why.filter(|_| text_file["mechanism"] != kind || !text_file["missing"].is_null()) {
            skip(&format!("needs huge pages for --text {kind}: {why}"));
            return None;
        }
        assert!(value(text_file, "possible_bytes") >= CODE, "{text_file:#}");
    }
    Some(codes)
}

/// Checks only the layout and the sharing: neither time nor other programs change these.
#[test]
fn several_instances_share_their_code_by_the_file_and_copy_it_otherwise() {
    let directory = on_disk();
    let aligned = ["-Wl,-z,max-page-size=0x200000"];
    let Some(path) = compile("gcc", directory.path(), "several", SEVERAL, &aligned) else { return };
    for code in instances("file", directory.path(), &path).unwrap_or_default() {
        assert!(code.file_huge >= CODE && code.rss >= CODE, "on huge pages of the file: {code:?}");
        // A quarter, except for the rounding of smaps.
        assert!(code.pss >= code.rss / (INSTANCES + 1) && code.pss <= code.rss / (INSTANCES - 1), "{code:?}");
        assert_eq!((code.anonymous_huge, code.hugetlb_private, code.hugetlb_shared), (0, 0, 0));
    }
    for code in instances("thp", directory.path(), &path).unwrap_or_default() {
        assert!(code.anonymous_huge >= CODE && code.file_huge == 0, "a copy on huge pages: {code:?}");
        assert!(code.pss >= CODE, "it is no other's: {code:?}");
    }
    let pages = INSTANCES * CODE / HUGE_2M as u64;
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, pages) else { return };
    for code in instances("2m", directory.path(), &path).unwrap_or_default() {
        assert_eq!((code.hugetlb_private, code.hugetlb_shared), (CODE, 0), "a separate copy: {code:?}");
        assert_eq!(code.file_huge, 0, "{code:?}");
    }
}
