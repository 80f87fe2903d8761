//! Check that no test ends early without a reason: it must call `skip()` of lab/testing first.
//!
//! A way out of a test is a `return` without a value, a `return` that only prints, or a `continue`.
//! It is allowed if its block calls a gate before it, or if a gate decides about the block:
//! `let Some(pool) = PoolGuard::reserve(size, 4) else { return };`. A gate is `skip`, or a function
//! of test code that calls a gate and returns a `bool`, an `Option` or a `Result`. A gate may
//! return `None` or `false` in the same places only. Helpers without a result follow the same
//! rules.
//!
//! Tests under `#[ignore]` are exempt: they run only on request.

use super::rust::crate_of;
use super::scan::Source;
use crate::finding::Finding;
use std::collections::{BTreeMap, BTreeSet};

/// The end of each finding.
const WHAT: &str = "may leave a test that has shown nothing: call skip() of lab/testing, with the reason";

/// Returns all findings in the tests among `files`.
pub fn check(files: &BTreeMap<String, String>) -> Vec<Finding> {
    let files: Vec<File> = files
        .iter()
        .filter(|(path, text)| path.ends_with(".rs") && (holds_tests(path) || text.contains("#[cfg(test)]")))
        .map(|(path, text)| File::new(path, text))
        .collect();
    let gates = Gates::find(&files);
    let mut findings = Vec::new();
    for file in &files {
        for function in file.functions.iter().filter(|function| function.kind != Kind::Ignored) {
            file.ways_out(function, &gates, &mut findings);
        }
    }
    // A function within another is read twice.
    findings.sort();
    findings.dedup();
    findings
}

/// Returns true if all of the file is code of tests.
fn holds_tests(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.starts_with("lab/testing/src/")
}

#[derive(PartialEq)]
enum Kind {
    Test,
    /// A test that runs only when it is asked for, or a function of lab/testing.
    Ignored,
    Free,
    Method,
}

/// A function of test code.
struct Function {
    /// Its name, with its type before it if it has one: `Type::name`.
    name: String,
    kind: Kind,
    /// The type that it returns; empty if it has none.
    answer: String,
    /// Places in the text, from its opening brace to its closing one.
    body: (usize, usize),
}

struct File<'a> {
    path: &'a str,
    /// The code, with its literals blanked.
    text: String,
    functions: Vec<Function>,
}

impl<'a> File<'a> {
    fn new(path: &'a str, text: &str) -> File<'a> {
        let source = Source::scan(text);
        let text = source.code.join("\n");
        let mut functions = functions(&text);
        let is_testing = path.starts_with("lab/testing/src/");
        functions.retain_mut(|function| {
            let line = text[..function.body.0].matches('\n').count();
            let is_test_code = source.test[line] || holds_tests(path) && !is_testing;
            if !is_test_code {
                function.kind = Kind::Ignored;
            }
            is_test_code || is_testing
        });
        File { path, text, functions }
    }

    fn ways_out(&self, function: &Function, gates: &Gates, findings: &mut Vec<Finding>) {
        let (start, end) = function.body;
        let body = &self.text[start..end];
        let is_unit = function.answer.is_empty() && matches!(function.kind, Kind::Test | Kind::Free);
        let is_gate = gates.hold(self.path, &function.name);
        let mut leaves = |at: usize, what: &str| {
            if !self.is_excused(start, start + at, gates) {
                let line = self.text[..start + at].matches('\n').count() + 1;
                findings.push(Finding::new(self.path, line, format!("this {what} {WHAT}")));
            }
        };
        for at in words(body, "return") {
            let value = body[at + "return".len()..].trim_start();
            let begins = |words: &[&str]| words.iter().any(|word| value.starts_with(word));
            if is_unit && begins(&[";", "}", ",", "eprintln!", "println!"])
                || is_gate && begins(&["None", "false"])
            {
                leaves(at, "return");
            }
        }
        if function.kind == Kind::Test {
            words(body, "continue").for_each(|at| leaves(at, "continue"));
        }
    }

    /// Returns true if the block around `at` calls a gate before that, or a gate decides about the
    /// block.
    fn is_excused(&self, start: usize, at: usize, gates: &Gates) -> bool {
        let mut inner = at;
        while let Some(open) = opening_brace(&self.text[start..inner]).map(|open| start + open) {
            let header = header(&self.text[start..open]);
            if gates.are_called(self.path, &self.text[open..inner]) || gates.are_called(self.path, header) {
                return true;
            }
            // An arm of a match: the match decides about it.
            if !header.trim_end().ends_with("=>") {
                return false;
            }
            inner = open;
        }
        false
    }
}

/// Returns true if the function could tell its caller that a test was skipped.
fn is_gate(function: &Function) -> bool {
    ["bool", "Option", "Result"].iter().any(|answer| words(&function.answer, answer).next().is_some())
}

/// The names of each file, and for each name if it is a gate.
struct Gates<'a>(BTreeMap<&'a str, BTreeMap<&'a str, bool>>);

impl<'a> Gates<'a> {
    fn find(files: &'a [File]) -> Gates<'a> {
        let names = |file: &'a File| file.functions.iter().map(|function| (function.name.as_str(), false));
        let mut gates = Gates(files.iter().map(|file| (file.path, names(file).collect())).collect());
        loop {
            let before = gates.0.clone();
            for file in files {
                for function in file.functions.iter().filter(|function| is_gate(function)) {
                    let body = &file.text[function.body.0..function.body.1];
                    if gates.are_called(file.path, body) {
                        gates.0.entry(file.path).or_default().insert(&function.name, true);
                    }
                }
            }
            if gates.0 == before {
                return gates;
            }
        }
    }

    /// Returns true for a gate of that name in the same file, otherwise in the same crate,
    /// otherwise in lab/testing.
    fn hold(&self, path: &str, name: &str) -> bool {
        if let Some(is_gate) = self.0.get(path).and_then(|names| names.get(name)) {
            return *is_gate;
        }
        let crates = [crate_of(path), "testing"];
        self.0.iter().any(|(file, names)| crates.contains(&crate_of(file)) && names.get(name) == Some(&true))
    }

    fn are_called(&self, path: &str, text: &str) -> bool {
        calls(text).iter().any(|name| name == "skip" || name == "skip_scarce" || self.hold(path, name))
    }
}

/// Returns the names of the functions that `text` calls, with the type if one stands before it.
fn calls(text: &str) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for (at, _) in text.match_indices('(') {
        let start = text[..at].rfind(|c| !is_word(c) && c != ':').map_or(0, |before| before + 1);
        let mut parts: Vec<&str> = text[start..at].split("::").collect();
        let Some(name) = parts.pop().filter(|name| !name.is_empty()) else { continue };
        match parts.pop().filter(|owner| owner.starts_with(char::is_uppercase)) {
            Some(owner) => calls.insert(format!("{owner}::{name}")),
            None => calls.insert(name.to_string()),
        };
    }
    calls
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns places of a whole word.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let found = text.match_indices(word).map(|(at, _)| at);
    found.filter(move |at| !text[..*at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

/// Returns the place of the brace that is open at the end of `text`.
fn opening_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.rmatch_indices(['{', '}'])
        .find(|(_, brace)| {
            depth += if *brace == "{" { 1 } else { -1 };
            depth > 0
        })
        .map(|(at, _)| at)
}

/// Returns the header of a block that opens at the end of `text`: from its `let`, `if`, `match`, or
/// the last statement's end.
fn header(text: &str) -> &str {
    let mut depth = 0;
    let begin = text.char_indices().rev().find(|(at, c)| {
        match c {
            ')' | ']' | '}' => depth += 1,
            '(' | '[' | '{' if depth > 0 => depth -= 1,
            '(' | '[' | '{' => return true,
            ';' if depth == 0 => return true,
            _ => {}
        }
        let begins = |word: &str| {
            let rest = &text[*at..];
            rest.starts_with(word) && !text[..*at].ends_with(is_word)
        };
        depth == 0 && ["let ", "match ", "if ", "for ", "while "].iter().any(|word| begins(word))
    });
    begin.map_or(text, |(at, _)| &text[at..])
}

fn functions(text: &str) -> Vec<Function> {
    let block = |from: usize| {
        let open = from + text[from..].find('{')?;
        Some((open, open + closing_brace(&text[open..])))
    };
    let mut owners = Vec::new();
    for at in words(text, "impl") {
        // Not `impl Trait` as a type.
        if text[..at].trim_end_matches(' ').ends_with('\n') || at == 0 {
            let Some((open, close)) = block(at) else { continue };
            let header = &text[at + "impl".len()..open];
            let name = header.split_once(" for ").map_or(header, |(_, name)| name).trim();
            let name =
                name.strip_prefix('<').and_then(|rest| rest.split_once("> ")).map_or(name, |(_, name)| name);
            let name = name.split(|c: char| !is_word(c)).next().unwrap_or_default();
            owners.push((open, close, name.to_string()));
        }
    }
    let mut functions = Vec::new();
    for at in words(text, "fn") {
        let name = text[at + 2..].trim_start();
        let name = &name[..name.find(|c: char| !is_word(c)).unwrap_or(name.len())];
        let Some(end) = text[at..].find(['{', ';']) else { continue };
        if name.is_empty() || text[at + end..].starts_with(';') {
            continue;
        }
        let Some(body) = block(at) else { continue };
        let answer = text[at..body.0].rsplit_once("->").map_or("", |(_, answer)| answer).trim();
        let owner = owners.iter().rev().find(|(open, close, _)| (*open..*close).contains(&at));
        let attributes = &text[text[..at].rfind(['{', '}', ';']).map_or(0, |before| before + 1)..at];
        let kind = match attributes.contains("#[test]") {
            true if attributes.contains("#[ignore") => Kind::Ignored,
            true => Kind::Test,
            false if owner.is_some() => Kind::Method,
            false => Kind::Free,
        };
        functions.push(Function {
            name: owner.map_or(name.to_string(), |(_, _, owner)| format!("{owner}::{name}")),
            kind,
            answer: answer.to_string(),
            body,
        });
    }
    functions
}

/// Returns the place after the brace that closes the block at the start of `text`.
fn closing_brace(text: &str) -> usize {
    let mut depth = 0;
    let end = text.match_indices(['{', '}']).find(|(_, brace)| {
        depth += if *brace == "{" { 1 } else { -1 };
        depth == 0
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        check(&files).into_iter().map(|f| f.to_string()).collect()
    }

    /// Counts the findings in a test of that body, beside helpers.
    fn in_test(body: &str) -> usize {
        let helpers = "fn gate() -> Option<u8> {\n    if a() { return Some(1) }\n    skip(\"why\");\n    None\n}\n\
                       fn other() -> Option<u8> {\n    None\n}\n";
        found(&[("crates/a/tests/a.rs", &format!("{helpers}#[test]\nfn shows() {{\n{body}\n}}\n"))]).len()
    }

    #[test]
    fn a_test_that_leaves_with_nothing_shown_is_caught() {
        for bad in [
            "if a() { return; }",
            "let Some(b) = other() else { return };",
            "let Ok(b) = a() else {\n    return eprintln!(\"not here\");\n};",
            "match other() { None => return, Some(b) => c(b) }",
            "for b in c() {\n    if !b { continue; }\n    d(b);\n}",
            "gate();\nif a() { return; }",
            "let b = other();\nlet Some(b) = b else { return };",
            "if a() {\n    assert!(b());\n    return;\n}",
        ] {
            assert_eq!(in_test(bad), 1, "{bad}");
        }
    }

    #[test]
    fn a_test_that_says_why_it_leaves_is_accepted() {
        for good in [
            "let Some(b) = gate() else { return };",
            "if !gate().is_some() { return; }",
            "if a() {\n    return skip(\"needs b\");\n}",
            "if a() {\n    skip(\"needs b\");\n    return;\n}",
            "match gate() { None => return, Some(b) => c(b) }",
            "for b in c() {\n    let Some(d) = gate() else { continue };\n}",
            "let b = |c: u8| -> u8 { return c };\n// A return; in a comment, and \"return;\" in a string.",
        ] {
            assert_eq!(in_test(good), 0, "{good}");
        }
        assert!(found(&[("crates/a/src/a.rs", "fn a() { if b() { return; } }\n")]).is_empty());
        let ignored = "#[test]\n#[ignore = \"started by another\"]\nfn a() { if b() { return; } }\n";
        assert!(found(&[("crates/a/tests/a.rs", ignored)]).is_empty());
    }

    #[test]
    fn a_gate_says_why_each_time() {
        let quiet =
            "fn gate() -> Option<u8> {\n    if a() { return None; }\n    skip(\"why\");\n    None\n}\n";
        assert_eq!(found(&[("crates/a/tests/a.rs", quiet)]).len(), 1);
        let passed_on = "fn gate() -> bool {\n    if !require_root() { return false; }\n    true\n}\n";
        let testing = "pub fn require_root() -> bool { skip(\"needs root\"); false }\n";
        let files = [("crates/a/tests/a.rs", passed_on), ("lab/testing/src/skip.rs", testing)];
        assert!(found(&files).is_empty());
        assert_eq!(found(&files[..1]).len(), 0, "it is no gate where nothing skips");
    }
}
