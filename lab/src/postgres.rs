//! PostgreSQL's programs, in a separate directory, as the benches call them.

use crate::child::{Child, sleep};
use crate::install::find;
use anyhow::{Context, Result, ensure};
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

/// Longest time of a call.
pub(crate) const LONGEST: Duration = Duration::from_secs(300);
/// Longest wait for a backend to end after its client.
const ENDING: Duration = Duration::from_secs(60);

/// Returns the package that is absent.
pub(crate) fn lacks() -> Vec<&'static str> {
    if directory_of_programs().is_some() { Vec::new() } else { vec!["postgresql"] }
}

/// Returns the directory of the latest version's programs, in Debian's layout.
fn directory_of_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let debian = versions.map(|version| version.join("bin")).filter(|bin| bin.join("initdb").is_file()).max();
    debian.or_else(|| Some(find("initdb")?.parent()?.to_path_buf()))
}

/// PostgreSQL's programs and their user: the server refuses root.
pub(crate) struct Programs {
    directory: PathBuf,
    /// The user that they run as; `None`: the caller.
    pub(crate) user: Option<Account>,
    work: TempDir,
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

    /// Returns the directory of the server's socket, and of its clients' files.
    pub(crate) fn place(&self) -> &Path {
        self.work.path()
    }

    /// Returns the file of one program.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the file in which a running server has its number, in the first line.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.data().join("postmaster.pid")
    }

    fn data(&self) -> PathBuf {
        self.place().join("data")
    }

    /// Sets `command`, one of these programs or one that starts it, to run as their user and in
    /// their directory.
    pub(crate) fn settle(&self, command: &mut Command) {
        if let Some(user) = &self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command.current_dir(self.place()).env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }

    /// Returns a call of a program, as a client of the server.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.file(name));
        self.settle(&mut command);
        command.env("PGHOST", self.place()).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command
    }

    /// Makes a call that has to exit with 0.
    pub(crate) fn carry_out(&self, signals: &Signals, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(name);
        Child::start(signals, command.args(arguments), signal::SIGTERM)?
            .finish(signals, LONGEST)
            .with_context(|| name.to_string())
    }

    /// Makes the data of a server, once.
    pub(crate) fn initialise(&self, signals: &Signals) -> Result<()> {
        let data = self.data();
        let data = data.to_string_lossy();
        self.carry_out(signals, "initdb", &["-D", &data, "-U", "postgres", "-A", "trust", "--no-sync"])
    }

    /// Adds the server's arguments: its activities beside the queries are switched off.
    pub(crate) fn serve(&self, command: &mut Command, shared_buffers: Bytes, huge_pages: bool) {
        command.arg("-D").arg(self.data()).arg("-k").arg(self.place());
        let buffers = format!("shared_buffers={}MB", shared_buffers.0 >> 20);
        let huge = if huge_pages { "huge_pages=on" } else { "huge_pages=off" };
        for setting in ["listen_addresses=", &buffers, huge, "fsync=off", "autovacuum=off", "jit=off"] {
            command.args(["-c", setting]);
        }
    }

    /// Returns true if the server answers.
    pub(crate) fn is_ready(&self, signals: &Signals) -> bool {
        self.carry_out(signals, "pg_isready", &["-q"]).is_ok()
    }

    /// Fills pgbench's tables: 100,000 accounts, 15 MB, times `scale`.
    pub(crate) fn fill(&self, signals: &Signals, scale: u64) -> Result<()> {
        self.carry_out(signals, "pgbench", &["-q", "-i", "-s", &scale.to_string()])
    }

    /// Returns a client that selects random accounts; `arguments` set its time, and its notes.
    pub(crate) fn selects(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("pgbench");
        command.args(["-n", "-S", "-M", "prepared", "-c", "1"]).args(arguments);
        command
    }

    /// Measures the processor time that the server `pid` spends on [`Programs::selects`] with these
    /// arguments. The backend is a child of the server's and ends with its client: its time is that
    /// of ended children.
    pub(crate) fn time_of_selects(
        &self,
        signals: &Signals,
        pid: Pid,
        arguments: &[&str],
    ) -> Result<Duration> {
        let time = || Ok::<_, anyhow::Error>(read_stat(&KernelRoot::live(), pid)?.children_cpu);
        let (permanent, before) = (children(pid)?, time()?);
        let mut command = self.selects(arguments);
        Child::start(signals, &mut command, signal::SIGTERM)?.finish(signals, LONGEST)?;
        let start = Instant::now();
        // The backend ends a moment after its client.
        while children(pid)?.iter().any(|child| !permanent.contains(child)) {
            ensure!(start.elapsed() < ENDING, "the backend of postgres does not end");
            sleep(signals, Duration::from_millis(10))?;
        }
        Ok(time()?.saturating_sub(before))
    }
}

/// Returns the server's processes.
pub(crate) fn children(server: Pid) -> Result<Vec<Pid>> {
    let children = read_children(&KernelRoot::live(), server, 1)?;
    children.context("the kernel does not list children (CONFIG_PROC_CHILDREN)")
}
