//! Rules for one Rust source file.

use super::scan::Source;
use crate::finding::Finding;

/// The longest source file, in lines of code (comments and empty lines do not count). A longer file
/// no longer fits its name.
const MOST_LINES: usize = 500;

/// Crates that may hold unsafe code and call the C library: inside and kernel, the C entry points,
/// and crates that no installed program links.
const UNSAFE_CRATES: [&str; 7] = ["inside", "kernel", "preload", "text", "capi", "lab", "testing"];

/// Crates whose functions depend only on their arguments.
const PURE_CRATES: [&str; 4] = ["units", "tlb", "snapshot", "decide"];

/// Names that a pure crate must not use: the outside world, the clock (a span of time is a value),
/// other threads, chance, global state.
const IMPURE: [&str; 13] = [
    "std::fs",
    "std::io",
    "std::env",
    "std::net",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "std::sync",
    "rand::",
    "thread_local!",
    "static mut",
    "std::os",
];

/// Calls that collapse huge pages of another process, or split them, and the files that may name
/// them. All other code goes through the engine of crates/act, which holds the latency guard.
const COLLAPSES: [&str; 4] =
    ["process_madvise::collapse", "process_madvise::cold", "process_madvise::page_out", "process_madvise::{"];
const MAY_COLLAPSE: [(&str, &str); 3] = [
    ("crates/act/src/engine/target.rs", "makes the calls, under the guard"),
    (
        "crates/watch/observe/src/tracker/bpf/clear.rs",
        "clears accessed bits of whole mappings, within the budget of sampling",
    ),
    ("crates/watch/observe/src/tracker/self_test.rs", "tries trackers on a child process"),
];

/// Test files that may name kernel paths, each with the reason.
const TESTS_THAT_NAME_KERNEL_PATHS: [(&str, &str); 21] = [
    ("crates/watch/observe/src/cost/calibrate_tests.rs", "builds the tree of a machine under pressure"),
    ("crates/cli/tests/it/enable.rs", "reads by hand what a run passes on to its program"),
    ("crates/cli/tests/it/run_jvm.rs", "reads by hand what megapage reports"),
    ("crates/cli/tests/it/run_kinds.rs", "reads by hand what megapage reports"),
    ("crates/cli/tests/it/run_ledger.rs", "has a C program open its launcher's files"),
    (
        "crates/cli/tests/it/run_in_place.rs",
        "reads by hand which process the program is, and who is beside it",
    ),
    ("crates/cli/tests/it/run_support/text.rs", "has a C program print its mappings"),
    ("crates/cli/tests/it/run_text_sizes.rs", "has a C program print the size of its pages"),
    ("crates/cli/tests/it/trial.rs", "has a shell command look whether a process has huge pages"),
    ("crates/cli/tests/it/run_text_truth.rs", "has a Python program set a probe"),
    ("crates/watch/doctor/tests/it/captured.rs", "builds the tree of a kernel with other base pages"),
    ("crates/run/launch/src/kinds/tests.rs", "builds the tree of a process from what was captured of it"),
    ("crates/heap/memory/tests/it/refused.rs", "puts itself into a control group"),
    ("crates/heap/memory/tests/it/limits.rs", "limits its own addresses and data"),
    ("crates/watch/observe/tests/it/synthetic/mod.rs", "imitates a process whose accesses are known"),
    ("crates/watch/observe/tests/it/pools.rs", "builds a tree in which a process ends while it is read"),
    ("lab/testing/src/ksm.rs", "sets KSM for experiments"),
    ("lab/testing/src/memory_group.rs", "gives tests a control group"),
    ("lab/testing/src/refuse.rs", "bounds what a test may have on top of what it has"),
    ("lab/testing/src/zram.rs", "gives tests a swap device"),
    (
        "crates/watch/observe/tests/it/trackers.rs",
        "builds trees of kernels with interfaces that this one lacks",
    ),
];

/// Returns all findings in the Rust file `path` (relative to the repository), whose text is `text`.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let file = File { path, krate: crate_of(path), source: Source::scan(text) };
    let mut findings = Vec::new();
    file.length(&mut findings);
    file.leftovers(&mut findings);
    file.forbids_unsafe(&mut findings);
    file.unsafe_is_explained(&mut findings);
    file.kernel_paths(&mut findings);
    file.system_calls(&mut findings);
    file.collapses(&mut findings);
    file.purity(&mut findings);
    file.paths_in_json(&mut findings);
    file.prints(&mut findings);
    findings
}

/// Returns the directory name of the crate that a file belongs to: `units` for
/// `crates/values/units/src/lib.rs`.
pub(super) fn crate_of(path: &str) -> &str {
    let mut above = "";
    for part in path.split('/') {
        if ["src", "tests", "benches", "build.rs"].contains(&part) && !above.is_empty() {
            break;
        }
        above = part;
    }
    above
}

struct File<'a> {
    path: &'a str,
    krate: &'a str,
    source: Source,
}

impl File<'_> {
    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding::new(self.path, line + 1, what)
    }

    /// Returns true for integration tests and benches: separate crates, linked to no shipped code.
    fn is_test_file(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// Returns lines of code that ship, with their numbers from 0.
    fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        let all_tests = self.is_test_file();
        let lines = self.source.code.iter().enumerate();
        lines
            .filter(move |(number, _)| !all_tests && !self.source.test[*number])
            .map(|(number, line)| (number, line.as_str()))
    }

    fn length(&self, findings: &mut Vec<Finding>) {
        let lines = self.source.code.iter().filter(|line| !line.trim().is_empty()).count();
        if lines > MOST_LINES {
            findings.push(
                self.finding(0, format!("{lines} lines of code, more than {MOST_LINES}: split the file")),
            );
        }
    }

    fn leftovers(&self, findings: &mut Vec<Finding>) {
        for (number, line) in self.source.code.iter().enumerate() {
            for leftover in ["dbg!", "todo!", "unimplemented!"] {
                if has_word(line, leftover) {
                    findings.push(self.finding(number, format!("{leftover} is left over")));
                }
            }
            for leftover in ["TODO", "FIXME", "XXX"] {
                if has_word(&self.source.comment[number], leftover) {
                    findings.push(self.finding(number, format!("{leftover} is left over")));
                }
            }
        }
    }

    fn is_crate_root(&self) -> bool {
        let inside = self.path.split_once("/src/").map(|(_, inside)| inside);
        match inside {
            Some("lib.rs" | "main.rs") => true,
            Some(inside) => inside
                .strip_prefix("bin/")
                .is_some_and(|name| !name.contains('/') || name.ends_with("/main.rs")),
            None => false,
        }
    }

    fn forbids_unsafe(&self, findings: &mut Vec<Finding>) {
        let says = |attribute: &str| self.source.code.iter().any(|line| line.contains(attribute));
        if self.is_crate_root() {
            let wanted =
                if UNSAFE_CRATES.contains(&self.krate) { "deny(unsafe_code)" } else { "forbid(unsafe_code)" };
            if !says(&format!("#![{wanted}]")) && !says("#![forbid(unsafe_code)]") {
                findings.push(self.finding(0, format!("the crate root lacks #![{wanted}]")));
            }
        }
        let allowed = self.source.code.iter().position(|line| line.contains("allow(unsafe_code)"));
        if let Some(number) = allowed {
            let header = self.source.comment[..number].join(" ").to_lowercase();
            if !UNSAFE_CRATES.contains(&self.krate) {
                findings.push(self.finding(number, "unsafe code belongs in crates/kernel"));
            } else if !header.contains("obligation") {
                findings.push(self.finding(
                    number,
                    "the file's header must state its obligation (`//! File-level obligation: ...`)",
                ));
            }
        }
    }

    fn unsafe_is_explained(&self, findings: &mut Vec<Finding>) {
        for (number, line) in self.source.code.iter().enumerate() {
            let opens_block = has_word(line, "unsafe {") || has_word(line, "unsafe impl");
            if opens_block && !self.explained(number) {
                findings.push(self.finding(number, "no `// SAFETY:` comment before this unsafe block"));
            }
        }
    }

    /// Returns true if a SAFETY comment stands on line `number` or just above its statement.
    fn explained(&self, number: usize) -> bool {
        if self.source.comment[number].contains("SAFETY:") {
            return true;
        }
        for above in (0..number).rev() {
            if self.source.comment[above].contains("SAFETY:") {
                return true;
            }
            let code = self.source.code[above].trim_end();
            let is_comment = code.trim().is_empty() && !self.source.comment[above].trim().is_empty();
            if !is_comment && (code.is_empty() || code.ends_with([';', '}'])) {
                return false;
            }
        }
        false
    }

    fn kernel_paths(&self, findings: &mut Vec<Finding>) {
        // This file has to spell the paths that it looks for.
        // Fuzz targets build trees for kernel's readers.
        let may = ["inside", "kernel", "xtask", "fuzzing"].contains(&self.krate);
        if may
            || self.path.ends_with("/tests.rs")
            || TESTS_THAT_NAME_KERNEL_PATHS.iter().any(|(path, _)| *path == self.path)
        {
            return;
        }
        for (number, text) in &self.source.strings {
            // Unit tests lay out captured trees, so that they have to name the files in them.
            if !self.source.test[*number] && names_kernel_path(text) {
                findings.push(self.finding(
                    *number,
                    format!("\"{text}\" names a kernel file: only crates/kernel and crates/kernel/inside may (a test needs an entry in xtask/src/tidy/rust.rs)"),
                ));
            }
        }
    }

    fn system_calls(&self, findings: &mut Vec<Finding>) {
        if UNSAFE_CRATES.contains(&self.krate) {
            return;
        }
        for (number, line) in self.source.code.iter().enumerate() {
            for outside in ["libc::", "rustix::", "nix::", "extern \"", "asm!"] {
                if has_word(line, outside) {
                    findings.push(self.finding(
                        number,
                        format!("`{outside}` outside crates/kernel: add a function there instead"),
                    ));
                }
            }
        }
    }

    fn collapses(&self, findings: &mut Vec<Finding>) {
        if self.krate == "kernel" || MAY_COLLAPSE.iter().any(|(path, _)| *path == self.path) {
            return;
        }
        for (number, line) in self.shipped() {
            for call in COLLAPSES {
                if has_word(line, call) {
                    let what =
                        format!("`{call}` outside the engine of crates/act, which holds the latency guard");
                    findings.push(self.finding(number, what));
                }
            }
        }
    }

    fn purity(&self, findings: &mut Vec<Finding>) {
        if !PURE_CRATES.contains(&self.krate) {
            return;
        }
        for (number, line) in self.shipped() {
            for outside in IMPURE {
                if has_word(line, outside) {
                    findings.push(
                        self.finding(number, format!("`{outside}` in crate {}, which is pure", self.krate)),
                    );
                }
            }
        }
    }

    /// Finds prints outside the one module through which the command prints: it lets no text steer
    /// a terminal.
    fn prints(&self, findings: &mut Vec<Finding>) {
        if self.krate != "cli" || self.path.ends_with("/output.rs") {
            return;
        }
        for (number, line) in self.shipped() {
            for macro_name in ["print!", "println!", "eprint!", "eprintln!"] {
                if has_word(line, macro_name) {
                    let what = format!(
                        "{macro_name} outside crates/cli/src/output.rs, which makes text fit to be shown"
                    );
                    findings.push(self.finding(number, what));
                }
            }
        }
    }

    /// Finds paths in JSON without a serializer: serde refuses a path that is no UTF-8, from any
    /// source. So each such field must name the way in which it is written.
    fn paths_in_json(&self, findings: &mut Vec<Finding>) {
        let (mut derives, mut end, mut said) = (false, None, false);
        for (number, line) in self.shipped() {
            let indent = &line[..line.len() - line.trim_start().len()];
            match &end {
                None if has_word(line, "Serialize") && line.contains("derive(") => derives = true,
                None if derives && (has_word(line, "struct") || has_word(line, "enum")) => {
                    derives = false;
                    end = line.trim_end().ends_with('{').then(|| format!("{indent}}}"));
                }
                Some(last) if line.trim_end() == last => end = None,
                Some(_) if line.trim_start().starts_with("#[serde(") => {
                    said |= line.contains("serialize_with =") || has_word(line, "skip");
                }
                Some(_)
                    if ["PathBuf", "Path", "OsString", "OsStr"].iter().any(|word| has_word(line, word))
                        && !std::mem::take(&mut said) =>
                {
                    let how = "serialize_with = \"megapage_kernel::json_path::escaped\"";
                    findings.push(self.finding(number, format!("a path that serde may refuse: say {how}")));
                }
                Some(_) if line.trim_end().ends_with(',') => said = false,
                _ => {}
            }
        }
    }
}

/// Returns true if a string literal is, or holds, a path under /proc or /sys.
fn names_kernel_path(text: &str) -> bool {
    text.starts_with("proc/")
        || text.starts_with("sys/")
        || ["/proc", "/sys"].iter().any(|root| {
            text.match_indices(root).any(|(at, _)| {
                let before = text[..at].chars().next_back();
                let after = text[at + root.len()..].chars().next();
                !before.is_some_and(|c| c.is_alphanumeric() || c == '}' || c == '.')
                    && after.is_none_or(|c| c == '/')
            })
        })
}

/// Returns true if `line` holds `word` with no letter, digit or underscore before it.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_open = !word.ends_with(|c: char| c.is_alphanumeric());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            && (ends_open || !after.is_some_and(|c| c.is_alphanumeric() || c == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings for `text` as a file at `path`, as `line: message`.
    fn found(path: &str, text: &str) -> Vec<String> {
        check(path, text).into_iter().map(|f| format!("{}: {}", f.line, f.what)).collect()
    }

    fn one(path: &str, text: &str, wanted: &str) {
        let found = found(path, text);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].contains(wanted), "{found:?} lacks {wanted:?}");
    }

    const ROOT: &str = "#![forbid(unsafe_code)]\n";

    #[test]
    fn a_clean_file_has_no_findings() {
        assert!(found("crates/watch/observe/src/lib.rs", ROOT).is_empty());
        assert!(found("crates/kernel/src/lib.rs", "#![deny(unsafe_code)]\n").is_empty());
        assert!(found("crates/kernel/src/x.rs", "const P: &str = \"proc/meminfo\";\n").is_empty());
    }

    #[test]
    fn printing_past_the_one_module_is_caught() {
        one("crates/cli/src/map.rs", "fn a() {\n    eprintln!(\"x\");\n}\n", "2: eprintln! outside");
        assert!(found("crates/cli/src/output.rs", "fn a() { eprintln!(\"x\") }\n").is_empty());
        assert!(found("crates/run/bench/src/a.rs", "fn a() { eprintln!(\"x\") }\n").is_empty());
    }

    #[test]
    fn a_collapse_past_the_latency_guard_is_caught() {
        let call = "fn a() {\n    process_madvise::collapse(pidfd, &[region]);\n}\n";
        one("crates/act/src/promote.rs", call, "2: `process_madvise::collapse` outside the engine");
        one("lab/src/a.rs", "use megapage_kernel::process_madvise::{cold};\n", "outside the engine");
        assert!(found("crates/act/src/engine/target.rs", call).is_empty());
        assert!(found("crates/act/tests/it/a.rs", call).is_empty(), "tests may");
    }

    #[test]
    fn a_path_in_json_that_may_be_refused_is_caught() {
        let one_field = |attribute: &str, field: &str| {
            format!(
                "#[derive(Debug, Serialize)]\npub struct A {{\n    b: u8,\n{attribute}    {field},\n}}\nstruct C {{ d: Path }}\n"
            )
        };
        let path = "crates/act/src/a.rs";
        one(path, &one_field("", "pub file: PathBuf"), "4: a path that serde may refuse");
        one(path, &one_field("", "pub files: Option<Vec<OsString>>"), "4: a path");
        for said in ["#[serde(skip)]", "#[serde(serialize_with = \"x\")]"] {
            assert!(found(path, &one_field(&format!("    {said}\n"), "pub file: PathBuf")).is_empty());
        }
        one(path, &one_field("    #[serde(skip)]\n    c: u8,\n", "file: PathBuf"), "6: a path");
        assert!(found(path, "#[derive(Debug)]\nstruct A {\n    file: PathBuf,\n}\n").is_empty());
    }

    #[test]
    fn a_crate_root_without_forbid_is_caught() {
        one(
            "crates/watch/observe/src/lib.rs",
            "fn a() {}\n",
            "1: the crate root lacks #![forbid(unsafe_code)]",
        );
        one("crates/run/bench/src/bin/w.rs", "fn main() {}\n", "forbid(unsafe_code)");
        one("crates/run/bench/src/bin/w/main.rs", "fn main() {}\n", "forbid(unsafe_code)");
        one("crates/kernel/src/lib.rs", "// #![deny(unsafe_code)]\n", "deny(unsafe_code)");
        one("xtask/src/main.rs", "fn main() {}\n", "forbid(unsafe_code)");
    }

    #[test]
    fn unsafe_code_outside_its_place_is_caught() {
        one(
            "crates/watch/observe/src/a.rs",
            "#![allow(unsafe_code)]\n",
            "1: unsafe code belongs in crates/kernel",
        );
        one(
            "crates/kernel/src/a.rs",
            "//! Maps.\n#![allow(unsafe_code)]\n",
            "2: the file's header must state",
        );
        let stated = "//! Maps.\n//! File-level obligation: none.\n#![allow(unsafe_code)]\n";
        assert!(found("crates/kernel/src/a.rs", stated).is_empty());
    }

    #[test]
    fn an_unexplained_unsafe_block_is_caught() {
        one(
            "crates/kernel/src/a.rs",
            "fn a() {\n    let x = 1;\n    unsafe { b() };\n}\n",
            "3: no `// SAFETY:`",
        );
        one("crates/kernel/src/a.rs", "struct A;\nunsafe impl Send for A {}\n", "2: no `// SAFETY:`");
        for explained in [
            "fn a() {\n    // SAFETY: b is fine.\n    unsafe { b() };\n}\n",
            "fn a() {\n    // SAFETY: b is fine,\n    // really.\n    let x =\n        unsafe { b() };\n}\n",
            "// SAFETY: no data.\nunsafe impl Send for A {}\n",
            "fn a() { let s = \"unsafe {\"; } // unsafe {\n",
        ] {
            assert!(found("crates/kernel/src/a.rs", explained).is_empty(), "{explained}");
        }
    }

    #[test]
    fn a_kernel_path_outside_the_kernel_crate_is_caught() {
        for path in ["/proc/meminfo", "proc/meminfo", "/sys/kernel/mm", "sys/kernel", "/proc", "cat /sys/x"] {
            one("crates/watch/observe/src/a.rs", &format!("const P: &str = \"{path}\";\n"), "1: \"");
        }
        one("crates/cli/tests/it/a.rs", "const P: &str = \"/proc/meminfo\";\n", "names a kernel file");
        for other in ["procfs", "/etc/sysctl.d", "{root}/sys", "processes", "system"] {
            let text = format!("const P: &str = \"{other}\";\n");
            assert!(found("crates/watch/observe/src/a.rs", &text).is_empty(), "{other}");
        }
        let in_test = "#[cfg(test)]\nmod tests {\n    const P: &str = \"proc/meminfo\";\n}\n";
        assert!(found("crates/watch/observe/src/a.rs", in_test).is_empty());
    }

    #[test]
    fn a_system_call_outside_the_kernel_crate_is_caught() {
        one("crates/act/src/a.rs", "fn a() { libc::getpid(); }\n", "`libc::` outside crates/kernel");
        one("crates/act/src/a.rs", "use rustix::fs;\n", "`rustix::`");
        one("crates/act/src/a.rs", "extern \"C\" {}\n", "`extern \"`");
        assert!(found("crates/heap/preload/src/a.rs", "fn a() { libc::getpid(); }\n").is_empty());
        assert!(found("crates/act/src/a.rs", "// libc::getpid\nuse my_libc::x;\n").is_empty());
    }

    #[test]
    fn impurity_in_a_pure_crate_is_caught() {
        one("crates/values/units/src/a.rs", "use std::fs;\n", "`std::fs` in crate units, which is pure");
        one("crates/decide/src/a.rs", "fn a() { std::time::Instant::now(); }\n", "`Instant`");
        assert!(found("crates/decide/src/a.rs", "use std::time::Duration;\n").is_empty());
        one("crates/decide/src/a.rs", "static mut A: u8 = 0;\n", "`static mut`");
        assert!(
            found("crates/values/units/src/a.rs", "#[cfg(test)]\nmod tests {\n use std::fs;\n}\n").is_empty()
        );
        assert!(found("crates/watch/observe/src/a.rs", "use std::fs;\n").is_empty());
    }

    #[test]
    fn leftovers_are_caught() {
        one("crates/act/src/a.rs", "fn a() { dbg!(1); }\n", "dbg! is left over");
        one("crates/act/src/a.rs", "fn a() { todo!() }\n", "todo! is left over");
        // The words are put together here so that this file passes its own rule.
        one("crates/act/src/a.rs", &format!("// {}{}: later\n", "TO", "DO"), "1: TODO is left over");
        one("crates/act/src/a.rs", &format!("/* {}{} */\n", "FIX", "ME"), "FIXME is left over");
    }

    #[test]
    fn a_file_that_is_too_long_is_caught() {
        let lines = |count: usize| "const A: u8 = 0;\n\n// Why.\n".repeat(count);
        one("crates/act/src/a.rs", &lines(MOST_LINES + 1), "501 lines of code, more than 500");
        assert!(found("crates/act/src/a.rs", &lines(MOST_LINES)).is_empty());
    }
}
