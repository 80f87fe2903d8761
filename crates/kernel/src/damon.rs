//! DAMON, the kernel's own monitor of accesses, by its files: `/sys/kernel/mm/damon/admin`
//! (Documentation/admin-guide/mm/damon/usage.rst; Linux 5.18).
//!
//! The directory is one for the whole machine: a process that writes the number of monitors (kdamonds) replaces the
//! machine-wide configuration. A [`Damon`] therefore only takes it where there is none, and releases it when it
//! is dropped. The files alone have no effect: the kernel takes the whole configuration over when a monitor is
//! switched on, or refuses it.

use crate::guard::Guard;
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid, VirtRange};
use std::io;
use std::time::Duration;

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
/// The kernel's own monitors, which share with no other: `start` fails with EBUSY while one runs. damon_stat (Linux 6.17)
/// runs from boot where the kernel was built so, as Debian's 7.3.
const EXCLUSIVE: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// What addresses are monitored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Ranges of one process, by the operations of this name (`fvaddr` or `vaddr`).
    Process {
        /// The operations.
        operations: String,
        /// The process.
        pid: Pid,
    },
    /// Physical memory (`paddr`).
    Physical,
}

/// What is counted of each range at every interval: the scheme, whose action is always `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Of each monitored range, how many probes found it accessed.
    Probes,
    /// The bytes of pages whose accessed bit was set; the bit is cleared (Linux 6.14).
    AccessedPages,
}

/// The configuration of one monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What is monitored.
    pub target: Target,
    /// The ranges at the start, ascending and disjoint; physical addresses with [`Target::Physical`].
    pub ranges: Vec<VirtRange>,
    /// The number of ranges below which the kernel does not merge, at least 3, and above half of which it does
    /// not split.
    pub regions: (u64, u64),
    /// From one probe of a range to the next.
    pub sample: Duration,
    /// Over how long probes are summed up; a multiple of `sample`.
    pub aggregation: Duration,
    /// From one count of the scheme to the next (Linux 6.7; before, `aggregation`).
    pub apply: Duration,
    /// What is counted.
    pub count: Count,
}

/// One range as the scheme found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The addresses.
    pub range: VirtRange,
    /// Probes of the last aggregation that found the range accessed.
    pub accesses: u64,
}

/// What a scheme has counted since it was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes that the scheme was applied to.
    pub tried: Bytes,
    /// Those of them that passed its filter (Linux 6.14; else zero).
    pub passed: Bytes,
}

/// How many monitors are configured, by any process; `Ok(None)` on a kernel without DAMON's files.
pub fn monitors(root: &KernelRoot) -> Result<Option<u64>, KernelError> {
    match root.read_u64(format!("{KDAMONDS}/nr_kdamonds")) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file that holds the number of monitors, as the user would name it.
pub fn path() -> String {
    format!("/{KDAMONDS}/nr_kdamonds")
}

/// The parameter of a monitor of the kernel's own that runs and that shares with no other, as the user would name it.
/// One that does not answer counts as off: `start` then finds out.
pub fn exclusive(root: &KernelRoot) -> Option<String> {
    let parameter = |name: &&str| format!("sys/module/{name}/parameters/enabled");
    let runs = |path: &String| root.read(path).is_ok_and(|text| text.trim() == "Y");
    EXCLUSIVE.iter().map(parameter).find(runs).map(|path| format!("/{path}"))
}

/// DAMON, taken. Dropping it switches the monitors off and leaves the directory as it was found: empty; so does a
/// guard where this process ends without (a signal, a panic).
#[derive(Debug)]
pub struct Damon {
    root: KernelRoot,
    monitors: usize,
    guard: Option<Guard>,
}

impl Damon {
    /// Makes `count` monitors, none of them on. EBUSY where there are monitors already, those of another process, or where
    /// the kernel's own runs that shares with none ([`exclusive`]): the error has the path of which.
    pub fn take(root: &KernelRoot, count: usize) -> Result<Damon, KernelError> {
        let found = root.read_u64(format!("{KDAMONDS}/nr_kdamonds"))?;
        let holder = if found != 0 { Some(path()) } else { exclusive(root) };
        if let Some(path) = holder {
            let source = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(KernelError::Io { path: root.path(path.trim_start_matches('/')), source });
        }
        let mut damon = Damon { root: root.clone(), monitors: 0, guard: None };
        damon.resize(count)?;
        Ok(damon)
    }

    /// Switches all monitors off and makes `count` new ones.
    pub fn resize(&mut self, count: usize) -> Result<(), KernelError> {
        self.stop_all();
        // From here on there is something to release, also where a later write fails.
        self.monitors = count.max(self.monitors);
        let states = (0..self.monitors).map(|monitor| (format!("{KDAMONDS}/{monitor}/state"), "off"));
        let files = states.chain([(format!("{KDAMONDS}/nr_kdamonds"), "0")]);
        let guard = Guard::of_files(files.map(|(file, text)| (self.root.path(file), text.into())).collect())
            .map_err(|source| KernelError::Io { path: self.root.path(KDAMONDS), source })?;
        // The new one stands for the former monitors, too.
        self.relieve(Some(guard));
        self.root.write(format!("{KDAMONDS}/nr_kdamonds"), &count.to_string())?;
        self.monitors = count;
        (0..count).try_for_each(|monitor| self.write(monitor, "contexts/nr_contexts", "1"))
    }

    /// The operations that the kernel was built with: `paddr`, `vaddr`, `fvaddr`.
    pub fn operations(&self, monitor: usize) -> Result<Vec<String>, KernelError> {
        let text = self.root.read(format!("{KDAMONDS}/{monitor}/contexts/0/avail_operations"))?;
        Ok(text.split_whitespace().map(str::to_string).collect())
    }

    /// Writes the configuration of a monitor that is off. It takes effect with [`Damon::start`].
    pub fn configure(&self, monitor: usize, configuration: &Configuration) -> Result<(), KernelError> {
        let write = |name: &str, value: &str| self.write(monitor, &format!("contexts/0/{name}"), value);
        let micros = |time: Duration| time.as_micros().to_string();
        let operations = match &configuration.target {
            Target::Process { operations, .. } => operations,
            Target::Physical => "paddr",
        };
        write("operations", operations)?;
        write("monitoring_attrs/intervals/sample_us", &micros(configuration.sample))?;
        write("monitoring_attrs/intervals/aggr_us", &micros(configuration.aggregation))?;
        // With ranges of our own there is nothing to update.
        write("monitoring_attrs/intervals/update_us", &micros(Duration::from_secs(3600)))?;
        let (least, most) = configuration.regions;
        write("monitoring_attrs/nr_regions/min", &least.to_string())?;
        write("monitoring_attrs/nr_regions/max", &most.to_string())?;
        write("targets/nr_targets", "1")?;
        if let Target::Process { pid, .. } = &configuration.target {
            write("targets/0/pid_target", &pid.to_string())?;
        }
        write("targets/0/regions/nr_regions", &configuration.ranges.len().to_string())?;
        for (index, range) in configuration.ranges.iter().enumerate() {
            write(&format!("targets/0/regions/{index}/start"), &range.start().to_string())?;
            write(&format!("targets/0/regions/{index}/end"), &range.end().to_string())?;
        }
        write("schemes/nr_schemes", "1")?;
        write("schemes/0/action", "stat")?;
        for bound in ["sz", "nr_accesses", "age"] {
            write(&format!("schemes/0/access_pattern/{bound}/min"), "0")?;
            let most = if bound == "sz" { u64::MAX } else { u64::from(u32::MAX) };
            write(&format!("schemes/0/access_pattern/{bound}/max"), &most.to_string())?;
        }
        match write("schemes/0/apply_interval_us", &micros(configuration.apply)) {
            // Before Linux 6.7 there is one interval for both.
            Err(error) if error.is_gone() => {}
            other => other?,
        }
        if configuration.count == Count::AccessedPages {
            write("schemes/0/ops_filters/nr_filters", "1")?;
            write("schemes/0/ops_filters/0/type", "young")?;
            write("schemes/0/ops_filters/0/matching", "Y")?;
            write("schemes/0/ops_filters/0/allow", "Y")?;
        }
        Ok(())
    }

    /// Switches a monitor on. EINVAL where the kernel refuses its configuration as a whole; ESRCH or EINVAL where
    /// the process has gone.
    pub fn start(&self, monitor: usize) -> Result<(), KernelError> {
        self.write(monitor, "state", "on")
    }

    /// What the scheme of a monitor has counted so far. The kernel answers at the next interval of `apply`: until
    /// then the call waits.
    pub fn counted(&self, monitor: usize) -> Result<Counted, KernelError> {
        self.write(monitor, "state", "update_schemes_stats")?;
        let stats = format!("{KDAMONDS}/{monitor}/contexts/0/schemes/0/stats");
        let passed = match self.root.read_u64(format!("{stats}/sz_ops_filter_passed")) {
            Err(error) if error.is_gone() => 0,
            other => other?,
        };
        Ok(Counted { tried: Bytes(self.root.read_u64(format!("{stats}/sz_tried"))?), passed: Bytes(passed) })
    }

    /// The ranges of a monitor, ascending, as its scheme finds them at the next interval of `apply`: until then
    /// the call waits (Linux 6.2).
    pub fn tried(&self, monitor: usize) -> Result<Vec<Tried>, KernelError> {
        self.write(monitor, "state", "update_schemes_tried_regions")?;
        let directory = format!("{KDAMONDS}/{monitor}/contexts/0/schemes/0/tried_regions");
        let mut tried = Vec::new();
        for name in self.root.list(&directory)? {
            if name.parse::<u64>().is_err() {
                continue;
            }
            let number = |file: &str| self.root.read_u64(format!("{directory}/{name}/{file}"));
            let (start, end) = (number("start")?, number("end")?);
            let range = VirtRange::new(start, end).ok_or_else(|| KernelError::Parse {
                path: self.root.path(format!("{directory}/{name}/end")),
                line: 1,
                what: format!("expected an address from {start} on, found '{end}'"),
            })?;
            tried.push(Tried { range, accesses: number("nr_accesses")? });
        }
        tried.sort_by_key(|tried| tried.range);
        Ok(tried)
    }

    /// Switches a monitor off. One that has ended by itself, with its process, is off already.
    pub fn stop(&self, monitor: usize) {
        let _ = self.write(monitor, "state", "off");
    }

    fn stop_all(&self) {
        (0..self.monitors).for_each(|monitor| self.stop(monitor));
    }

    /// Has another guard, or none, stand in.
    fn relieve(&mut self, guard: Option<Guard>) {
        if let Some(former) = std::mem::replace(&mut self.guard, guard) {
            // One that was killed is no guard any more, and has nothing to do.
            let _ = former.release();
        }
    }

    fn write(&self, monitor: usize, name: &str, value: &str) -> Result<(), KernelError> {
        self.root.write(format!("{KDAMONDS}/{monitor}/{name}"), value)
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        self.stop_all();
        if self.monitors > 0 {
            // Nothing can be done about a failure here; the monitors are off.
            let _ = self.root.write(format!("{KDAMONDS}/nr_kdamonds"), "0");
        }
        self.relieve(None);
    }
}

/// The ranges of physical memory that are `System RAM` in `/proc/iomem`. Without root the kernel shows zeros for
/// all addresses: then the list is empty.
pub fn physical_memory(root: &KernelRoot) -> Result<Vec<VirtRange>, KernelError> {
    let text = root.read("proc/iomem")?;
    let ranges = text.lines().filter_map(|line| {
        // Lines that are indented are parts of one above.
        let (addresses, what) = line.split_once(" : ")?;
        if what != "System RAM" || addresses.starts_with(' ') {
            return None;
        }
        let (start, last) = addresses.split_once('-')?;
        let last = u64::from_str_radix(last, 16).ok().filter(|last| *last > 0)?;
        VirtRange::new(u64::from_str_radix(start, 16).ok()?, last.checked_add(1)?)
    });
    Ok(ranges.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;
    use std::fs;

    #[test]
    fn monitors_of_others_are_left_alone() {
        let (_keep, root) = captured_tree(&[("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n")]);
        assert_eq!(monitors(&root).unwrap(), Some(1));
        let error = Damon::take(&root, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        assert_eq!(root.read_u64("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").unwrap(), 1);
    }

    #[test]
    fn a_monitor_of_the_kernels_own_that_shares_with_none_is_left_alone() {
        const NUMBER: &str = "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
        for name in EXCLUSIVE {
            let enabled = format!("sys/module/{name}/parameters/enabled");
            let (_keep, root) = captured_tree(&[(NUMBER, "0\n"), (&enabled, "Y\n")]);
            assert_eq!(exclusive(&root), Some(format!("/{enabled}")));
            let error = Damon::take(&root, 1).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
            assert!(error.to_string().contains(&enabled), "{error}");
            assert_eq!(root.read(NUMBER).unwrap(), "0\n");
            fs::write(root.path(&enabled), "N\n").unwrap();
            assert_eq!(exclusive(&root), None);
        }
    }

    #[test]
    fn a_kernel_without_it_has_none() {
        let (_keep, root) = captured_tree(&[]);
        assert_eq!(monitors(&root).unwrap(), None);
        assert!(Damon::take(&root, 1).unwrap_err().is_gone());
    }

    /// The directory is not the kernel's: it makes no files when numbers are written. A write that fails for that
    /// leaves no monitor behind.
    #[test]
    fn what_was_taken_is_given_back_when_it_fails_half_way() {
        let (_keep, root) = captured_tree(&[("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n")]);
        assert!(Damon::take(&root, 1).unwrap_err().is_gone());
        assert_eq!(root.read("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").unwrap(), "0");
    }

    /// As where the owner is killed: the destructor does not run, but the pipe to the guard is closed.
    #[test]
    fn what_was_taken_is_given_back_when_the_owner_is_killed() {
        const NUMBER: &str = "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
        let contexts = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/nr_contexts";
        let state = "sys/kernel/mm/damon/admin/kdamonds/0/state";
        let (_keep, root) = captured_tree(&[(NUMBER, "0\n"), (contexts, "0\n"), (state, "off\n")]);
        let mut damon = Damon::take(&root, 1).unwrap();
        damon.start(0).unwrap();
        assert_eq!((&*root.read(NUMBER).unwrap(), &*root.read(state).unwrap()), ("1", "on"));
        let guard = damon.guard.take();
        std::mem::forget(damon);
        drop(guard);
        assert_eq!((&*root.read(NUMBER).unwrap(), &*root.read(state).unwrap()), ("0", "off"));
    }

    #[test]
    fn ram_is_found_among_what_else_has_addresses() {
        let (_keep, root) = captured_tree(&[(
            "proc/iomem",
            "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n  00001000-00001fff : System RAM\n\
             000c0000-000dffff : PCI Bus\n00100000-7fffffff : System RAM\n",
        )]);
        let range = |start, end| VirtRange::new(start, end).unwrap();
        assert_eq!(physical_memory(&root).unwrap(), [range(0x1000, 0x9_fc00), range(0x10_0000, 0x8000_0000)]);
        fs::write(root.path("proc/iomem"), "00000000-00000000 : System RAM\n").unwrap();
        assert_eq!(physical_memory(&root).unwrap(), [], "what the kernel shows to others than root");
        fs::write(root.path("proc/iomem"), "00001000-ffffffffffffffff : System RAM\n").unwrap();
        assert_eq!(physical_memory(&root).unwrap(), [], "there is no address behind the last");
    }
}
