//! The table of `megapage top`, for a terminal of any size and for a pipe.

use super::columns::{CELLS, Columns, LAST, PID};
use super::{Key, Row, Top, daemon};
use crate::WIDTH;
use crate::line::{self, Line, Paint, Style, wrap};
use crate::value::{change, count, fit, percent, size, time};
use megapage_snapshot::thp::ThpSettings;
use megapage_snapshot::{CostSource, Missed, MissedWhy, PAGES, Pool, TranslationCost};
use megapage_units::shown::one_line;
use megapage_units::{Bytes, PageSize};
use std::time::Duration;

/// Decisions of the daemon that are shown, at most.
const MOST_DECISIONS: usize = 6;
/// On a terminal, one line of so many may be a decision.
const LINES_TO_A_DECISION: usize = 6;
/// What a line about the machine is called has so many columns.
const FIELD: usize = 11;
const CALM: Style = Style::DIM;

/// Notes are not broken to fewer columns than this: they would leave no line for the processes.
const LEAST_WRAP: usize = 60;
/// Where a terminal is small, one of so many of its lines, and at least so many, are processes, if there are as many:
/// notes and what is left out of the machine's lines make room, these first.
const LINES_TO_A_PROCESS: usize = 3;
const LEAST_PROCESSES: usize = 6;
const LEFT_OUT_FIRST: [&str; 7] = ["Sampling", "Pools", "Node", "THP", "Per second", "Pressure", "Decided"];
/// Processes that are listed with the reason why they could not be observed.
const MOST_NOTES: usize = 3;

/// How the table is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is sorted by.
    pub key: Key,
    /// Whether least comes first.
    pub reverse: bool,
    /// The time between two refreshes; `None` where there is only one.
    pub every: Option<Duration>,
    /// Whether each NUMA node has a line of its own.
    pub numa: bool,
    /// What else is to be said, one line each.
    pub notes: Vec<String>,
}

/// The part of the table that a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The first process, from 0.
    pub first: usize,
    /// Lines of the terminal.
    pub lines: usize,
    /// Columns of the terminal.
    pub columns: usize,
}

/// The whole table as plain text, at most [`WIDTH`] columns wide.
pub fn table(top: &Top<'_>, head: &Head) -> String {
    let width = usize::from(WIDTH);
    let columns = Columns::of(top, head.key, width);
    let mut lines = machine_lines(top, head, MOST_DECISIONS, width);
    lines.push(Line::new());
    lines.push(columns_line(head, &columns));
    lines.extend(top.processes.iter().map(|row| row_line(row, &columns)));
    lines.extend(note_lines(top, head, width));
    line::show(&lines, Paint::Plain, width)
}

/// As many lines as the terminal has, at most: the machine, then the processes from `page.first` on, then the keys.
pub fn screen(top: &Top<'_>, head: &Head, page: Page) -> Vec<Line> {
    let columns = Columns::of(top, head.key, page.columns);
    let decisions = (page.lines / LINES_TO_A_DECISION).min(MOST_DECISIONS);
    let mut lines = machine_lines(top, head, decisions, page.columns);
    let mut notes = note_lines(top, head, page.columns);
    // Beside the processes: an empty line, their head, the keys.
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
    let keys = Line::of(CALM, "q quit   ← → sort by   r reverse   n nodes   ↑ ↓ scroll   space refresh");
    let room = page.lines.saturating_sub(lines.len() + notes.len() + 1);
    let rows = top.processes.iter().skip(page.first).take(room);
    lines.extend(rows.map(|row| row_line(row, &columns)));
    let used = lines.len() + notes.len() + 1;
    lines.extend((used..page.lines).map(|_| Line::new()));
    lines.extend(notes);
    lines.push(keys);
    lines.truncate(page.lines);
    lines
}

/// Takes the lines of a name away, with those that go on with it.
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

fn field(name: &str, text: impl AsRef<str>) -> Line {
    Line::of(Style::BOLD, format!("{name:<FIELD$}")).with(Style::PLAIN, text)
}

/// As [`field`], with further lines where the text is too long for one.
fn fields(name: &str, text: &str, width: usize) -> Vec<Line> {
    let lines = wrap(Style::PLAIN, text, width - FIELD);
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    names.zip(lines).map(|(name, line)| field(name, line.show(Paint::Plain, usize::MAX))).collect()
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
    let mut lines = vec![field("megapage", first)];
    lines.push(field(
        "Memory",
        format!(
            "{} total, {} available, {} free, {} on THP; swap {} of {}",
            size(memory.total),
            size(memory.available),
            size(memory.free),
            size(memory.anon_huge),
            size(memory.swap_total.saturating_sub(memory.swap_free)),
            size(memory.swap_total),
        ),
    ));
    lines.push(field("Pools", pools(&machine.pools)));
    lines.extend(nodes(top, head));
    if let Some(settings) = &machine.thp {
        lines.push(field("THP", thp(settings)));
    }
    lines.extend(fields("Per second", &rates(top), width));
    if let Some(pressure) = &machine.pressure {
        lines.push(field(
            "Pressure",
            format!(
                "waits for memory: some task {} % of 10 s, {} % of 60 s; all tasks {} % of 10 s",
                two(pressure.some_10s),
                two(pressure.some_60s),
                two(pressure.full_10s),
            ),
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

/// One line for each node where they are asked for or there is but one; else one for all.
fn nodes(top: &Top<'_>, head: &Head) -> Vec<Line> {
    let nodes = &top.machine.nodes;
    let text = |free: Bytes, huge: u64, fragmentation: String| {
        format!("{} free, {huge} pages of 2 MiB at once, fragmentation {fragmentation}", size(free))
    };
    let number = |fragmentation: Option<f64>| fragmentation.map_or_else(|| "-".into(), two);
    if head.numa || nodes.len() == 1 {
        let line = |node: &megapage_snapshot::Node| {
            let text = text(node.free, node.huge_available, number(node.fragmentation));
            field(&format!("Node {}", node.node), text)
        };
        return nodes.iter().map(line).collect();
    }
    let worst = nodes.iter().filter_map(|node| node.fragmentation).max_by(f64::total_cmp);
    let free = nodes.iter().map(|node| node.free).sum();
    let huge = nodes.iter().map(|node| node.huge_available).sum();
    let worst = format!("{} at most", number(worst));
    vec![field("Nodes", format!("{}: {}", nodes.len(), text(free, huge, worst)))]
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

/// How huge pages fare, by the kernel's counters: the counter, its name here, and whether it is shown at zero, too.
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
    let mut text = match sampling.tracker.tells_accesses() {
        true => format!(
            "{} tracker, slows a process by {} % at most; a first access costs {} ns",
            sampling.tracker.name(),
            percent(sampling.budget),
            sampling.first_access_ns.round(),
        ),
        false => format!("none: {}; coverage is not known", crate::tells_use_alone(sampling)),
    };
    if let Some(access) = &sampling.machine_access {
        let [accessed, examined] = [access.accessed, access.examined].map(size);
        let interval = time(access.interval.as_secs_f64());
        text += &format!("; the machine: {accessed} of {examined} accessed in {interval}");
    }
    text
}

fn columns_line(head: &Head, columns: &Columns) -> Line {
    let style = |key: Key| {
        if key == head.key { Style { bold: true, ..Style::HEAD } } else { Style::HEAD }
    };
    let name = columns.name;
    let mut line = Line::of(style(Key::Pid), format!("{:>PID$}", "PID"));
    line.push(Style::HEAD, " ");
    line.push(style(Key::Name), format!("{:<name$}", "NAME"));
    for (_, (title, width, key)) in columns.cells() {
        line.push(Style::HEAD, " ");
        line.push(style(key), format!("{title:>width$}"));
    }
    for (title, _) in columns.last(None) {
        line.push(Style::HEAD, format!(" {title:>LAST$}"));
    }
    line
}

fn row_line(row: &Row, columns: &Columns) -> Line {
    let name = columns.name;
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells: [String; CELLS.len()] = [
        size(Bytes(row.resident_bytes)),
        known(row.huge_share.map(percent)),
        known(row.coverage.map(|coverage| percent(coverage / f64::from(PAGES)))),
        known(row.translation.as_ref().map(cost)),
        known(row.bloat_bytes.map(|bytes| bloat(bytes, row.bloat_share))),
        known(row.huge_change_bytes.map(change)),
        size(Bytes(row.swap_bytes)),
    ];
    let mut line = Line::of(Style::PLAIN, format!("{:>PID$} ", row.pid));
    line.push(Style::BOLD, format!("{:<name$}", fit(&one_line(&row.name), name)));
    let style = if row.missed.is_some() { Style::DIM } else { Style::PLAIN };
    for (at, (_, width, _)) in columns.cells() {
        line.push(style, format!(" {:>width$}", cells[at]));
    }
    for (_, text) in columns.last(Some(row)) {
        line.push(style, format!(" {text:>LAST$}"));
    }
    line
}

/// `12.3 m 10.0-15.1`: the share, its mark (measured, estimated, tried), the interval.
fn cost(cost: &TranslationCost) -> String {
    let mark = match cost.source {
        CostSource::Measured => 'm',
        CostSource::Estimated => 'e',
        CostSource::Tried => 't',
    };
    let [share, low, high] = [cost.share, cost.low, cost.high].map(percent);
    format!("{share} {mark} {low}-{high}")
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// `>17M` where not all was scanned.
fn bloat(bytes: u64, scanned: Option<f64>) -> String {
    let more = if scanned.is_some_and(|share| share < 1.0) { ">" } else { "" };
    format!("{more}{}", size(Bytes(bytes)))
}

/// What the values' marks mean, where one is shown, and who could not be observed.
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
        lines.push(Line::of(CALM, text));
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
            rss: Bytes::mib(700),
            hugetlb: Bytes::ZERO,
            swap: Bytes::ZERO,
        };
        (before, now, outline)
    }

    fn head() -> Head {
        Head {
            key: Key::Resident,
            reverse: false,
            every: Some(Duration::from_secs(3)),
            numa: false,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_table_looks_as_before() {
        let (before, now, outline) = two();
        let top = Top::new(Some(&before), &now, &[outline]);
        let text = table(&top, &head());
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
        let text = table(&Top::new(None, &now, &[]), &head());
        assert!(!text.contains("slows") && !text.contains("first access"), "{text}");
        assert!(text.contains("Sampling   none: ") && text.contains("run as root"), "{text}");
        let map = crate::map::Map::new(&now, Pid(4711)).unwrap();
        let text = crate::map::text(&map, Paint::Plain);
        assert!(!text.contains("cleared") && text.contains("Not sampled: "), "{text}");
    }

    #[test]
    fn several_nodes_are_one_line_unless_asked_for() {
        let (_, mut now, _) = two();
        let mut second = now.machine.nodes[0].clone();
        (second.node, second.fragmentation) = (1, Some(0.5));
        now.machine.nodes.push(second);
        let top = Top::new(None, &now, &[]);
        let text = table(&top, &head());
        assert!(
            text.contains("2: 6G free, 824 pages of 2 MiB at once, fragmentation 0.50 at most"),
            "{text}"
        );
        let text = table(&top, &Head { numa: true, ..head() });
        assert!(text.contains("Node 0     3G free") && text.contains("Node 1     3G free"), "{text}");
        assert!(text.contains("from the second refresh on"), "{text}");
    }

    #[test]
    fn a_screen_never_has_more_lines_than_the_terminal() {
        let (before, now, outline) = two();
        let top = Top::new(Some(&before), &now, &[outline]);
        for lines in 0..40 {
            for (first, columns) in [(0, 80), (2, 20), (50, 100)] {
                let page = Page { first, lines, columns };
                assert!(screen(&top, &head(), page).len() <= lines);
            }
        }
        let text =
            line::show(&screen(&top, &head(), Page { first: 1, lines: 30, columns: 132 }), Paint::Plain, 132);
        assert!(!text.contains("redis-server") && text.contains("postgres"), "{text}");
        assert!(text.contains("a-name-of-many-letters?[2J"), "{text}");
        assert_eq!(text.lines().count(), 30);
    }
}
