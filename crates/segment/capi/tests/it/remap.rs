//! megapage_remap_self: C programs that move themselves, and the example.

use crate::installed;

use installed::{Installed, root};
use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const SOURCE: &str = "crates/segment/capi/tests/programs/remapped.c";

/// Compiles the program, with 6 MiB of code, 4 MiB of constants and 4 MiB of data.
fn program(installed: &Installed, options: &[&str]) -> PathBuf {
    let large = root().join("crates/segment/capi/tests/programs/large.s");
    let all = [&["-std=c11", "-pthread", "-rdynamic", large.to_str().unwrap()], options].concat();
    installed.compile("cc", &all, SOURCE)
}

/// Returns its output, line by line.
fn lines(installed: &Installed, program: &Path, words: &[&str]) -> Vec<String> {
    let words: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
    installed.run(program, &words).lines().map(str::to_string).collect()
}

/// Returns the value behind a word of a line.
fn value(line: &str, word: &str) -> u64 {
    let mut words = line.split(' ');
    words.find(|it| *it == word).unwrap_or_else(|| panic!("no {word} in {line}"));
    words.next().unwrap().parse().unwrap()
}

#[test]
fn a_program_moves_itself_and_stays_whole() {
    let installed = Installed::new();
    for options in [&[][..], &["-no-pie"], &["-Wl,-z,max-page-size=0x200000"]] {
        let said = lines(&installed, &program(&installed, options), &["alone"]);
        // The same twice: the second call finds the segments moved.
        assert_eq!((said.len(), said[0].as_str(), said[4].as_str()), (5, "answer 0", "whole"), "{said:?}");
        let (first, second) = (&said[1], &said[3]);
        assert!(value(first, "possible") >= 8 * MIB && value(first, "threads") == 1, "{said:?}");
        // The number of free huge pages depends on the machine.
        let most = |line: &str| value(line, "huge") <= value(line, "possible");
        assert!(most(first) && most(second) && first.ends_with("took 1"), "{said:?}");
        // A last block that was filled up behind the segment is no whole block the second time.
        assert!(value(second, "possible") <= value(first, "possible"), "{said:?}");
        assert!(value(second, "possible") + 6 * MIB >= value(first, "possible"), "{said:?}");
    }
}

#[test]
fn a_program_moves_itself_onto_pages_of_the_pool() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let installed = Installed::new();
    let said = lines(&installed, &program(&installed, &[]), &["alone", "2m"]);
    assert_eq!((said.len(), said[0].as_str(), said[4].as_str()), (5, "answer 0", "whole"), "{said:?}");
}

#[test]
fn threads_run_what_is_moved_and_lose_nothing() {
    let installed = Installed::new();
    let said = lines(&installed, &program(&installed, &[]), &["threads"]);
    assert_eq!((said.len(), said[6].as_str()), (7, "whole"), "{said:?}");
    for number in 0..3 {
        assert_eq!(said[2 * number], "answer 0", "{said:?}");
        let got = &said[2 * number + 1];
        assert_eq!(value(got, "threads"), 3, "{said:?}");
        // The data is not moved: 4 MiB hold at least one whole block.
        assert!(value(got, "possible") >= value(got, "huge") + 2 * MIB, "{said:?}");
    }
}

#[test]
fn what_cannot_be_done_is_refused() {
    let installed = Installed::new();
    let path = program(&installed, &[]);
    let said = lines(&installed, &path, &["errors"]);
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    let expected = [
        (0, "answer -22: 9 is no MEGAPAGE_REMAP_... of pages"),
        (2, "answer -22: 0x8 has flags that are unknown"),
        (4, "answer -2: no library 'libnone.so.1' is loaded"),
        (6, "answer -22: an item of the libraries is no name"),
    ];
    for (line, words) in expected {
        assert_eq!(said[line], words, "{said:#?}");
        assert_eq!(said[line + 1], "possible 0 huge 0 advised 0 threads 0 took 0");
    }
    assert_eq!((said.len(), said[10]), (11, "whole"), "{said:#?}");
    // Segments that were moved before stay moved. For the others, the kernel gives nothing if THP
    // are ruled out. A probe that another tool has set in the C library keeps the library in place.
    let allowed = ["answer 0", "answer -12: ", "answer -16: "];
    assert!(allowed.iter().any(|answer| said[8].starts_with(answer)), "{said:#?}");

    let said = lines(&installed, &path, &["mdwe"]);
    let refused = "answer -13: memory that was written cannot be made executable here (Permission denied";
    assert!(said[0] == "unknown" || (said[0].starts_with(refused) && said[2] == "whole"), "{said:?}");

    let path = program(&installed, &["-fsanitize=address"]);
    // Older sanitizers start only at few addresses (vm.mmap_rnd_bits): here at the usual ones.
    let mut command = Command::new("setarch");
    command.arg("-R").arg(&path);
    command.env("LD_LIBRARY_PATH", installed.path().join("lib")).env("ASAN_OPTIONS", "detect_leaks=0");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("answer -95: the program was built with a sanitizer (asan)"), "{said}");
    assert!(said.ends_with("whole\n"), "{said}");
}

#[test]
fn the_example_says_what_it_got() {
    let installed = Installed::new();
    let program = installed.compile("cc", &["-std=c11"], "examples/remap.c");
    assert_eq!(installed.run(&program, &[]), "0 KiB of 0 KiB are on huge pages\n");
    let said = installed.run(&program, &["libc.so.6".into()]);
    assert!(said.ends_with(" are on huge pages\n"), "{said}");
}
