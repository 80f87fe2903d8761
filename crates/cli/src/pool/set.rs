//! `megapage pool set`.

use crate::output::{answer, print};
use anyhow::{Result, bail};
use megapage_act::pool::{MemoryImpact, Outcome, Request, Shortfall, Spec, plan, title};
use megapage_kernel::KernelRoot;
use megapage_report::{table, width};
use megapage_units::Bytes;
use std::process::ExitCode;
use std::time::Duration;

/// Size pools as one transaction: check, write, read back, work on a shortfall, explain it.
///
/// A POOL is SIZE=PAGES: 2m=512, 1g=2. Also 2MB:+64 and 2MB:-64 (relative), 2m=4g (memory), default=512, and
/// 2m=0:100,1:300 (pages for each node).
///
/// Exit status: 0 all pages obtained; 1 some; 2 refused or rolled back, with nothing changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pools and their sizes. Several are one transaction.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    /// Set how many surplus pages may be taken on demand, in the same form. Repeatable.
    #[arg(long, value_name = "POOL")]
    overcommit: Vec<String>,
    /// Set the pools of this NUMA node instead of the machine's.
    #[arg(long, value_name = "N")]
    node: Option<String>,
    /// Go below the safe floor of available memory (512 MiB, or 5 % of memory if that is more), and shrink a pool
    /// below what is in use (the remainder becomes surplus).
    #[arg(long)]
    force: bool,
    /// How long to work on a shortfall: compact, then also drop caches, and retry. No attempt starts after it; with 0
    /// there is none.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    timeout: String,
    /// Roll everything back unless every page is obtained.
    #[arg(long)]
    rollback_on_shortfall: bool,
    /// Change nothing; print the equivalent shell lines.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.pool-set/1).
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let plan = plan(&root, &request(&args)?)?;
    if !args.json && !args.dry_run {
        // Printed before anything is changed, so that the user sees it if the machine then runs
        // short of memory.
        print(&(memory(&plan.memory) + "\n"))?;
    }
    let outcome = if args.dry_run { plan.dry_run() } else { plan.apply(&root)? };
    let text = if args.dry_run { dry_run } else { human };
    answer(args.json, "megapage.pool-set/1", &outcome, || text(&outcome))?;
    if outcome.rolled_back {
        bail!("not every page was obtained: everything was rolled back, as --rollback-on-shortfall requests");
    }
    Ok(if outcome.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn request(args: &Args) -> Result<Request> {
    let specs =
        |texts: &[String]| texts.iter().map(|text| Ok(text.parse::<Spec>()?)).collect::<Result<Vec<_>>>();
    let node = match &args.node {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(node) => Some(node),
            Err(_) => bail!("--node '{text}' is not the number of a node"),
        },
    };
    let timeout = match args.timeout.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Duration::from_secs_f64(seconds),
        _ => bail!("--timeout '{}' is not a number of seconds from 0 to 3600", args.timeout),
    };
    Ok(Request {
        pools: specs(&args.pools)?,
        overcommit: specs(&args.overcommit)?,
        node,
        force: args.force,
        timeout,
        roll_back: args.rollback_on_shortfall,
    })
}

fn memory(memory: &MemoryImpact) -> String {
    format!(
        "Memory: {} available of {}; {} would stay available (safe floor {}).",
        memory.available, memory.total, memory.available_after, memory.floor
    )
}

fn dry_run(outcome: &Outcome) -> String {
    let mut text = format!("# {}\n", memory(&outcome.memory));
    if outcome.commands.is_empty() {
        text += "# Every value is already as requested.\n";
    }
    for command in &outcome.commands {
        text += &format!("{command}\n");
    }
    text
}

fn human(outcome: &Outcome) -> String {
    let mut text = table(
        &["POOL", "BEFORE", "REQUESTED", "OBTAINED", "SHORT"],
        outcome.steps.iter().map(|step| {
            // After a rollback, the shortfall is that of the attempt, not of the pools as they are
            // now.
            let missing = if outcome.rolled_back { "-".to_string() } else { step.missing().to_string() };
            [
                title(&step.step),
                step.step.before.to_string(),
                step.step.asked.to_string(),
                step.obtained.map_or("-".to_string(), |pages| pages.to_string()),
                missing,
            ]
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
        text += &wrap(&format!(
            "{}: requested {asked}, obtained {}; {} short because {}.",
            missing.pool,
            asked - missing.pages,
            missing.pages,
            missing.because
        ));
        text += "Remedies:\n";
        for help in &missing.help {
            text += &wrap(&format!("  - {help}"));
        }
    }
    let Some(unmovable) = &shortfall.unmovable else { return text };
    text += "Processes with most unmovable memory:\n";
    text += &table(
        &["PID", "COMMAND", "UNMOVABLE", "PINNED", "PAGE TABLES", "KERNEL STACKS", "LOCKED"],
        unmovable.holders.iter().map(|holder| {
            [
                holder.pid.to_string(),
                holder.command.clone(),
                holder.sum.to_string(),
                holder.pinned.to_string(),
                holder.page_tables.to_string(),
                holder.kernel_stacks.to_string(),
                holder.locked.to_string(),
            ]
        }),
    );
    let say = |bytes: Option<Bytes>| bytes.map_or("not known".to_string(), |bytes| bytes.to_string());
    text += &wrap(&format!(
        "Of no process: slab {} (and {} reclaimable), per-CPU data {}.",
        say(unmovable.slab_unreclaimable),
        say(unmovable.slab_reclaimable),
        say(unmovable.percpu)
    ));
    text
}

/// Wraps a paragraph at spaces into lines within the width of reports. A longer word stays whole.
fn wrap(paragraph: &str) -> String {
    let indent = paragraph.len() - paragraph.trim_start().len();
    let mut lines = vec![" ".repeat(indent)];
    for word in paragraph.split_whitespace() {
        let line = lines.last_mut().expect("starts with one");
        if line.trim().is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width() {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(format!("{}{word}", " ".repeat(indent + 2)));
        }
    }
    lines.join("\n") + "\n"
}
