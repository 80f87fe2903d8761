//! Lines of Rust code by crate: without comments and empty lines, tests apart from the rest.

use super::scan::Source;
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
    let source = Source::scan(text);
    source.holds_code.iter().zip(&source.test).filter(|(code, test)| **code && !**test).count() as u64
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
