//! Requests, as the kernel counts them.

use super::Service;
use crate::metric::Metric;
use crate::processor::Processor;
use megapage_kernel::KernelRoot;
use megapage_kernel::accounting::{io_calls, network_namespace, tcp_segments};
use megapage_units::Pid;
use std::time::Duration;

/// Time for which a service is observed to choose the count.
const LOOK: Duration = Duration::from_secs(1);
/// Least growth of a count in that time: one that grows less does not count requests.
const LEAST: u64 = 50;

/// A count that the kernel keeps.
pub(crate) enum Counted {
    /// Calls that read or write, of each process, with the last count: an ended process keeps its
    /// count.
    Calls { root: KernelRoot, processes: Vec<(Pid, u64)> },
    /// TCP segments in the network namespace of the first of these processes that is left.
    Segments { root: KernelRoot, pids: Vec<Pid>, last: u64, is_own: bool },
}

impl Counted {
    /// Returns the count for a metric, and the clock of the processes whose requests it counts.
    pub fn open(
        metric: &Metric,
        service: &Service<'_>,
        wait: &mut dyn FnMut(Duration),
    ) -> Result<(Counted, Processor), String> {
        match metric {
            Metric::Calls => Ok(Counted::of_calls(service)),
            Metric::Segments => Counted::of_segments(service),
            _ => Counted::choose(service, wait),
        }
    }

    fn choose(service: &Service<'_>, wait: &mut dyn FnMut(Duration)) -> Result<(Counted, Processor), String> {
        let mut calls = Counted::of_calls(service);
        let mut segments = Counted::of_segments(service).ok();
        let before = (calls.0.read(), segments.as_mut().map_or(0.0, |it| it.0.read()));
        wait(LOOK);
        let grown = |counted: &mut Counted, before: f64| counted.read() - before >= LEAST as f64;
        if grown(&mut calls.0, before.0) {
            return Ok(calls);
        }
        if let Some(mut segments) = segments
            && grown(&mut segments.0, before.1)
        {
            return Ok(segments);
        }
        Err(format!(
            "it neither reads nor writes {LEAST} times in a second, nor receives as many segments of TCP: name another metric \
             (--metric), or try again under load"
        ))
    }

    fn of_calls(service: &Service<'_>) -> (Counted, Processor) {
        let processes = service.pids.iter().map(|pid| (*pid, 0)).collect();
        let counted = Counted::Calls { root: service.root.clone(), processes };
        // Neither the calls nor the time of processes that start later count.
        (counted, Processor::of(service.root, None, service.pids))
    }

    fn of_segments(service: &Service<'_>) -> Result<(Counted, Processor), String> {
        let root = service.root;
        let pid = *service.pids.first().ok_or("there is no process")?;
        let last = tcp_segments(root, pid).map_err(|error| error.to_string())?;
        let own = Pid(std::process::id().cast_signed());
        let name = |pid| network_namespace(root, pid).ok();
        let is_own = name(pid).is_some_and(|of_service| name(own).is_some_and(|ours| ours != of_service));
        let counted = Counted::Segments { root: root.clone(), pids: service.pids.to_vec(), last, is_own };
        Ok((counted, Processor::of(root, service.group, service.pids)))
    }

    /// Returns the count so far.
    pub fn read(&mut self) -> f64 {
        match self {
            Counted::Calls { root, processes } => {
                let mut sum = 0;
                for (pid, last) in processes {
                    *last = io_calls(root, *pid).unwrap_or(*last).max(*last);
                    sum += *last;
                }
                sum as f64
            }
            Counted::Segments { root, pids, last, .. } => {
                let now = pids.iter().find_map(|pid| tcp_segments(root, *pid).ok());
                *last = now.unwrap_or(*last).max(*last);
                *last as f64
            }
        }
    }

    pub fn in_words(&self) -> &'static str {
        match self {
            Counted::Calls { .. } => "calls that read and write",
            Counted::Segments { is_own: true, .. } => "TCP segments received in its network namespace",
            Counted::Segments { is_own: false, .. } => "TCP segments received by the whole machine",
        }
    }
}

#[cfg(test)]
mod tests;
