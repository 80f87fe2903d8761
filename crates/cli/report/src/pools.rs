//! Pools of hugetlb pages: their state, their sizing, their files for a reboot, and the broker's
//! stock.

use crate::text::{cells, indented, lines, or_dash};
use crate::{shown_path, table};
use megapage_act::pool::persist::{Edit, PersistPlan};
use megapage_act::pool::{MemoryImpact, Outcome, Shortfall, title};
use megapage_broker::Status;
use megapage_observe::pools::{PoolReport, Pools};
use megapage_units::Bytes;

/// Returns the tables of pools, their users and their limits.
pub fn list(pools: &Pools) -> String {
    let mut text = String::new();
    if pools.pools.is_empty() {
        text += "This kernel has no hugetlb pools.\n";
    } else {
        text += &pool_table(pools);
    }
    if let (Some(available), Some(total)) = (pools.memory_available, pools.memory_total) {
        text +=
            &format!("\nMemory: {available} available of {total}, free pages of the pools not counted.\n");
    }
    if let Some(size) = &pools.default_page_size {
        text += &format!("Default size: {size}\n");
    }
    text += &users(pools);
    text += &limits(pools);
    text
}

fn pool_table(pools: &Pools) -> String {
    let row = |size: String, place: String, memory: Bytes, counts: &PoolReport| {
        cells![
            size,
            place,
            counts.total,
            counts.free,
            or_dash(counts.reserved),
            or_dash(counts.available),
            counts.surplus,
            counts.persistent,
            or_dash(counts.overcommit),
            memory,
        ]
    };
    let mut rows = Vec::new();
    for pool in &pools.pools {
        let memory = |counts: &PoolReport| Bytes(counts.total.saturating_mul(pool.page_size.bytes().0));
        let size = pool.page_size.to_string();
        rows.push(row(size.clone(), "machine".into(), memory(&pool.machine), &pool.machine));
        for node in &pool.nodes {
            let place = format!("node {}", node.node);
            rows.push(row(size.clone(), place, memory(&node.counts), &node.counts));
        }
    }
    let header: Vec<&str> =
        "SIZE WHERE TOTAL FREE RESERVED AVAILABLE SURPLUS PERSISTENT OVERCOMMIT MEMORY".split(' ').collect();
    table(&header, rows)
}

/// Adds a titled table, unless it has no rows.
fn section<T, const N: usize>(
    text: &mut String,
    title: &str,
    header: &[&str],
    rows: &[T],
    row: impl Fn(&T) -> [String; N],
) {
    if !rows.is_empty() {
        *text += &format!("\n{title}\n{}", table(header, rows.iter().map(row)));
    }
}

fn users(pools: &Pools) -> String {
    let mut text = String::new();
    let header = ["PID", "COMMAND", "USER", "SIZE", "BY", "MAPPED", "PRESENT", "NAME"];
    section(&mut text, "Processes", &header, &pools.processes, |it| {
        cells![it.pid, it.command, it.uid, it.page_size, it.kind.name(), it.mapped, it.present, it.name]
    });
    let header = ["NAME", "SIZE", "LENGTH", "ALLOCATED", "OPEN IN"];
    section(&mut text, "Memory files", &header, &pools.memory_files, |file| {
        let open_in: Vec<String> = file.open_in.iter().map(ToString::to_string).collect();
        cells![file.name.display(), file.page_size, file.length, file.allocated, open_in.join(" ")]
    });
    let title = "System V segments (unattached ones may be on base pages: the kernel does not say)";
    let header = ["ID", "KEY", "USER", "SIZE", "LENGTH", "ATTACHED"];
    section(&mut text, title, &header, &pools.segments, |it| {
        let size = it.page_size.as_deref().unwrap_or("not known");
        cells![it.id, format!("{:#010x}", it.key), it.uid, size, it.length, it.attached]
    });
    let header = ["MOUNT", "SIZE", "LIMIT", "MODE", "USER", "GROUP"];
    section(&mut text, "Mounts", &header, &pools.mounts, |it| {
        let limit = it.size.map_or("none".to_string(), |size| size.to_string());
        cells![it.point.display(), it.page_size, limit, it.mode, it.uid, it.gid]
    });
    let header = ["FILE", "SIZE", "LENGTH", "ALLOCATED", "USER"];
    section(&mut text, "Files", &header, &pools.files, |file| {
        cells![file.path.display(), file.page_size, file.length, file.allocated, file.uid]
    });
    if pools.files_left_out {
        text += "There are more files than are listed.\n";
    }
    if pools.unreadable_processes > 0 {
        text += &format!(
            "\nProcesses that may not be read, and are not listed: {}\n",
            pools.unreadable_processes
        );
    }
    text
}

fn limits(pools: &Pools) -> String {
    let mut text = String::new();
    let of = |used: Bytes, limit: Option<Bytes>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => format!("{used}, no limit"),
    };
    let title = "Control group limits on this process";
    section(&mut text, title, &["GROUP", "SIZE", "TOUCHED", "MAPPED"], &pools.limits, |limit| {
        let touched = of(limit.touched_bytes, limit.touched_limit_bytes);
        let mapped = of(limit.mapped_bytes, limit.mapped_limit_bytes);
        cells![limit.group.display(), limit.page_size, touched, mapped]
    });
    if pools.limits_hidden {
        text += "\nLimits of control groups further up may apply without being visible here.\n";
    }
    text
}

/// Returns the sentence about the available memory after a sizing.
pub fn memory(memory: &MemoryImpact) -> String {
    format!(
        "Memory: {} available of {}; {} would stay available (safe floor {}).",
        memory.available, memory.total, memory.available_after, memory.floor
    )
}

/// Returns the shell lines that do the same as a sizing.
pub fn dry_run(outcome: &Outcome) -> String {
    let none = if outcome.commands.is_empty() { "# Every value is already as requested.\n" } else { "" };
    format!("# {}\n{none}{}", memory(&outcome.memory), lines(&outcome.commands))
}

/// Returns the result of a sizing, and the reasons for a shortfall.
pub fn set(outcome: &Outcome) -> String {
    let mut text = table(
        &["POOL", "BEFORE", "REQUESTED", "OBTAINED", "SHORT"],
        outcome.steps.iter().map(|step| {
            // After a rollback, the shortfall is that of the attempt, not of the pools as they are
            // now.
            let missing = if outcome.rolled_back { "-".to_string() } else { step.missing().to_string() };
            cells![title(&step.step), step.step.before, step.step.asked, or_dash(step.obtained), missing]
        }),
    );
    for step in outcome.steps.iter().filter(|step| step.step.becomes_surplus > 0) {
        text += &format!(
            "{} pages of {} that are in use became surplus: the kernel takes them back when they are freed.\n",
            step.step.becomes_surplus,
            title(&step.step)
        );
    }
    let mut work = Vec::new();
    if outcome.compacted {
        work.push("compacted memory");
    }
    if outcome.dropped_caches {
        work.push("dropped caches");
    }
    if !work.is_empty() {
        text += &format!(
            "Worked on the shortfall for {:.1} s: {}.\n",
            outcome.elapsed.as_secs_f64(),
            work.join(", ")
        );
    }
    if let Some(shortfall) = &outcome.shortfall {
        text += &explain(outcome, shortfall);
    }
    text
}

fn explain(outcome: &Outcome, shortfall: &Shortfall) -> String {
    let mut text = String::new();
    for missing in &shortfall.missing {
        let asked = outcome.steps.iter().find(|step| title(&step.step) == missing.pool);
        let asked = asked.map_or(0, |step| step.step.asked);
        let sentence = format!(
            "{}: requested {asked}, obtained {}; {} short because {}.",
            missing.pool,
            asked - missing.pages,
            missing.pages,
            missing.because
        );
        text += &indented(&sentence, 2);
        text += "Remedies:\n";
        for help in &missing.help {
            text += &indented(&format!("  - {help}"), 2);
        }
    }
    let Some(unmovable) = &shortfall.unmovable else { return text };
    text += "Processes with most unmovable memory:\n";
    text += &table(
        &["PID", "COMMAND", "UNMOVABLE", "PINNED", "PAGE TABLES", "KERNEL STACKS", "LOCKED"],
        unmovable.holders.iter().map(|holder| {
            cells![
                holder.pid,
                holder.command,
                holder.sum,
                holder.pinned,
                holder.page_tables,
                holder.kernel_stacks,
                holder.locked,
            ]
        }),
    );
    let say = |bytes: Option<Bytes>| bytes.map_or("not known".to_string(), |bytes| bytes.to_string());
    let sentence = format!(
        "Of no process: slab {} (and {} reclaimable), per-CPU data {}.",
        say(unmovable.slab_unreclaimable),
        say(unmovable.slab_reclaimable),
        say(unmovable.percpu)
    );
    text + &indented(&sentence, 2)
}

/// Returns the changes to the files that keep pools over a reboot, or the shell lines for them.
pub fn kept(plan: &PersistPlan, applied: bool) -> String {
    let mut text = if plan.is_no_op() {
        "# Every file is already as requested.\n".to_string()
    } else if applied {
        let edits = plan.edits.iter().filter(|edit| !edit.is_no_op());
        lines(edits.map(|edit| format!("{} {}", verb(edit), shown_path(&edit.path))))
    } else {
        "# Nothing is changed without --apply. The equivalent shell lines:\n".to_string()
            + &lines(&plan.commands)
    };
    text += &lines(plan.warnings.iter().map(|warning| format!("# Warning: {warning}.")));
    text += &lines(plan.notes.iter().map(|note| format!("# Note: {note}.")));
    if !plan.next.is_empty() {
        text += &format!("# To take effect: {}\n", plan.next.join("; "));
    }
    text
}

fn verb(edit: &Edit) -> &'static str {
    match (&edit.before, &edit.after) {
        (_, None) => "removed",
        (None, _) => "wrote",
        _ => "changed",
    }
}

/// Returns the state of a broker's stock.
pub fn stock(status: &Status) -> String {
    let size = Bytes(status.page_bytes);
    let mut text = format!(
        "{} of {} pages of {size} are ready, in extents of {}; {} were added to the pool.\n",
        status.ready_pages, status.stock_pages, status.extent_pages, status.added_pages
    );
    let quota =
        status.quota_bytes.map_or("no quota".to_string(), |quota| format!("{} for each user", Bytes(quota)));
    text += &format!("At most {} cleared in a second; {quota}.\n", Bytes(status.rate_bytes));
    text += match status.waits.as_deref() {
        Some("memory-pressure") => "Paused: tasks wait for memory.\n",
        Some(_) => "Paused: the pool has no pages to spare; 'megapage pool set' adds some, or --grow.\n",
        None if !status.watches_pressure => {
            "Ignores memory pressure: the kernel has no PSI, or --ignore-pressure is set.\n"
        }
        None => "",
    };
    if status.given_back_pages > 0 {
        text += &format!(
            "{} more were released under memory pressure, until it ends.\n",
            status.given_back_pages
        );
    }
    let refused: u64 = status.refused.values().sum();
    text += &format!(
        "{} extents handed out, {} of them returned; {refused} requests refused, {} connections dropped.\n",
        status.handed_out, status.ended, status.dropped
    );
    if !status.holders.is_empty() {
        text += &table(
            &["USER", "PROCESSES", "EXTENTS", "MEMORY"],
            status.holders.iter().map(|it| cells![it.uid, it.processes, it.extents, Bytes(it.bytes)]),
        );
    }
    text
}
