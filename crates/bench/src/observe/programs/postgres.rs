//! PostgreSQL with pgbench's accounts in its shared buffers, asked for random rows.

use super::{Copy, Pages, Work, find};
use crate::child::{Child, sleep};
use anyhow::{Context, Result, bail, ensure};
use megapage_kernel::identity::{Account, account};
use megapage_kernel::process::{read_children, read_stat};
use megapage_kernel::spawn::{Signals, signal};
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::{Bytes, Pid};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Its shared buffers; at scale 1 the accounts take two thirds of them.
const SHARED_BUFFERS: Bytes = Bytes::mib(1024);
/// The pool that these need, with what the server shares beside them.
pub(super) const POOL: Bytes = Bytes::mib(1152);
/// pgbench's own scale (100,000 accounts, 15 MB) at scale 1.
const ACCOUNTS_SCALE: f64 = 45.0;
/// Transactions that make one unit of work: about 1 ms of a backend.
const TRANSACTIONS_PER_UNIT: u64 = 20;
/// No call takes longer.
const LONGEST: Duration = Duration::from_secs(300);
/// How long a server may take to start, and a backend to appear.
const STARTING: Duration = Duration::from_secs(30);

/// What lacks, where something does.
pub(crate) fn lacks() -> Option<&'static str> {
    directory_of_programs().is_none().then_some("apt-get install postgresql")
}

/// The latest version's programs, as Debian lays them.
fn directory_of_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let debian = versions.map(|version| version.join("bin")).filter(|bin| bin.join("initdb").is_file()).max();
    debian.or_else(|| Some(find("initdb")?.parent()?.to_path_buf()))
}

pub(super) struct Postgres {
    // Dropped in this order: the clients, the server, its directory.
    client: Option<Child>,
    server: Child,
    programs: Programs,
}

/// How the programs are called: the server refuses root.
pub(crate) struct Programs {
    pub(crate) directory: PathBuf,
    pub(crate) user: Option<Account>,
    pub(crate) work: TempDir,
}

impl Programs {
    pub(crate) fn new() -> Result<Programs> {
        let directory = directory_of_programs().context("postgres")?;
        let work = tempfile::Builder::new().prefix("megapage-bench").tempdir().context("a directory")?;
        let mut user = None;
        if effective_uid() == 0 {
            let found = account("postgres")?.context("there is no user 'postgres' to run PostgreSQL as")?;
            std::os::unix::fs::chown(work.path(), Some(found.uid), Some(found.gid)).context("chown")?;
            user = Some(found);
        }
        Ok(Programs { directory, user, work })
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.directory.join(name));
        if let Some(user) = &self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let path = self.work.path();
        command.current_dir(path).env("PGHOST", path).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn carry_out(&self, signals: &Signals, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(name);
        Child::start(signals, command.args(arguments), signal::SIGTERM)?.finish(signals, LONGEST)
    }

    pub(crate) fn data(&self) -> String {
        path_text(&self.work.path().join("data"))
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Postgres {
    pub(super) fn start(pages: Pages, scale: f64, signals: &Signals) -> Result<Postgres> {
        let programs = Programs::new()?;
        let data = programs.data();
        programs
            .carry_out(signals, "initdb", &["-D", &data, "-U", "postgres", "-A", "trust", "--no-sync"])
            .context("initdb")?;
        let huge = if pages == Pages::Huge { "huge_pages=on" } else { "huge_pages=off" };
        let buffers = format!("shared_buffers={}MB", SHARED_BUFFERS.0 >> 20);
        let place = path_text(programs.work.path());
        let mut command = programs.command("postgres");
        command.args(["-D", &data, "-k", &place, "-c", "listen_addresses=", "-c", &buffers, "-c", huge]);
        // What it would do beside the queries is left out.
        command.args(["-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_wal_size=4GB", "-c", "jit=off"]);
        // An immediate shutdown.
        let mut server = Child::start(signals, &mut command, signal::SIGQUIT)?;
        let start = Instant::now();
        while programs.carry_out(signals, "pg_isready", &["-q"]).is_err() {
            server.must_run().with_context(|| format!("postgres with {huge}"))?;
            ensure!(start.elapsed() < STARTING, "postgres does not answer");
            sleep(signals, Duration::from_millis(100))?;
        }
        let accounts = (ACCOUNTS_SCALE * scale).max(1.0).round().to_string();
        programs.carry_out(signals, "pgbench", &["-q", "-i", "-s", &accounts]).context("pgbench -i")?;
        let prewarm = "CREATE EXTENSION pg_prewarm; SELECT pg_prewarm('pgbench_accounts'), \
                       pg_prewarm('pgbench_accounts_pkey')";
        programs.carry_out(signals, "psql", &["-q", "-c", prewarm]).context("pg_prewarm")?;
        Ok(Postgres { client: None, server, programs })
    }

    fn children(&self) -> Result<Vec<Pid>> {
        let children = read_children(&KernelRoot::live(), self.server.pid(), 1)?;
        children.context("the kernel does not list children (CONFIG_PROC_CHILDREN)")
    }

    fn queries(&self, arguments: &[&str]) -> Command {
        let mut command = self.programs.command("pgbench");
        command.args(["-n", "-S", "-M", "prepared", "-c", "1"]).args(arguments);
        command
    }
}

impl Copy for Postgres {
    fn work(&mut self, units: u64, signals: &Signals) -> Result<Work> {
        // The backend is a child of the server's and ends with its client: its time is that of ended children.
        let root = KernelRoot::live();
        let pid = self.server.pid();
        let permanent = self.children()?;
        let before = read_stat(&root, pid)?.children_cpu;
        let mut command = self.queries(&["-t", &(units * TRANSACTIONS_PER_UNIT).to_string()]);
        Child::start(signals, &mut command, signal::SIGTERM)?.finish(signals, LONGEST)?;
        let start = Instant::now();
        // It is waited for a moment after its client has ended.
        while self.children()?.iter().any(|child| !permanent.contains(child)) {
            ensure!(start.elapsed() < STARTING, "the backend of postgres does not end");
            sleep(signals, Duration::from_millis(20))?;
        }
        let cpu = read_stat(&root, pid)?.children_cpu.saturating_sub(before);
        ensure!(cpu > Duration::ZERO, "postgres did no work");
        Ok(Work { units, cpu })
    }

    fn keep_busy(&mut self, signals: &Signals) -> Result<Pid> {
        // A backend of an earlier client may be there for a moment yet.
        let former = self.children()?;
        let mut command = self.queries(&["-T", "3600"]);
        self.client = Some(Child::start(signals, &mut command, signal::SIGKILL)?);
        let root = KernelRoot::live();
        let start = Instant::now();
        while start.elapsed() < STARTING {
            sleep(signals, Duration::from_millis(500))?;
            // The backend is the new child that works.
            let time = |pid| Some((read_stat(&root, pid).ok()?.cpu, pid));
            let new = self.children()?.into_iter().filter(|pid| !former.contains(pid));
            let busiest = new.filter_map(time).max();
            if let Some((cpu, pid)) = busiest
                && cpu >= Duration::from_millis(200)
            {
                return Ok(pid);
            }
        }
        bail!("no backend of postgres does any work")
    }

    fn pid(&self) -> Option<Pid> {
        None
    }
}
