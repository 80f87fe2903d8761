//! Styled lines of text: a terminal shows them in colour, a file or a pipe without.

use megapage_units::shown::one_line;

/// A colour of the 256-colour palette that terminals share (ISO 8613-6, `38;5;N`).
pub type Colour = u8;

/// Look of a piece of text, if there is colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Colour of the text; `None` for the terminal's default.
    pub colour: Option<Colour>,
    /// Colour behind the text.
    pub behind: Option<Colour>,
    /// True for bold text.
    pub bold: bool,
    /// True for dim text.
    pub dim: bool,
    /// True to exchange text and background colours.
    pub reversed: bool,
}

impl Style {
    /// Style of the terminal's default text.
    pub const PLAIN: Style = Style { colour: None, behind: None, bold: false, dim: false, reversed: false };
    /// Style of the most important text.
    pub const BOLD: Style = Style { bold: true, ..Style::PLAIN };
    /// Style of text in the background.
    pub const DIM: Style = Style { dim: true, ..Style::PLAIN };
    /// Style of a table's head.
    pub const HEAD: Style = Style { reversed: true, ..Style::PLAIN };

    /// Returns the style of one half block: `above` in the upper half, `below` in the lower.
    pub const fn halves(above: Option<Colour>, below: Option<Colour>) -> Style {
        Style { colour: above, behind: below, ..Style::PLAIN }
    }

    /// Returns the escape sequence that switches it on; empty for plain text.
    fn sequence(self) -> String {
        let mut codes = Vec::new();
        for (on, code) in [(self.bold, 1), (self.dim, 2), (self.reversed, 7)] {
            if on {
                codes.push(code.to_string());
            }
        }
        codes.extend(self.colour.map(|colour| format!("38;5;{colour}")));
        codes.extend(self.behind.map(|colour| format!("48;5;{colour}")));
        if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
    }
}

/// Permission to write escape sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Writes no escape sequences: for a file or a pipe, or if the user wants none.
    Plain,
    /// Writes escape sequences for a terminal.
    Colour,
}

/// One line, made of pieces of one style each. No piece holds a control character: [`Line::push`]
/// replaces those that come from a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pieces: Vec<(Style, String)>,
}

impl Line {
    /// Returns an empty line.
    pub fn new() -> Line {
        Line::default()
    }

    /// Returns a line of one style.
    pub fn of(style: Style, text: impl AsRef<str>) -> Line {
        Line::new().with(style, text)
    }

    /// Returns the line with a further piece.
    #[must_use]
    pub fn with(mut self, style: Style, text: impl AsRef<str>) -> Line {
        self.push(style, text);
        self
    }

    /// Adds a piece; control characters become `?`.
    pub fn push(&mut self, style: Style, text: impl AsRef<str>) {
        let text = one_line(text.as_ref());
        match self.pieces.last_mut() {
            Some((last, before)) if *last == style => before.push_str(&text),
            _ => self.pieces.push((style, text)),
        }
    }

    /// Returns the number of its characters. Each is assumed to be one column wide.
    pub fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Returns the text, cut after `width` characters, without trailing spaces if no style colours
    /// them.
    pub fn show(&self, paint: Paint, width: usize) -> String {
        let (mut text, mut left) = (String::new(), width);
        for (style, piece) in &self.pieces {
            let piece: String = piece.chars().take(left).collect();
            left -= piece.chars().count();
            let sequence = style.sequence();
            if paint == Paint::Plain || sequence.is_empty() || piece.is_empty() {
                text += &piece;
            } else {
                text += &format!("{sequence}{piece}\x1b[0m");
            }
        }
        text.trim_end_matches(' ').to_string()
    }
}

/// Breaks `text` at spaces into lines of at most `width` columns; a longer word stays whole.
pub fn wrap(style: Style, text: &str, width: usize) -> Vec<Line> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.into_iter().map(|line| Line::of(style, line)).collect()
}

/// Returns `lines` as text of at most `width` columns.
pub fn show(lines: &[Line], paint: Paint, width: usize) -> String {
    lines.iter().map(|line| line.show(paint, width) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_what_is_seen_of_it() {
        let line = Line::of(Style::BOLD, "abc").with(Style::PLAIN, "defg").with(Style::DIM, "hi");
        assert_eq!(line.width(), 9);
        assert_eq!(line.show(Paint::Plain, 5), "abcde");
        assert_eq!(line.show(Paint::Colour, 5), "\x1b[1mabc\x1b[0mde");
        assert_eq!(line.show(Paint::Colour, 0), "");
    }

    #[test]
    fn a_name_cannot_reach_the_terminal() {
        let line = Line::of(Style::PLAIN, "a\x1b[2Jb\n");
        assert_eq!(line.show(Paint::Plain, 100), "a?[2Jb?");
    }

    #[test]
    fn lines_break_at_spaces() {
        let lines = wrap(Style::DIM, "one two three incomprehensibilities", 9);
        let texts: Vec<String> = lines.iter().map(|line| line.show(Paint::Plain, 99)).collect();
        assert_eq!(texts, ["one two", "three", "incomprehensibilities"]);
    }

    #[test]
    fn halves_set_both_colours() {
        let style = Style::halves(Some(1), Some(2));
        assert_eq!(Line::of(style, "▀").show(Paint::Colour, 9), "\x1b[38;5;1;48;5;2m▀\x1b[0m");
    }
}
