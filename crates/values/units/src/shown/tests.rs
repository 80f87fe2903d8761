use super::*;
use std::fmt::{self, Display};

const HOSTILE: &str = "a\x1b]0;owned\x07\r\n\u{9b}31m\u{202e}b\u{2069}\u{2028}\u{200f}\u{61c}\x7f\tc";

#[test]
fn what_is_not_ascii_becomes_what_looks_like_it() {
    assert_eq!(ascii("a · b … ← → ↑ ↓ ⋮ █▀▄ naïve 例\n"), "a . b ~ < > ^ v : #\"_ na?ve ?\n");
}

#[test]
fn nothing_steers_and_lines_stay_where_they_may() {
    assert_eq!(one_line(HOSTILE), "a?]0;owned????31m?b??????c");
    assert_eq!(lines(HOSTILE), "a?]0;owned??\n?31m?b?????\tc");
    assert_eq!(one_line("naïve ▀ 例"), "naïve ▀ 例");
    assert!(!one_line(HOSTILE).chars().any(is_steering));
}

#[test]
fn colours_alone_are_kept() {
    let text = "\x1b[1mbold\x1b[0m \x1b[38;5;7mx\x1b[2J\x1b]0;t\x07\x1b[mtail\x1b[\x1b";
    assert_eq!(painted(text), "\x1b[1mbold\x1b[0m \x1b[38;5;7mx?[2J?]0;t?\x1b[mtail?[?");
}

#[test]
fn json_says_the_same_without_steering() {
    assert_eq!(
        json("{\n  \"a\": \"x\u{202e}\u{7f}\u{9b}é\"\n}"),
        "{\n  \"a\": \"x\\u202e\\u007f\\u009bé\"\n}"
    );
}

#[derive(Debug)]
struct Chain(&'static str, Option<Box<Chain>>);

impl Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Chain {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.1.as_deref().map(|cause| cause as _)
    }
}

#[test]
fn causes_are_printed_once_and_without_numbers() {
    let cause = || Chain("File exists (os error 17)", None);
    let middle = Chain("/x: File exists (os error 17)", Some(Box::new(cause())));
    assert_eq!(error(&Chain("writing", Some(Box::new(middle)))), "writing: /x: File exists");
    assert_eq!(error(&Chain("a", Some(Box::new(Chain("b\n\x1bc", None))))), "a: b??c");
    for (text, plain) in [
        ("x (os error 2); y (os error 11)", "x; y"),
        ("x (os error )", "x (os error )"),
        ("x (os error 2", "x (os error 2"),
        ("", ""),
    ] {
        assert_eq!(message(text), plain);
    }
}

#[test]
fn words_are_quoted_for_the_shell() {
    for (word, quoted) in [
        ("plain-1.2/x=y", "plain-1.2/x=y"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", r"'it'\''s'"),
        ("a\x1b'\\\u{202e}", r"$'a\x1b\'\\\xe2\x80\xae'"),
    ] {
        assert_eq!(shell_word(word), quoted);
    }
    for (path, quoted) in [("/usr/bin/g++-12", "/usr/bin/g++-12"), ("/a b", "'/a b'"), ("-f", "./-f")] {
        assert_eq!(shell_path(Path::new(path)), quoted);
    }
}
