//! The table of `megapage top`, for a terminal of any size and for a pipe.

use super::cells::{CALM, FIELD, LEAST_WRAP, field, fields};
use super::columns::Columns;
use super::keys::Prompt;
use super::{Key, Row, Top, daemon};
use crate::WIDTH;
use crate::line::{self, Line, Paint, Style, wrap};
use crate::value::{count, percent, size, time};
use megapage_snapshot::thp::ThpSettings;
use megapage_snapshot::{CostSource, Missed, MissedWhy, Pool};
use megapage_units::{Bytes, PageSize};
use std::time::Duration;

/// Most decisions of the daemon that are shown.
const MOST_DECISIONS: usize = 6;
/// Lines of a terminal for each decision that is shown.
const LINES_TO_A_DECISION: usize = 6;
/// Lines of a terminal for each process that is shown, and the least number of processes, if there
/// are as many. On a small terminal first the notes, then the machine's lines in [`LEFT_OUT_FIRST`]
/// make room for them.
const LINES_TO_A_PROCESS: usize = 3;
const LEAST_PROCESSES: usize = 6;
const LEFT_OUT_FIRST: [&str; 7] = ["Sampling", "Pools", "Node", "THP", "Per second", "Pressure", "Decided"];
/// Most processes that are listed with the reason why they could not be observed.
const MOST_NOTES: usize = 3;

/// Settings of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Key that it is sorted by.
    pub key: Key,
    /// True if the least comes first.
    pub reverse: bool,
    /// Time between two refreshes; `None` if there is only one.
    pub every: Option<Duration>,
    /// Filter, as given; empty if there is none.
    pub filter: String,
    /// Further remarks, one line each.
    pub notes: Vec<String>,
}

/// The part of the table that a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Number of the first process, from 0.
    pub first: usize,
    /// Lines of the terminal.
    pub lines: usize,
    /// Columns of the terminal.
    pub columns: usize,
}

/// Returns the whole table as plain text of at most `width` columns; the notes below it have at
/// most [`WIDTH`], as have the lines above it.
pub fn table(top: &Top<'_>, head: &Head, width: usize) -> String {
    let columns = Columns::of(top, head.key, width);
    let mut lines = machine_lines(top, head, MOST_DECISIONS, width);
    lines.push(Line::new());
    lines.push(columns_line(head, &columns));
    lines.extend(top.processes.iter().map(|row| row_line(row, &columns)));
    lines.extend(note_lines(top, head, width.min(usize::from(WIDTH))));
    line::show(&lines, Paint::Plain, width)
}

/// Returns at most as many lines as the terminal has: the machine, then the processes from
/// `page.first` on, then the keys.
pub fn screen(top: &Top<'_>, head: &Head, page: Page, prompt: Prompt<'_>) -> Vec<Line> {
    let columns = Columns::of(top, head.key, page.columns);
    let decisions = (page.lines / LINES_TO_A_DECISION).min(MOST_DECISIONS);
    let mut lines = machine_lines(top, head, decisions, page.columns);
    let mut notes = note_lines(top, head, page.columns);
    // Three more lines: an empty one, the processes' head, and the keys.
    let room = page.lines.saturating_sub(3);
    let wanted = (page.lines / LINES_TO_A_PROCESS).max(LEAST_PROCESSES).min(top.processes.len());
    while lines.len() + notes.len() + wanted > room && notes.pop().is_some() {}
    for name in LEFT_OUT_FIRST {
        if lines.len() + wanted > room {
            leave_out(&mut lines, name);
        }
    }
    lines.push(Line::new());
    lines.push(columns_line(head, &columns));
    let room = page.lines.saturating_sub(lines.len() + notes.len() + 1);
    let rows = top.processes.iter().skip(page.first).take(room);
    lines.extend(rows.map(|row| row_line(row, &columns)));
    let used = lines.len() + notes.len() + 1;
    lines.extend((used..page.lines).map(|_| Line::new()));
    lines.extend(notes);
    lines.push(prompt.line(page.columns));
    lines.truncate(page.lines);
    lines
}

/// Removes the lines with a name, and those that continue them.
fn leave_out(lines: &mut Vec<Line>, name: &str) {
    let mut within = false;
    lines.retain(|line| {
        let text = line.show(Paint::Plain, FIELD);
        if !text.trim().is_empty() {
            within = text.starts_with(name);
        }
        !within
    });
}

fn machine_lines(top: &Top<'_>, head: &Head, decisions: usize, columns: usize) -> Vec<Line> {
    let width = columns.clamp(LEAST_WRAP, usize::from(WIDTH));
    let machine = top.machine;
    let memory = &machine.memory;
    let mut first = format!("up {}", clock(top.taken));
    match (head.every, top.interval) {
        (Some(every), _) => first += &format!(", every {:.1} s", every.as_secs_f64()),
        (None, Some(interval)) => first += &format!(", over {:.1} s", interval.as_secs_f64()),
        (None, None) => {}
    }
    let order = if head.reverse { ", least first" } else { "" };
    first += &format!(", {} by {}{order}", processes(top.processes.len()), head.key.name());
    if !head.filter.is_empty() {
        first += &format!(", matching {}; {} others", head.filter, top.filtered_out);
    }
    let mut lines = fields("megapage", &first, width);
    lines.extend(fields(
        "Memory",
        &format!(
            "{} total, {} available, {} free, {} on THP; swap {} of {}",
            size(memory.total),
            size(memory.available),
            size(memory.free),
            size(memory.anon_huge),
            size(memory.swap_total.saturating_sub(memory.swap_free)),
            size(memory.swap_total),
        ),
        width,
    ));
    lines.extend(fields("Pools", &pools(&machine.pools), width));
    lines.extend(nodes(top, width));
    if let Some(settings) = &machine.thp {
        lines.extend(fields("THP", &thp(settings), width));
    }
    lines.extend(fields("Per second", &rates(top), width));
    if let Some(pressure) = &machine.pressure {
        lines.extend(fields(
            "Pressure",
            &format!(
                "waits for memory: some task {} % of 10 s, {} % of 60 s; all tasks {} % of 10 s",
                two(pressure.some_10s),
                two(pressure.some_60s),
                two(pressure.full_10s),
            ),
            width,
        ));
    }
    lines.extend(fields("Sampling", &sampling(top), width));
    if let Some(seen) = top.daemon {
        lines.extend(fields("Daemon", &daemon::status(&seen.status), width));
        let decided = daemon::decisions(&seen.decisions, decisions, width - FIELD);
        let names = std::iter::once("Decided").chain(std::iter::repeat(""));
        lines.extend(names.zip(decided).map(|(name, text)| field(name, text)));
    }
    lines
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn pools(pools: &[Pool]) -> String {
    let text = |pool: &Pool| match pool.total {
        0 => format!("{} none", pool.page_size),
        total => format!(
            "{}: {total} pages, {} free, {} reserved, {} available",
            pool.page_size,
            pool.free,
            pool.reserved,
            pool.available()
        ),
    };
    match pools {
        [] => "this kernel has none".into(),
        pools => pools.iter().map(text).collect::<Vec<_>>().join("; "),
    }
}

/// Most NUMA nodes that have a line each.
const MOST_NODES: usize = 4;

/// Returns one line for each node, or one for all if there are more than [`MOST_NODES`].
fn nodes(top: &Top<'_>, width: usize) -> Vec<Line> {
    let nodes = &top.machine.nodes;
    let text = |free: Bytes, huge: u64, fragmentation: String| {
        format!("{} free, {huge} pages of 2 MiB at once, fragmentation {fragmentation}", size(free))
    };
    let number = |fragmentation: Option<f64>| fragmentation.map_or_else(|| "-".into(), two);
    if nodes.len() <= MOST_NODES {
        let line = |node: &megapage_snapshot::Node| {
            let text = text(node.free, node.huge_available, number(node.fragmentation));
            fields(&format!("Node {}", node.node), &text, width)
        };
        return nodes.iter().flat_map(line).collect();
    }
    let worst = nodes.iter().filter_map(|node| node.fragmentation).max_by(f64::total_cmp);
    let free = nodes.iter().map(|node| node.free).sum();
    let huge = nodes.iter().map(|node| node.huge_available).sum();
    let worst = format!("{} at most", number(worst));
    fields("Nodes", &format!("{}: {}", nodes.len(), text(free, huge, worst)), width)
}

fn thp(settings: &ThpSettings) -> String {
    let huge = settings.anonymous(PageSize::HUGE_2M);
    let shared = settings.shared(PageSize::HUGE_2M);
    let khugepaged = settings.khugepaged.map_or_else(String::new, |khugepaged| {
        format!(
            "; khugepaged scans {} pages in {}",
            khugepaged.pages_to_scan,
            time(khugepaged.scan_sleep_ms as f64 / 1000.0)
        )
    });
    format!("2m anonymous {huge}, shared {shared}; defrag {}{khugepaged}", settings.defrag)
}

/// Kernel counters of huge pages: the counter, its name here, and if it is also shown at zero.
const RATES: [(&str, &str, bool); 9] = [
    ("thp_fault_alloc", "THP faults", true),
    ("thp_fault_fallback", "fell back", true),
    ("thp_collapse_alloc", "collapses", true),
    ("thp_collapse_alloc_failed", "collapses failed", false),
    ("thp_split_page", "splits", true),
    ("thp_swpout", "swapped out", false),
    ("compact_stall", "compactions", true),
    ("compact_fail", "compactions failed", false),
    ("pgmajfault", "major page faults", false),
];

fn rates(top: &Top<'_>) -> String {
    let Some(rates) = &top.rates_per_second else { return "from the second refresh on".into() };
    let shown = RATES.iter().filter_map(|(counter, name, always)| {
        let rate = *rates.get(counter)?;
        let text = || format!("{name} {}", count((rate * 10.0).round() / 10.0));
        (*always || rate > 0.0).then(text)
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "this kernel counts no THP".into() } else { shown.join(", ") }
}

fn sampling(top: &Top<'_>) -> String {
    let Some(sampling) = top.sampling else { return "none: coverage is not known".into() };
    match sampling.tracker.tells_accesses() {
        true => format!(
            "{} tracker, slows a process by {} % at most; a first access costs {} ns",
            sampling.tracker.name(),
            percent(sampling.budget),
            sampling.first_access_ns.round(),
        ),
        false => format!("none: {}; coverage is not known", crate::tells_use_alone(sampling)),
    }
}

fn columns_line(head: &Head, columns: &Columns) -> Line {
    let mut line = Line::new();
    for (at, (column, width)) in columns.shown().enumerate() {
        if at > 0 {
            line.push(Style::HEAD, " ");
        }
        let style = Style { bold: column.key == Some(head.key), ..Style::HEAD };
        line.push(style, column.placed(column.title, width));
    }
    line
}

fn row_line(row: &Row, columns: &Columns) -> Line {
    let rest = if row.missed.is_some() { Style::DIM } else { Style::PLAIN };
    let mut line = Line::new();
    for (at, (column, width)) in columns.shown().enumerate() {
        let style = match column.key {
            Some(Key::Name) => Style::BOLD,
            Some(Key::Pid) => Style::PLAIN,
            _ => rest,
        };
        if at > 0 {
            line.push(rest, " ");
        }
        line.push(style, column.cell(row, width));
    }
    line
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// Returns the meaning of the marks that are shown, and the processes that could not be observed.
fn note_lines(top: &Top<'_>, head: &Head, columns: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let marks = [
        (CostSource::Measured, "m measured"),
        (CostSource::Estimated, "e estimated"),
        (CostSource::Tried, "t tried"),
    ];
    let shown = |source| top.processes.iter().any(|row| row.translation.is_some_and(|c| c.source == source));
    let marks: Vec<&str> =
        marks.into_iter().filter(|(source, _)| shown(*source)).map(|(_, mark)| mark).collect();
    if !marks.is_empty() {
        let text =
            format!("COST%: share of cycles that translation takes, with its interval; {}", marks.join(", "));
        lines.extend(wrap(CALM, &text, columns.max(LEAST_WRAP)));
    }
    let is_denied = |missed: &&Missed| missed.why == MissedWhy::Denied;
    let denied: Vec<&Missed> = top.missed.iter().filter(is_denied).collect();
    let mut notes = Vec::new();
    match denied[..] {
        [] => {}
        [one] => notes.push(one.what.clone()),
        [first, ..] => notes.push(format!("{} processes are denied to us; {}", denied.len(), first.what)),
    }
    let others = top.missed.iter().filter(|missed| !is_denied(missed));
    notes.extend(others.take(MOST_NOTES).map(|missed| missed.what.clone()));
    notes.extend(head.notes.iter().cloned());
    for note in notes {
        lines.extend(wrap(CALM, &note, columns.max(LEAST_WRAP)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use megapage_snapshot::{Missed, MissedWhy, Outline, Snapshot, TrackerKind};
    use megapage_units::Pid;

    fn two() -> (Snapshot, Snapshot, Outline) {
        let mut idle = synthetic::process(12, "a-name-of-many-letters\u{1b}[2J");
        synthetic::map(
            &mut idle,
            0x7000_0000_0000,
            3,
            megapage_snapshot::MappingKind::Anonymous,
            "",
            |_, _| (),
        );
        synthetic::sum_up(&mut idle);
        let before = synthetic::snapshot(vec![synthetic::store(), idle]);
        let mut now = before.clone();
        now.taken += Duration::from_secs(3);
        *now.machine.counters.get_mut("thp_fault_alloc").unwrap() += 100;
        now.processes[0].backing.thp += Bytes::mib(24);
        let denied = "process 99 belongs to another user".to_string();
        now.missed.push(Missed { pid: Pid(99), why: MissedWhy::Denied, what: denied });
        let outline = Outline {
            pid: Pid(99),
            name: "postgres".into(),
            uid: 107,
            user: Some("postgres".into()),
            cgroup: "/system.slice/system-postgresql.slice/postgresql@15-main.service".into(),
            pod_name: None,
            rss: Bytes::mib(700),
            hugetlb: Bytes::ZERO,
            swap: Bytes::ZERO,
        };
        (before, now, outline)
    }

    fn head() -> Head {
        Head { every: Some(Duration::from_secs(3)), ..synthetic::head(Key::Resident) }
    }

    #[test]
    fn the_table_looks_as_before() {
        let (before, now, outline) = two();
        let top = Top::new(Some(&before), &now, &[outline]);
        let text = table(&top, &head(), 100);
        let cut = machine_lines(&top, &head(), 6, 100).into_iter().chain(note_lines(
            &top,
            &head(),
            usize::from(WIDTH),
        ));
        assert!(cut.into_iter().all(|line| line.width() <= usize::from(WIDTH)), "nothing is cut off: {text}");
        synthetic::assert_golden("top.txt", &text);
        synthetic::assert_golden("top.json", &(crate::json(crate::top::SCHEMA, &top) + "\n"));
    }

    #[test]
    fn a_tracker_that_clears_nothing_slows_nobody() {
        let (_, mut now, _) = two();
        let sampling = now.sampling.as_mut().unwrap();
        sampling.tracker = TrackerKind::Pagemap;
        sampling.skipped = vec![(TrackerKind::Bpf, "it takes CAP_BPF; run as root".into())];
        now.processes.iter_mut().for_each(|process| process.sampling = None);
        let text = table(&Top::new(None, &now, &[]), &head(), 100);
        assert!(!text.contains("slows") && !text.contains("first access"), "{text}");
        assert!(text.contains("Sampling   none: ") && text.contains("run as root"), "{text}");
        let map = crate::map::Map::new(&now, Pid(4711)).unwrap();
        let text = crate::map::text(&map, Paint::Plain);
        assert!(!text.contains("cleared") && text.contains("Not sampled: "), "{text}");
    }

    #[test]
    fn few_nodes_have_a_line_each_and_many_have_one() {
        let (_, mut now, _) = two();
        let first = now.machine.nodes[0].clone();
        let add = |node| megapage_snapshot::Node { node, fragmentation: Some(0.5), ..first.clone() };
        now.machine.nodes.push(add(1));
        let text = table(&Top::new(None, &now, &[]), &head(), 100);
        assert!(text.contains("Node 0     3G free") && text.contains("Node 1     3G free"), "{text}");
        now.machine.nodes.extend((2..5).map(add));
        let text = table(&Top::new(None, &now, &[]), &head(), 100);
        assert!(
            text.contains("5: 15G free, 2060 pages of 2 MiB at once, fragmentation 0.50 at most"),
            "{text}"
        );
        assert!(text.contains("from the second refresh on"), "{text}");
    }

    #[test]
    fn a_screen_never_has_more_lines_than_the_terminal() {
        let (before, now, outline) = two();
        let top = Top::new(Some(&before), &now, &[outline]);
        for lines in 0..40 {
            for (first, columns) in [(0, 80), (2, 20), (50, 100)] {
                let page = Page { first, lines, columns };
                assert!(screen(&top, &head(), page, Prompt::Keys).len() <= lines);
            }
        }
        let text = line::show(
            &screen(&top, &head(), Page { first: 1, lines: 30, columns: 132 }, Prompt::Keys),
            Paint::Plain,
            132,
        );
        assert!(!text.contains("redis-server") && text.contains("postgres"), "{text}");
        assert!(text.contains("a-name-of-many-lette…"), "{text}");
        assert_eq!(text.lines().count(), 30);
    }

    #[test]
    fn nothing_of_the_head_is_cut_on_a_narrow_terminal() {
        let (before, now, outline) = two();
        let top = Top::new(Some(&before), &now, &[outline]);
        for columns in [60, 80, 200] {
            let width = columns.min(usize::from(WIDTH));
            let lines = machine_lines(&top, &head(), 6, columns);
            assert!(lines.iter().all(|line| line.width() <= width), "{columns}");
            let text = line::show(&lines, Paint::Plain, columns);
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words.join(" ").contains("pages in 10s"), "{text}");
            let all = table(&top, &head(), columns);
            assert!(all.lines().all(|line| line.chars().count() <= columns), "{all}");
            assert!(Prompt::Keys.line(columns).width() <= columns);
        }
    }

    #[test]
    fn a_filter_that_is_typed_is_in_the_last_line() {
        let (_, now, _) = two();
        let top = Top::new(None, &now, &[]);
        let page = Page { first: 0, lines: 24, columns: 80 };
        let last = |prompt| screen(&top, &head(), page, prompt).last().unwrap().show(Paint::Plain, 80);
        assert_eq!(last(Prompt::Filter("red", None)), "/red_   enter keep   esc drop");
        assert_eq!(last(Prompt::Filter("(", Some("not closed"))), "/(_   not closed");
        assert!(last(Prompt::Keys).starts_with("q quit  ? help  / filter"));
    }
}
