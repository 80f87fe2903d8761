//! The human form of a run's report.

use crate::table;
use crate::text::{counted, indented, or_dash};
use megapage_launch::kinds::Kind;
use megapage_launch::report::{
    Backed, Ended, FallBackCounts, HeapAccount, KindReport, Moment, RunReport, SharedAccount,
};
use megapage_launch::request::{Heap, Shm, Text};
use megapage_launch::text::{TextMechanism, TextReport};
use megapage_units::Bytes;
use std::collections::BTreeMap;

/// Most reasons in a line; JSON has all.
const MOST_REASONS: usize = 3;
/// Least shared memory that has a column: less than a huge page is no matter here.
const LEAST_SHARED: u64 = 2 << 20;

/// Returns the report as text of at most 100 columns.
pub fn text(report: &RunReport) -> String {
    let mut out = String::new();
    let mut line = |text: String| out += &indented(&text, 0);
    headline(report).into_iter().for_each(&mut line);
    line(format!("program: {} (pid {}, {})", report.program.path, report.program.pid, kind(report)));
    let text = match report.asked.text {
        Text::None => String::new(),
        text => format!(", text {}", text.name()),
    };
    let pool = report.asked.pool.as_ref().map_or(String::new(), |it| format!(", pool {it}"));
    let shm = match report.asked.shm {
        Shm::Auto => String::new(),
        shm => format!(", shared memory {}", shm.name()),
    };
    line(format!("asked: heap {}{pool}{shm}{text}", report.asked.heap.name()));
    for considered in &report.considered {
        let used = if considered.used { "used" } else { "not used" };
        line(format!("  {} {used}: {}", considered.mechanism, considered.reason));
    }
    if let Some(pool) = &report.pool {
        line(format!("  pool {}: {}", if pool.used { "used" } else { "not used" }, pool.reason));
    }
    if let Some(moments) = memory(report) {
        out.push('\n');
        out.push_str(&moments);
        out.push('\n');
    }
    let mut line = |text: String| out += &indented(&text, 0);
    if let Some(peak) = report.peak_rss_bytes {
        line(format!(
            "peak: {} resident by the kernel's mark, and {} of hugetlb pages as far as seen",
            Bytes(peak),
            Bytes(report.hugetlb_peak_bytes)
        ));
    }
    if let Some(others) = report.others_peak_rss_bytes {
        line(format!(
            "not seen: one of its children, or what the process was before an exec, had {} resident",
            Bytes(others)
        ));
    }
    for node in &report.by_node {
        line(format!(
            "node {}: {} of hugetlb pages, {} of other memory{}",
            node.node,
            Bytes(node.hugetlb_bytes),
            Bytes(node.other_bytes),
            if node.ran_here { "; the program ran there" } else { "" }
        ));
    }
    if let Some(totals) = &report.totals {
        line(format!(
            "time: {:.2} s elapsed, {:.2} s user, {:.2} s system; faults: {} minor, {} major",
            totals.elapsed_ms as f64 / 1e3,
            totals.user_ms as f64 / 1e3,
            totals.system_ms as f64 / 1e3,
            totals.minor_faults,
            totals.major_faults
        ));
    }
    if let Some(account) = &report.account {
        heap_account(account, &mut line);
    }
    if let Some(shm) = &report.shm {
        shared_account(shm, &mut line);
    }
    for refused in &report.hugetlb_requests_refused {
        line(format!(
            "the program's own requests for hugetlb pages: {} in {} were refused: {}: {}",
            Bytes(refused.bytes),
            refused.events,
            refused.reason,
            refused.explanation
        ));
    }
    if let Some(text) = &report.text {
        program_text(text, &mut line);
    }
    if let Some(promotion) = &report.promotion {
        line(format!(
            "promotion: {} of {} asked for, in {} calls and {:.1} ms; {} regions busy, {} not collapsible, {} \
             short of memory, {} shared with a child",
            Bytes(promotion.obtained_bytes),
            Bytes(promotion.asked_bytes),
            promotion.calls,
            promotion.elapsed_ns as f64 / 1e6,
            promotion.busy,
            promotion.not_collapsible,
            promotion.no_memory,
            promotion.shared
        ));
        if promotion.excluded_bytes > 0 {
            line(format!(
                "not asked for: {} that the program keeps on base pages (MADV_NOHUGEPAGE)",
                Bytes(promotion.excluded_bytes)
            ));
        }
    }
    if let Some(shared) = &report.shared_memory {
        line(format!(
            "shared memory: {} in memory, touched by any process; {} of it on huge pages in this process",
            Bytes(shared.resident_bytes),
            Bytes(shared.huge_bytes)
        ));
        for reason in &shared.reasons {
            line(format!("  {reason}"));
        }
    }
    if let Some(java) = &report.java {
        let version = java.version.map_or("of unknown release".into(), |version| version.to_string());
        line(format!(
            "Java {version}: heap of at most {}; from a pool it would take {} more for code and {} for tables",
            Bytes(java.max_heap_bytes),
            Bytes(java.code_and_classes_bytes),
            Bytes(java.tables_bytes.next_multiple_of(1 << 20))
        ));
    }
    for explained in &report.runtime_log {
        line(format!(
            "{} said, {}: {}",
            explained.program,
            counted(explained.times, "once", "times"),
            explained.line
        ));
        line(format!("  meaning: {}", explained.meaning));
        line(format!("  helps: {}", explained.remedy));
    }
    line(format!(
        "sampling: {} samples, {:.1} ms ({:.2} % of the run)",
        report.sampling.samples, report.sampling.cost_ms, report.sampling.cost_percent
    ));
    for note in &report.notes {
        line(format!("note: {note}"));
    }
    for missing in &report.not_obtained {
        line(format!("not obtained: {missing}"));
    }
    out
}

fn headline(report: &RunReport) -> Vec<String> {
    let state = match report.totals.map(|totals| totals.ended) {
        Some(Ended::Status(status)) => format!("status {status}"),
        Some(Ended::Signal(signal)) => format!("died of signal {signal}"),
        None if report.running => "running".into(),
        None => "ended".into(),
    };
    if report.asked.heap == Heap::None {
        let asked = match report.asked.text {
            Text::None => "no huge pages were asked for",
            _ => "huge pages were asked for the text alone",
        };
        let head = format!("megapage run: {state}; {asked}");
        return std::iter::once(head).chain(seen(report)).collect();
    }
    let (Some(peak), Some(end)) = (&report.peak, &report.end) else {
        return vec![format!(
            "megapage run: {state}; on huge pages, of all memory: unknown, none of it was seen"
        )];
    };
    let name = peak_name(peak);
    let both =
        |peak: Option<&Backed>, end: Option<&Backed>| format!("{name} {}, end {}", share(peak), share(end));
    let all = both(Some(&peak.resident), Some(&end.resident));
    let mut lines = vec![format!("megapage run: {state}; on huge pages, of all memory: {all}")];
    for kind in Kind::ALL {
        let (at_peak, at_end) = (peak.kinds.get(&kind), end.kinds.get(&kind));
        if at_peak.is_none() && at_end.is_none() {
            continue;
        }
        let shares = both(at_peak.map(|it| &it.memory), at_end.map(|it| &it.memory));
        lines.push(format!("  {}: {shares}{}", kind_name(kind), why_not_more([at_end, at_peak])));
    }
    lines.extend(seen(report));
    lines
}

/// Returns the share of the largest memory that the fullest sample shows, in words.
fn seen(report: &RunReport) -> Option<String> {
    let (peak, end) = (report.peak.as_ref()?, report.end.as_ref()?);
    Some(format!(
        "seen: {} of {} ({:.1} % of the peak); {}",
        Bytes(peak.resident.total_bytes),
        Bytes(peak.peak_bytes()),
        peak.peak_seen_percent,
        age(report, end)
    ))
}

/// Returns a kind of memory, in words.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Heap => "heap",
        Kind::OwnMappings => "own mappings",
        Kind::RuntimeHeap => "runtime heap",
        Kind::Shared => "shared memory",
        Kind::Files => "files",
        Kind::Text => "text",
        Kind::Stacks => "stacks",
    }
}

/// Returns the reasons why not more of a kind is on huge pages, at the moment when less of it was.
/// Empty if there are none.
fn why_not_more(moments: [Option<&KindReport>; 2]) -> String {
    let lacking = |it: &&KindReport| it.memory.base_bytes + it.memory.swapped_bytes;
    let kind = moments.into_iter().flatten().max_by_key(lacking);
    let reasons = kind.iter().flat_map(|kind| &kind.why_not_more).map(|it| match it.bytes {
        Some(bytes) => format!("{} {}", it.reason, Bytes(bytes)),
        None => it.reason.to_string(),
    });
    let reasons: Vec<String> = reasons.take(MOST_REASONS).collect();
    if reasons.is_empty() { String::new() } else { format!("; why not more: {}", reasons.join(", ")) }
}

/// Returns the share of memory on huge pages, and the total.
fn share(memory: Option<&Backed>) -> String {
    let Some((memory, percent)) = memory.and_then(|it| Some((it, it.huge_percent?))) else {
        return "none".into();
    };
    let total = Bytes(memory.total_bytes + memory.swapped_bytes);
    match memory.swapped_bytes {
        0 => format!("{percent:.1} % of {total}"),
        swapped => format!("{percent:.1} % of {total} ({} swapped out)", Bytes(swapped)),
    }
}

/// Returns the name of the fullest sample. It is not called the peak if it missed more than a
/// twentieth of the peak.
fn peak_name(peak: &Moment) -> &'static str {
    if peak.peak_seen_percent < 95.0 { "fullest sample" } else { "peak" }
}

/// Returns the age of the last sample, in words.
fn age(report: &RunReport, end: &Moment) -> String {
    match (report.end_is_final, report.running) {
        (true, true) => "the end is now, and the program runs on".to_string(),
        (true, false) => "the end is the exit of the program, by handshake".to_string(),
        (false, true) => format!("the end is {} ms ago", end.age_ms),
        (false, false) => format!("the end is the last sample, {} ms before the program ended", end.age_ms),
    }
}

fn kind(report: &RunReport) -> String {
    let mut words = vec![report.program.linkage.clone()];
    words.extend(report.program.runtime.map(String::from));
    words.extend(report.program.allocator.as_ref().map(|allocator| format!("malloc: {allocator}")));
    if report.program.executable != report.program.path {
        words.push(format!("run by {}", report.program.executable));
    }
    words.join(", ")
}

/// Returns the table of memory by backing, at the peak and at the end.
fn memory(report: &RunReport) -> Option<String> {
    let (peak, end) = (report.peak.as_ref()?, report.end.as_ref()?);
    let mut columns: Vec<(String, Backed)> = Vec::new();
    for (name, moment) in [(peak_name(peak), peak), ("end", end)] {
        columns.push((format!("all, {name}"), moment.resident));
        match moment.heap {
            Some(heap) => columns.push((format!("heap, {name}"), heap)),
            None => columns.push((format!("anonymous, {name}"), moment.anonymous)),
        }
        if let Some(shared) = moment.shared.filter(|shared| shared.total_bytes >= LEAST_SHARED) {
            columns.push((format!("shared, {name}"), shared));
        }
    }
    let header: Vec<&str> =
        std::iter::once("backing").chain(columns.iter().map(|(name, _)| name.as_str())).collect();
    type Value = fn(&Backed) -> u64;
    let kinds: [(&str, Value); 9] = [
        ("hugetlb 1 GiB", |it| it.hugetlb_1g_bytes),
        ("hugetlb 2 MiB", |it| it.hugetlb_2m_bytes),
        ("hugetlb other", |it| it.hugetlb_other_bytes),
        ("THP", |it| it.thp_bytes),
        ("shared, 2 MiB", |it| it.shmem_pmd_bytes),
        ("file, 2 MiB", |it| it.file_pmd_bytes),
        ("base pages", |it| it.base_bytes),
        ("sum", |it| it.total_bytes),
        ("swapped out", |it| it.swapped_bytes),
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (name, value) in kinds {
        // Leaves out a kind that occurs nowhere; base pages and the sum always appear.
        if matches!(name, "base pages" | "sum") || columns.iter().any(|(_, backed)| value(backed) > 0) {
            let cells = columns.iter().map(|(_, backed)| Bytes(value(backed)).to_string());
            rows.push(std::iter::once(name.to_string()).chain(cells).collect());
        }
    }
    let share = |backed: &Backed| or_dash(backed.huge_percent.map(|it| format!("{it:.1} %")));
    rows.push(std::iter::once("huge".into()).chain(columns.iter().map(|(_, it)| share(it))).collect());
    let mut text = table(&header, rows);
    let note = format!("(the kernel's values; the {} is {} ms after the start)", peak_name(peak), peak.at_ms);
    text += &indented(&note, 0);
    Some(text)
}

fn sizes(by_name: &BTreeMap<&'static str, u64>) -> String {
    let sizes = by_name.iter().filter(|(_, bytes)| **bytes > 0);
    let sizes: Vec<String> = sizes.map(|(name, bytes)| format!("{name} {}", Bytes(*bytes))).collect();
    if sizes.is_empty() { "nothing".into() } else { sizes.join(", ") }
}

fn fall_backs(what: &str, counts: &[FallBackCounts], line: &mut impl FnMut(String)) {
    for FallBackCounts { reason, bytes, events, explanation, .. } in counts {
        line(format!("{what} {reason}: {} in {events} requests: {explanation}", Bytes(*bytes)));
    }
}

fn heap_account(account: &HeapAccount, line: &mut impl FnMut(String)) {
    let held = sizes(&account.held_at_peak_bytes);
    line(format!(
        "heap's own account: at its peak it had asked for and held {held}; it gave {} back",
        Bytes(account.returned_bytes)
    ));
    line(format!(
        "zeroing: {} populated before use in {:.1} ms; pages zeroed in faults are in the system time",
        Bytes(account.populated_bytes),
        account.populate_ns as f64 / 1e6
    ));
    fall_backs("fall-back", &account.fall_backs, line);
    if account.last_errno != 0 {
        let error = std::io::Error::from_raw_os_error(account.last_errno);
        line(format!("last errno of a fall-back: {error}"));
    }
    if account.forks + account.forks_refused > 0 {
        line(format!(
            "forks: {} made, {} refused for want of huge pages; {} split by writes after them made huge again",
            account.forks,
            account.forks_refused,
            Bytes(account.repaired_bytes)
        ));
    }
}

fn shared_account(shm: &SharedAccount, line: &mut impl FnMut(String)) {
    let mapped = sizes(&shm.mapped_bytes);
    line(format!(
        "shared memory's own account: over the run it was mapped as {mapped}; {} were collapsed once full",
        Bytes(shm.collapsed_bytes)
    ));
    fall_backs("fall-back of shared memory", &shm.fall_backs, line);
}

fn program_text(text: &TextReport, line: &mut impl FnMut(String)) {
    for file in &text.files {
        let mechanism = file.mechanism.map_or("not used", TextMechanism::name);
        line(format!("text of {}: {mechanism}: {}", file.file.display(), file.reason));
        if file.mechanism.is_some() {
            let advised = match file.advised_bytes {
                0 => String::new(),
                bytes => format!(", {} of .bss when they are touched", Bytes(bytes)),
            };
            line(format!(
                "  {} of {} possible on huge pages{advised}; {} of its segments stay on base pages (fewer, linked by \
                 {})",
                Bytes(file.obtained_bytes),
                Bytes(file.possible_bytes),
                Bytes(file.left_bytes),
                file.linker
            ));
        }
    }
    if let (Some(moving), Some(pages)) = (text.moving_ms, text.pages_ms) {
        line(format!("  moved before main in {moving:.1} ms, {pages:.1} ms of it to get and zero the pages"));
    }
    if let Some(end) = &text.end {
        line(format!(
            "  resident at the end: {} on hugetlb pages, {} on THP, {} of files by 2 MiB entries, {} on base pages",
            Bytes(end.hugetlb_2m_bytes),
            Bytes(end.thp_bytes),
            Bytes(end.file_pmd_bytes + end.shmem_pmd_bytes),
            Bytes(end.base_bytes)
        ));
    }
}
