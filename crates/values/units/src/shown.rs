//! Text from others (names of processes and files, arguments, answers of the system), made safe to
//! show. Everything that megapage prints to a terminal or a log goes through here.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

/// Replacement for a character that is not shown.
const NOT_SHOWN: char = '?';
/// Most causes of an error that are shown.
const MOST_CAUSES: usize = 16;

/// Returns true if text with `c` is not what it looks like. `c` steers a terminal (control
/// characters, which also begin escape sequences), breaks a line, or turns the direction of text
/// (UAX #9).
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `text` for a place in one line: a `?` replaces each character that steers, and also the
/// end of a line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_steering(c) { NOT_SHOWN } else { c }).collect()
}

/// Returns `text` of several lines: as [`one_line`], but keeps ends of lines and tabs.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if is_steering(c) && !matches!(c, '\n' | '\t') { NOT_SHOWN } else { c }).collect()
}

/// Returns `text` as [`lines`], but keeps the sequences that set colours (`ESC [ 38;5;1 m`, and no
/// others): megapage wrote them.
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

/// Returns `text` for a terminal or file that takes only ASCII. Each character that megapage draws
/// with becomes a similar one, any other a `?`.
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

/// Returns JSON text in which no character steers: each such character is in a string, and `\uXXXX`
/// means the same there.
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

/// Returns a message in one line, without the numbers of errors that the standard library appends:
/// ` (os error 2)`.
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

/// Returns an error with its causes in one line. A cause that is already shown is not repeated.
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

/// Returns a path as one word of a shell command; `./` precedes a path that would look like an
/// option.
pub fn shell_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shell_word(&if text.starts_with('-') { format!("./{text}") } else { text.into_owned() })
}

/// Returns a word for a shell: unchanged if it is plain, else quoted; with `$'...'` if it holds a
/// character that steers.
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
