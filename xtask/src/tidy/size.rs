//! Lines of Rust code by crate: without comments and empty lines, tests apart from the rest.

use std::collections::BTreeMap;
use std::path::Path;

/// Crates that no product is linked from, and folders that are read as crates.
const NO_PRODUCT: [&str; 7] = ["lab", "fuzzing", "testing", "xtask", "fuzz", "examples", "tests"];

/// Lines of code that are no test.
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

/// The folder of the crate that a file belongs to.
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
    let code: String = without_comments(&text.chars().collect::<Vec<_>>()).into_iter().collect();
    let tests = test_lines(&code);
    let lines = code.split('\n').enumerate();
    lines.filter(|(number, line)| !line.trim().is_empty() && !tests.contains(number)).count() as u64
}

/// The index of `wanted` at or after `from`, or the end.
fn find(chars: &[char], from: usize, wanted: &[char]) -> usize {
    let from = from.min(chars.len());
    let found = chars[from..].windows(wanted.len()).position(|window| window == wanted);
    found.map_or(chars.len(), |at| from + at)
}

/// Returns the text without its comments; literals stay as they are.
fn without_comments(chars: &[char]) -> Vec<char> {
    let mut code = Vec::with_capacity(chars.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match &chars[at..] {
            ['/', '/', ..] => {
                at = find(chars, at, &['\n']);
                continue;
            }
            ['/', '*', ..] => {
                let end = end_of_block_comment(chars, at);
                code.extend(chars[at..end].iter().filter(|c| **c == '\n'));
                at = end;
                continue;
            }
            ['r', ..] | ['b', 'r', ..] if at == 0 || !is_word(chars[at - 1]) => end_of_raw_string(chars, at),
            ['"', ..] => Some(end_of_string(chars, at)),
            ['\'', ..] => end_of_character(chars, at),
            _ => None,
        };
        let end = end.unwrap_or(at + 1).min(chars.len());
        code.extend_from_slice(&chars[at..end]);
        at = end;
    }
    code
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (1, start + 2);
    while at < chars.len() && depth > 0 {
        match &chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at.min(chars.len())
}

fn end_of_raw_string(chars: &[char], start: usize) -> Option<usize> {
    let prefix = if chars[start] == 'b' { 2 } else { 1 };
    let hashes = chars[start + prefix..].iter().take_while(|c| **c == '#').count();
    let quote = start + prefix + hashes;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    Some(find(chars, quote + 1, &end) + end.len())
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of a character literal; `None` where a lifetime begins.
fn end_of_character(chars: &[char], start: usize) -> Option<usize> {
    const LONGEST: usize = 14;
    match &chars[start + 1..] {
        ['\\', _, rest @ ..] => {
            let len = rest.iter().take(LONGEST - 3).position(|c| *c == '\'')?;
            Some(start + 4 + len)
        }
        [c, '\'', ..] if *c != '\'' => Some(start + 3),
        _ => None,
    }
}

/// Returns the code with the contents of its literals blanked.
fn masked(code: &str) -> Vec<char> {
    let chars: Vec<char> = code.chars().collect();
    let mut masked = Vec::with_capacity(chars.len());
    let mut at = 0;
    while at < chars.len() {
        let end = if chars[at] == '"' { end_of_plain_string(&chars, at) } else { None };
        if let Some(end) = end {
            masked.push('"');
            masked.extend(chars[at + 1..end - 1].iter().map(|c| if *c == '\n' { '\n' } else { '_' }));
            masked.push('"');
        } else {
            masked.push(chars[at]);
        }
        at = end.unwrap_or(at + 1);
    }
    let chars = std::mem::take(&mut masked);
    let mut at = 0;
    while at < chars.len() {
        let end = if chars[at] == '\'' { end_of_plain_character(&chars, at) } else { None };
        if end.is_some() {
            masked.extend(['\'', '_', '\'']);
        } else {
            masked.push(chars[at]);
        }
        at = end.unwrap_or(at + 1);
    }
    masked
}

/// The end of a string in which no line is continued by a backslash.
fn end_of_plain_string(chars: &[char], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match chars.get(at..)? {
            ['"', ..] => return Some(at + 1),
            ['\\', c, ..] if *c != '\n' => at += 2,
            ['\\', ..] | [] => return None,
            _ => at += 1,
        }
    }
}

fn end_of_plain_character(chars: &[char], start: usize) -> Option<usize> {
    match &chars[start + 1..] {
        ['\\', c, rest @ ..] if *c != '\n' => Some(start + 4 + rest.iter().position(|c| *c == '\'')?),
        [c, '\'', ..] if !['\\', '\'', '\n'].contains(c) => Some(start + 3),
        _ => None,
    }
}

/// The numbers, from 0, of the lines of each item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn test_lines(code: &str) -> std::collections::BTreeSet<usize> {
    let chars = masked(code);
    let opening: Vec<char> = "#[cfg(".chars().collect();
    let mut lines = std::collections::BTreeSet::new();
    let (mut first, mut counted) = (0, 0);
    let mut from = 0;
    loop {
        let start = find(&chars, from, &opening);
        if start == chars.len() {
            return lines;
        }
        let attribute = find(&chars, start, &[']']);
        let condition: String = chars[start + opening.len()..attribute].iter().collect();
        from = start + opening.len();
        if !(condition == "test)"
            || condition == "test"
            || condition == "test))"
            || condition.starts_with("all(test"))
        {
            continue;
        }
        let end = end_of_item(&chars, attribute + 1).min(chars.len() - 1);
        first += chars[counted..start].iter().filter(|c| **c == '\n').count();
        counted = start;
        let last = first + chars[start..end].iter().filter(|c| **c == '\n').count();
        lines.extend(first..=last);
    }
}

fn end_of_item(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < chars.len() {
        match chars[at] {
            '#' if depth == 0 => at = find(chars, at, &[']']),
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' | ',' if depth == 0 => return at,
            '{' => {
                let mut braces = 1;
                at += 1;
                while at < chars.len() && braces > 0 {
                    match chars[at] {
                        '{' => braces += 1,
                        '}' => braces -= 1,
                        _ => {}
                    }
                    at += 1;
                }
                return at;
            }
            _ => {}
        }
        at += 1;
    }
    at
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
