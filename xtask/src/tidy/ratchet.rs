//! Numbers that may only fall: comments that are hard to read, words that say little, and lines of
//! code.

use super::size::size;
use crate::finding::Finding;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Path of the committed numbers.
pub const FILE: &str = "xtask/ratchet.json";

/// Path of this file, which spells the words that it counts.
const OWN: &str = "xtask/src/tidy/ratchet.rs";

/// Words that begin a comment with a clause, in the place of a verb or a noun.
const CLAUSES: [&str; 10] =
    ["Whether ", "What ", "Where ", "Of ", "Until ", "How many", "How much", "So many", "So much", "That "];

/// Words for which there are plainer ones.
const WORDS: &str = "mend|mends|mended|is told|are told|tells no|is had|are had|by turns|somebody|whoever|nobody|for ever\
    |anew|of its own|passed over|bear with|makes up|left alone";

/// Text before `nobody` where it is the name of an account. After a quotation mark, no space
/// follows.
const ACCOUNT: [&str; 5] = ["=", "user ", "user: ", "reuid ", "-u "];

/// The longest line of a comment, in characters.
const WIDEST: usize = 100;

type Numbers = BTreeMap<String, u64>;

/// Counts in our text files, by path.
fn count(files: &BTreeMap<String, String>) -> Numbers {
    let (mut clauses, mut long, mut words) = (0, 0, 0);
    for (path, text) in files.iter().filter(|(path, _)| is_counted(path)) {
        for line in text.lines() {
            clauses += u64::from(opens_with_a_clause(line));
            long += u64::from(line.trim_start().starts_with("//") && line.chars().count() > WIDEST);
            words += if path == OWN { 0 } else { listed_words(line) };
        }
    }
    let size = size(files);
    let numbers = [
        ("clause_comments", clauses),
        ("long_comments", long),
        ("listed_words", words),
        ("product_lines", size.product),
        ("code_lines", size.all),
    ];
    numbers.map(|(name, number)| (name.to_string(), number)).into()
}

/// Returns true for sources, scripts and documents. The changelog keeps its original words.
fn is_counted(path: &str) -> bool {
    let ends = [".rs", ".c", ".h", ".md", ".py", ".sh"];
    path != "CHANGELOG.md"
        && !path.ends_with("vmlinux.h")
        && (path.starts_with("scripts/") || ends.iter().any(|end| path.ends_with(end)))
}

fn opens_with_a_clause(line: &str) -> bool {
    let line = line.trim_start_matches(' ');
    let comment = ["///", "//!", "//", "#"].iter().find_map(|mark| line.strip_prefix(mark));
    comment.is_some_and(|comment| {
        let comment = comment.strip_prefix(' ').unwrap_or(comment);
        CLAUSES.iter().any(|clause| comment.starts_with(clause))
    })
}

fn listed_words(line: &str) -> u64 {
    let line = line.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_account = |before: &str, after: &str| {
        let quoted = before.ends_with(['"', '`']) && !after.starts_with(' ');
        quoted || ACCOUNT.iter().any(|end| before.ends_with(end))
    };
    let count = |word: &str| {
        line.match_indices(word)
            .map(|(at, _)| (&line[..at], &line[at + word.len()..]))
            .filter(|(before, after)| !before.ends_with(is_word) && !after.starts_with(is_word))
            .filter(|(before, after)| word != "nobody" || !is_account(before, after))
            .count() as u64
    };
    WORDS.split('|').map(count).sum()
}

/// Finds the numbers that have risen above the committed ones.
pub fn check(files: &BTreeMap<String, String>) -> Result<Vec<Finding>> {
    let text = files.get(FILE).with_context(|| format!("{FILE} is missing"))?;
    compare(text, &count(files))
}

fn compare(text: &str, counted: &Numbers) -> Result<Vec<Finding>> {
    let committed = parse(text)?;
    let risen = |(name, number): (&String, &u64)| {
        let most = committed.get(name).copied().unwrap_or_default();
        let line = text.lines().position(|line| line.contains(&format!("\"{name}\""))).unwrap_or_default();
        (*number > most).then(|| {
            Finding::new(FILE, line + 1, format!("{name} may only fall: {number} now, {most} committed"))
        })
    };
    Ok(counted.iter().filter_map(risen).collect())
}

fn parse(text: &str) -> Result<Numbers> {
    serde_json::from_str(text).with_context(|| format!("{FILE} holds no numbers by name"))
}

/// Lowers the committed numbers to the present ones. A number that has risen stays.
pub fn lower(root: &Path, files: &BTreeMap<String, String>) -> Result<()> {
    let committed = files.get(FILE).map(|text| parse(text)).transpose()?.unwrap_or_default();
    let numbers = lowered(&committed, count(files));
    let text = serde_json::to_string_pretty(&numbers)? + "\n";
    fs::write(root.join(FILE), text).with_context(|| format!("cannot write {FILE}"))
}

fn lowered(committed: &Numbers, mut counted: Numbers) -> Numbers {
    for (name, number) in &mut counted {
        *number = committed.get(name).map_or(*number, |most| (*most).min(*number));
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(rust: &str) -> BTreeMap<String, String> {
        [("crates/a/Cargo.toml", ""), ("crates/a/src/lib.rs", rust)]
            .map(|(path, text)| (path.to_string(), text.to_string()))
            .into()
    }

    /// Returns the findings in `more`, with the numbers of `rust` committed.
    fn found(rust: &str, more: &str) -> Vec<String> {
        let committed = serde_json::to_string_pretty(&count(&files(rust))).unwrap();
        compare(&committed, &count(&files(more))).unwrap().into_iter().map(|it| it.to_string()).collect()
    }

    const RUST: &str = "/// Whether it is so.\nfn a() {}\n// Somebody, anew.\n";

    #[test]
    fn one_more_of_each_is_caught() {
        assert!(found(RUST, RUST).is_empty());
        let clause = format!("{RUST}    //! What it is.\n");
        assert_eq!(
            found(RUST, &clause),
            ["xtask/ratchet.json:2: clause_comments may only fall: 2 now, 1 committed"]
        );
        let long = format!("{RUST}// {}\n", "x".repeat(98));
        assert_eq!(
            found(RUST, &long),
            ["xtask/ratchet.json:5: long_comments may only fall: 1 now, 0 committed"]
        );
        assert!(found(RUST, &format!("{RUST}// {}\n", "x".repeat(97))).is_empty());
        let word = format!("{RUST}const A: &str = \"it is told\";\n");
        assert!(found(RUST, &word)[1].contains("listed_words may only fall: 3 now, 2 committed"));
        let code = format!("{RUST}fn b() {{}}\n");
        assert_eq!(
            found(RUST, &code),
            [
                "xtask/ratchet.json:3: code_lines may only fall: 2 now, 1 committed",
                "xtask/ratchet.json:6: product_lines may only fall: 2 now, 1 committed"
            ]
        );
        assert!(found(RUST, &format!("{RUST}#[cfg(test)]\nmod tests {{}}\n")).is_empty());
        assert!(found(RUST, "fn a() {}\n").is_empty(), "fewer is fine");
    }

    #[test]
    fn clauses_and_words_are_recognised() {
        for clause in ["/// Whether", "//! Of", "  // What", "//Until", "# Where"] {
            assert!(opens_with_a_clause(&format!("{clause} x")), "{clause}");
        }
        for other in ["/// Returns what", "/// Offers", "let a = 1; // What", "#[a] // Of", "## What x"] {
            assert!(!opens_with_a_clause(other), "{other}");
        }
        assert_eq!(listed_words("Mended by turns; recommended, is_told, makes up"), 3);
        assert_eq!(listed_words("as user nobody; \"nobody\", -u nobody: \"nobody knows\""), 1);
    }

    #[test]
    fn numbers_are_lowered_and_never_raised() {
        let numbers = |a: u64, b: u64| Numbers::from([("a".into(), a), ("b".into(), b)]);
        assert_eq!(lowered(&numbers(3, 3), numbers(2, 4)), numbers(2, 3));
        assert_eq!(lowered(&Numbers::new(), numbers(2, 4)), numbers(2, 4));
        assert!(parse("{\"a\": -1}").is_err());
    }
}
