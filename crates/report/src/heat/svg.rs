//! Heat over time as an SVG picture.

use super::{HeatMap, columns};
use crate::map::{FONTS, RAMP};
use crate::svg::{Anchor, Svg, number};
use crate::value::fit;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
/// Cells, at most: with more the picture has megabytes, and each is less than what an eye tells apart.
const MOST_COLUMNS: usize = 280;
const MOST_ROWS: usize = 120;
const HIGHEST_ROW: f64 = 14.0;
/// Of all rows together.
const HEIGHT: f64 = 600.0;
const GAP: f64 = 10.0;
const MOST_BANDS: usize = 16;
const NONE: &str = "#e6e9ed";
/// Time labels are so far apart at least.
const LABEL: f64 = 28.0;

/// The picture, 1200 pixels wide, on a light ground, bounded in size.
pub fn svg(map: &HeatMap<'_>) -> String {
    let (columns, bands) = columns(map.heat, MOST_COLUMNS);
    let rows = map.heat.rows(MOST_ROWS);
    let gaps = bands.len().saturating_sub(1) as f64 * GAP;
    let cell = (WIDTH - LEFT - RIGHT - gaps) / columns.len().max(1) as f64;
    let row_height = (HEIGHT / rows.len().max(1) as f64).min(HIGHEST_ROW);
    let x = |at: usize| LEFT + at as f64 * cell + columns[at].band as f64 * GAP;

    let mut picture = Svg::new(WIDTH);
    picture.text(LEFT, 26.0, 16.0, Anchor::Start, "strong", &map.title(&rows, &columns));
    legend(&mut picture, 46.0);
    let mut by_colour: Vec<Vec<(f64, f64, f64, f64)>> = vec![Vec::new(); RAMP.len() + 1];
    let mut labelled = f64::NEG_INFINITY;
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + number as f64 * row_height;
        if y - labelled >= LABEL {
            labelled = y;
            let time = format!("{} s", row.to.as_secs());
            picture.text(LEFT - 6.0, y + row_height.min(11.0), 11.0, Anchor::End, "muted", &time);
        }
        for (at, column) in columns.iter().enumerate() {
            let colour = match column.cell(row).heat() {
                None => continue,
                Some(0.0) => RAMP.len(),
                Some(heat) => ((heat * RAMP.len() as f64) as usize).min(RAMP.len() - 1),
            };
            // Cells overlap by a little, so that no ground shows between them.
            by_colour[colour].push((x(at), y, cell + 0.2, row_height + 0.2));
        }
    }
    for (rects, colour) in by_colour.iter().zip(RAMP.into_iter().chain([NONE])) {
        picture.rects(rects, colour);
    }
    let mut y = TOP + rows.len() as f64 * row_height + 16.0;
    for (band, described) in bands.iter().enumerate() {
        let Some(first) = columns.iter().position(|column| column.band == band) else { continue };
        let mark = (band + 1).to_string();
        picture.text(x(first), y, 11.0, Anchor::Start, "strong", &mark);
        if band < MOST_BANDS {
            let text = fit(&format!("{mark}  {}", described.describe()), 160);
            picture.text(LEFT, y + 20.0 * (band + 1) as f64, 12.0, Anchor::Start, "mono", &text);
        }
    }
    y += 20.0 * (bands.len().min(MOST_BANDS) + 1) as f64;
    let title = format!("Heat over time of {} (pid {})", map.name, map.pid);
    picture.finish(y, &title, FONTS)
}

fn legend(picture: &mut Svg, y: f64) {
    let mut x = LEFT;
    let mut entry = |colour: &str, text: &str, room: f64| {
        picture.rect(x, y - 10.0, 14.0, 12.0, colour);
        picture.text(x + 18.0, y, 11.0, Anchor::Start, "muted", text);
        x += room;
    };
    entry(NONE, "none accessed", 120.0);
    for (at, colour) in RAMP.iter().enumerate() {
        let text = match at {
            0 => "a little".to_string(),
            at if at + 1 == RAMP.len() => "all; white: not sampled".to_string(),
            at => format!("{} %", number(at as f64 * 100.0 / RAMP.len() as f64)),
        };
        entry(colour, &text, if at == 0 { 76.0 } else { 68.0 });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::heat;
    use super::*;
    use megapage_units::Pid;

    #[test]
    fn the_picture_is_bounded_and_escaped() {
        for (mib, samples) in [(8, 1), (40, 4), (4000, 300)] {
            let heat = heat(mib, samples);
            let map = HeatMap { pid: Pid(7), name: "<p>", heat: &heat };
            let picture = svg(&map);
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
            assert!(picture.contains("Heat over time of &lt;p&gt; (pid 7)") && !picture.contains("NaN"));
            assert!(picture.contains("[stack]: 100 % accessed"), "{picture}");
            assert!(picture.len() < 2 << 20, "{}", picture.len());
        }
        let empty = megapage_snapshot::Heat::new(std::time::Duration::ZERO);
        assert!(svg(&HeatMap { pid: Pid(7), name: "p", heat: &empty }).ends_with("</svg>\n"));
    }
}
