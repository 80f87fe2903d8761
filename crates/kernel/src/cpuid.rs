//! The processor's own account of itself (CPUID).

use megapage_tlb::Cpuid;
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// Subleaves of leaf 0x18 that are read at most; the largest seen in the wild is 8.
const MOST_STRUCTURES: u32 = 32;

/// The words of CPUID that tell the geometry of the TLBs. Leaves that the processor lacks are zeros.
pub fn cpuid_of_tlbs() -> Cpuid {
    let words = |leaf: u32, subleaf: u32| {
        let found = __cpuid_count(leaf, subleaf);
        [found.eax, found.ebx, found.ecx, found.edx]
    };
    let (highest, highest_extended) = (__cpuid(0).eax, __cpuid(0x8000_0000).eax);
    let leaf = |leaf: u32| {
        let upto = if leaf < 0x8000_0000 { highest } else { highest_extended };
        if leaf <= upto { words(leaf, 0) } else { [0; 4] }
    };
    let structures = if highest >= 0x18 { words(0x18, 0)[0].min(MOST_STRUCTURES) + 1 } else { 0 };
    Cpuid {
        vendor: leaf(0),
        signature: leaf(1),
        descriptors: leaf(2),
        features: leaf(7),
        translation: (0..structures).map(|subleaf| words(0x18, subleaf)).collect(),
        amd_first: leaf(0x8000_0005),
        amd_second: leaf(0x8000_0006),
        amd_1g: leaf(0x8000_0019),
        amd_features: leaf(0x8000_0021),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_has_a_tlb() {
        let cpuid = cpuid_of_tlbs();
        assert_ne!(cpuid.vendor, [0; 4]);
        let geometry = megapage_tlb::Geometry::decode(&cpuid);
        assert!(geometry.first_base >= 16 && geometry.second >= geometry.first_base, "{geometry:?}");
    }
}
