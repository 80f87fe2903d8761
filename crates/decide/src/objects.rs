//! Shared memory: one process promotes each block of an object, on behalf of all that map it.

use crate::promotions::is_unhindered;
use megapage_snapshot::{Leaf, MappedObject, MappingKind, Process, ProcessId, Region};
use megapage_units::HUGE_2M;
use std::collections::BTreeMap;
use std::time::Duration;

/// For each block of shared memory that could be huge, the process that promotes it. This is the
/// process that uses the block most, by its touched pages and its processor time. A block that any
/// process maps huge is huge in the object: the others get the huge page with their next access.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    chosen: BTreeMap<MappedObject, Choice>,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Huge,
    By { process: ProcessId, present: u16, cpu: Duration },
}

impl Objects {
    /// Chooses among these processes, all of which may be changed.
    pub fn new<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Objects {
        let mut objects = Objects::default();
        for process in processes {
            for region in process.regions.iter().filter(|region| region.present > 0) {
                let Some(block) = process.shared_block(region) else { continue };
                if region.leaf != Leaf::Base {
                    objects.chosen.insert(block, Choice::Huge);
                } else if could_be_huge(process, region) && !process.thp_disabled {
                    let (present, cpu) = (region.present, process.cpu);
                    let choice = objects.chosen.entry(block).or_insert(Choice::By {
                        process: process.id,
                        present,
                        cpu,
                    });
                    if let Choice::By { present: least, cpu: former, .. } = *choice
                        && weight(present, cpu) > weight(least, former)
                    {
                        *choice = Choice::By { process: process.id, present, cpu };
                    }
                }
            }
        }
        objects
    }

    /// Returns true if this process promotes the region.
    pub fn is_chosen(&self, process: &Process, region: &Region) -> bool {
        let choice = process.shared_block(region).and_then(|block| self.chosen.get(&block));
        matches!(choice, Some(Choice::By { process: by, .. }) if *by == process.id)
    }
}

/// Returns the weight of a process's use of a block. A process without processor time still counts
/// by its touched pages.
fn weight(present: u16, cpu: Duration) -> u128 {
    u128::from(present) * (cpu.as_millis() + 1)
}

/// Returns true if a region is of shared memory that one 2 MiB entry could map. Address and offset
/// in the object agree modulo 2 MiB, and nothing forbids a huge page there.
fn could_be_huge(process: &Process, region: &Region) -> bool {
    let Some(mapping) = process.mappings.get(region.mapping as usize) else { return false };
    let agrees = mapping
        .object
        .is_some_and(|object| object.offset % HUGE_2M as u64 == mapping.range.start() % HUGE_2M as u64);
    agrees && mapping.kind == MappingKind::Shared && mapping.flags.shared && is_unhindered(mapping, region)
}
