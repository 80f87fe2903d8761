//! `megapage pool persist`.

use crate::flags::Root;
use crate::output::answer;
use anyhow::{Result, bail};
use clap::ValueEnum;
use megapage_act::pool::Spec;
use megapage_act::pool::persist::{Loader, PersistRequest, forget, persist};
use megapage_kernel::KernelRoot;
use megapage_kernel::thp::ThpEnabled;
use megapage_report::Applied;
use megapage_report::pools::kept;
use megapage_units::{Bytes, PageSize};
use std::process::ExitCode;

/// Keep pools over reboots: by sysctl.d for the default page size, by boot parameters for other
/// sizes.
///
/// Without --apply, the command changes nothing and prints the equivalent shell lines. Without a
/// POOL it keeps the present pools. Sizes that a call does not name are dropped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pools to keep: 2m=512, 1g=2, 2m=4g (memory), 2m=0:100,1:300 (pages for each node).
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    /// Keep the overcommit limit of the default size: 2m=64.
    #[arg(long, value_name = "POOL")]
    overcommit: Vec<String>,
    /// Set memory aside at boot, for 1 GiB pages at run time (hugetlb_cma): 4g, or 0:2g,1:2g by
    /// node.
    #[arg(long, value_name = "SIZE")]
    cma: Option<String>,
    /// Page size for programs that name no size, from the next boot on (default_hugepagesz): 1g.
    #[arg(long, value_name = "SIZE")]
    default_size: Option<String>,
    /// Set THP from the next boot on, before any service starts (transparent_hugepage).
    #[arg(long, value_enum, value_name = "WORD")]
    thp: Option<ThpWord>,
    /// Use boot parameters for the default size too, before memory is fragmented.
    #[arg(long)]
    boot: bool,
    /// The boot loader whose files hold the kernel's command line.
    #[arg(long, value_enum, default_value_t = LoaderChoice::Auto)]
    loader: LoaderChoice,
    /// Remove the settings that earlier calls have kept.
    #[arg(long, conflicts_with_all = ["pools", "overcommit", "cma", "default_size", "thp", "boot"])]
    remove: bool,
    /// Write the files.
    #[arg(long)]
    apply: bool,
    /// Change nothing; print the equivalent shell lines (default).
    #[arg(long, conflicts_with = "apply")]
    dry_run: bool,
    #[command(flatten)]
    root: Root,
    /// Memory of the machine that will boot [default: the memory of this machine].
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Print JSON (schema megapage.pool-persist/1).
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoaderChoice {
    /// Choose by the files that exist.
    Auto,
    /// /etc/default/grub.d (Debian, Ubuntu).
    Grub,
    /// /etc/kernel/cmdline and the boot entries.
    SystemdBoot,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ThpWord {
    /// For all programs.
    Always,
    /// Only for programs that request it.
    Madvise,
    /// For no program.
    Never,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let request = request(&args)?;
    let plan = if args.remove { forget(&request)? } else { persist(&KernelRoot::live(), &request)? };
    if args.apply {
        plan.apply()?;
    }
    let report = Applied { applied: args.apply, what: &plan };
    answer(args.json, "megapage.pool-persist/1", &report, || kept(&plan, args.apply))?;
    Ok(ExitCode::SUCCESS)
}

fn request(args: &Args) -> Result<PersistRequest> {
    let specs =
        |texts: &[String]| texts.iter().map(|text| Ok(text.parse::<Spec>()?)).collect::<Result<Vec<_>>>();
    let memory = args.memory.as_deref().map(|text| match text.parse::<Bytes>() {
        Ok(memory) => Ok(memory),
        Err(error) => bail!("--memory: {error}"),
    });
    let default_size = args.default_size.as_deref().map(|text| match text.parse::<PageSize>() {
        Ok(size) => Ok(size),
        Err(error) => bail!("--default-size: {error}"),
    });
    let root = args.root.path()?;
    Ok(PersistRequest {
        pools: specs(&args.pools)?,
        overcommit: specs(&args.overcommit)?,
        cma: args.cma.clone(),
        default_size: default_size.transpose()?,
        thp: args.thp.map(|word| match word {
            ThpWord::Always => ThpEnabled::Always,
            ThpWord::Madvise => ThpEnabled::Madvise,
            ThpWord::Never => ThpEnabled::Never,
        }),
        at_boot: args.boot,
        loader: match args.loader {
            LoaderChoice::Auto => None,
            LoaderChoice::Grub => Some(Loader::Grub),
            LoaderChoice::SystemdBoot => Some(Loader::SystemdBoot),
        },
        root: root.to_path_buf(),
        memory: memory.transpose()?,
    })
}
