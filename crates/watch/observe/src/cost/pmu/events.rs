//! The events that count page walks, by processor.

use megapage_kernel::Processor;

/// Kind of counts of page walks on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Cycles with a walk under way.
    WalkCycles {
        /// Event for loads.
        load: u64,
        /// Event for stores.
        store: u64,
        /// True if a walk for a load and one for a store can be under way in the same cycle, which
        /// then counts twice.
        overlap: bool,
    },
    /// Misses of the second-level TLB, each with one walk.
    Misses {
        /// Event for loads and stores.
        misses: u64,
        /// Walks that can be under way at the same time.
        walkers: u32,
    },
}

/// Events to count on a family of processors. They are raw codes of the unit `cpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Unhalted core cycles.
    pub cycles: u64,
    /// Page walks.
    pub counted: Counted,
}

impl Recipe {
    /// Returns the codes in the order of the counts in [`Interval`](super::Interval): cycles, then
    /// walks.
    pub fn events(&self) -> impl Iterator<Item = u64> + use<> {
        let walks = match self.counted {
            Counted::WalkCycles { load, store, .. } => [Some(load), Some(store)],
            Counted::Misses { misses, .. } => [Some(misses), None],
        };
        std::iter::once(self.cycles).chain(walks.into_iter().flatten())
    }
}

/// Returns the raw code of an event of x86: event 0 to 0xff, unit mask, and counter mask. Counter
/// mask 0 counts occurrences, 1 counts cycles with at least one.
const fn raw(event: u64, unit_mask: u64, counter_mask: u64) -> u64 {
    event | unit_mask << 8 | counter_mask << 24
}

/// Returns the recipe with unhalted core cycles, and the cycles of page walks for loads and for
/// stores.
const fn intel(load: u64, store: u64, overlap: bool) -> Recipe {
    Recipe { cycles: raw(0x3c, 0x00, 0), counted: Counted::WalkCycles { load, store, overlap } }
}
// Counts DTLB_LOAD_MISSES.WALK_DURATION and DTLB_STORE_MISSES.WALK_DURATION.
const IVY_BRIDGE: Recipe = intel(raw(0x08, 0x84, 0), raw(0x49, 0x04, 0), false);
// The same events have other codes.
const HASWELL: Recipe = intel(raw(0x08, 0x10, 0), raw(0x49, 0x10, 0), false);
// The same events; the first processor with two page miss handlers. Erratum BDM69: may count too
// much.
const BROADWELL: Recipe = intel(raw(0x08, 0x10, 0), raw(0x49, 0x10, 0), true);
// Counts DTLB_LOAD_MISSES.WALK_ACTIVE and DTLB_STORE_MISSES.WALK_ACTIVE.
const SKYLAKE: Recipe = intel(raw(0x08, 0x10, 1), raw(0x49, 0x10, 1), true);
// The same events have other codes.
const GOLDEN_COVE: Recipe = intel(raw(0x12, 0x10, 1), raw(0x13, 0x10, 1), true);
/// Returns the recipe with LS_NOT_HALTED_CYC and LS_L1_D_TLB_MISS.ALL_L2_MISS.
const fn zen(walkers: u32) -> Recipe {
    let counted = Counted::Misses { misses: raw(0x45, 0xf0, 0), walkers };
    Recipe { cycles: raw(0x76, 0x00, 0), counted }
}
const ZEN: Recipe = zen(2);
const ZEN_3: Recipe = zen(6);

const INTEL: &[(&[u32], &Recipe)] = &[
    (&[0x3a, 0x3e], &IVY_BRIDGE),
    (&[0x3c, 0x3f, 0x45, 0x46], &HASWELL),
    (&[0x3d, 0x47, 0x4f, 0x56], &BROADWELL),
    (
        &[
            // Skylake, Cascade and Cooper Lake, Kaby Lake, Comet Lake, Cannon Lake.
            0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66, // Ice Lake, Tiger Lake, Rocket Lake.
            0x7d, 0x7e, 0x6a, 0x6c, 0x9d, 0x8c, 0x8d, 0xa7,
        ],
        &SKYLAKE,
    ),
    (
        &[
            // Alder Lake, Raptor Lake, Meteor Lake.
            0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xaa, 0xac, // Sapphire, Emerald, Granite Rapids.
            0x8f, 0xcf, 0xad, 0xae,
        ],
        &GOLDEN_COVE,
    ),
];

/// Returns the recipe for `processor`; `None` if it is not in the table.
pub fn recipe(processor: &Processor) -> Option<&'static Recipe> {
    match (processor.vendor.as_str(), processor.family) {
        ("GenuineIntel", 6) => {
            INTEL.iter().find(|(models, _)| models.contains(&processor.model)).map(|(_, recipe)| *recipe)
        }
        // Family 18h of Hygon is Zen under licence.
        ("AuthenticAMD", 0x17) | ("HygonGenuine", 0x18) => Some(&ZEN),
        ("AuthenticAMD", 0x19 | 0x1a) => Some(&ZEN_3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vendor: &str, family: u32, model: u32) -> Option<&'static Recipe> {
        recipe(&Processor { vendor: vendor.into(), family, model })
    }

    #[test]
    fn codes_are_those_of_perf() {
        // The codes are as `perf stat -e rNNN` takes them.
        let codes = |recipe: Option<&Recipe>| recipe.unwrap().events().collect::<Vec<_>>();
        assert_eq!(codes(of("GenuineIntel", 6, 63)), [0x3c, 0x1008, 0x1049]);
        assert_eq!(codes(of("GenuineIntel", 6, 85)), [0x3c, 0x100_1008, 0x100_1049]);
        assert_eq!(codes(of("GenuineIntel", 6, 143)), [0x3c, 0x100_1012, 0x100_1013]);
        assert_eq!(codes(of("GenuineIntel", 6, 58)), [0x3c, 0x8408, 0x449]);
        assert_eq!(codes(of("AuthenticAMD", 23, 49)), [0x76, 0xf045]);
    }

    #[test]
    fn no_model_is_entered_twice_and_others_are_unknown() {
        let mut models: Vec<u32> = INTEL.iter().flat_map(|(models, _)| models.iter().copied()).collect();
        let count = models.len();
        models.sort();
        models.dedup();
        assert_eq!(models.len(), count);
        // Atom, the predecessor of Zen, and an unknown vendor have no recipe.
        assert!(of("GenuineIntel", 6, 0x5c).is_none() && of("AuthenticAMD", 0x15, 2).is_none());
        assert!(of("", 0, 0).is_none());
    }
}
