//! The syntax of unit files (systemd.syntax(7)).

/// One `Key=value` of a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The section, without its brackets; empty before the first section.
    pub section: String,
    /// The text before `=`.
    pub key: String,
    /// The text behind `=`, trimmed. Continued lines are joined by spaces.
    pub value: String,
}

/// Reads a file. Skips lines that are neither a section, an assignment nor a comment, as systemd
/// does after a warning.
pub fn parse(text: &str) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut pending = String::new();
    for line in text.lines() {
        let line = line.trim_start();
        // A comment within continued lines does not end them.
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(continued) = line.strip_suffix('\\') {
            pending += continued;
            pending.push(' ');
            continue;
        }
        pending += line;
        take(&pending, &mut section, &mut found);
        pending.clear();
    }
    take(&pending, &mut section, &mut found);
    found
}

fn take(line: &str, section: &mut String, found: &mut Vec<Assignment>) {
    let line = line.trim();
    if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        *section = name.into();
    } else if let Some((key, value)) = line.split_once('=') {
        let (key, value) = (key.trim().into(), value.trim().into());
        found.push(Assignment { section: section.clone(), key, value });
    }
}

/// Returns true for systemd's WHITESPACE.
fn is_space(c: char) -> bool {
    [' ', '\t', '\n', '\r'].contains(&c)
}

/// A word of a value, and its place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The text without quotes and escapes.
    pub text: String,
    /// The start, with an opening quote.
    pub start: usize,
    /// The end, behind a closing quote.
    pub end: usize,
    /// True if any part of it was quoted or escaped.
    pub quoted: bool,
}

/// Splits a value by white space, with quotes and C's escapes, as in systemd.service(5), "COMMAND
/// LINES". `None` if a quote is not closed.
pub(crate) fn words(value: &str) -> Option<Vec<Word>> {
    let mut words = Vec::new();
    let mut rest = value.char_indices().peekable();
    loop {
        while rest.next_if(|(_, c)| is_space(*c)).is_some() {}
        let Some(&(start, _)) = rest.peek() else { return Some(words) };
        let (mut text, mut quoted, mut quote) = (String::new(), false, None);
        while let Some(&(_, c)) = rest.peek() {
            match (quote, c) {
                (None, c) if is_space(c) => break,
                (None, '"' | '\'') => {
                    quote = Some(c);
                    quoted = true;
                }
                (Some(open), c) if c == open => quote = None,
                (_, '\\') => {
                    rest.next();
                    quoted = true;
                    let &(_, escaped) = rest.peek()?;
                    match escaped {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        's' => text.push(' '),
                        // Numbered characters stay as written: no look-up here depends on them.
                        'x' | 'u' | 'U' | '0'..='7' => text.extend(['\\', escaped]),
                        other => text.push(other),
                    }
                }
                (_, c) => text.push(c),
            }
            rest.next();
        }
        if quote.is_some() {
            return None;
        }
        let end = rest.peek().map_or(value.len(), |(at, _)| *at);
        words.push(Word { text, start, end, quoted });
    }
}

/// Returns a text as one word: quoted if necessary, with `%` doubled.
pub(crate) fn quoted(text: &str) -> String {
    let text = text.replace('%', "%%");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String, String)> {
        parse(text).into_iter().map(|it| (it.section, it.key, it.value)).collect()
    }

    #[test]
    fn comments_sections_and_continued_lines() {
        let text = "# head\n[Unit]\nDescription = a  b \n; more\n[Service]\nExecStart=/bin/a \\\n# between\n  --b \\\n\
                    --c\nEnvironment=\nnonsense\nX=a=b";
        let of = |section: &str, key: &str, value: &str| (section.into(), key.into(), value.into());
        assert_eq!(
            pairs(text),
            [
                of("Unit", "Description", "a  b"),
                of("Service", "ExecStart", "/bin/a  --b  --c"),
                of("Service", "Environment", ""),
                of("Service", "X", "a=b"),
            ]
        );
        assert!(parse("").is_empty());
        assert_eq!(pairs("[S]\nA=b\\").len(), 1, "the last line may be continued by nothing");
    }

    #[test]
    fn values_are_split_as_systemd_splits_them() {
        let text = |value: &str| -> Vec<String> {
            words(value).unwrap().into_iter().map(|word| word.text).collect()
        };
        assert_eq!(text("a 'b c' \"d\\\"e\" f\\sg"), ["a", "b c", "d\"e", "f g"]);
        assert_eq!(text("A='x y'z"), ["A=x yz"]);
        assert_eq!(text("  "), [""; 0]);
        assert_eq!(words("'open"), None);
        assert_eq!(words("end\\"), None);
        let found = words("ab  'c d'").unwrap();
        assert_eq!((found[1].start, found[1].end, found[1].quoted), (4, 9, true));
    }

    #[test]
    fn what_is_quoted_reads_back() {
        for word in ["plain", "a b", "q\"b\\c", "", "$HOME", "a'b"] {
            let read = words(&quoted(word)).unwrap();
            assert_eq!(read.into_iter().map(|word| word.text).collect::<Vec<_>>(), [word], "{word}");
        }
        assert_eq!(quoted("50%"), "50%%");
    }
}
