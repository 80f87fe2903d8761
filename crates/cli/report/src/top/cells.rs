//! Cells and lines of `megapage top` for its table, its columns and its help.

use crate::line::{Line, Paint, Style, wrap};
use crate::value::{percent, size};
use megapage_snapshot::{CostSource, TranslationCost};
use megapage_units::Bytes;

/// Columns for the name of a line about the machine.
pub(super) const FIELD: usize = 11;
/// Style of text that is not a value.
pub(super) const CALM: Style = Style::DIM;

/// Fewest columns that lines are broken to: fewer would leave no line for the processes.
pub(super) const LEAST_WRAP: usize = 40;

/// Returns a line that begins with its name.
pub(super) fn field(name: &str, text: impl AsRef<str>) -> Line {
    Line::of(Style::BOLD, format!("{name:<FIELD$}")).with(Style::PLAIN, text)
}

/// Returns a line as [`field`] does, with further lines if the text is too long for one.
pub(super) fn fields(name: &str, text: &str, width: usize) -> Vec<Line> {
    let lines = wrap(Style::PLAIN, text, width - FIELD);
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    names.zip(lines).map(|(name, line)| field(name, line.show(Paint::Plain, usize::MAX))).collect()
}

/// Formats a cost as `12.3 m 10.0-15.1`: the share, its mark (measured, estimated, tried), the
/// interval.
pub(super) fn cost(cost: &TranslationCost) -> String {
    let mark = match cost.source {
        CostSource::Measured => 'm',
        CostSource::Estimated => 'e',
        CostSource::Tried => 't',
    };
    let [share, low, high] = [cost.share, cost.low, cost.high].map(percent);
    format!("{share} {mark} {low}-{high}")
}

/// Formats bloat; `>17M` if not all memory was scanned.
pub(super) fn bloat(bytes: u64, scanned: Option<f64>) -> String {
    let more = if scanned.is_some_and(|share| share < 1.0) { ">" } else { "" };
    format!("{more}{}", size(Bytes(bytes)))
}
