//! Shared memory: each block of an object is promoted by one process, on behalf of all that map it.

use crate::promotions::is_unhindered;
use megapage_snapshot::{Leaf, MappedObject, MappingKind, Process, ProcessId, Region};
use megapage_units::HUGE_2M;
use std::collections::BTreeMap;
use std::time::Duration;

/// For each block of shared memory that could be huge, the process by which it is promoted: the one of those that use it most,
/// by what they have touched of it and their processor time. A block that any process maps huge is huge in the object: the
/// others get the huge page with their next access.
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
    /// Of these processes, all of which may be acted on.
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

    /// Whether a region is promoted by this process.
    pub fn is_chosen(&self, process: &Process, region: &Region) -> bool {
        let choice = process.shared_block(region).and_then(|block| self.chosen.get(&block));
        matches!(choice, Some(Choice::By { process: by, .. }) if *by == process.id)
    }
}

/// How much a process uses a block. One that has not run yet still counts by what it has touched.
fn weight(present: u16, cpu: Duration) -> u128 {
    u128::from(present) * (cpu.as_millis() + 1)
}

/// Whether a region is of shared memory that one 2 MiB entry could map: address and place in the object agree modulo 2 MiB, and
/// nothing is in the way.
fn could_be_huge(process: &Process, region: &Region) -> bool {
    let Some(mapping) = process.mappings.get(region.mapping as usize) else { return false };
    let agrees = mapping
        .object
        .is_some_and(|object| object.offset % HUGE_2M as u64 == mapping.range.start() % HUGE_2M as u64);
    agrees && mapping.kind == MappingKind::Shared && mapping.flags.shared && is_unhindered(mapping, region)
}
