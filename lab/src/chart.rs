//! Line charts as SVG.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A chart of lines over one axis.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The title of the chart.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x: String,
    /// The vertical axis, with its unit.
    pub y: String,
    /// The lines, in the order of the legend.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its name in the legend; lines of one name have one colour, and one entry.
    pub name: String,
    /// Its points, ascending by x. Points that are not finite are skipped.
    pub points: Vec<(f64, f64)>,
    /// True if it is thin and pale: a second quantity beside the first of the same name.
    pub pale: bool,
}

/// Okabe and Ito's colours, which most people can tell apart, grey and black.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(150, 150, 150),
    RGBColor(0, 0, 0),
];

const WIDTH: u32 = 860;
const HEIGHT: u32 = 420;
/// Room for the legend, to the right.
const LEGEND: u32 = 190;

/// Draws the chart as SVG. A chart without points is an empty frame.
pub fn svg(chart: &Chart) -> String {
    let mut text = String::new();
    // Drawing into a string fails only on impossible coordinates, which are skipped.
    let drawn = draw(chart, &mut text);
    debug_assert!(drawn.is_ok(), "{drawn:?}");
    text
}

/// Returns the dashes and gaps, in pixels, of the line in this place: if a colour is used again,
/// the pattern differs.
fn dash(at: usize) -> Option<(u32, u32)> {
    match at / COLOURS.len() {
        0 => None,
        1 => Some((8, 4)),
        _ => Some((2, 3)),
    }
}

fn draw(chart: &Chart, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let points = || chart.lines.iter().flat_map(|line| line.points.iter().copied()).filter(finite);
    let right = points().map(|(x, _)| x).fold(0.0, f64::max);
    let top = points().map(|(_, y)| y).fold(0.0, f64::max);
    let (right, top) = (if right > 0.0 { right } else { 1.0 }, if top > 0.0 { top * 1.05 } else { 1.0 });

    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, legend) = root.split_horizontally(WIDTH - LEGEND);
    let mut axes = ChartBuilder::on(&area)
        .caption(&chart.title, ("sans-serif", 17))
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    axes.configure_mesh()
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;

    let mut names: Vec<&str> = Vec::new();
    for line in &chart.lines {
        let at = names.iter().position(|name| *name == line.name).unwrap_or_else(|| {
            names.push(&line.name);
            names.len() - 1
        });
        let colour = COLOURS[at % COLOURS.len()];
        let style = if line.pale { colour.mix(0.45).stroke_width(1) } else { colour.stroke_width(2) };
        let points: Vec<(f64, f64)> = line.points.iter().copied().filter(finite).collect();
        match dash(at) {
            None => axes.draw_series(LineSeries::new(points, style))?,
            Some((dash, gap)) => axes.draw_series(DashedLineSeries::new(points, dash, gap, style))?,
        };
    }
    let label = ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (at, name) in names.iter().enumerate() {
        let y = 44 + 20 * at as i32;
        let colour = COLOURS[at % COLOURS.len()];
        match dash(at) {
            None => legend.draw(&PathElement::new([(8, y), (28, y)], colour.stroke_width(3)))?,
            Some((dash, gap)) => {
                let line = [(8, y), (28, y)];
                legend.draw(&DashedPathElement::new(line, dash, gap, colour.stroke_width(3)))?;
            }
        }
        legend.draw(&Text::new(name.to_string(), (34, y), label.clone()))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_legend_and_stay_inside() {
        let line = |name: &str, pale| Line {
            name: name.to_string(),
            points: vec![(0.0, 1.0), (5.0, f64::NAN), (10.0, 3.0)],
            pale,
        };
        let chart = Chart {
            title: "Memory <&>".to_string(),
            x: "seconds".to_string(),
            y: "GB".to_string(),
            lines: vec![line("linux", false), line("linux", true), line("ingens", false)],
        };
        let text = svg(&chart);
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert_eq!(text.matches(">\nlinux\n").count(), 1, "{text}");
        assert!(text.contains("Memory &lt;&amp;&gt;"));
        assert!(!text.contains("NaN"));
        assert_eq!(svg(&chart), text);
    }

    /// Counts the strokes of the legend: colours, and the pieces of each.
    #[test]
    fn no_two_of_twenty_four_lines_look_alike() {
        let line =
            |at: usize| Line { name: format!("way {at}"), points: vec![(0.0, 1.0), (9.0, 2.0)], pale: false };
        let mut looks = std::collections::BTreeSet::new();
        for at in 0..24 {
            let lines = (0..=at).map(line).collect();
            let text = svg(&Chart { lines, ..Chart::default() });
            let before = svg(&Chart { lines: (0..at).map(line).collect(), ..Chart::default() });
            let strokes = |text: &str| -> std::collections::BTreeMap<String, usize> {
                let mut counts = std::collections::BTreeMap::new();
                for piece in text.split("stroke=\"").skip(1).map(|rest| &rest[..7]) {
                    *counts.entry(piece.to_string()).or_insert(0) += 1;
                }
                counts
            };
            let (with, without) = (strokes(&text), strokes(&before));
            let new: Vec<(String, usize)> = with
                .into_iter()
                .map(|(colour, count)| {
                    (colour.clone(), count.saturating_sub(*without.get(&colour).unwrap_or(&0)))
                })
                .filter(|(_, count)| *count > 0)
                .collect();
            assert!(looks.insert(new.clone()), "{at}: {new:?}");
        }
    }

    #[test]
    fn an_empty_chart_is_a_frame() {
        assert!(svg(&Chart::default()).contains("</svg>"));
    }
}
