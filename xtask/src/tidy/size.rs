//! Lines of Rust code by crate: without comments and empty lines, tests apart from the rest.

use super::scan::{Source, test_lines};
use std::collections::BTreeMap;
use std::iter::repeat;
use std::path::Path;

/// Crates from which no product is linked, and folders that are read as crates.
const NO_PRODUCT: [&str; 7] = ["lab", "fuzzing", "testing", "xtask", "fuzz", "examples", "tests"];

/// Lines of code outside tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Those of the crates that ship.
    pub product: u64,
    /// Those of all crates.
    pub all: u64,
}

/// Counts the Rust files among `files`, each for the crate of the nearest `Cargo.toml` above it.
pub fn size(files: &BTreeMap<String, String>) -> Size {
    let mut size = Size::default();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && !is_test(path)) {
        let lines = lines_without_tests(text);
        size.all += lines;
        if !NO_PRODUCT.contains(&crate_of(path, |manifest| files.contains_key(manifest))) {
            size.product += lines;
        }
    }
    size
}

/// Returns the folder of the crate that a file belongs to.
fn crate_of(path: &str, exists: impl Fn(&str) -> bool) -> &str {
    let mut above = Path::new(path).ancestors().skip(1).filter_map(Path::to_str);
    let folder = above.find(|folder| !folder.is_empty() && exists(&format!("{folder}/Cargo.toml")));
    let folder = folder.unwrap_or_else(|| path.split('/').next().unwrap_or_default());
    if folder.starts_with("lab/") { "lab" } else { folder.rsplit('/').next().unwrap_or_default() }
}

fn is_test(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    ["tests.rs", "test.rs"].contains(&name)
        || ["_tests.rs", "_test.rs"].iter().any(|end| name.ends_with(end))
        || parts.any(|folder| ["tests", "benches"].contains(&folder))
}

fn lines_without_tests(text: &str) -> u64 {
    let code = Source::scan(text).text;
    let masked = blanked(&blanked(&code, '"', string), '\'', character);
    let tests = test_lines(&masked.split('\n').collect::<Vec<_>>()).into_iter().chain(repeat(false));
    code.split('\n').zip(tests).filter(|(line, test)| !line.trim().is_empty() && !test).count() as u64
}

/// Blanks the literals that begin with `quote`, if `length` returns their length.
fn blanked(code: &str, quote: char, length: fn(&str) -> Option<usize>) -> String {
    let (mut blanked, mut rest) = (String::new(), code);
    while let Some(at) = rest.find(quote) {
        let (before, inside) = rest.split_at(at + 1);
        blanked += before;
        rest = inside;
        if let Some(length) = length(inside) {
            blanked
                .extend(inside[..length].chars().map(|c| if c == '\n' && quote != '\'' { c } else { '_' }));
            blanked.push(quote);
            rest = &inside[length + 1..];
        }
    }
    blanked + rest
}

/// Returns the length of a string in which no line is continued by a backslash.
fn string(inside: &str) -> Option<usize> {
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some(at),
            '\\' if chars.next().is_none_or(|(_, c)| c == '\n') => return None,
            _ => {}
        }
    }
    None
}

/// Returns the length of a character; `None` if a lifetime begins.
fn character(inside: &str) -> Option<usize> {
    let first = inside.chars().next().filter(|c| !['\'', '\n'].contains(c))?;
    match first {
        '\\' => {
            let escaped = inside[1..].chars().next().filter(|c| *c != '\n')?;
            let length = 1 + escaped.len_utf8();
            Some(length + inside[length..].find('\'')?)
        }
        c => inside[c.len_utf8()..].starts_with('\'').then_some(c.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_counted_without_comments_and_tests() {
        let text = "// no\nfn a() { /* no\n no */\n    f(\"// yes\", '/', b'{');\n}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nconst C: &str = r#\"\"/*\"#;\n";
        assert_eq!(lines_without_tests(text), 4);
        assert_eq!(lines_without_tests("#[cfg(all(test, unix))]\nuse a::b;\nuse c;\n"), 1);
        assert_eq!(lines_without_tests("#[cfg(any(test, unix))]\nuse a::b;\nuse c;\n"), 3);
        assert_eq!(lines_without_tests("fn a<'a>(b: &'a str) {} // no\n"), 1);
    }

    #[test]
    fn a_file_is_counted_for_the_nearest_manifest() {
        let files = |paths: &[&str]| -> BTreeMap<String, String> {
            paths.iter().map(|path| (path.to_string(), "fn a() {}\n".to_string())).collect()
        };
        let all = size(&files(&[
            "Cargo.toml",
            "crates/a/Cargo.toml",
            "crates/a/src/lib.rs",
            "crates/room/b/Cargo.toml",
            "crates/room/b/src/lib.rs",
            "crates/lab/Cargo.toml",
            "crates/lab/src/lib.rs",
            "lab/c/Cargo.toml",
            "lab/c/src/lib.rs",
            "xtask/Cargo.toml",
            "xtask/src/main.rs",
            "examples/a.rs",
            "crates/a/tests/a.rs",
            "crates/a/src/tests.rs",
            "crates/a/src/b_tests.rs",
        ]));
        assert_eq!(all, Size { product: 2, all: 6 });
    }
}
