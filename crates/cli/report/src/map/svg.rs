//! The map as a picture: coverage of each region as bars over a strip of what backs it, along the address space.

use super::layout::{Band, Content, Item, Layout, bytes};
use super::text::heat_summary;
use super::{Map, share};
use crate::line::{Paint, Style, wrap};
use crate::svg::{Anchor, Svg, text_width};
use crate::value::{fit, percent};
use megapage_snapshot::PAGES;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
/// Characters of the head in one line.
const HEAD_COLUMNS: usize = 160;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// Of the bars at full coverage.
const HEAT: f64 = 96.0;
const STRIP: f64 = 22.0;
const BETWEEN: f64 = 4.0;
/// Above the bars: two levels of labels.
const LABELS: f64 = 40.0;
/// Below the strip: the axis, and space to the next panel.
const AXIS: f64 = 44.0;
/// Between two bands.
const BREAK: f64 = 16.0;
const MOST_BANDS: usize = 12;
const TABLE_ROWS: usize = 12;

/// For a picture of `n` panels, the least width of a cell: rather wrap than draw hairs.
const PANELS: [(usize, f64); 6] = [(1, 4.0), (2, 3.0), (3, 3.0), (4, 2.5), (5, 2.0), (6, 2.0)];
const WIDEST_CELL: f64 = 16.0;

const INK: &str = "#1f2933";
const MUTED: &str = "#66727f";
const RULE: &str = "#d5dae0";
const PRESENT: &str = "#ccd3da";
const UNSAMPLED: &str = "#e6e9ed";
/// Coverage from a little to all: from light to dark, so that it also prints.
pub const RAMP: [&str; 8] =
    ["#fdd49e", "#fdbb84", "#fc8d59", "#f26d4b", "#e34a33", "#cb2b1e", "#a81010", "#7f0000"];
/// Stripes, so that what backs the zeros shows between them.
const ZEROS: &str = "url(#zeros)";

/// Backing, from the strip's foot upwards: value, colour (after Okabe and Ito, safe for the colour-blind), name.
type Part = (fn(&Content) -> u64, &'static str, &'static str);
const PARTS: [Part; 6] = [
    (|content| content.pages.hugetlb_1g, "#00503a", "1 GiB hugetlb pages"),
    (|content| content.pages.hugetlb_2m, "#009e73", "2 MiB hugetlb pages"),
    (|content| content.pages.thp, "#0072b2", "2 MiB THP"),
    (|content| content.pages.large, "#7cc4ef", "mTHP (4 KiB entries)"),
    (|content| content.pages.base, "#b8c0c8", "4 KiB pages"),
    (|content| content.swapped, "#cc79a7", "swapped out"),
];

const HEAD: &str = "<defs><pattern id=\"zeros\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect width=\"3\" height=\"5\" fill=\"#ffc20e\"/></pattern></defs>\n<style>text{font-family:'DejaVu Sans','Helvetica Neue',Arial,sans-serif;fill:#1f2933}\
    .muted{fill:#66727f}.strong{font-weight:bold}.mono{font-family:'DejaVu Sans Mono',Menlo,monospace}</style>\n";

/// One panel's share of the picture: pieces of bands from left to right.
#[derive(Debug, Default)]
struct Panel<'a> {
    pieces: Vec<Piece<'a>>,
}

/// A part of a band within one panel.
#[derive(Debug)]
struct Piece<'a> {
    band: usize,
    x: f64,
    items: &'a [Item],
    continued: bool,
}

/// The map as an SVG document, 1200 pixels wide, on a light ground, bounded in size however large the process.
pub fn svg(map: &Map<'_>) -> String {
    let layout = Layout::new(map.process, MOST_BANDS, |lengths| cell_width(lengths).is_some());
    let width = cell_width(&lengths(&layout)).unwrap_or(PANELS[PANELS.len() - 1].1);
    let panels = flow(&layout, width);
    let mut picture = Svg::new(WIDTH);
    let title = format!("{} (pid {})", map.process.name, map.process.id.pid);
    let mut y = header(&mut picture, map, &title);
    let mut shown = 0;
    for panel in &panels {
        shown = draw_panel(&mut picture, &layout, panel, width, y, shown);
        y += LABELS + HEAT + BETWEEN + STRIP + AXIS;
    }
    let bottom = legend(&mut picture, map, &layout, y).max(table(&mut picture, &layout, y));
    picture.finish(bottom + 20.0, &format!("Address space of {title}"), HEAD)
}

fn lengths(layout: &Layout) -> Vec<usize> {
    layout.bands.iter().map(|band| band.items.len()).collect()
}

/// Pixels for a cell, by the fewest panels that hold bands of these lengths with cells wide enough; `None` where
/// none do.
fn cell_width(lengths: &[usize]) -> Option<f64> {
    let items: usize = lengths.iter().sum();
    let breaks = lengths.len() as f64 * BREAK;
    PANELS.iter().find_map(|&(panels, least)| {
        // A panel may stay empty at its end by less than a cell, and after a break.
        let room = panels as f64 * (PLOT - BREAK - least) - breaks;
        let width = room / items.max(1) as f64;
        (width >= least).then_some(width.min(WIDEST_CELL))
    })
}

fn flow(layout: &Layout, width: f64) -> Vec<Panel<'_>> {
    let mut panels = vec![Panel::default()];
    let mut x = 0.0;
    for (index, band) in layout.bands.iter().enumerate() {
        let mut items = &band.items[..];
        let mut continued = false;
        if x > 0.0 {
            x += BREAK;
        }
        while !items.is_empty() {
            let room = ((PLOT - x) / width + 1e-6).floor().max(0.0) as usize;
            if room == 0 {
                panels.push(Panel::default());
                x = 0.0;
                continue;
            }
            let (now, later) = items.split_at(room.min(items.len()));
            let panel = panels.last_mut().expect("there is always one");
            panel.pieces.push(Piece { band: index, x: LEFT + x, items: now, continued });
            x += now.len() as f64 * width;
            (items, continued) = (later, true);
        }
    }
    panels
}

fn header(picture: &mut Svg, map: &Map<'_>, title: &str) -> f64 {
    picture.text(LEFT, 38.0, 22.0, Anchor::Start, "strong", &format!("Address space of {title}"));
    let time = format!("{} after boot", boot_time(map));
    picture.text(LEFT + PLOT, 38.0, 13.0, Anchor::End, "muted", &time);
    picture.text(LEFT, 61.0, 13.0, Anchor::Start, "text", &map.headline());
    let mut y = 61.0;
    for line in wrap(Style::PLAIN, &map.provenance(), HEAD_COLUMNS) {
        y += 19.0;
        picture.text(LEFT, y, 13.0, Anchor::Start, "muted", &line.show(Paint::Plain, usize::MAX));
    }
    y + 24.0
}

fn boot_time(map: &Map<'_>) -> String {
    let seconds = map.taken.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Draws one panel at `y`; `shown` is the address space that the panels before showed, in bytes. Returns the same
/// for the next.
fn draw_panel(picture: &mut Svg, layout: &Layout, panel: &Panel<'_>, width: f64, y: f64, shown: u64) -> u64 {
    let top = y + LABELS;
    let floor = top + HEAT;
    let strip = floor + BETWEEN;
    for (share, text) in [(0.0, "0"), (0.5, "256"), (1.0, "512")] {
        let height = floor - share * HEAT;
        picture.line((LEFT, height), (LEFT + PLOT, height), RULE, 1.0);
        picture.text(LEFT - 8.0, height + 4.0, 11.0, Anchor::End, "muted", text);
    }
    picture.text(LEFT - 8.0, strip + 15.0, 11.0, Anchor::End, "muted", "backing");
    bars(picture, panel, width, floor);
    backings(picture, panel, width, strip);
    labels(picture, layout, panel, width, top);
    axis(picture, layout, panel, width, strip + STRIP, shown)
}

/// Bars that have the same height as the one before are drawn as one.
#[derive(Default)]
struct Bars(Vec<(f64, f64, f64, f64)>);

impl Bars {
    fn push(&mut self, x: f64, y: f64, width: f64, height: f64) {
        if height <= 0.0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.1 == y && last.3 == height && (last.0 + last.2 - x).abs() < 1e-6 => {
                last.2 += width
            }
            _ => self.0.push((x, y, width, height)),
        }
    }
}

fn cells<'a>(panel: &'a Panel<'_>, width: f64) -> impl Iterator<Item = (f64, &'a Content)> {
    panel.pieces.iter().flat_map(move |piece| {
        piece.items.iter().enumerate().filter_map(move |(index, item)| match item {
            Item::Cell { content, .. } => Some((piece.x + index as f64 * width, content)),
            Item::Gap(_) => None,
        })
    })
}

fn bars(picture: &mut Svg, panel: &Panel<'_>, width: f64, floor: f64) {
    let (mut present, mut unsampled) = (Bars::default(), Bars::default());
    let mut hottest = Bars::default();
    let mut heat: [Bars; RAMP.len()] = Default::default();
    for (x, content) in cells(panel, width) {
        let full = (content.regions * u64::from(PAGES)) as f64;
        let height = content.pages.total() as f64 / full * HEAT;
        match content.heat() {
            None => unsampled.push(x, floor - height, width, height),
            Some(mean) => {
                present.push(x, floor - height, width, height);
                let peak = f64::from(content.hottest) / f64::from(PAGES);
                if content.sampled_regions > 1 && peak > mean {
                    hottest.push(x, floor - peak * HEAT, width, 1.5);
                }
                // What is accessed at all is seen: at least half a pixel.
                let height = if mean > 0.0 { (mean * HEAT).max(0.5) } else { 0.0 };
                let step = ((mean * RAMP.len() as f64) as usize).min(RAMP.len() - 1);
                heat[step].push(x, floor - height, width, height);
            }
        }
    }
    picture.rects(&unsampled.0, UNSAMPLED);
    picture.rects(&present.0, PRESENT);
    for (bars, colour) in heat.iter().zip(RAMP) {
        picture.rects(&bars.0, colour);
    }
    picture.rects(&hottest.0, RAMP[RAMP.len() - 2]);
}

fn backings(picture: &mut Svg, panel: &Panel<'_>, width: f64, top: f64) {
    let mut parts: [Bars; PARTS.len()] = Default::default();
    let mut zeros = Bars::default();
    for (x, content) in cells(panel, width) {
        let full = (content.regions * u64::from(PAGES)) as f64;
        let mut foot = top + STRIP;
        for (bars, (amount, ..)) in parts.iter_mut().zip(PARTS) {
            let height = amount(content) as f64 / full * STRIP;
            foot -= height;
            bars.push(x, foot, width, height);
        }
        let height = content.bloat as f64 / full * STRIP;
        zeros.push(x, top + STRIP - height, width, height);
    }
    for (bars, (_, colour, _)) in parts.iter().zip(PARTS) {
        picture.rects(&bars.0, colour);
    }
    picture.rects(&zeros.0, ZEROS);
    picture.line((LEFT, top + STRIP), (LEFT + PLOT, top + STRIP), RULE, 1.0);
}

fn band_text(layout: &Layout, piece: &Piece<'_>) -> [String; 2] {
    let band = &layout.bands[piece.band];
    let number = piece.band + 1;
    let cont = if piece.continued { ", continued" } else { "" };
    [format!("{number} · {} · {}{cont}", band.label(), bytes(band.content.pages.total())), number.to_string()]
}

/// A bracket over each piece, and its label on the first of two levels where it overlaps nothing: in full, or only
/// its number, by which the table below names it.
fn labels(picture: &mut Svg, layout: &Layout, panel: &Panel<'_>, width: f64, top: f64) {
    const SIZE: f64 = 12.0;
    let bracket = top - 6.0;
    let mut ends = [f64::MIN; 2];
    for (index, piece) in panel.pieces.iter().enumerate() {
        let end = piece.x + piece.items.len() as f64 * width;
        picture.line((piece.x, bracket), (end, bracket), INK, 1.5);
        picture.line((piece.x, bracket), (piece.x, bracket + 4.0), INK, 1.5);
        picture.line((end, bracket), (end, bracket + 4.0), INK, 1.5);
        // The number of each piece that follows keeps its place on the lower level.
        let next = panel.pieces.get(index + 1).map_or(LEFT + PLOT + RIGHT, |next| next.x);
        let texts = band_text(layout, piece);
        let places = [(0, &texts[0]), (1, &texts[0]), (0, &texts[1]), (1, &texts[1])];
        let place = places.into_iter().find(|(level, text)| {
            let right = piece.x + text_width(text, SIZE) + 8.0;
            let limit = if *level == 0 { next } else { WIDTH };
            ends[*level] <= piece.x && right <= limit
        });
        if let Some((level, text)) = place {
            picture.text(piece.x, bracket - 5.0 - 15.0 * level as f64, SIZE, Anchor::Start, "text", text);
            ends[level] = piece.x + text_width(text, SIZE) + 8.0;
        }
    }
}

/// Ticks along what is shown, in GiB. Returns what is shown so far, in bytes.
fn axis(picture: &mut Svg, layout: &Layout, panel: &Panel<'_>, width: f64, y: f64, shown: u64) -> u64 {
    let cell = layout.cell.0;
    let step = tick_step(cell as f64 / width * 90.0);
    let mut at = shown;
    let mut last = f64::MIN;
    let mut right = LEFT;
    let mut gaps = Vec::new();
    for (piece, next) in panel.pieces.iter().zip(1..) {
        for (index, item) in piece.items.iter().enumerate() {
            let x = piece.x + index as f64 * width;
            right = x + width;
            if matches!(item, Item::Gap(_)) {
                gaps.push((x + width / 2.0 - 0.75, y - 8.0, 1.5, 1.5));
                continue;
            }
            // The tick that falls into this cell, where one does.
            let tick = at.div_ceil(step) * step;
            if tick < at + cell {
                let x = x + (tick - at) as f64 / cell as f64 * width;
                picture.line((x, y), (x, y + 5.0), MUTED, 1.0);
                let text = tick_text(tick, step);
                let half = text_width(&text, 11.0) / 2.0;
                if x - half > last {
                    picture.text(x, y + 18.0, 11.0, Anchor::Middle, "muted", &text);
                    last = x + half + 4.0;
                }
            }
            at += cell;
        }
        if panel.pieces.get(next).is_some() {
            // Two strokes where address space is cut out between bands.
            let x = right + BREAK / 2.0;
            for offset in [-2.5, 2.5] {
                picture.line((x + offset - 2.0, y + 4.0), (x + offset + 2.0, y - 8.0), MUTED, 1.2);
            }
        }
    }
    picture.rects(&gaps, MUTED);
    at
}

/// The smallest power of two MiB that is at least `bytes`.
fn tick_step(bytes: f64) -> u64 {
    (21..62).map(|power| 1 << power).find(|&step: &u64| step as f64 >= bytes).unwrap_or(1 << 62)
}

fn tick_text(at: u64, step: u64) -> String {
    let gib = at as f64 / (1u64 << 30) as f64;
    match step {
        step if step >= 1 << 30 => format!("{gib:.0} GiB"),
        step if step >= 1 << 29 => format!("{gib:.1} GiB"),
        step if step >= 1 << 28 => format!("{gib:.2} GiB"),
        _ => format!("{} MiB", at >> 20),
    }
}

fn legend(picture: &mut Svg, map: &Map<'_>, layout: &Layout, y: f64) -> f64 {
    let content = &layout.content;
    let mut y = y + 6.0;
    let heading = |picture: &mut Svg, y: &mut f64, text: &str| {
        picture.text(LEFT, *y, 13.0, Anchor::Start, "strong", text);
        *y += 8.0;
    };
    let regions = layout.cell.0 / (2 << 20);
    let title = match regions {
        1 => "Heat: base pages accessed, of the 512 of each region".to_string(),
        many => format!("Heat: base pages accessed, of 512; mean of the {many} regions of a cell"),
    };
    heading(picture, &mut y, &title);
    let mut x = LEFT;
    for colour in RAMP {
        picture.rect(x, y, 14.0, 12.0, colour);
        x += 14.0;
    }
    picture.text(x + 6.0, y + 10.5, 12.0, Anchor::Start, "text", "accessed");
    x += 90.0;
    for (colour, text) in [(PRESENT, "present, not accessed"), (UNSAMPLED, "present, not sampled")] {
        picture.rect(x, y, 14.0, 12.0, colour);
        picture.text(x + 20.0, y + 10.5, 12.0, Anchor::Start, "text", text);
        x += 30.0 + text_width(text, 12.0);
    }
    y += 29.0;
    if map.process.regions.iter().any(|region| region.leaf.is_huge() && region.accessed.is_some()) {
        let text = "A huge page has one accessed bit: it shows as 512 or 0.";
        picture.text(LEFT, y, 12.0, Anchor::Start, "muted", text);
        y += 18.0;
    }
    if regions > 1 {
        let text = "A short stroke over a bar: the hottest region of the cell.";
        picture.text(LEFT, y, 12.0, Anchor::Start, "muted", text);
        y += 18.0;
    }
    if let Some(summary) = heat_summary(content) {
        for sentence in summary.split_inclusive(". ") {
            picture.text(LEFT, y, 12.0, Anchor::Start, "text", sentence.trim_end());
            y += 18.0;
        }
    }
    y += 12.0;
    heading(picture, &mut y, "Backing");
    let total = content.pages.total();
    for (amount, colour, name) in PARTS {
        let amount = amount(content);
        if amount == 0 {
            continue;
        }
        y = swatch(picture, y, colour, name, amount, total);
    }
    if content.bloat > 0 {
        y = swatch(picture, y, ZEROS, "zeros in THP", content.bloat, total);
    }
    y
}

fn swatch(picture: &mut Svg, y: f64, colour: &str, name: &str, pages: u64, total: u64) -> f64 {
    picture.rect(LEFT, y, 14.0, 12.0, colour);
    picture.text(LEFT + 20.0, y + 10.5, 12.0, Anchor::Start, "text", name);
    let numbers = (bytes(pages).to_string(), share(pages, total));
    picture.text(LEFT + 270.0, y + 10.5, 12.0, Anchor::End, "text", &numbers.0);
    picture.text(LEFT + 330.0, y + 10.5, 12.0, Anchor::End, "muted", &numbers.1);
    y + 18.0
}

/// The largest bands by name, with their values.
fn table(picture: &mut Svg, layout: &Layout, y: f64) -> f64 {
    const X: f64 = 640.0;
    const COLUMNS: [f64; 3] = [X + 396.0, X + 466.0, X + 536.0];
    let mut y = y + 6.0;
    picture.text(X, y, 13.0, Anchor::Start, "strong", "Ranges");
    for (x, text) in COLUMNS.into_iter().zip(["present", "huge", "accessed"]) {
        picture.text(x, y, 11.0, Anchor::End, "muted", text);
    }
    y += 8.0;
    let mut order: Vec<(usize, &Band)> = layout.bands.iter().enumerate().collect();
    order.sort_by_key(|(index, band)| (std::cmp::Reverse(band.content.pages.total()), *index));
    let left_out = order.len().saturating_sub(TABLE_ROWS);
    order.truncate(TABLE_ROWS);
    order.sort_by_key(|(index, _)| *index);
    for (index, band) in order {
        y += 17.0;
        let content = &band.content;
        picture.text(X + 14.0, y, 12.0, Anchor::End, "strong", &(index + 1).to_string());
        picture.text(X + 24.0, y, 11.0, Anchor::Start, "mono", &format!("{:012x}", band.start));
        picture.text(X + 116.0, y, 12.0, Anchor::Start, "text", &fit(&band.label(), 33));
        let accessed = match content.sampled {
            0 => "-".into(),
            sampled => format!("{} %", percent(content.accessed as f64 / sampled as f64)),
        };
        let numbers = [
            bytes(content.pages.total()).to_string(),
            share(content.pages.huge(), content.pages.total()),
            accessed,
        ];
        for (x, text) in COLUMNS.into_iter().zip(numbers) {
            picture.text(x, y, 12.0, Anchor::End, "text", &text);
        }
    }
    if left_out > 0 {
        y += 17.0;
        picture.text(X + 24.0, y, 12.0, Anchor::Start, "muted", &format!("and {left_out} smaller ones"));
    }
    y
}

#[cfg(test)]
mod tests;
