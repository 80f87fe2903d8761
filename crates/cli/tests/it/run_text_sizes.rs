//! `megapage run --text`: programs of any number of segments, and segments that are large enough
//! for larger pages.

use crate::run_support;
use crate::text_support;

use megapage_kernel::hugetlb::{self, PoolFile, PoolScope};
use megapage_kernel::{KernelRoot, hugetlb_available, thp_is_possible};
use megapage_testing::{PoolGuard, skip_scarce};
use megapage_units::{HUGE_1G, PageSize};
use run_support::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use text_support::*;

/// More segments than fit into a page of the ledger that the launcher and the program share.
const SEGMENTS: u64 = 130;

#[test]
fn the_last_of_very_many_segments_is_moved() {
    let directory = on_disk();
    let mut source = String::from("__asm__(");
    let mut sum = String::from("0");
    let mut options = vec!["-no-pie".to_string()];
    for number in 0..SEGMENTS {
        // Constants and data in turn, each at a separate address.
        let access = if number % 2 == 0 { "a" } else { "aw" };
        source += &format!("\".section .part{number},\\\"{access}\\\"\\npart{number}: .long {number}\\n\"\n");
        sum += &format!("+*(volatile int *){:#x}", 0x1000_0000 + 0x10_0000 * number);
        options.push(format!("-Wl,--section-start=.part{number}={:#x}", 0x1000_0000 + 0x10_0000 * number));
    }
    // Code behind all of them: 4 MiB, in whole blocks.
    source += "\".section .far,\\\"ax\\\"\\n.globl far\\nfar: lea 1(%rdi), %eax\\nret\\n.skip (4 << 20) - 4, 0x90\\n\");\n";
    options.push("-Wl,--section-start=.far=0x20000000".into());
    source += &format!(
        "#include <stdio.h>\nint far(int);\nint main(void) {{ printf(\"%d %d\\n\", far(6), {sum}); return 0; }}\n"
    );
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let Some(path) = compile("gcc", directory.path(), "many", &source, &options) else { return };
    let (report, output) = report("thp", &[], &[&path]);
    let said = format!("7 {}\n", SEGMENTS * (SEGMENTS - 1) / 2);
    assert_eq!((status(&output), text(&output.stdout)), (0, said), "{report:#}");
    let file = consistent(&report, "thp");
    assert!(value(&file, "possible_bytes") >= 4 * MIB, "{file:#}");
    // If the kernel gave no huge pages, `consistent` has seen the reason.
    if file["missing"].is_null() && thp_is_possible() {
        assert!(value(&file, "obtained_bytes") >= 4 * MIB, "{file:#}");
    }
}

/// The launcher and the program share a file in memory, which may not exceed the user's limit on
/// files.
#[test]
fn a_limit_on_the_size_of_files_is_kept() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "limited", &[]) else { return };
    let limited = |blocks: &str| {
        let mut shell = Command::new("sh");
        // Blocks of 512 bytes.
        shell.args(["-c", "ulimit -f $0; exec \"$@\"", blocks, env!("CARGO_BIN_EXE_megapage")]);
        shell.args(["run", "--heap", "none", "--text", "thp", "--", &path]);
        shell.env("MEGAPAGE_TEXT_LIBRARY", text_library()).output().unwrap()
    };
    // With a limit below its size, nothing is moved, and the program runs.
    for blocks in ["8", "1"] {
        let output = limited(blocks);
        assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{output:?}");
    }
}

/// Program that prints the ends of 1 GiB of constants, and the size of the pages that these lie on.
const GIANT: &str = r#"
#include <stdio.h>
#include <string.h>
int main(void) {
    volatile char *giant = (volatile char *)0x80000000;
    char line[512];
    int inside = 0;
    unsigned long start;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    printf("%c%c", giant[5], giant[(1 << 30) - 1]);
    while (fgets(line, sizeof line, smaps)) {
        if (strchr(line, '-') && sscanf(line, "%lx-", &start) == 1) inside = start == 0x80000000;
        if (inside && sscanf(line, "KernelPageSize: %lu", &start) == 1) printf(" %lu", start);
    }
    return 0;
}
"#;

#[test]
fn a_whole_gibibyte_gets_a_page_of_that_size() {
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_1G, 0) else { return };
    let directory = on_disk();
    let Some(small) = compile("gcc", directory.path(), "small", GIANT, &["-no-pie"]) else { return };
    // A header that the program does not need becomes that of a segment of 1 GiB, a hole behind the
    // end of the file.
    let mut bytes = fs::read(&small).unwrap();
    let word = |bytes: &[u8], at: usize, size: usize| -> u64 {
        bytes[at..at + size].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let (table, count) = (word(&bytes, 32, 8) as usize, word(&bytes, 56, 2) as usize);
    let mut headers = (0..count).map(|number| table + 56 * number);
    let note = headers.rfind(|at| word(&bytes, *at, 4) == 4).expect("a PT_NOTE");
    let giant = bytes.len().next_multiple_of(4096) as u64;
    let length = HUGE_1G as u64;
    let (load, readable) = (1u64, 4u64 << 32);
    let fields = [load | readable, giant, 0x8000_0000, 0x8000_0000, length, length, 4096];
    for (number, field) in fields.into_iter().enumerate() {
        bytes[note + 8 * number..][..8].copy_from_slice(&field.to_le_bytes());
    }
    let written = directory.path().join("written");
    fs::write(&written, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&written).unwrap();
    file.set_len(giant + length).unwrap();
    file.write_all_at(b"a", giant + 5).unwrap();
    file.write_all_at(b"z", giant + length - 1).unwrap();
    drop(file);
    // Copied by another process. A parallel test could keep a file open that this process opens for
    // writing (ETXTBSY).
    let path = directory.path().join("giant").to_str().unwrap().to_string();
    let copied = Command::new("cp").arg("--sparse=always").args([&written]).arg(&path).status().unwrap();
    assert!(copied.success());
    Command::new("chmod").args(["755", &path]).status().unwrap();

    let (plain, output) = report("none", &[], &[&path]);
    assert_eq!(text(&output.stdout), "az 4", "{plain:#}");
    // One page more than before: pages that the pool holds already belong to others.
    let root = KernelRoot::live();
    let more = pool.former().persistent() + 1;
    hugetlb::write(&root, PageSize::HUGE_1G, PoolScope::Machine, PoolFile::Pages, more).unwrap();
    let has_one = hugetlb_available(PageSize::HUGE_1G).unwrap_or(0) > 0;
    let (report, output) = report("1g", &[], &[&path]);
    let file = &report["text"]["files"][0];
    if !has_one {
        // A free gigabyte in one piece is a matter of luck on a machine that has been up for a
        // while. Without one, the report says so.
        let reason = file["reason"].as_str().unwrap();
        assert!(reason.contains("the pool of") && reason.contains("are needed"), "{file:#}");
        return skip_scarce("needs a page of 1 GiB: the kernel found none");
    }
    assert_eq!(text(&output.stdout), "az 1048576", "{report:#}");
    assert_eq!(file["mechanism"], "1g", "{file:#}");
    assert_eq!(value(file, "obtained_bytes"), length, "{file:#}");
    // The sample may have come too late for a program that ends at once.
    if report["end_is_final"] == true {
        assert_eq!(value(&report["text"]["end"], "hugetlb_1g_bytes"), length, "{report:#}");
    }
}
