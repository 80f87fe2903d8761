//! PostgreSQL with pgbench's accounts in its shared buffers, asked for random rows.

use super::{Copy, Pages, Work};
use crate::child::{Child, sleep};
use crate::postgres::{Programs, children};
use anyhow::{Context, Result, bail, ensure};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_stat;
use megapage_kernel::spawn::{Signals, signal};
use megapage_units::{Bytes, Pid};
use std::time::{Duration, Instant};

/// Its shared buffers; at scale 1 the accounts take two thirds of them.
const SHARED_BUFFERS: Bytes = Bytes::mib(1024);
/// The pool for these, and for the server's other shared memory.
pub(super) const POOL: Bytes = Bytes::mib(1152);
/// pgbench's own scale at scale 1.
const ACCOUNTS_SCALE: f64 = 45.0;
/// Transactions that make one unit of work: about 1 ms of a backend.
const TRANSACTIONS_PER_UNIT: u64 = 20;
/// Longest wait for a server to start, and for a backend to appear.
const STARTING: Duration = Duration::from_secs(30);

pub(super) struct Postgres {
    // Dropped in this order: the clients, the server, its directory.
    client: Option<Child>,
    server: Child,
    programs: Programs,
}

impl Postgres {
    pub(super) fn start(pages: Pages, scale: f64, signals: &Signals) -> Result<Postgres> {
        let programs = Programs::new()?;
        programs.initialise(signals)?;
        let mut command = programs.command("postgres");
        programs.serve(&mut command, SHARED_BUFFERS, pages == Pages::Huge);
        command.args(["-c", "max_wal_size=4GB"]);
        // An immediate shutdown.
        let mut server = Child::start(signals, &mut command, signal::SIGQUIT)?;
        let start = Instant::now();
        while !programs.is_ready(signals) {
            server.must_run().with_context(|| format!("postgres on {pages:?} pages"))?;
            ensure!(start.elapsed() < STARTING, "postgres does not answer");
            sleep(signals, Duration::from_millis(100))?;
        }
        programs.fill(signals, (ACCOUNTS_SCALE * scale).max(1.0).round() as u64)?;
        let prewarm = "CREATE EXTENSION pg_prewarm; SELECT pg_prewarm('pgbench_accounts'), \
                       pg_prewarm('pgbench_accounts_pkey')";
        programs.carry_out(signals, "psql", &["-q", "-c", prewarm]).context("pg_prewarm")?;
        Ok(Postgres { client: None, server, programs })
    }
}

impl Copy for Postgres {
    fn work(&mut self, units: u64, signals: &Signals) -> Result<Work> {
        let count = (units * TRANSACTIONS_PER_UNIT).to_string();
        let cpu = self.programs.time_of_selects(signals, self.server.pid(), &["-t", &count])?;
        ensure!(cpu > Duration::ZERO, "postgres did no work");
        Ok(Work { units, cpu })
    }

    fn keep_busy(&mut self, signals: &Signals) -> Result<Pid> {
        // A backend of an earlier client may be there for a moment yet.
        let former = children(self.server.pid())?;
        let mut command = self.programs.selects(&["-T", "3600"]);
        self.client = Some(Child::start(signals, &mut command, signal::SIGKILL)?);
        let root = KernelRoot::live();
        let start = Instant::now();
        while start.elapsed() < STARTING {
            sleep(signals, Duration::from_millis(500))?;
            // The backend is the new child that works.
            let time = |pid| Some((read_stat(&root, pid).ok()?.cpu, pid));
            let new = children(self.server.pid())?.into_iter().filter(|pid| !former.contains(pid));
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
