//! The map for a terminal: half blocks in colour, or two lines of letters without.

use super::layout::{Band, Content, Item, Layout, Pages, bytes};
use super::{Map, share};
use crate::line::{self, Colour, Line, Paint, Style, wrap};
use crate::value::fit;
use crate::width;
use megapage_units::{Bytes, HUGE_2M};

/// Most cells in a line: with cells of 2 MiB, 160 MiB.
const MOST_CELLS: usize = 80;
/// Returns the number of cells in a line of this terminal.
fn cells() -> usize {
    MOST_CELLS.min(width().saturating_sub(INDENT)).max(1)
}

/// Most lines of cells: cells grow until this is kept.
const MOST_LINES: usize = 36;
/// Most bands that are shown.
const MOST_BANDS: usize = 12;
/// Column at which the cells begin.
const INDENT: usize = 14;

/// Colours of coverage, from next to nothing to all 512 pages: dark to bright, so that they differ
/// even if red and green look alike.
const HEAT: [Colour; 10] = [53, 89, 125, 161, 197, 203, 209, 215, 221, 229];
/// Colour of memory that is present and not accessed.
const COLD: Colour = 238;
/// Colour of memory that is present and not sampled.
const UNKNOWN: Colour = 245;
const SWAPPED: Colour = 175;

/// Backings of a cell, in the order that decides a tie.
const BACKINGS: [(char, Colour, &str); 6] = [
    ('G', 22, "1 GiB hugetlb"),
    ('H', 35, "2 MiB hugetlb"),
    ('T', 33, "2 MiB THP"),
    ('m', 117, "mTHP"),
    ('4', 250, "4 KiB"),
    ('s', SWAPPED, "swapped out"),
];

/// Returns the map: at most [`width`] columns and about a hundred lines, for a process of any size.
pub fn text(map: &Map<'_>, paint: Paint) -> String {
    let layout = Layout::new(map.process, MOST_BANDS, |lengths| {
        lengths.iter().map(|length| length.div_ceil(cells())).sum::<usize>() <= MOST_LINES
    });
    let mut lines = head(map, &layout);
    lines.extend(legend(&layout, paint));
    for band in &layout.bands {
        lines.extend(band_lines(band, paint));
    }
    line::show(&lines, paint, width())
}

fn head(map: &Map<'_>, layout: &Layout) -> Vec<Line> {
    let (process, totals) = (map.process, &map.totals);
    let mut lines = vec![Line::of(Style::BOLD, format!("{} (pid {})", process.name, process.id.pid))];
    for sentence in [map.headline(), map.provenance()] {
        lines.extend(wrap(Style::PLAIN, &sentence, width()));
    }
    if let Some(summary) = heat_summary(&layout.content) {
        lines.extend(wrap(Style::PLAIN, &summary, width()));
    }
    if totals.bloat_bytes > 0 {
        let text = format!("Huge pages hold {} of zeros.", Bytes(totals.bloat_bytes));
        lines.push(Line::of(Style::PLAIN, text));
    }
    lines
}

/// Returns a sentence on the accessed memory, and its overlap with huge pages.
pub fn heat_summary(content: &Content) -> Option<String> {
    (content.sampled_regions > 0).then(|| {
        let accessed = share(content.accessed, content.sampled);
        let mut text = format!(
            "Accessed: {} of {} sampled ({accessed})",
            bytes(content.accessed),
            bytes(content.sampled)
        );
        if content.accessed_huge > 0 {
            text += &format!(", {} of it on huge pages", share(content.accessed_huge, content.accessed));
        }
        text += ".";
        if content.sampled_huge > 0 {
            let accessed = share(content.accessed_huge, content.sampled_huge);
            text += &format!(" On huge pages: {}, {accessed} of it accessed.", bytes(content.sampled_huge));
        }
        text
    })
}

fn legend(layout: &Layout, paint: Paint) -> Vec<Line> {
    let regions = layout.cell.0 / HUGE_2M as u64;
    let cell = match regions {
        1 => "one cell: 2 MiB".to_string(),
        many => format!("one cell: {} ({many} regions, their mean; what backs most)", layout.cell),
    };
    let mut heat = Line::of(Style::PLAIN, format!("{:INDENT$}", "heat"));
    let mut backing = Line::of(Style::PLAIN, format!("{:INDENT$}", "backing"));
    match paint {
        Paint::Colour => {
            for colour in HEAT {
                heat.push(Style::halves(Some(colour), None), "█");
            }
            heat.push(Style::PLAIN, " some to all of 512 pages accessed  ");
            heat.push(Style::halves(Some(COLD), None), "█");
            heat.push(Style::PLAIN, " none  ");
            heat.push(Style::halves(Some(UNKNOWN), None), "█");
            heat.push(Style::PLAIN, " not sampled  · cut out: empty");
        }
        Paint::Plain => heat.push(
            Style::PLAIN,
            "1-9 tenths of 512 pages accessed, # all, + fewer than a tenth, . none, ? not sampled",
        ),
    }
    for (letter, colour, name) in BACKINGS {
        match paint {
            Paint::Colour => {
                backing.push(Style::halves(Some(colour), None), "█");
                backing.push(Style::PLAIN, format!(" {name}  "));
            }
            Paint::Plain => backing.push(Style::PLAIN, format!("{letter} {name}  ")),
        }
    }
    let place = match paint {
        Paint::Colour => "; above: heat, below: backing",
        Paint::Plain => "; above: heat, below: backing; · cut out: empty",
    };
    let bits = "A huge page has one bit: all of it counts as accessed, or none.";
    vec![
        Line::new(),
        heat,
        backing,
        Line::of(Style::PLAIN, format!("{:INDENT$}{cell}{place}", "")),
        Line::of(Style::PLAIN, format!("{:INDENT$}{bits}", "")),
    ]
}

fn band_lines(band: &Band, paint: Paint) -> Vec<Line> {
    let mut lines = Vec::new();
    if band.gap_before.0 >= 1 << 30 {
        lines.push(Line::of(Style::DIM, format!("{:>12}  {} empty", "⋮", band.gap_before)));
    } else {
        lines.push(Line::new());
    }
    let totals = &band.content;
    let accessed = match totals.sampled_regions {
        0 => "not sampled".to_string(),
        _ => format!("{} accessed", share(totals.accessed, totals.sampled)),
    };
    let huge = share(totals.pages.huge(), totals.pages.total());
    let numbers = format!("{:>9}  {:>7} huge  {accessed:>16}", bytes(totals.pages.total()).to_string(), huge);
    let room = width() - INDENT - numbers.chars().count() - 1;
    lines.push(
        Line::of(Style::DIM, format!("{:012x}  ", band.start))
            .with(Style::BOLD, format!("{:room$} ", fit(&band.label(), room)))
            .with(Style::PLAIN, numbers),
    );
    for items in band.items.chunks(cells()) {
        match paint {
            Paint::Colour => lines.push(half_blocks(items)),
            Paint::Plain => lines.extend(letters(items)),
        }
    }
    lines
}

fn half_blocks(items: &[Item]) -> Line {
    let mut line = Line::of(Style::PLAIN, " ".repeat(INDENT));
    for item in items {
        match item {
            Item::Gap => line.push(Style::DIM, "·"),
            Item::Cell { content, .. } => {
                let backing = backing(content).map(|index| BACKINGS[index].1);
                match heat_colour(content) {
                    Some(heat) => line.push(Style::halves(Some(heat), backing), "▀"),
                    // Nothing is present: the upper half keeps the terminal's default.
                    None if backing.is_some() => line.push(Style::halves(backing, None), "▄"),
                    None => line.push(Style::PLAIN, " "),
                }
            }
        }
    }
    line
}

fn heat_colour(content: &Content) -> Option<Colour> {
    (content.pages.total() > 0).then(|| content.heat().map_or(UNKNOWN, colour))
}

/// Returns the colour for memory with this accessed share, 0 to 1.
fn colour(heat: f64) -> Colour {
    if heat == 0.0 { COLD } else { HEAT[((heat * 10.0) as usize).min(9)] }
}

/// Returns the letter for memory with this accessed share, 0 to 1.
fn letter(heat: f64) -> char {
    match heat {
        0.0 => '.',
        heat if heat >= 1.0 => '#',
        heat if heat < 0.1 => '+',
        heat => char::from(b'0' + ((heat * 10.0) as u8).min(9)),
    }
}

fn letters(items: &[Item]) -> [Line; 2] {
    let (mut above, mut below) = (" ".repeat(INDENT), " ".repeat(INDENT));
    for item in items {
        let (heat, backing) = match item {
            Item::Gap => ('·', '·'),
            Item::Cell { content, .. } => {
                (heat_letter(content), backing(content).map_or(' ', |index| BACKINGS[index].0))
            }
        };
        above.push(heat);
        below.push(backing);
    }
    [Line::of(Style::PLAIN, above), Line::of(Style::PLAIN, below)]
}

fn heat_letter(content: &Content) -> char {
    if content.pages.total() == 0 { ' ' } else { content.heat().map_or('?', letter) }
}

/// Returns the index in [`BACKINGS`] of the backing with most of a cell; `None` if nothing is
/// present or swapped out.
fn backing(content: &Content) -> Option<usize> {
    let Pages { base, large, thp, hugetlb_2m, hugetlb_1g } = content.pages;
    let amounts = [hugetlb_1g, hugetlb_2m, thp, large, base, content.swapped];
    let most = *amounts.iter().max()?;
    (most > 0).then(|| amounts.iter().position(|&amount| amount == most)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WIDTH;
    use crate::synthetic;
    use megapage_snapshot::MappingKind;

    #[test]
    fn the_store_looks_as_before() {
        let snapshot = synthetic::snapshot(vec![synthetic::store()]);
        let map = Map::new(&snapshot, snapshot.processes[0].id.pid).unwrap();
        let plain = text(&map, Paint::Plain);
        synthetic::assert_golden("map.txt", &plain);
        synthetic::assert_golden("map.ansi", &text(&map, Paint::Colour));
        assert!(plain.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{plain}");
    }

    #[test]
    fn what_was_not_sampled_is_not_shown_as_cold() {
        let mut snapshot = synthetic::snapshot(vec![synthetic::store()]);
        snapshot.sampling = None;
        snapshot.processes[0].sampling = None;
        for region in &mut snapshot.processes[0].regions {
            region.accessed = None;
        }
        let plain = text(&Map::new(&snapshot, snapshot.processes[0].id.pid).unwrap(), Paint::Plain);
        assert!(plain.contains("Not sampled: how hot its memory is, is not known."), "{plain}");
        assert!(plain.contains("????") && !plain.contains("...."), "{plain}");
        assert!(!plain.contains("Accessed:"), "{plain}");
    }

    #[test]
    fn letters_tell_a_little_from_nothing_and_nearly_all_from_all() {
        let letter = |coverage| {
            let mut process = synthetic::process(1, "one");
            synthetic::map(&mut process, 0x1000_0000_0000, 1, MappingKind::Anonymous, "", |_, region| {
                region.accessed = synthetic::accessed(coverage);
            });
            heat_letter(&Content::of_all(&process))
        };
        assert_eq!([0, 1, 51, 52, 511, 512].map(letter), ['.', '+', '+', '1', '9', '#']);
    }
}
