//! `megapage run --text` claims no more than the kernel shows, and does not touch what it cannot
//! move whole.

use crate::run_support;
use crate::text_support;

use megapage_kernel::Reservation;
use megapage_testing::{PoolGuard, skip};
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};
use text_support::*;

/// Starts the program with transparent huge pages forbidden (PR_SET_THP_DISABLE).
fn without_thp(arguments: &[&str]) -> Output {
    command(&[&["--thp", "never"], arguments].concat()).output().unwrap()
}

#[test]
fn what_the_kernel_does_not_give_is_not_claimed() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let directory = on_disk();
    let Some(path) = program(directory.path(), "off", &["-Wl,-z,max-page-size=0x200000"]) else { return };
    let file = directory.path().join("report.json");
    let asked = ["--text", "2m", "--json", "--report", file.to_str().unwrap(), "--", &path];
    let output = without_thp(&asked);
    assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{output:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let text_file = &report["text"]["files"][0];
    // Data and .bss have no huge pages: the report says so, and does not count them.
    assert!(text_file["missing"].is_string(), "{report:#}");
    assert_eq!(value(text_file, "advised_bytes"), 0, "{report:#}");
    if report["end_is_final"] == true {
        let end = &report["text"]["end"];
        assert_eq!(value(end, "thp_bytes"), 0, "{report:#}");
        assert!(value(end, "hugetlb_2m_bytes") >= value(text_file, "obtained_bytes"), "{report:#}");
    }
    let required = ["--text", "2m", "--require", "--", &path];
    let output = without_thp(&required);
    assert_eq!((status(&output), text(&output.stdout).as_str()), (125, ""), "{output:?}");
}

#[test]
fn changed_pages_of_code_stay_where_they_are() {
    let directory = on_disk();
    // A relocation in the middle of the code: the loader writes there, and the page is no longer
    // the file's.
    let source = SOURCE.replacen("3 << 20, 0x90", r"3 << 20, 0x90\n .quad first", 1);
    assert_ne!(source, SOURCE);
    let options = ["-fPIE", "-pie", "-Wl,-z,notext", "-rdynamic", "-ldl"];
    let Some(path) = compile("gcc", directory.path(), "relocated", &source, &options) else { return };
    let (report, output) = report("thp", &[], &[&path]);
    assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{report:#}");
    let file = &report["text"]["files"][0];
    let missing = file["missing"].as_str().unwrap_or_default();
    let said = ["not the file's", "gave no huge pages"];
    assert!(said.iter().any(|words| missing.contains(words)), "{report:#}");
    assert!(value(file, "possible_bytes") - value(file, "obtained_bytes") >= 2 * MIB, "{report:#}");
    let required = command(&["--text", "thp", "--require", "--", &path]).output().unwrap();
    assert_eq!((status(&required), text(&required.stdout).as_str()), (125, ""), "{required:?}");
}

#[test]
fn probed_code_stays_where_probes_are_known() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "probed", &["-no-pie"]) else { return };
    // Sets a uprobe at `middle` by perf_event_open(2), counted on every processor of the machine,
    // and then runs the command.
    let driver = r"
import ctypes, os, struct, subprocess, sys
path, command = sys.argv[1], sys.argv[2:]
try: kind = int(open('/sys/bus/event_source/devices/uprobe/type').read())
except OSError: sys.exit(77)
names = subprocess.check_output(['nm', path], text=True).splitlines()
address = [int(line.split()[0], 16) for line in names if line.endswith(' middle')][0]
headers = subprocess.check_output(['readelf', '-lW', path], text=True).splitlines()
for fields in (line.split() for line in headers if line.strip().startswith('LOAD')):
    offset, start, size = (int(fields[at], 16) for at in (1, 2, 4))
    if start <= address < start + size: at = address - start + offset
name = ctypes.create_string_buffer(path.encode())
event = bytearray(128)
struct.pack_into('<IIQQQQ', event, 0, kind, 128, 0, 1, 0, 0)
struct.pack_into('<QQ', event, 56, ctypes.addressof(name), at)
buffer = (ctypes.c_char * 128).from_buffer(event)
if os.uname().machine != 'x86_64': sys.exit(77)
counters = [ctypes.CDLL(None).syscall(298, ctypes.byref(buffer), -1, cpu, -1, 8) for cpu in os.sched_getaffinity(0)]
if min(counters) < 0: sys.exit(77)
sys.exit(subprocess.run(command).returncode % 256)
";
    let file = directory.path().join("report.json");
    let run = command(&["--text", "thp", "--json", "--report", file.to_str().unwrap(), "--", &path]);
    let mut python = Command::new("python3");
    python.args(["-c", driver, &path]).arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
    let Ok(output) = python.env("MEGAPAGE_TEXT_LIBRARY", text_library()).output() else {
        return skip("needs python3");
    };
    if status(&output) == 77 {
        return skip("needs the right to set uprobes");
    }
    assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{output:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let missing = report["text"]["files"][0]["missing"].as_str().unwrap_or_default();
    let said = ["not the file's", "gave no huge pages"];
    assert!(said.iter().any(|words| missing.contains(words)), "{report:#}");
}

#[test]
fn figures_of_a_former_program_are_not_the_next_ones() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "former", &[]) else { return };
    let file = directory.path().join("report.json");
    let file = file.to_str().unwrap();
    // The next program requests a report, and goes on until the report is there.
    let next = r#"kill -USR1 $PPID; until test -s "$0"; do sleep 0.05; done; exit 3"#;
    for require in [&[][..], &["--require"]] {
        let _ = fs::remove_file(file);
        let options = [&["--text", "thp", "--json", "--report", file][..], require, &["--", &path]].concat();
        let output =
            command(&[&options[..], &["become", "/bin/sh", "-c", next, file]].concat()).output().unwrap();
        let Ok(said) = fs::read_to_string(file) else {
            // Refused before main: the machine had no huge pages for all of the code.
            assert!(!require.is_empty() && status(&output) == 125, "{output:?}");
            skip("needs huge pages for all of the code");
            continue;
        };
        let expected = if require.is_empty() { 3 } else { 125 };
        assert_eq!(status(&output), expected, "{output:?}");
        let report: Value = serde_json::from_str(&said).unwrap();
        let text_file = &report["text"]["files"][0];
        if !require.is_empty()
            && text_file["missing"].as_str().is_some_and(|why| why.contains("no huge pages"))
        {
            skip("needs huge pages for all of the code");
            continue;
        }
        assert_eq!(value(text_file, "obtained_bytes"), 0, "{report:#}");
        assert!(text_file["missing"].as_str().unwrap().contains("has executed another"), "{report:#}");
    }
}

#[test]
fn what_is_required_and_cannot_be_told_ends_the_program_before_main() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "alone", &[]) else { return };
    let alone = |required: &str| {
        let mut command = Command::new(&path);
        command
            .env("LD_PRELOAD", text_library())
            .env("MEGAPAGE_TEXT", "thp")
            .env("MEGAPAGE_TEXT_OBJECTS", ".");
        let output = command.env("MEGAPAGE_TEXT_REQUIRE", required).output().unwrap();
        (status(&output), text(&output.stdout))
    };
    assert_eq!(alone("0"), (3, "whole \n".into()));
    assert_eq!(alone("1"), (125, String::new()));
}

/// Returns the access of every page of the program at fixed addresses, by /proc/PID/maps.
fn access_of_pages(said: &str) -> std::collections::BTreeMap<u64, String> {
    let mut pages = std::collections::BTreeMap::new();
    for line in said.lines().filter(|line| line.contains('-')) {
        let mut fields = line.split(' ');
        let (ends, access) = (fields.next().unwrap(), fields.next().unwrap());
        assert!(!(access.contains('w') && access.contains('x')), "{line}");
        let (start, end) = ends.split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        // The linker places the program here; heap, libraries and stack get other addresses each
        // time.
        if hex(start) < 256 * MIB && !line.contains("[heap]") {
            pages.extend((hex(start)..hex(end)).step_by(4096).map(|page| (page, access.to_string())));
        }
    }
    pages
}

#[test]
fn every_page_keeps_its_access() {
    let directory = on_disk();
    // 5 MiB that are read-only after relocation.
    let source = SOURCE.replace(
        ".section .rodata\\n",
        ".section .data.rel.ro,\\\"aw\\\"\\n .skip 5 << 20, 3\\n.section .rodata\\n",
    );
    assert_ne!(source, SOURCE);
    let options = ["-no-pie", "-Wl,-z,now,-z,relro", "-rdynamic", "-ldl"];
    let Some(path) = compile("gcc", directory.path(), "kept", &source, &options) else { return };
    let maps = |kind: &str| {
        let output = command(&["--text", kind, "--", &path, "maps"]).output().unwrap();
        assert_eq!(status(&output), 3, "{output:?}");
        access_of_pages(text(&output.stdout).trim_end_matches("whole maps\n"))
    };
    let (before, after) = (maps("none"), maps("thp"));
    let sealed = before.values().filter(|access| *access == "r--p").count();
    assert!(sealed * 4096 >= 9 << 20, "constants, and what is read-only after relocation: {sealed} pages");
    for (page, access) in &before {
        assert_eq!(after.get(page), Some(access), "{page:x}");
    }
    // A last block may have been filled up with zeros, but never with writable ones.
    for (page, access) in after.iter().filter(|(page, _)| !before.contains_key(page)) {
        assert!(!access.contains('w'), "{page:x} {access}");
    }
}

#[test]
fn huge_pages_are_obtained_where_there_are_some() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "some", &[]) else { return };
    if !thp_can_be_had() {
        return skip("needs free blocks of 2 MiB");
    }
    let (report, output) = report("thp", &[], &[&path]);
    assert_eq!(status(&output), 3, "{output:?}");
    assert!(value(&report["text"]["files"][0], "obtained_bytes") > 0, "{report:#}");
}

fn thp_can_be_had() -> bool {
    let Ok(range) = Reservation::new(32 << 20, 2 << 20) else { return false };
    range.open().is_ok() && range.populate().is_ok() && range.collapse().is_ok()
}
