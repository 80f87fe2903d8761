//! `megapage pool list`.

use crate::output::answer;
use anyhow::Result;
use megapage_kernel::KernelRoot;
use megapage_observe::pools::{PoolReport, Pools, pools};
use megapage_report::table;
use megapage_units::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show every pool: its size on the machine and on each node, free pages, users, and limits.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON (schema megapage.pool-list/1).
    #[arg(long)]
    json: bool,
    /// Read the kernel's files below this directory (a captured tree), not those of this machine.
    #[arg(long, value_name = "DIR")]
    kernel_root: Option<PathBuf>,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = args.kernel_root.map_or_else(KernelRoot::live, KernelRoot::captured);
    let pools = pools(&root)?;
    answer(args.json, "megapage.pool-list/1", &pools, || human(&pools))?;
    Ok(ExitCode::SUCCESS)
}

fn human(pools: &Pools) -> String {
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
        let some = |value: Option<u64>| value.map_or("-".to_string(), |value| value.to_string());
        [
            size,
            place,
            counts.total.to_string(),
            counts.free.to_string(),
            some(counts.reserved),
            some(counts.available),
            counts.surplus.to_string(),
            counts.persistent.to_string(),
            some(counts.overcommit),
            memory.to_string(),
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
    section(
        &mut text,
        "Processes",
        &["PID", "COMMAND", "USER", "SIZE", "BY", "MAPPED", "PRESENT", "NAME"],
        &pools.processes,
        |one| {
            [
                one.pid.to_string(),
                one.command.clone(),
                one.uid.to_string(),
                one.page_size.to_string(),
                one.kind.name().to_string(),
                one.mapped.to_string(),
                one.present.to_string(),
                one.name.clone(),
            ]
        },
    );
    section(
        &mut text,
        "Memory files",
        &["NAME", "SIZE", "LENGTH", "ALLOCATED", "OPEN IN"],
        &pools.memory_files,
        |file| {
            [
                file.name.display().to_string(),
                file.page_size.to_string(),
                file.length.to_string(),
                file.allocated.to_string(),
                file.open_in.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            ]
        },
    );
    section(
        &mut text,
        "System V segments (unattached ones may be on base pages: the kernel does not say)",
        &["ID", "KEY", "USER", "SIZE", "LENGTH", "ATTACHED"],
        &pools.segments,
        |segment| {
            [
                segment.id.to_string(),
                format!("{:#010x}", segment.key),
                segment.uid.to_string(),
                segment.page_size.clone().unwrap_or_else(|| "not known".to_string()),
                segment.length.to_string(),
                segment.attached.to_string(),
            ]
        },
    );
    section(
        &mut text,
        "Mounts",
        &["MOUNT", "SIZE", "LIMIT", "MODE", "USER", "GROUP"],
        &pools.mounts,
        |mount| {
            [
                mount.point.display().to_string(),
                mount.page_size.to_string(),
                mount.size.map_or("none".to_string(), |size| size.to_string()),
                mount.mode.clone(),
                mount.uid.to_string(),
                mount.gid.to_string(),
            ]
        },
    );
    section(&mut text, "Files", &["FILE", "SIZE", "LENGTH", "ALLOCATED", "USER"], &pools.files, |file| {
        [
            file.path.display().to_string(),
            file.page_size.to_string(),
            file.length.to_string(),
            file.allocated.to_string(),
            file.uid.to_string(),
        ]
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
    section(
        &mut text,
        "Control group limits on this process",
        &["GROUP", "SIZE", "TOUCHED", "MAPPED"],
        &pools.limits,
        |limit| {
            [
                limit.group.display().to_string(),
                limit.page_size.to_string(),
                of(limit.touched_bytes, limit.touched_limit_bytes),
                of(limit.mapped_bytes, limit.mapped_limit_bytes),
            ]
        },
    );
    if pools.limits_hidden {
        text += "\nLimits of control groups further up may apply without being visible here.\n";
    }
    text
}
