//! A small writer of SVG: text is escaped, values are short, nothing else.
//!
//! By hand, for a picture of labelled bands is no chart that a plotting library draws, and its few elements need no
//! more than this.

use std::fmt::Write;

/// Where a text's position lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At its start.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// A picture that is being drawn, in pixels from the top left.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    body: String,
}

/// Lower-case letters of a sans-serif face are about this wide, as a share of the size: DejaVu Sans, the widest of
/// the usual ones, 0.6.
const LETTER: f64 = 0.6;

/// How wide a text is at most, for placing it.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// A value with at most two decimals, without needless zeros.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// `text` for use as character data or in an attribute. Characters that XML does not allow become `?`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // XML 1.0, section 2.2: these are not even allowed as references.
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            character if character.is_control() => escaped.push('?'),
            character => escaped.push(character),
        }
    }
    escaped
}

impl Svg {
    /// An empty picture of this width.
    pub fn new(width: f64) -> Svg {
        Svg { width, body: String::new() }
    }

    fn line_of(&mut self, element: std::fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("writing to a string");
        self.body.push('\n');
    }

    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let (x, y, width, height) = (number(x), number(y), number(width), number(height));
        self.line_of(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        ));
    }

    /// Many rectangles `(x, y, width, height)` of one fill, as one path.
    pub fn rects(&mut self, rects: &[(f64, f64, f64, f64)], fill: &str) {
        if rects.is_empty() {
            return;
        }
        let mut path = String::new();
        for &(x, y, width, height) in rects {
            let (x, y, width, height) = (number(x), number(y), number(width), number(height));
            write!(path, "M{x} {y}h{width}v{height}h-{width}z").expect("writing to a string");
        }
        self.line_of(format_args!(r#"<path fill="{fill}" d="{path}"/>"#));
    }

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) {
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        let width = number(width);
        self.line_of(format_args!(
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{width}"/>"#
        ));
    }

    /// Text; `y` is its base line. `class` is one of the style sheet's.
    pub fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, class: &str, text: &str) {
        let (x, y, size, text) = (number(x), number(y), number(size), escape(text));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        self.line_of(format_args!(
            r#"<text x="{x}" y="{y}" font-size="{size}" class="{class}"{anchor}>{text}</text>"#
        ));
    }

    /// What was drawn, as a document of this height with a title, on a white ground. `head` goes before: style
    /// sheet, patterns.
    pub fn finish(self, height: f64, title: &str, head: &str) -> String {
        let (width, height, title, body) = (number(self.width), number(height), escape(title), self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{title}</title>\n{head}\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut svg = Svg::new(10.0);
        svg.text(1.0, 2.0, 12.0, Anchor::End, "label", "<a href=\"x\">&'\u{1}</a>");
        let text = svg.finish(5.5, "a < b", "");
        assert!(text.contains(">&lt;a href=&quot;x&quot;&gt;&amp;&apos;?&lt;/a&gt;</text>"), "{text}");
        assert!(
            text.contains("<title>a &lt; b</title>") && text.contains("viewBox=\"0 0 10 5.5\""),
            "{text}"
        );
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([1.0, 0.5, 1.0 / 3.0, -0.001].map(number), ["1", "0.5", "0.33", "0"]);
    }

    #[test]
    fn rectangles_of_one_fill_are_one_path() {
        let mut svg = Svg::new(10.0);
        svg.rects(&[], "red");
        svg.rects(&[(0.0, 1.0, 2.0, 3.0), (4.0, 1.0, 2.0, 3.0)], "red");
        let text = svg.finish(5.0, "t", "");
        assert_eq!(text.matches("<path").count(), 1);
        assert!(text.contains("M0 1h2v3h-2zM4 1h2v3h-2z"), "{text}");
    }
}
