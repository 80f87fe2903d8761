//! Promotes a running process, until it ends or the user stops the promotion.

use crate::kinds::HeapRuntime;
use crate::mechanism::{Considered, Plan};
use crate::program::Program;
use crate::promoter::Promoter;
use crate::proof::proved;
use crate::report::{Asked, Pieces, ProgramFacts, RunReport};
use crate::request::{Fork, Heap, Mechanism, Request, Shm};
use crate::run_error::RunError;
use crate::sample::{Places, Samples};
use crate::switched_off::SwitchedOff;
use crate::verdict;
use crate::why::Promoters;
use megapage_act::promote::{PromoteError, Promotion, lacking_ability, lacking_right};
use megapage_kernel::process::{read_cmdline, read_exe, read_start_time, read_stat, read_status};
use megapage_kernel::spawn::{self, Signals, signal};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks at the process, if a report is wanted.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two looks at the process, if no report is wanted.
const UNWATCHED_LOOK: Duration = Duration::from_secs(1);

/// Options of an attachment.
#[derive(Clone, Copy, Debug)]
pub struct Attachment {
    /// The process.
    pub pid: Pid,
    /// True to promote the present memory, then leave.
    pub once: bool,
    /// True to fail unless the process's heap is huge at the end.
    pub require: bool,
    /// The purpose of the process's forks.
    pub fork: Fork,
    /// Delay of the first pass.
    pub after: Duration,
    /// True if a report is wanted: the process is sampled for it.
    pub watched: bool,
    /// True to promote nothing if a trial has found that it does not pay.
    pub heed_verdict: bool,
}

impl Attachment {
    /// Returns the actions of the first pass, as shell lines. Changes nothing.
    pub fn dry_run(&self, root: &KernelRoot) -> Result<Vec<String>, RunError> {
        self.check(root)?;
        let promotion: Promotion = Promoter::new(self.pid, Duration::ZERO, self.fork).plan(root)?;
        Ok(promotion.dry_run())
    }

    /// Promotes once, or until the process ends or SIGINT, SIGTERM or SIGHUP comes. On SIGUSR1,
    /// `live` gets a report.
    pub fn run(&self, root: &KernelRoot, mut live: impl FnMut(&RunReport)) -> Result<RunReport, RunError> {
        let signals = Signals::take(&[signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGUSR1])
            .map_err(|source| RunError::System { what: "signals", source })?;
        let born = self.check(root)?;
        let (start, mut samples) = (Instant::now(), Samples::default());
        let mut promoter = Promoter::new(self.pid, self.after, self.fork);
        let exe = read_exe(root, self.pid).ok();
        let (facts, runtime) = self.facts(root, exe.as_deref());
        let plan = plan();
        let request = Request {
            heap: Heap::Thp,
            mechanism: Some(Mechanism::Outside),
            shm: Shm::None,
            require: self.require,
            fork: self.fork,
            ..Request::default()
        };
        let off = read_status(root, self.pid).ok().and_then(|status| SwitchedOff::of(root, &status));
        let off = off.map(|off| off.note_of_running());
        let report = |samples: &Samples, promoter: &Promoter, running: bool| {
            proved(Pieces {
                program: facts.clone(),
                asked: Asked::of(&request),
                plan: &plan,
                samples,
                ledger: None,
                text: None,
                promotion: Some(promoter.outcome),
                shared_memory: promoter.shared.clone(),
                totals: None,
                running,
                start,
                now: Instant::now(),
                notes: (!running)
                    .then(|| "the process has ended".into())
                    .into_iter()
                    .chain(off.clone())
                    .collect(),
                runtime_log: Vec::new(),
                rss_at_start: Bytes::ZERO,
            })
        };
        let look = if self.watched { LOOK } else { UNWATCHED_LOOK };
        let mut stop = false;
        let mut places = Places {
            runtime,
            executable: exe.map(|path| path.to_string_lossy().into_owned()),
            promoters: Promoters { outside: true, ..Promoters::default() },
            ..Places::default()
        };
        if self.watched {
            samples.take(root, self.pid, &places, 0);
        }
        let mut unfinished = false;
        loop {
            if promoter.due() <= Instant::now() {
                unfinished = match promoter.pass(root) {
                    Ok(unfinished) => unfinished,
                    Err(PromoteError::Gone(_)) => break,
                    Err(error) => return Err(error.into()),
                };
            }
            // Another process may have the identifier by now.
            if !self.is_there(root, born) {
                break;
            }
            if stop || (self.once && !unfinished) {
                places.thorough = true;
                samples.last_is_final = samples.take(root, self.pid, &places, 0);
                return Ok(report(&samples, &promoter, true));
            }
            let status = read_status(root, self.pid);
            let size = status.as_ref().map_or(0, |status| (status.rss + status.hugetlb).0);
            if let Ok(status) = &status {
                samples.note_status(status);
            }
            if self.watched && samples.is_due(Instant::now(), size) {
                samples.take(root, self.pid, &places, size);
            }
            let pause = promoter.due().saturating_duration_since(Instant::now()).min(look);
            spawn::wait_readable(signals.as_fd(), pause)
                .map_err(|source| RunError::System { what: "poll", source })?;
            while let Ok(Some(signal)) = signals.next() {
                match signal.number {
                    signal::SIGUSR1 => {
                        samples.take(root, self.pid, &Places { thorough: true, ..places.clone() }, size);
                        live(&report(&samples, &promoter, true));
                    }
                    _ => stop = true,
                }
            }
        }
        Ok(report(&samples, &promoter, false))
    }

    /// Returns true if the process that started at `born` still has memory.
    fn is_there(&self, root: &KernelRoot, born: u64) -> bool {
        read_stat(root, self.pid).is_ok_and(|stat| stat.start_ticks == born && !stat.is_zombie())
    }

    /// Checks that the process exists and may be promoted. Returns its start time.
    fn check(&self, root: &KernelRoot) -> Result<u64, RunError> {
        let pid = self.pid;
        let gone = |error: KernelError| match error.is_gone() {
            true => RunError::Promote(PromoteError::Gone(pid)),
            false => RunError::Kernel(error),
        };
        let status = read_status(root, pid).map_err(gone)?;
        if status.is_zombie() {
            return Err(PromoteError::Gone(pid).into());
        }
        if read_stat(root, pid).map_err(gone)?.is_kernel_thread {
            return Err(RunError::KernelThread { pid, name: status.name });
        }
        if let Some(ability) = lacking_ability(root) {
            return Err(PromoteError::Unsupported(ability).into());
        }
        if let Some(lacking) = lacking_right(root, Some(pid)).map_err(gone)? {
            return Err(PromoteError::NotAllowed { pid, lacking }.into());
        }
        let exe = read_exe(root, pid).ok().filter(|_| self.heed_verdict);
        if let Some(verdict) = exe.and_then(|exe| verdict::of_program(root, pid, &exe))
            && verdict.forbids()
        {
            return Err(RunError::Verdict { pid, found: verdict.in_words() });
        }
        read_start_time(root, pid).map_err(gone)
    }

    /// Returns the facts from the program's file, and the runtime that manages its heap.
    fn facts(&self, root: &KernelRoot, exe: Option<&Path>) -> (ProgramFacts, Option<HeapRuntime>) {
        let exe = exe.unwrap_or(Path::new(""));
        if let Ok(program) = Program::inspect(exe) {
            return (ProgramFacts::of(&program, self.pid), HeapRuntime::of(program.runtime));
        }
        let command = read_cmdline(root, self.pid).unwrap_or_default();
        let facts = ProgramFacts {
            path: command.into_iter().next().unwrap_or_default(),
            executable: exe.display().to_string(),
            pid: self.pid.0,
            linkage: "unknown".into(),
            runtime: None,
            allocator: None,
            forks: Vec::new(),
        };
        (facts, None)
    }
}

fn plan() -> Plan {
    let considered = Mechanism::ALL.map(|mechanism| Considered {
        mechanism,
        used: mechanism == Mechanism::Outside,
        reason: match mechanism {
            Mechanism::Outside => {
                "the launcher promotes anonymous and shared memory with process_madvise(MADV_COLLAPSE)".into()
            }
            _ => "the process runs already".into(),
        },
    });
    Plan::of(considered.to_vec(), Heap::Thp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(pid: i32) -> Attachment {
        let after = Duration::ZERO;
        Attachment {
            pid: Pid(pid),
            once: true,
            require: false,
            fork: Fork::Auto,
            after,
            watched: true,
            heed_verdict: false,
        }
    }

    #[test]
    fn a_kernel_without_collapse_is_named() {
        let tree = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = tree.path().join("proc").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/kernel/osrelease", "5.10.0-32-amd64\n");
        put("9/status", "Name:\tx\nState:\tS (sleeping)\nTgid:\t9\nPPid:\t1\n");
        put("9/stat", &format!("9 (x) S 1 9 9 0 -1 0 {}", "0 ".repeat(43)));
        let attachment = once(9);
        let error = attachment.dry_run(&KernelRoot::captured(tree.path())).unwrap_err();
        assert!(error.to_string().contains("lacks MADV_COLLAPSE (Linux 6.1)"), "{error}");
        assert_eq!(error.exit_status(), 2, "not possible");
    }

    #[test]
    fn a_kernel_thread_is_refused() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("proc/2");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("status"), "Name:\tkthreadd\nTgid:\t2\nPPid:\t0\n").unwrap();
        // proc_pid_stat(5): the ninth field holds the flags, here PF_KTHREAD.
        let stat = format!("2 (kthreadd) S 0 0 0 0 -1 2097152 {}", "0 ".repeat(43));
        std::fs::write(directory.join("stat"), stat).unwrap();
        let attachment = once(2);
        let error = attachment.dry_run(&KernelRoot::captured(tree.path())).unwrap_err();
        assert_eq!(error.to_string(), "process 2 (kthreadd) is a kernel thread: it has no user memory");
        assert_eq!(error.exit_status(), 125);
    }
}
