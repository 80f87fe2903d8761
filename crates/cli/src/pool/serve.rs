//! `megapage pool serve` and `megapage pool stock`: the broker of pre-zeroed pages.

use crate::flags::{DryRun, name};
use crate::output::{answer, print};
use anyhow::{Context, Result, anyhow, bail};
use megapage_broker::{Options, SCHEMA, ask, dry_run, patience_from_environment, run};
use megapage_kernel::KernelRoot;
use megapage_kernel::identity::account;
use megapage_kernel::service::group_number;
use megapage_memory::stock::socket_path;
use megapage_report::pools::stock as human;
use megapage_units::{Bytes, PageSize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a broker: keep a stock of pre-zeroed huge pages, and hand them to programs over a socket.
///
/// Runs until SIGTERM or SIGINT. Programs then keep their pages; the broker releases its stock and
/// the pages of --grow. See docs/broker.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The socket to listen on: a NAME for /run/megapage/pool-NAME.sock, or a path.
    #[arg(long, value_name = "NAME|PATH", value_parser = name, default_value = "default")]
    socket: String,
    /// The size of the pages: 2m or 1g.
    #[arg(long, value_name = "SIZE", default_value = "2m")]
    size: PageSize,
    /// Pages to keep ready, a multiple of --extent.
    #[arg(long, value_name = "PAGES", default_value_t = 64)]
    stock: u64,
    /// Pages handed out together, in one memory file: 1 to 512 [default: 16 of 2m, 1 of 1g].
    #[arg(long, value_name = "PAGES")]
    extent: Option<u64>,
    /// Pages to add to the machine's pool while the broker runs; available memory must stay above
    /// the safe floor of pool set.
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    grow: u64,
    /// Keep the pages of --grow under memory pressure; otherwise the broker releases half of its
    /// stock each time.
    #[arg(long)]
    keep: bool,
    /// Under memory pressure, release no pages and continue to clear pages.
    #[arg(long)]
    ignore_pressure: bool,
    /// Available pool pages to leave to other programs.
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    leave: u64,
    /// Most memory for all programs of one user together; none means no limit.
    #[arg(long, value_name = "SIZE", default_value = "4g", value_parser = quota)]
    quota_per_uid: Quota,
    /// Most memory to clear per second, at least 1m.
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    rate: Bytes,
    /// Serve this user besides root and the broker's own user. Repeatable.
    #[arg(long, value_name = "USER")]
    allow_user: Vec<String>,
    /// Serve the members of this group. Repeatable.
    #[arg(long, value_name = "GROUP")]
    allow_group: Vec<String>,
    /// File mode of the socket. Without --allow-user and --allow-group, the broker serves every
    /// user whom the mode admits [default: 0600; 0666 with --allow-user or --allow-group].
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
    #[command(flatten)]
    dry_run: DryRun,
}

/// The limit of `--quota-per-uid`; `none` is `None`.
#[derive(Clone, Copy, Debug)]
struct Quota(Option<Bytes>);

fn quota(text: &str) -> Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    text.parse().map(|bytes| Quota(Some(bytes))).map_err(|error| format!("{error}, or none"))
}

fn mode(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or_else(|| "a mode is octal, such as 0660".into())
}

fn options(args: &Args) -> Result<Options> {
    if ![PageSize::HUGE_2M, PageSize::HUGE_1G].contains(&args.size) {
        bail!("--size {}: give 2m or 1g", args.size);
    }
    let user = |name: &String| -> Result<u32> {
        if let Ok(uid) = name.parse() {
            return Ok(uid);
        }
        let found = account(name).with_context(|| format!("--allow-user {name}"))?;
        found.map(|found| found.uid).ok_or_else(|| anyhow!("--allow-user {name}: there is no such user"))
    };
    let group = |name: &String| -> Result<u32> {
        let found = group_number(name).with_context(|| format!("--allow-group {name}"))?;
        found.ok_or_else(|| anyhow!("--allow-group {name}: there is no such group"))
    };
    let named = !args.allow_user.is_empty() || !args.allow_group.is_empty();
    Ok(Options {
        socket: socket_path(&args.socket),
        size: args.size,
        stock: args.stock,
        extent: args.extent.unwrap_or(if args.size == PageSize::HUGE_2M { 16 } else { 1 }),
        grow: args.grow,
        keep: args.keep,
        ignore_pressure: args.ignore_pressure,
        leave: args.leave,
        quota: args.quota_per_uid.0,
        rate: args.rate,
        uids: args.allow_user.iter().map(user).collect::<Result<_>>()?,
        gids: args.allow_group.iter().map(group).collect::<Result<_>>()?,
        mode: args.mode.unwrap_or(if named { 0o666 } else { 0o600 }),
    })
}

pub fn main(args: Args) -> Result<ExitCode> {
    let root = KernelRoot::live();
    let options = options(&args)?;
    if args.dry_run.asked {
        print(&(dry_run(&root, &options)?.join("\n") + "\n"))?;
    } else {
        // A closed standard error does not end the broker.
        run(&root, &options, &mut |line| crate::output::say(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Show how many pages a broker (pool serve) has ready, and how much memory each user has from it.
///
/// Root and the broker's user see all users; others see only themselves. Exit status: 0; 2 if no
/// broker answers.
#[derive(Debug, clap::Args)]
pub(crate) struct StockArgs {
    /// The broker: a NAME for /run/megapage/pool-NAME.sock, or a path.
    #[arg(value_name = "NAME|PATH", value_parser = name, default_value = "default")]
    socket: String,
    /// Print JSON (schema megapage.pool-stock/2).
    #[arg(long)]
    json: bool,
}

pub fn stock(args: StockArgs) -> Result<ExitCode> {
    patience_from_environment().map_err(|why| anyhow!(why))?;
    let path: PathBuf = socket_path(&args.socket);
    let status = ask(&path).map_err(|error| {
        anyhow!("the broker at {}: {error}; 'megapage pool serve' starts one", path.display())
    })?;
    answer(args.json, SCHEMA, &status, || human(&status))?;
    Ok(ExitCode::SUCCESS)
}
