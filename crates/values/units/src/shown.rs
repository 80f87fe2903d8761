//! Text that others have chosen (names of processes and files, arguments, what the system answers), made fit to be shown. All
//! that megapage prints to a terminal or a log goes through here.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

/// Replaces a character that is not shown.
const NOT_SHOWN: char = '?';
/// Causes of an error that are shown, at most.
const MOST_CAUSES: usize = 16;

/// Returns true if text with `c` is not what it looks like: `c` steers a terminal (control characters,
/// which also begin escape sequences), breaks a line, or turns the direction of text (UAX #9).
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` for a place in one line: each character that steers is a `?`, and so is the end of a line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_steering(c) { NOT_SHOWN } else { c }).collect()
}

/// `text` of several lines: the same, but that lines end and tabs are where they do.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if is_steering(c) && !matches!(c, '\n' | '\t') { NOT_SHOWN } else { c }).collect()
}

/// As [`lines`], where the sequences that set colours (`ESC [ 38;5;1 m`, and no others) are megapage's own.
pub fn painted(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\x1b') {
        shown += &lines(&rest[..at]);
        rest = &rest[at..];
        let sequence = rest.strip_prefix("\x1b[").and_then(|codes| {
            let length = codes.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            codes[length..].starts_with('m').then_some(length + 3)
        });
        let (piece, left) = rest.split_at(sequence.unwrap_or(1));
        if sequence.is_some() {
            shown += piece
        } else {
            shown.push(NOT_SHOWN)
        }
        rest = left;
    }
    shown + &lines(rest)
}

/// `text` for a terminal or file that takes ASCII alone: what megapage draws with becomes what looks like it, any other character
/// a `?`.
pub fn ascii(text: &str) -> String {
    let shown = |c: char| match c {
        '·' => '.',
        '…' => '~',
        '←' => '<',
        '→' => '>',
        '↑' => '^',
        '↓' => 'v',
        '⋮' => ':',
        '█' => '#',
        '▀' => '"',
        '▄' => '_',
        c if c.is_ascii() => c,
        _ => NOT_SHOWN,
    };
    text.chars().map(shown).collect()
}

/// JSON text in which no character steers: each is in a string, where `\uXXXX` says the same.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_steering(c) && c != '\n' {
            let mut units = [0; 2];
            // Writing to a string does not fail.
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A message in one line, without the numbers of errors that the standard library appends: ` (os error 2)`.
pub fn message(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(NUMBER) {
        let (before, number) = (&rest[..at], &rest[at + NUMBER.len()..]);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        plain += before;
        match number[digits..].strip_prefix(')').filter(|_| digits > 0) {
            Some(after) => rest = after,
            None => {
                plain += NUMBER;
                rest = number;
            }
        }
    }
    one_line((plain + rest).trim_end())
}

/// An error with its causes in one line. A cause that is shown already is not repeated.
pub fn error(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    for _ in 0..MOST_CAUSES {
        let Some(one) = cause else { break };
        let what = one.to_string();
        if !text.contains(&what) {
            text = text + ": " + &what;
        }
        cause = one.source();
    }
    message(&text)
}

/// A path as one word of a shell command: one that would be taken for an option begins with `./`.
pub fn shell_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shell_word(&if text.starts_with('-') { format!("./{text}") } else { text.into_owned() })
}

/// A word for a shell: as it is where that is plain, else quoted; with `$'...'` where it holds what steers.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    if !word.chars().any(is_steering) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\\' | '\'' => quoted.extend(['\\', c]),
            c if is_steering(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(quoted, "\\x{byte:02x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests;
