//! Execution of a plan as one transaction: it writes, reads back, and works on a shortfall within a
//! time bound. It restores the former values if that was asked for, or the kernel refused a step.

use super::error::PoolError;
use super::impact::MemoryImpact;
use super::outcome::StepOutcome;
use super::plan::{Plan, Step};
use super::shortfall::{Shortfall, explain};
use megapage_kernel::hugetlb::{self, PoolFile};
use megapage_kernel::{KernelError, KernelRoot, errno, reclaim};
use serde::{Serialize, Serializer};
use std::time::{Duration, Instant};

/// Most attempts for one step, the first write included. The time bound usually comes first.
const MOST_ATTEMPTS: u32 = 10;

/// Outcome of a transaction: the values asked for and obtained.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Steps in the order in which they were made.
    pub steps: Vec<StepOutcome>,
    /// Memory impact, as the plan foresaw it.
    pub memory: MemoryImpact,
    /// True if nothing was changed because only the commands were asked for.
    pub dry_run: bool,
    /// The equivalent shell lines.
    pub commands: Vec<String>,
    /// True if caches were dropped on the way.
    pub dropped_caches: bool,
    /// True if memory was compacted on the way.
    pub compacted: bool,
    /// True if the former values were restored because of a shortfall.
    pub rolled_back: bool,
    /// Time that it took.
    #[serde(serialize_with = "seconds", rename = "elapsed_seconds")]
    pub elapsed: Duration,
    /// Causes of missing pages, and remedies; `None` if none are missing.
    pub shortfall: Option<Shortfall>,
}

impl Outcome {
    /// Returns true if every value is as asked.
    pub fn is_complete(&self) -> bool {
        self.shortfall.is_none()
    }
}

impl Plan {
    /// Returns the outcome of applying the plan, without doing it.
    pub fn dry_run(&self) -> Outcome {
        Outcome {
            steps: self.steps.iter().map(|step| StepOutcome::not_made(step, None)).collect(),
            memory: self.memory,
            dry_run: true,
            commands: self.commands(),
            dropped_caches: false,
            compacted: false,
            rolled_back: false,
            elapsed: Duration::ZERO,
            shortfall: None,
        }
    }

    /// Returns the shell lines that do the same, for root. A test runs them.
    pub fn commands(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for step in self.steps.iter().filter(|step| !step.is_no_op()) {
            let file = format!("/{}", hugetlb::path(step.size, step.scope, step.file));
            let write = format!("echo {} > {file}", step.asked);
            lines.push(write.clone());
            if step.asked > step.before && step.file == PoolFile::Pages && !self.timeout.is_zero() {
                let short = format!("[ \"$(cat {file})\" -ge {} ]", step.asked);
                let compact = format!("echo 1 > /{}", reclaim::compact_path(step.scope));
                let drop = format!("echo {} > /{}", reclaim::DROP_ALL, reclaim::DROP_CACHES);
                lines.push(format!("{short} || {{ {compact}; {write}; }}"));
                lines.push(format!("{short} || {{ {drop}; {compact}; {write}; }}"));
            }
        }
        lines
    }

    /// Makes the steps. Returns an error if the kernel refused a write: the steps before it are
    /// undone then. A shortfall is no error but part of the outcome. If it is killed half-way, the
    /// pages obtained so far stay.
    pub fn apply(&self, root: &KernelRoot) -> Result<Outcome, PoolError> {
        if !root.is_live() {
            return Err(PoolError::NotLive);
        }
        self.carry_out(root)
    }

    fn carry_out(&self, root: &KernelRoot) -> Result<Outcome, PoolError> {
        let start = Instant::now();
        let mut work = Work { root, deadline: start + self.timeout, dropped_caches: false, compacted: false };
        let mut outcomes: Vec<StepOutcome> = Vec::new();
        for step in &self.steps {
            match work.make(step) {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => {
                    // The step itself may have been written before the failure.
                    if read_back(root, step).is_ok_and(|now| now != step.before) {
                        outcomes.push(StepOutcome { step: step.clone(), obtained: None, attempts: 1 });
                    }
                    put_back(root, &mut outcomes)?;
                    return Err(refused(step, error));
                }
            }
        }
        // The shortfall is explained before anything is restored: afterwards there is nothing to
        // explain.
        let shortfall = explain(root, &outcomes, self.roll_back);
        let rolled_back = self.roll_back && shortfall.is_some();
        if rolled_back {
            put_back(root, &mut outcomes)?;
        }
        Ok(Outcome {
            steps: outcomes,
            memory: self.memory,
            dry_run: false,
            commands: self.commands(),
            dropped_caches: work.dropped_caches,
            compacted: work.compacted,
            rolled_back,
            elapsed: start.elapsed(),
            shortfall,
        })
    }
}

/// State that the steps of one transaction share.
struct Work<'a> {
    root: &'a KernelRoot,
    deadline: Instant,
    dropped_caches: bool,
    compacted: bool,
}

impl Work<'_> {
    /// Writes and reads back. On a shortfall it compacts and writes again. If pages are still
    /// missing, it also drops the caches before each further attempt, as long as every such attempt
    /// gains pages.
    fn make(&mut self, step: &Step) -> Result<StepOutcome, KernelError> {
        if step.is_no_op() {
            return Ok(StepOutcome::not_made(step, Some(step.before)));
        }
        let mut obtained = self.write(step)?;
        let mut attempts = 1;
        let mut drop_caches = false;
        while obtained < step.asked && attempts < MOST_ATTEMPTS && Instant::now() < self.deadline {
            // A correct write needs neither. If one is refused (a kernel without compaction), the
            // attempt goes on without it.
            if drop_caches {
                self.dropped_caches |= reclaim::drop_caches(self.root).is_ok();
            }
            self.compacted |= reclaim::compact(self.root, step.scope).is_ok();
            let now = self.write(step)?;
            attempts += 1;
            let gained = now > obtained;
            obtained = now;
            if !gained && drop_caches {
                break;
            }
            drop_caches = true;
        }
        Ok(StepOutcome { step: step.clone(), obtained: Some(obtained), attempts })
    }

    fn write(&self, step: &Step) -> Result<u64, KernelError> {
        hugetlb::write(self.root, step.size, step.scope, step.file, step.asked)?;
        read_back(self.root, step)
    }
}

fn read_back(root: &KernelRoot, step: &Step) -> Result<u64, KernelError> {
    let counts = hugetlb::counts(root, step.size, step.scope)?;
    Ok(match step.file {
        PoolFile::Pages => counts.persistent(),
        PoolFile::Overcommit => counts.overcommit.unwrap_or(0),
    })
}

/// Restores the former values, the latest step first, and notes the values read back. It ends at
/// the first refusal: a kernel that took a value a moment ago and refuses it now cannot be repaired
/// here.
fn put_back(root: &KernelRoot, outcomes: &mut [StepOutcome]) -> Result<(), KernelError> {
    for outcome in outcomes.iter_mut().rev().filter(|outcome| outcome.attempts > 0) {
        let step = &outcome.step;
        hugetlb::write(root, step.size, step.scope, step.file, step.before)?;
        outcome.obtained = Some(read_back(root, step)?);
    }
    Ok(())
}

/// Returns the kernel's refusal in the user's terms.
fn refused(step: &Step, error: KernelError) -> PoolError {
    let path = match &error {
        KernelError::Io { path, .. } => path.display().to_string(),
        KernelError::Parse { .. } => return PoolError::Kernel(error),
    };
    match error.raw_os_error() {
        Some(errno::EACCES | errno::EPERM) => PoolError::Denied(path),
        Some(errno::EROFS) => PoolError::ReadOnly(path),
        Some(errno::EINVAL) => match step.file {
            PoolFile::Pages => PoolError::Refused {
                path,
                what: "changes while it runs",
                size: step.size,
                help: "; reserve them at boot (megapage pool persist)",
            },
            PoolFile::Overcommit => {
                PoolError::Refused { path, what: "overcommit", size: step.size, help: "" }
            }
        },
        _ => PoolError::Kernel(error),
    }
}

fn seconds<S: Serializer>(elapsed: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Request, plan};
    use super::super::shortfall::Cause;
    use super::*;
    use megapage_kernel::hugetlb::PoolScope;
    use megapage_units::PageSize;
    use std::fs;
    use std::path::Path;

    /// Returns a tree whose 2 MiB pool falls short by `surplus` pages: a written total reads back
    /// whole, but its surplus pages are not persistent. Adds `files` to it.
    fn tree(surplus: u64, files: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 25165824 kB\nMemAvailable: 20000000 kB\nHugepagesize: 2048 kB\n");
        for size in ["2048kB", "1048576kB"] {
            let surplus = if size == "2048kB" { surplus } else { 0 };
            for (name, value) in [
                ("nr_hugepages", 10 + surplus),
                ("free_hugepages", 10),
                ("resv_hugepages", 0),
                ("surplus_hugepages", surplus),
                ("nr_overcommit_hugepages", 0),
            ] {
                let path = format!("sys/kernel/mm/hugepages/hugepages-{size}/{name}");
                write(&path, &format!("{value}\n"));
            }
        }
        for (path, text) in files {
            write(path, text);
        }
        tree
    }

    fn outcome(tree: &Path, pools: &[&str], roll_back: bool, timeout: u64) -> Result<Outcome, PoolError> {
        let root = KernelRoot::captured(tree);
        let request = Request {
            pools: pools.iter().map(|text| text.parse().unwrap()).collect(),
            overcommit: Vec::new(),
            node: None,
            force: false,
            timeout: Duration::from_secs(timeout),
            roll_back,
        };
        plan(&root, &request).unwrap().carry_out(&root)
    }

    const RECLAIM: [(&str, &str); 2] = [("proc/sys/vm/drop_caches", ""), ("proc/sys/vm/compact_memory", "")];

    #[test]
    fn a_shortfall_is_worked_on_and_explained() {
        let tree = tree(3, &RECLAIM);
        let outcome = outcome(tree.path(), &["2m=100", "1g=12"], false, 10).unwrap();
        // Three attempts: the first write, one after compaction, one after dropping caches as well.
        // Nothing was gained.
        assert_eq!(outcome.steps[1].attempts, 3);
        assert!(outcome.compacted && outcome.dropped_caches && !outcome.rolled_back);
        assert_eq!(fs::read_to_string(tree.path().join("proc/sys/vm/drop_caches")).unwrap(), "3");
        assert_eq!((outcome.steps[1].obtained, outcome.steps[1].missing()), (Some(97), 3));
        assert_eq!(outcome.steps[0].obtained, Some(12), "the other pool is there");
        let shortfall = outcome.shortfall.unwrap();
        assert_eq!((shortfall.missing.len(), shortfall.missing[0].pages), (1, 3));
        assert_eq!(shortfall.missing[0].cause, Cause::Fragmentation);
    }

    #[test]
    fn without_time_there_is_one_attempt() {
        let tree = tree(3, &RECLAIM);
        let outcome = outcome(tree.path(), &["2m=100"], false, 0).unwrap();
        assert_eq!(outcome.steps[0].attempts, 1);
        assert!(!outcome.compacted && !outcome.dropped_caches && outcome.shortfall.is_some());
    }

    #[test]
    fn a_shortfall_rolls_the_whole_transaction_back() {
        let tree = tree(3, &RECLAIM);
        let outcome = outcome(tree.path(), &["2m=100", "1g=12"], true, 10).unwrap();
        assert!(outcome.rolled_back && outcome.shortfall.is_some());
        let root = KernelRoot::captured(tree.path());
        let total = |size| hugetlb::counts(&root, size, PoolScope::Machine).unwrap().total;
        assert_eq!((total(PageSize::HUGE_1G), total(PageSize::HUGE_2M)), (10, 10));
    }

    #[test]
    fn a_refused_write_puts_back_what_went_before_it() {
        let tree = tree(0, &[]);
        // The 2 MiB pool comes after the 1 GiB pool. A directory in place of its file cannot be
        // written.
        let file = tree.path().join("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        let root = KernelRoot::captured(tree.path());
        let request = Request {
            pools: vec!["2m=100".parse().unwrap(), "1g=12".parse().unwrap()],
            overcommit: Vec::new(),
            node: None,
            force: false,
            timeout: Duration::ZERO,
            roll_back: false,
        };
        let plan = plan(&root, &request).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(plan.carry_out(&root), Err(PoolError::Kernel(_))));
        assert_eq!(hugetlb::counts(&root, PageSize::HUGE_1G, PoolScope::Machine).unwrap().total, 10);
    }
}
