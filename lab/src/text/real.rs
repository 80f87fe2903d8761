//! Programs as they are installed: MariaDB and PostgreSQL under point selects, Node.js. Each round
//! starts the program again, because the place of its memory is chance. The servers of a round run
//! side by side, and are asked in turn.

use super::{
    Absent, Bench, CASES, LIBHUGETLBFS, LONGEST_RUN, POOL, SHORT_ROUNDS, Text, TextFound, Walks, Way, note,
    placement::Draw, program, row, walks,
};
use crate::bench::{Pool, Spread, warm};
use crate::child::{Child, check, sleep};
use crate::experiment::Order;
use crate::install::find;
use crate::peers::FOREIGN_VARIABLES;
use crate::postgres;
use anyhow::{Context, Result, bail, ensure};
use megapage_kernel::spawn::{send_signal, signal};
use megapage_kernel::{cpu_time_of, effective_uid};
use megapage_testing::unmount;
use megapage_units::{Bytes, Pid};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Name of the value that findings judge: nanoseconds of processor time for a transaction.
pub(super) const CPU: &str = "cpu";
/// Name of the time of a transaction for the client: nanoseconds.
const WALL: &str = "wall";
/// The 99th percentile of that.
const P99: &str = "p99";
/// Transactions of one measurement at scale 1; and uncounted ones before it, for the first touches
/// of all memory.
const SELECTS: f64 = 36_000.0;
const WARMING: f64 = 10_000.0;
/// Parts in which these are asked for, all ways in turn.
const BLOCKS: u32 = 9;
/// Iterations of Node's program at scale 1.
const ITERATIONS: f64 = 800.0;
/// Tables of sysbench, and rows of each: some 25 MB.
const TABLES: [&str; 2] = ["--tables=4", "--table-size=25000"];
/// Longest wait for a server to start or to stop.
const STARTING: Duration = Duration::from_secs(60);

/// Returns the packages that the cases lack.
pub(super) fn lacking(cases: &[String]) -> Vec<&'static str> {
    let asked = |case: &str| cases.is_empty() || cases.iter().any(|it| it == case);
    let mut packages = Vec::new();
    if asked(CASES[0]) && LIBHUGETLBFS.find().is_none() {
        packages.push("libhugetlbfs0");
    }
    if asked("mariadb") {
        packages.extend(mariadbd().is_none().then_some("mariadb-server-core"));
        packages.extend(find("sysbench").is_none().then_some("sysbench"));
    }
    packages.extend((asked("node") && find("node").is_none()).then_some("nodejs"));
    packages.extend(asked("postgres").then(postgres::lacks).into_iter().flatten());
    packages
}

fn mariadbd() -> Option<PathBuf> {
    find("mariadbd").or_else(|| Some(PathBuf::from("/usr/sbin/mariadbd")).filter(|path| path.is_file()))
}

/// Returns the warning of libhugetlbfs, with HUGETLB_VERBOSE of 2.
pub(super) fn warning(complaint: &str) -> Option<String> {
    let mut lines = complaint.lines().skip_while(|line| !line.contains("WARNING: "));
    let first = lines.next()?.split("WARNING: ").nth(1)?.to_string();
    // Its explanation is on the next line.
    let more = lines.next().filter(|line| line.starts_with('\t')).map_or("", str::trim);
    Some(format!("libhugetlbfs: {first} {more}").trim_end().to_string())
}

/// A separate hugetlbfs for libhugetlbfs, which needs one from which code may be mapped. It is
/// unmounted when it is dropped.
#[derive(Debug)]
pub(super) struct Mount(tempfile::TempDir);

impl Mount {
    pub(super) fn new() -> Result<Mount, String> {
        if LIBHUGETLBFS.find().is_none() {
            return Err(format!("it is not installed: {}", LIBHUGETLBFS.how_to_install()));
        }
        if effective_uid() != 0 {
            return Err("only root may mount the hugetlbfs that it needs".into());
        }
        let failed = |error: std::io::Error| format!("its hugetlbfs cannot be mounted: {error}");
        let directory = tempfile::Builder::new().prefix("megapage-bench-huge").tempdir().map_err(failed)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M,mode=0755,nodev,nosuid", "hugetlbfs"]);
        let status = mount.arg(directory.path()).status().map_err(failed)?;
        status.success().then_some(Mount(directory)).ok_or(format!("mount of a hugetlbfs: {status}"))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0.path()) {
            eprintln!("megapage: {} was not unmounted: {error}", self.0.path().display());
        }
    }
}

/// A real program: the installed file, and a copy for each way in a directory of this bench.
struct Files {
    installed: PathBuf,
    copies: PathBuf,
}

impl Files {
    fn of(&self, way: Way) -> PathBuf {
        self.copies.join(way.name())
    }
}

/// Result of one run: values, and the launcher's report.
struct Measured {
    values: Vec<(&'static str, f64)>,
    /// The jitter of a server's throughput from block to block: the standard deviation as a share
    /// of the mean.
    jitter: Option<f64>,
    report: Value,
    /// The reason for a failure before it started.
    failure: Option<String>,
}

/// Times for the client: nanoseconds of a transaction, in the mean and at the 99th percentile.
struct Seen {
    wall: f64,
    p99: f64,
}

/// Returns the standard deviation of `samples` as a share of their mean; `None` for fewer than two,
/// and if the mean is 0.
fn deviation(samples: &[f64]) -> Option<f64> {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    if samples.len() < 2 || !mean.is_normal() {
        return None;
    }
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    Some((squares / (count - 1.0)).sqrt() / mean)
}

/// A case's server with its data; each way has a separate one.
enum Server {
    /// MariaDB, in this directory.
    Mariadb(PathBuf),
    Postgres(postgres::Programs),
}

impl Bench<'_> {
    /// Measures one of the real programs, in each way that it can be run.
    pub(super) fn real(&mut self, case: &'static str, options: &Text, report: &mut TextFound) -> Result<()> {
        let lacks = lacking(&[case.to_string()]);
        if !lacks.is_empty() {
            let why = format!("apt-get install {}", lacks.join(" "));
            report.absent.push(Absent { way: case, why });
            return Ok(());
        }
        let installed = match case {
            "mariadb" => mariadbd(),
            "postgres" => Some(postgres::Programs::new()?.file("postgres")),
            _ => find("node"),
        };
        let installed = fs::canonicalize(installed.context("the program")?)?;
        let mut ways = vec![Way::BASELINE, Way::Again, Way::Run("file"), Way::Run("thp")];
        let mut pool = Pool::take().and_then(|mut pool| pool.set(POOL).map(|()| pool));
        match self.absence(Way::Run("2m"), pool.as_ref().err()) {
            Some(why) => report.absent.push(Absent { way: "2m", why }),
            None => ways.push(Way::Run("2m")),
        }
        ways.extend((case == "node").then_some(Way::Own));
        if let Some(why) = self.refusal_of_libhugetlbfs(&installed) {
            report.absent.push(Absent { way: Way::Libhugetlbfs.name(), why: format!("{case}: {why}") });
        }
        let files = self.files(installed, case, &ways)?;
        let mut servers = Vec::new();
        if case != "node" {
            for way in &ways {
                (self.progress)(&format!("{case} {}: filling its tables", way.name()));
                servers.push(self.prepare(case, *way, &files)?);
            }
        }
        let first = report.rows.len();
        report.rows.extend(ways.iter().map(|way| row(case, way.name())));
        let mut pool = pool.as_mut().ok();
        let rounds = if servers.is_empty() { self.runs * SHORT_ROUNDS } else { self.runs };
        for round in 0..rounds {
            let mut measured = Vec::new();
            if servers.is_empty() {
                for number in Order::Balanced.turns(round, ways.len()) {
                    let way = ways[number];
                    let draw = self.place(&files, way, pool.as_deref_mut())?;
                    let mut ran = self.iterate(&files, way, options)?;
                    ran.failure = draw.failure.clone();
                    measured.push((number, ran));
                }
            } else {
                measured = self.serve(&servers, &ways, &files, pool.as_deref_mut(), round, options)?;
            }
            for (number, measured) in measured {
                let row = &mut report.rows[first + number];
                note(row, &measured.report);
                row.failures.extend(measured.failure);
                row.jitter.extend(measured.jitter);
                let mut brief = Vec::new();
                for (value, ns) in measured.values {
                    brief.push(format!("{value} {:.2} us", ns / 1e3));
                    row.ns.entry(value.into()).or_default().push(ns);
                }
                let way = ways[number].name();
                (self.progress)(&format!("round {}: {case} {way}: {}", round + 1, brief.join(", ")));
            }
        }
        if let Some(Server::Mariadb(_)) = servers.first() {
            let walks = self.walks_of_server(case, &servers[0], &files, options, report)?;
            report.walks.push(walks);
        }
        Ok(())
    }

    /// Makes a copy for each way.
    fn files(&self, installed: PathBuf, case: &str, ways: &[Way]) -> Result<Files> {
        let files = Files { installed, copies: self.directory.path().join(case) };
        fs::create_dir(&files.copies)?;
        for way in ways {
            let copy = files.of(*way);
            fs::copy(&files.installed, &copy).context("a copy of the program")?;
        }
        Ok(files)
    }

    /// Moves the code of the next start of the program to other pages than before.
    fn place(&self, files: &Files, way: Way, pool: Option<&mut Pool>) -> Result<Draw> {
        check(self.signals)?;
        warm(Bytes::mib(256), false);
        let mut pool = pool.filter(|_| way == Way::Run("2m"));
        if let Some(pool) = &mut pool {
            // Pages that another process holds stay: then the run gets the same pages as before.
            let _ = pool.set(Bytes::ZERO);
        }
        let file = files.of(way);
        let mut draw = self.draw(&file, way == Way::Run("file"))?;
        if let Some(pool) = pool
            && pool.set(POOL).is_err()
        {
            // Without the shift there may be enough blocks. If there are not, the run's own report
            // says so.
            drop(draw);
            let _ = pool.set(POOL);
            draw = Draw::default();
        }
        Ok(draw)
    }

    /// Returns the reason for which libhugetlbfs remaps nothing of a program, from a run with
    /// `--version`.
    fn refusal_of_libhugetlbfs(&self, program: &Path) -> Option<String> {
        let library = LIBHUGETLBFS.find()?;
        let mut command = Command::new(program);
        command.arg("--version").env("HUGETLB_ELFMAP", "R").env("HUGETLB_VERBOSE", "2");
        command.env("LD_PRELOAD", library);
        if let Ok(mount) = &self.mount {
            command.env("HUGETLB_PATH", mount.path());
        }
        let (_, complaint) = Child::output(self.signals, &mut command, LONGEST_RUN).ok()?;
        warning(&complaint)
    }

    /// Returns the command `megapage run --text`, with a report, to which the program's words are
    /// added.
    fn launch(&self, way: Way) -> (Command, PathBuf) {
        let file = self.directory.path().join(format!("report-{}.json", way.name()));
        let _ = fs::remove_file(&file);
        let mut command = Command::new(&self.place.megapage);
        for variable in FOREIGN_VARIABLES {
            command.env_remove(variable);
        }
        command.args(["run", "--heap", "none", "--text", way.text(), "--json", "--report"]);
        command.arg(&file).arg("--");
        (command, file)
    }

    /// Runs Node's program once: it times itself.
    fn iterate(&self, files: &Files, way: Way, options: &Text) -> Result<Measured> {
        let (mut command, file) = self.launch(way);
        command.arg(files.of(way));
        if way == Way::Own {
            command.arg("--use-largepages=on");
        }
        let iterations = (ITERATIONS * options.scale).max(1.0) as u64;
        command.arg("-e").arg(program::NODE).arg(iterations.to_string());
        let (printed, complaint) = Child::output(self.signals, &mut command, LONGEST_RUN)?;
        let printed = String::from_utf8_lossy(&printed);
        let ns = printed.trim().parse().with_context(|| format!("node: '{printed}' {complaint}"))?;
        let mut report = read_report(&file)?;
        // Node's own message if it maps nothing.
        if let (Way::Own, Some(line)) = (way, complaint.lines().find(|line| line.contains("large pages"))) {
            report["not_obtained"] = serde_json::json!([line]);
        }
        Ok(Measured { values: vec![(CPU, ns)], jitter: None, report, failure: None })
    }

    /// Makes a server's data.
    fn prepare(&self, case: &str, way: Way, files: &Files) -> Result<Server> {
        let server = if case == "mariadb" {
            // Without tables of rights every user who reaches its socket may do everything: no
            // other user reaches it.
            let private = self.directory.path().join(format!("private-{}", way.name()));
            DirBuilder::new().mode(0o700).create(&private).context("a directory for the server")?;
            // A directory within the data directory is a database.
            fs::create_dir_all(private.join("data/test"))?;
            fs::create_dir_all(private.join("none"))?;
            Server::Mariadb(private)
        } else {
            let programs = postgres::Programs::new()?;
            if let Some(user) = &programs.user {
                // The server's user must be able to reach the program.
                for directory in [self.directory.path(), &files.copies] {
                    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
                }
                for file in [self.directory.path().to_path_buf(), files.of(way)] {
                    chown(file, Some(user.uid), Some(user.gid)).context("chown")?;
                }
            }
            programs.initialise(self.signals)?;
            Server::Postgres(programs)
        };
        let running = self.start_server(&server, &files.of(way), Way::BASELINE)?;
        match &server {
            Server::Mariadb(private) => self.sysbench(private, &["prepare"]).map(drop)?,
            Server::Postgres(programs) => programs.fill(self.signals, 2)?,
        }
        self.stop_server(running)?;
        Ok(server)
    }

    /// Runs all servers once: starts them, warms them, asks them in turn for some transactions each
    /// time, and stops them. A slow phase of the machine lasts longer than that, and so affects all
    /// of them.
    fn serve(
        &self,
        servers: &[Server],
        ways: &[Way],
        files: &Files,
        mut pool: Option<&mut Pool>,
        round: u32,
        options: &Text,
    ) -> Result<Vec<(usize, Measured)>> {
        let count = |selects: f64| (selects * options.scale).max(10.0).round() as u64;
        let mut running = BTreeMap::new();
        for number in Order::Balanced.turns(round, ways.len()) {
            let way = ways[number];
            let draw = self.place(files, way, pool.as_deref_mut())?;
            let started = self.start_server(&servers[number], &files.of(way), way)?;
            self.timed(&servers[number], &started, count(WARMING))?;
            running.insert(number, (started, Vec::new(), draw.failure.clone()));
        }
        let each = count(SELECTS / f64::from(BLOCKS));
        for block in 0..BLOCKS {
            for number in Order::Balanced.turns(round + block, ways.len()) {
                let (started, blocks, _) = running.get_mut(&number).expect("one for each way");
                blocks.push(self.timed(&servers[number], started, each)?);
            }
        }
        let mut measured = Vec::new();
        for (number, (started, blocks, failure)) in running {
            let median = |value: &dyn Fn(&(Duration, Seen)) -> f64| {
                Spread::of(blocks.iter().map(value)).map_or(0.0, |it| it.median)
            };
            let cpu: f64 = blocks.iter().map(|(cpu, _)| cpu.as_nanos() as f64).sum();
            let cpu = (cpu / (each as f64 * f64::from(BLOCKS))).max(1.0);
            let values = vec![(CPU, cpu), (P99, median(&|it| it.1.p99)), (WALL, median(&|it| it.1.wall))];
            let rates: Vec<f64> = blocks.iter().map(|(_, seen)| 1e9 / seen.wall).collect();
            let (jitter, report) = (deviation(&rates), self.stop_server(started)?);
            measured.push((number, Measured { values, jitter, report, failure }));
        }
        Ok(measured)
    }

    /// Measures the share of its time in which a server looks its code up, on base pages.
    fn walks_of_server(
        &mut self,
        case: &'static str,
        server: &Server,
        files: &Files,
        options: &Text,
        report: &TextFound,
    ) -> Result<Walks> {
        let walk_ns = self.walk_ns(report)?;
        let file = files.of(Way::BASELINE);
        let _draw = self.draw(&file, false)?;
        let running = self.start_server(server, &file, Way::BASELINE)?;
        let count = |selects: f64| (selects * options.scale).max(10.0).round() as u64;
        self.timed(server, &running, count(WARMING))?;
        let (pid, over) = (running.pid, AtomicBool::new(false));
        let pages_per_ms = std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut windows = Vec::new();
                while !over.load(Relaxed) {
                    windows.extend(walks::sample(pid, &file));
                }
                windows
            });
            let asked = self.timed(server, &running, count(SELECTS));
            over.store(true, Relaxed);
            let windows = sampler.join().unwrap_or_default();
            asked.map(|_| windows)
        })?;
        self.stop_server(running)?;
        Ok(Walks { case, pages_per_ms, walk_ns })
    }

    fn start_server(&self, server: &Server, program: &Path, way: Way) -> Result<Running> {
        let (mut command, report) = self.launch(way);
        command.arg(program);
        let pid_file = match server {
            Server::Mariadb(directory) => {
                let (data, pid) = (directory.join("data"), directory.join("pid"));
                let _ = fs::remove_file(&pid);
                command.args(["--no-defaults", "--skip-grant-tables", "--skip-networking", "--skip-log-bin"]);
                command.arg(option("--datadir", &data)).arg(option("--pid-file", &pid));
                command.arg(option("--socket", &directory.join("socket")));
                command.arg(option("--log-error", &directory.join("log")));
                // It reads, writes and loads nothing from elsewhere.
                command.arg(option("--secure-file-priv", &directory.join("none")));
                command.arg(option("--plugin-dir", &directory.join("none")));
                command.args(["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M"]);
                if effective_uid() == 0 {
                    command.arg("--user=root");
                }
                pid
            }
            Server::Postgres(programs) => {
                programs.settle(&mut command);
                programs.serve(&mut command, Bytes::mib(128), false);
                programs.pid_file()
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SIGINT: a fast shutdown of PostgreSQL. MariaDB ignores it, and takes SIGTERM.
        let stop = if matches!(server, Server::Mariadb(_)) { signal::SIGTERM } else { signal::SIGINT };
        let mut launcher = Child::start(self.signals, &mut command, stop)?;
        let start = Instant::now();
        loop {
            let ended = || {
                let log = match server {
                    Server::Mariadb(directory) => {
                        fs::read_to_string(directory.join("log")).unwrap_or_default()
                    }
                    Server::Postgres(_) => String::new(),
                };
                format!("the server: {}", log.lines().last().unwrap_or_default())
            };
            launcher.must_run().with_context(ended)?;
            ensure!(start.elapsed() < STARTING, "{}", ended());
            let ready = match server {
                Server::Mariadb(directory) => directory.join("socket").exists(),
                Server::Postgres(programs) => programs.is_ready(self.signals),
            };
            let pid = fs::read_to_string(&pid_file).ok();
            let pid = pid.as_ref().and_then(|text| text.lines().next()?.trim().parse().ok());
            if let (true, Some(pid)) = (ready, pid) {
                return Ok(Running { launcher, pid: Pid(pid), report });
            }
            sleep(self.signals, Duration::from_millis(50))?;
        }
    }

    fn stop_server(&self, running: Running) -> Result<Value> {
        let Running { launcher, pid, report } = running;
        send_signal(pid, launcher.stop_signal()).context("the server is gone")?;
        launcher.finish(self.signals, STARTING)?;
        read_report(&report)
    }

    /// Measures the processor time that the server took for `count` transactions, and the times for
    /// their client.
    fn timed(&self, server: &Server, running: &Running, count: u64) -> Result<(Duration, Seen)> {
        match server {
            Server::Mariadb(directory) => {
                let time = || cpu_time_of(running.pid).context("the server's clock");
                let (before, events) = (time()?, format!("--events={count}"));
                let printed = self.sysbench(directory, &["--time=0", "--histogram=on", &events, "run"])?;
                Ok((time()?.saturating_sub(before), seen_by_sysbench(&printed)?))
            }
            Server::Postgres(programs) => {
                let prefix = format!("--log-prefix={}", programs.place().join("transactions").display());
                let arguments = ["-l", &prefix, "-t", &count.to_string()];
                let time = programs.time_of_selects(self.signals, running.pid, &arguments)?;
                Ok((time, seen_by_pgbench(programs.place())?))
            }
        }
    }

    fn sysbench(&self, directory: &Path, words: &[&str]) -> Result<String> {
        let mut command = Command::new(find("sysbench").context("sysbench")?);
        command.args(["oltp_point_select", "--db-driver=mysql", "--mysql-user=root", "--mysql-db=test"]);
        command.arg(option("--mysql-socket", &directory.join("socket")));
        command.args(TABLES).arg("--threads=1").args(words);
        let (printed, _) = Child::output(self.signals, &mut command, LONGEST_RUN)?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        if let Some(fatal) = printed.lines().find(|line| line.starts_with("FATAL")) {
            bail!("sysbench: {fatal}");
        }
        Ok(printed)
    }
}

/// A server that runs under the launcher.
struct Running {
    launcher: Child,
    pid: Pid,
    report: PathBuf,
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn read_report(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).context("megapage run has made no report")?;
    serde_json::from_str(&text).context("the report of megapage run")
}

/// Reads the output of `sysbench --histogram=on`.
fn seen_by_sysbench(printed: &str) -> Result<Seen> {
    let after = |name: &str| {
        let line = printed.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|rest| rest.trim().trim_end_matches('s').parse::<f64>().ok())
    };
    let (time, events) = (after("total time:"), after("total number of events:"));
    let (Some(time), Some(events)) = (time, events) else { bail!("sysbench printed no times: {printed}") };
    // `VALUE |**** COUNT`, by value in milliseconds.
    let bars = printed.lines().filter_map(|line| {
        let (value, bar) = line.split_once('|')?;
        Some((value.trim().parse::<f64>().ok()?, bar.rsplit(' ').next()?.parse::<f64>().ok()?))
    });
    let mut count = 0.0;
    let p99 = bars.take_while(|(_, bar)| {
        let goes_on = count < events * 0.99;
        count += bar;
        goes_on
    });
    let p99 = p99.last().context("sysbench printed no histogram")?.0 * 1e6;
    Ok(Seen { wall: time * 1e9 / events, p99 })
}

/// Reads pgbench's logs in `directory`, and removes them.
fn seen_by_pgbench(directory: &Path) -> Result<Seen> {
    let mut times = Vec::new();
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("transactions.") {
            times.extend(times_of_pgbench(&fs::read_to_string(entry.path())?));
            fs::remove_file(entry.path())?;
        }
    }
    ensure!(!times.is_empty(), "pgbench has logged nothing");
    times.sort_by(f64::total_cmp);
    let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
    Ok(Seen { wall: times.iter().sum::<f64>() / times.len() as f64, p99 })
}

/// Returns the nanoseconds of each transaction that `pgbench -l` has logged: the third column, in
/// microseconds.
fn times_of_pgbench(log: &str) -> impl Iterator<Item = f64> {
    log.lines().filter_map(|line| Some(line.split(' ').nth(2)?.parse::<f64>().ok()? * 1e3))
}

#[cfg(test)]
mod tests;
