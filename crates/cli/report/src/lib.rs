//! Text, tables, pictures and JSON that the command shows, with a module for each kind of value.
//!
//! Architecture invariant: this crate takes values and returns text. It reads nothing and decides
//! nothing.

#![forbid(unsafe_code)]

pub mod advise;
pub mod bench;
pub mod daemon;
pub mod doctor;
pub mod line;
pub mod map;
pub mod plan;
pub mod pools;
pub mod reclaim;
pub mod record;
pub mod remap;
pub mod run;
pub mod segments;
pub mod services;
#[cfg(test)]
#[path = "synthetic_tests.rs"]
mod synthetic;
mod text;
pub mod thp;
pub mod top;
pub mod trial;
pub mod value;
mod why;

pub use text::{lines, shown_path};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use megapage_snapshot::Sampling;
use megapage_units::shown::{self, one_line};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most columns of the human form of every report, unless the terminal is narrower: [`width`].
pub const WIDTH: u16 = 100;

/// Fewest columns that a report assumes: tables need some.
const LEAST_COLUMNS: usize = 40;
static COLUMNS: AtomicUsize = AtomicUsize::new(WIDTH as usize);

/// Sets the columns of human reports to those of the reader's terminal: at least 40. Only tables of
/// processes use more than [`WIDTH`]. Call it before the first report, if at all.
pub fn set_columns(columns: usize) {
    COLUMNS.store(columns.max(LEAST_COLUMNS), Ordering::Relaxed);
}

/// Returns the columns of the reader's terminal; [`WIDTH`] if there is none.
pub fn columns() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// Returns the columns that a report keeps within: [`WIDTH`], or fewer if the terminal has fewer.
pub fn width() -> usize {
    columns().min(usize::from(WIDTH))
}

/// Returns `value` as JSON with `"schema"` as its first field. `value` must serialise to an object.
///
/// No character in it steers a terminal: such characters are written as `\\uXXXX`. `schema` is
/// `megapage.<command>/<version>`; the version rises whenever a field changes its meaning or goes.
pub fn json(schema: &str, value: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema: &'a str,
        #[serde(flatten)]
        value: &'a T,
    }
    let text = serde_json::to_string_pretty(&Versioned { schema, value });
    // `cargo xtask tidy` checks that each path is escaped; serde refuses other paths.
    shown::json(&text.expect("reports hold no map with keys other than strings"))
}

/// Change of the machine as JSON, made or only planned.
#[derive(Debug, Serialize)]
pub struct Applied<T> {
    /// True if the change was made.
    pub applied: bool,
    /// The change.
    #[serde(flatten)]
    pub what: T,
}

/// Returns a table of at most [`width`] columns: a header line, then the rows, numbers aligned to
/// the right.
///
/// A cell counts as a number if it starts with a digit, a sign or a dash.
pub fn table<R, C>(header: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = C>,
    C: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width()).unwrap_or(WIDTH))
        .set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.into_iter().map(|text| {
            let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
            let alignment = if is_number { CellAlignment::Right } else { CellAlignment::Left };
            comfy_table::Cell::new(one_line(&text)).set_alignment(alignment)
        }));
    }
    table.to_string().lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Returns the text that replaces samples if the tracker shows no accesses, with the reason why
/// there is no better tracker.
fn tells_use_alone(sampling: &Sampling) -> String {
    let name = sampling.tracker.name();
    let better = sampling.skipped.first().map_or_else(String::new, |(better, why)| {
        format!(" (the {} tracker cannot be used: {why})", better.name())
    });
    format!(
        "the {name} tracker tells which memory is in use, not what is accessed, and changes nothing{better}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_its_schema_first() {
        #[derive(Serialize)]
        struct Value {
            bytes: u64,
        }
        let text = json("megapage.test/1", &Value { bytes: 7 });
        assert_eq!(text, "{\n  \"schema\": \"megapage.test/1\",\n  \"bytes\": 7\n}");
    }

    #[test]
    fn no_cell_forges_a_row_and_no_string_steers() {
        let name = "x\x1b[2J\n4711  root\u{202e}".to_string();
        let text = table(&["name"], [[name.clone()]]);
        assert_eq!(text.lines().count(), 2, "{text}");
        #[derive(Serialize)]
        struct Value {
            name: String,
        }
        let text = text + &json("megapage.test/1", &Value { name: name.clone() });
        assert!(!text.chars().any(|c| shown::is_steering(c) && c != '\n'), "{text:?}");
        let back: serde_json::Value =
            serde_json::from_str(&json("x", &Value { name: name.clone() })).unwrap();
        assert_eq!(back["name"], name.as_str());
    }

    #[test]
    fn tables_fit_the_width() {
        let long = "word ".repeat(60);
        let text = table(&["name", "what"], [[String::from("a"), long]]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH as usize), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }
}
