//! Just enough of Rust's lexical grammar to separate code, comments and string literals.

/// A Rust source file, taken apart line by line.
#[derive(Debug, Default)]
pub struct Source {
    /// Each line's code: comments and the contents of literals are replaced by spaces.
    pub code: Vec<String>,
    /// The text without its comments.
    pub text: String,
    /// Each line's comment text, without the code.
    pub comment: Vec<String>,
    /// String literals: the line (from 0) on which each begins, and its text with escapes as
    /// written.
    pub strings: Vec<(usize, String)>,
    /// Lines that belong to an item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
    pub test: Vec<bool>,
}

impl Source {
    /// Takes `text` apart. Text that is no Rust gives nonsense, but no panic.
    pub fn scan(text: &str) -> Source {
        let mut scanner =
            Scanner { chars: text.chars().collect(), at: 0, source: Source::default(), line: 0 };
        scanner.new_line();
        scanner.run();
        let mut source = scanner.source;
        source.test = test_lines(&source.code);
        source
    }
}

/// Quote character. It is not a plain literal, because those confuse counts of lines.
const QUOTE: char = '\u{22}';

struct Scanner {
    chars: Vec<char>,
    at: usize,
    source: Source,
    line: usize,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn new_line(&mut self) {
        self.source.code.push(String::new());
        self.source.comment.push(String::new());
        self.line = self.source.code.len() - 1;
    }

    /// Consumes one character as code, as comment, or as neither (the inside of a literal).
    fn take(&mut self, code: bool, comment: bool) -> char {
        let c = self.peek(0);
        self.at += 1;
        if c == '\n' {
            self.source.text.push(c);
            self.new_line();
            return c;
        }
        self.source.code[self.line].push(if code { c } else { ' ' });
        if comment {
            self.source.comment[self.line].push(c);
        } else {
            self.source.text.push(c);
        }
        c
    }

    fn run(&mut self) {
        let mut previous = ' ';
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '/') => self.line_comment(),
                ('/', '*') => self.block_comment(),
                (QUOTE, _) => self.string(0, false),
                ('r', QUOTE | '#') if !is_word(previous) => self.raw_string(1),
                ('b' | 'c', 'r') if !is_word(previous) && matches!(self.peek(2), QUOTE | '#') => {
                    self.raw_string(2)
                }
                ('\'', _) => self.char_or_lifetime(),
                _ => {
                    previous = self.take(true, false);
                    continue;
                }
            }
            previous = ' ';
        }
    }

    fn line_comment(&mut self) {
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            self.take(false, true);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.take(false, true);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.take(false, true);
                }
                _ => {}
            }
            self.take(false, true);
            if depth == 0 {
                return;
            }
        }
    }

    /// Consumes a string literal that starts at its opening quote and ends with a quote and
    /// `hashes` hashes.
    fn string(&mut self, hashes: usize, raw: bool) {
        let first = self.line;
        let mut text = String::new();
        self.take(true, false);
        while self.at < self.chars.len() {
            if !raw && self.peek(0) == '\\' {
                text.push(self.take(false, false));
                text.push(self.take(false, false));
                continue;
            }
            if self.peek(0) == QUOTE && (1..=hashes).all(|i| self.peek(i) == '#') {
                for _ in 0..=hashes {
                    self.take(true, false);
                }
                break;
            }
            text.push(self.take(false, false));
        }
        self.source.strings.push((first, text));
    }

    fn raw_string(&mut self, prefix: usize) {
        let hashes = (0..).take_while(|&i| self.peek(prefix + i) == '#').count();
        if self.peek(prefix + hashes) != QUOTE {
            // A raw identifier such as r#type.
            self.take(true, false);
            return;
        }
        for _ in 0..prefix + hashes {
            self.take(true, false);
        }
        self.string(hashes, true);
    }

    fn char_or_lifetime(&mut self) {
        let is_char = self.peek(1) == '\\' || self.peek(2) == '\'';
        self.take(true, false);
        if !is_char {
            return;
        }
        let escaped = self.take(false, false) == '\\';
        if escaped {
            self.take(false, false);
        }
        while self.at < self.chars.len() && self.peek(0) != '\'' && self.peek(0) != '\n' {
            self.take(false, false);
        }
        self.take(true, false);
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Marks the lines of each item that only a test build has: to its closing brace, or to the item's
/// end before any brace.
pub fn test_lines(code: &[impl AsRef<str>]) -> Vec<bool> {
    let mut test = vec![false; code.len()];
    let mut first = 0;
    while first < code.len() {
        let Some(at) = ["#[cfg(test)]", "#[cfg(all(test"].iter().find_map(|it| code[first].as_ref().find(it))
        else {
            first += 1;
            continue;
        };
        let (mut depth, mut braces) = (0, 0);
        let mut last = first;
        'item: for (number, line) in code.iter().enumerate().skip(first) {
            last = number;
            let start = if number == first { at } else { 0 };
            for c in line.as_ref()[start..].chars() {
                match c {
                    '{' => braces += 1,
                    '}' if braces == 1 => break 'item,
                    '}' => braces -= 1,
                    _ if braces > 0 => {}
                    '(' | '[' => depth += 1,
                    ')' | ']' => depth -= 1,
                    ';' | ',' if depth == 0 => break 'item,
                    _ => {}
                }
            }
        }
        test[first..=last].fill(true);
        first = last + 1;
    }
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_and_strings_are_told_apart() {
        let source = Source::scan(
            "let a = \"/proc // x\"; // unsafe\nlet r = r#\"a \"quoted\" /sys\"#; /* dbg!( /* nested */ */ f('\"', '\\'');\nfn f<'a>(x: &'a str) {}\n",
        );
        assert_eq!(source.strings.len(), 2);
        assert_eq!(source.strings[0], (0, "/proc // x".to_string()));
        assert_eq!(source.strings[1], (1, "a \"quoted\" /sys".to_string()));
        assert!(!source.code[0].contains("unsafe") && source.comment[0].contains("unsafe"));
        assert!(!source.code[1].contains("dbg!") && source.code[1].contains("f('"));
        assert!(source.code[2].contains("fn f<'a>(x: &'a str) {}"));
    }

    #[test]
    fn a_string_may_span_lines() {
        let source = Source::scan("let a = \"one\ntwo\"; let b = 1;\n");
        assert_eq!(source.strings, [(0, "one\ntwo".to_string())]);
        assert!(source.code[1].contains("let b = 1;"));
    }

    #[test]
    fn test_items_end_at_their_brace() {
        let source = Source::scan(
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}\n",
        );
        let marked: Vec<usize> = (0..source.test.len()).filter(|&i| source.test[i]).collect();
        assert_eq!(marked, [1, 2, 3, 4, 6, 7]);
    }
}
