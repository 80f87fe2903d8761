//! Snapshots of the model for a policy: the same that a running machine would give.

use super::Machine;
use crate::process::Process;
use megapage_snapshot::{
    AccessProfile, Accessed, BackingBytes, CostSource, Leaf, Mapping, Memory, Node, PAGES, Pressure,
    ProcessSampling, Region, Sampling, Snapshot, TrackerKind, TranslationCost,
};
use megapage_units::{Bytes, VirtRange};
use std::time::Duration;

/// Share of the average that a new sample replaces (HawkEye's code: (6 old + 4 new) / 10).
const NEW_SHARE: f32 = 0.4;
/// Share of free memory below which the kernel's reclaim makes programs wait. An assumption:
/// without swap nothing can be reclaimed, and kswapd runs in vain (mm/vmscan.c,
/// watermark_scale_factor).
const SHORT: f64 = 0.05;
/// Largest share of a program's time for sampling: the observer's own default. Here the policy
/// keeps to it, or not.
const SAMPLING_BUDGET: f64 = 0.01;
/// Seconds over which memory pressure is averaged (PSI).
const PRESSURE_SECONDS: f64 = 10.0;

impl Machine {
    pub(super) fn settle_pressure(&mut self, length: f64) {
        let free = self.memory.free_pages() as f64 / self.memory.total_pages().max(1) as f64;
        let short = ((SHORT - free) / SHORT).clamp(0.0, 1.0);
        let stalled = (self.stalled_now / length).max(short).min(1.0);
        let keep = (-length / PRESSURE_SECONDS).exp();
        self.stalled = self.stalled * keep + stalled * (1.0 - keep);
        self.stalled_total += stalled * length;
    }

    /// Reads the samples whose window is over.
    pub(super) fn read_samples(&mut self) {
        for at in 0..self.processes.len() {
            let Some((regions, window)) = self.processes[at].sampling.take() else { continue };
            let now = Duration::from_secs_f64(self.now);
            for number in regions {
                let coverage = self.coverage(at, number, window);
                let region = &mut self.processes[at].regions[number as usize];
                if region.present == 0 {
                    continue;
                }
                let coverage = if region.huge {
                    // One bit for all pages.
                    if coverage >= 0.5 { PAGES } else { 0 }
                } else {
                    coverage.round() as u16
                };
                let before = region.accessed;
                region.accessed = Some(Accessed {
                    coverage,
                    average: match before {
                        Some(before) => before.average * (1.0 - NEW_SHARE) + f32::from(coverage) * NEW_SHARE,
                        None => f32::from(coverage),
                    },
                    last: if coverage > 0 { Some(now) } else { before.and_then(|before| before.last) },
                    sampled: now,
                });
            }
            self.processes[at].samples += 1;
            self.processes[at].last_sample = Some(self.now);
        }
    }

    /// Returns the snapshot that a policy gets now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            taken: Duration::from_secs_f64(self.now),
            machine: self.observe_machine(),
            sampling: Some(Sampling {
                tracker: TrackerKind::Bpf,
                lacks: Vec::new(),
                skipped: Vec::new(),
                first_access_ns: self.setup.hardware.work.first_access_ns,
                budget: SAMPLING_BUDGET,
            }),
            processes: self
                .processes
                .iter()
                .enumerate()
                .filter(|(at, process)| process.is_running() && self.starts[*at] < self.now)
                .map(|(_, process)| self.observe_process(process))
                .collect(),
            missed: Vec::new(),
        }
    }

    fn observe_machine(&self) -> megapage_snapshot::Machine {
        let free = Bytes(self.memory.free_pages() << 12);
        let cache = Bytes(self.memory.cache_pages() << 12);
        let per_cent = self.stalled * 100.0;
        megapage_snapshot::Machine {
            memory: Memory {
                total: Bytes(self.memory.total_pages() << 12),
                free,
                available: free + cache,
                swap_total: Bytes::ZERO,
                swap_free: Bytes::ZERO,
                anon_huge: Bytes(self.processes.iter().map(|process| process.huge_regions << 21).sum()),
            },
            nodes: vec![Node {
                node: 0,
                free,
                huge_available: self.memory.huge_free(),
                fragmentation: self.memory.fragmentation(),
            }],
            pools: Vec::new(),
            thp: None,
            counters: Default::default(),
            pressure: Some(Pressure {
                some_10s: per_cent,
                some_60s: per_cent,
                full_10s: 0.0,
                some_total_us: (self.stalled_total * 1e6) as u64,
            }),
        }
    }

    fn observe_process(&self, process: &Process) -> megapage_snapshot::Process {
        let huge = Bytes(process.huge_regions << 21);
        let resident = process.resident();
        let range = process.extent().and_then(|(start, end)| VirtRange::new(start, end));
        let account = &process.account;
        let cpu = account.work_seconds + account.translation_seconds + account.fault_seconds;
        let mut regions = Vec::with_capacity(process.by_address().len());
        for &number in process.by_address() {
            let region = &process.regions[number as usize];
            if region.present == 0 && region.zero_page == 0 {
                continue;
            }
            // An estimator learns rates from samples: regions that were never sampled have none.
            let profile =
                region.accessed.and_then(|_| process.pattern_of(number)).map(|(_, visits, class)| {
                    AccessProfile { visits: visits / process.translation.seconds(), class }
                });
            regions.push(Region {
                zero_page: region.zero_page,
                leaf: if region.huge { Leaf::Huge2m } else { Leaf::Base },
                zeros: region.zeros,
                accessed: region.accessed,
                profile,
                ..Region::of_base_pages(process.addresses[number as usize], region.present)
            });
        }
        megapage_snapshot::Process {
            cpu: Duration::from_secs_f64(cpu.max(0.0)),
            rss: resident,
            rss_anonymous: resident,
            backing: BackingBytes { thp: huge, base: resident.saturating_sub(huge), ..Default::default() },
            mappings: range
                .map(|range| Mapping { thp_eligible: Some(true), ..Mapping::anonymous(range) })
                .into_iter()
                .collect(),
            regions,
            sharing_children: Some(0),
            translation: self.setup.pmu.then(|| {
                let share = process.translation.share();
                TranslationCost { share, low: share, high: share, source: CostSource::Measured }
            }),
            sampling: process.last_sample.map(|sampled| ProcessSampling {
                window: Duration::from_secs(1),
                period: Some(Duration::from_secs(1)),
                sampled: Duration::from_secs_f64(sampled),
                ranges: 1,
                bytes: resident,
                shared: Bytes::ZERO,
                cost: Duration::ZERO,
                slowdown: 0.0,
                samples: process.samples,
            }),
            ..megapage_snapshot::Process::without_memory(process.id, &process.program.name)
        }
    }
}
