//! Heat over time for a terminal and a pipe.

use super::{Column, HeatMap, columns};
use crate::line::{self, Line, Paint, Style, wrap};
use crate::map::{COLD, HEAT, colour, letter};
use crate::value::fit;
use crate::width;
use megapage_snapshot::HeatRow;

/// Most rows of the picture if the caller sets no number.
const MOST_ROWS: usize = 48;
/// Columns before the cells, for the time.
const INDENT: usize = 8;
/// Most bands that are described.
const MOST_BANDS: usize = 8;
const KEYS: &str = "q ends it and prints what was seen";

/// Returns the whole picture: at most [`width`] columns and some sixty lines.
pub fn text(map: &HeatMap<'_>, paint: Paint) -> String {
    let width = width();
    let (columns, bands) = columns(map.heat, width - INDENT);
    let rows = map.heat.rows(MOST_ROWS);
    let mut lines = head(map, &rows, &columns, paint, width);
    lines.extend(rows.iter().map(|row| row_line(row, &columns, paint)));
    lines.push(axis(&columns));
    lines.extend(band_lines(&bands, MOST_BANDS, width));
    line::show(&lines, paint, width)
}

/// Returns the part that fits a terminal: the newest rows.
pub fn screen(map: &HeatMap<'_>, paint: Paint, size: (usize, usize)) -> Vec<Line> {
    let (width, height) = size;
    let (columns, bands) = columns(map.heat, width.saturating_sub(INDENT + 1).max(8));
    let mut lines = head(map, &map.heat.rows, &columns, paint, width);
    let below = band_lines(&bands, (height / 6).min(MOST_BANDS), width);
    // Two more lines: the axis and the keys.
    let room = height.saturating_sub(lines.len() + below.len() + 2).max(1);
    let newest = map.heat.rows.len().saturating_sub(room);
    lines.extend(map.heat.rows[newest..].iter().map(|row| row_line(row, &columns, paint)));
    lines.push(axis(&columns));
    lines.extend(below);
    lines.resize(height.saturating_sub(1).max(lines.len().min(height)), Line::new());
    lines.push(Line::of(Style::DIM, KEYS));
    lines.truncate(height);
    lines
}

fn head(map: &HeatMap<'_>, rows: &[HeatRow], columns: &[Column], paint: Paint, width: usize) -> Vec<Line> {
    let mut lines = wrap(Style::BOLD, &map.title(rows, columns), width);
    match paint {
        Paint::Colour => {
            let mut legend = Line::of(Style::PLAIN, "heat    ");
            for colour in HEAT {
                legend.push(Style::halves(Some(colour), None), "█");
            }
            legend.push(Style::PLAIN, " some to all  ");
            legend.push(Style::halves(Some(COLD), None), "█");
            legend.push(Style::PLAIN, " none  blank: not sampled");
            lines.push(legend);
        }
        Paint::Plain => {
            let legend = "1-9 tenths of it accessed, # all, + fewer than a tenth, . none, blank: not sampled";
            lines.extend(wrap(Style::PLAIN, legend, width));
        }
    }
    lines
}

fn row_line(row: &HeatRow, columns: &[Column], paint: Paint) -> Line {
    let mut line = Line::of(Style::DIM, format!("{:>6} s", row.to.as_secs()));
    let mut band = 0;
    for column in columns {
        if std::mem::replace(&mut band, column.band) != column.band {
            line.push(Style::DIM, "|");
        }
        let cell = column.cell(row);
        match paint {
            Paint::Plain => line.push(Style::PLAIN, cell.heat().map_or(' ', letter).to_string()),
            Paint::Colour => match cell.heat().map(colour) {
                Some(colour) => line.push(Style::halves(Some(colour), None), "█"),
                None => line.push(Style::PLAIN, " "),
            },
        }
    }
    line
}

/// Returns the line with a letter under the first column of each band.
fn axis(columns: &[Column]) -> Line {
    let mut text = " ".repeat(INDENT);
    let mut last = None;
    for column in columns {
        let is_first = last != Some(column.band);
        if is_first && last.is_some() {
            text.push(' ');
        }
        text.push(if is_first { mark(column.band) } else { ' ' });
        last = Some(column.band);
    }
    Line::of(Style::BOLD, text)
}

fn mark(band: usize) -> char {
    u8::try_from(band).ok().filter(|band| *band < 26).map_or('+', |band| char::from(b'a' + band))
}

fn band_lines(bands: &[super::Band], most: usize, width: usize) -> Vec<Line> {
    let text = |(at, band): (usize, &super::Band)| {
        let text = format!("{} {}", mark(at), band.describe());
        Line::of(Style::PLAIN, fit(&text, width))
    };
    let mut lines: Vec<Line> = bands.iter().enumerate().take(most).map(text).collect();
    if bands.len() > most {
        lines.push(Line::of(Style::DIM, format!("and {} more", bands.len() - most)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::tests::heat;
    use super::*;
    use megapage_units::Pid;

    #[test]
    fn rows_are_time_and_columns_are_addresses() {
        let heat = heat(40, 4);
        let map = HeatMap { pid: Pid(7), name: "p\u{1b}[2J", heat: &heat };
        let text = text(&map, Paint::Plain);
        assert!(
            text.starts_with("p?[2J (pid 7): heat over 4 s; a row is 1.0 s, a column at most 2 MiB\n"),
            "{text}"
        );
        assert!(text.contains("     1 s..........##########|#\n     2 s##########..........|#\n"), "{text}");
        assert!(text.contains("\n        a                    b\n"), "{text}");
        assert!(
            text.contains("a 700000000000 + 40 MiB anonymous: 50.0 % accessed, 0 % on huge pages"),
            "{text}"
        );
    }

    #[test]
    fn every_terminal_is_kept_to() {
        let heat = heat(4000, 60);
        let map = HeatMap { pid: Pid(7), name: "p", heat: &heat };
        for size in [(60, 20), (80, 24), (200, 60), (60, 4), (20, 1)] {
            for paint in [Paint::Plain, Paint::Colour] {
                let lines = screen(&map, paint, size);
                assert!(lines.len() <= size.1, "{size:?}");
                assert!(size.0 < 60 || lines.iter().all(|line| line.width() <= size.0), "{size:?}");
            }
        }
        let text = text(&map, Paint::Plain);
        assert!(text.lines().count() < 70 && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
