//! Geometry of the data TLBs: their numbers of entries.

use crate::ArmCore;
use serde::{Deserialize, Serialize};

/// Source of a geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GeometrySource {
    /// The processor reports it (CPUID).
    Processor,
    /// The design of the processor is known; hypervisors often hide its own report.
    Model,
    /// The geometry of an old server processor, if neither is available. No later server processor
    /// has a smaller second level. On x86 it is Skylake, on Arm Cortex-A72.
    Fallback,
}

/// Entries of the data TLBs of one hardware thread, instruction TLBs aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// First level, for 4 KiB pages.
    pub first_base: u32,
    /// First level, for 2 MiB pages.
    pub first_2m: u32,
    /// First level, for 1 GiB pages.
    pub first_1g: u32,
    /// Second level, for 4 KiB and 2 MiB pages together.
    pub second: u32,
    /// Second level, for 1 GiB pages; 0 if there is none.
    pub second_1g: u32,
    /// Source of these values.
    pub source: GeometrySource,
}

/// Raw words `[eax, ebx, ecx, edx]` of CPUID that describe a TLB. All zeros if the processor lacks
/// a leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpuid {
    /// Leaf 0: the vendor.
    pub vendor: [u32; 4],
    /// Leaf 1: family, model, stepping.
    pub signature: [u32; 4],
    /// Leaf 2: Intel's descriptors.
    pub descriptors: [u32; 4],
    /// Leaf 7, subleaf 0: features.
    pub features: [u32; 4],
    /// Leaf 0x18: Intel's translation parameters, by subleaf.
    pub translation: Vec<[u32; 4]>,
    /// Leaf 0x8000_0005: AMD's first-level TLBs.
    pub amd_first: [u32; 4],
    /// Leaf 0x8000_0006: AMD's second-level TLBs.
    pub amd_second: [u32; 4],
    /// Leaf 0x8000_0019: AMD's TLBs of 1 GiB entries.
    pub amd_1g: [u32; 4],
    /// Leaf 0x8000_0021: AMD's extended features.
    pub amd_features: [u32; 4],
}

/// Description of a processor's TLBs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processor {
    /// An x86: the words of CPUID.
    X86(Cpuid),
    /// Kinds of Arm cores; empty if the kernel does not report them.
    Arm(Vec<ArmCore>),
}

impl Geometry {
    /// Returns the geometry of a processor. It is decoded or known by design, never measured.
    pub fn of(processor: &Processor) -> Geometry {
        match processor {
            Processor::X86(cpuid) => Geometry::decode(cpuid),
            Processor::Arm(cores) => crate::arm::of_cores(cores),
        }
    }

    /// Geometry of Skylake (Intel 64 and IA-32 Optimization Reference Manual, 2.5.5).
    pub const FALLBACK: Geometry = Geometry {
        first_base: 64,
        first_2m: 32,
        first_1g: 4,
        second: 1536,
        second_1g: 16,
        source: GeometrySource::Fallback,
    };

    /// Returns the geometry by the words of CPUID. AMD has its leaves; for Intel it is leaf 0x18,
    /// else leaf 2, else the model. The last resort is [`Geometry::FALLBACK`].
    pub fn decode(cpuid: &Cpuid) -> Geometry {
        let found = match &vendor(&cpuid.vendor) {
            b"AuthenticAMD" | b"HygonGenuine" => amd(cpuid),
            b"GenuineIntel" => translation(&cpuid.translation)
                .or_else(|| descriptors(&cpuid.descriptors))
                .or_else(|| intel(cpuid)),
            _ => None,
        };
        found.unwrap_or(Geometry::FALLBACK)
    }
}

fn vendor(leaf: &[u32; 4]) -> [u8; 12] {
    let mut name = [0; 12];
    for (bytes, word) in name.chunks_exact_mut(4).zip([leaf[1], leaf[3], leaf[2]]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    name
}

/// Decodes leaf 0x18 (Intel SDM volume 2A, CPUID): one subleaf for each structure.
fn translation(subleaves: &[[u32; 4]]) -> Option<Geometry> {
    let mut found = Geometry {
        first_base: 0,
        first_2m: 0,
        first_1g: 0,
        second: 0,
        second_1g: 0,
        source: GeometrySource::Processor,
    };
    for [_, ebx, ecx, edx] in subleaves {
        // Types: 1 data, 3 unified, 4 loads only. Instruction TLBs, and those for stores only, are
        // skipped.
        let (kind, level) = (edx & 0x1f, (edx >> 5) & 7);
        if !matches!(kind, 1 | 3 | 4) {
            continue;
        }
        let entries = (ebx >> 16).saturating_mul(*ecx);
        let (base, huge, giant) = (ebx & 1 != 0, ebx & 2 != 0, ebx & 8 != 0);
        match level {
            1 => {
                found.first_base = if base { found.first_base.max(entries) } else { found.first_base };
                found.first_2m = if huge { found.first_2m.max(entries) } else { found.first_2m };
                found.first_1g = if giant { found.first_1g.max(entries) } else { found.first_1g };
            }
            _ => {
                found.second = if base || huge { found.second.max(entries) } else { found.second };
                found.second_1g = if giant { found.second_1g.max(entries) } else { found.second_1g };
            }
        }
    }
    (found.first_base > 0 && found.second > 0).then_some(found)
}

/// Decodes leaf 2 (Intel SDM volume 2A, table of encodings): one byte for each structure. This
/// knows those of processors since Haswell.
fn descriptors(leaf: &[u32; 4]) -> Option<Geometry> {
    let mut found = Geometry {
        first_base: 0,
        first_2m: 0,
        first_1g: 0,
        second: 0,
        second_1g: 0,
        source: GeometrySource::Processor,
    };
    // A register with its highest bit set holds no descriptors; the lowest byte of the first is no
    // descriptor.
    let bytes = leaf
        .iter()
        .enumerate()
        .filter(|(_, word)| *word >> 31 == 0)
        .flat_map(|(register, word)| word.to_le_bytes().into_iter().skip(usize::from(register == 0)));
    for byte in bytes {
        match byte {
            0x03 => found.first_base = 64,
            0xa0 => found.first_base = 32,
            0x5a => found.first_2m = 32,
            0x63 => (found.first_2m, found.first_1g) = (32, 4),
            0xc1 => found.second = 1024,
            0xc3 => (found.second, found.second_1g) = (1536, 16),
            0xca => found.second = 512,
            _ => {}
        }
    }
    // A byte 0xfe refers to leaf 0x18; then the other bytes give no TLB.
    (found.first_base > 0 && found.second > 0).then_some(found)
}

/// Returns the geometry by design, if the hypervisor hides both leaves (Intel 64 and IA-32
/// Optimization Reference Manual, the chapter on each microarchitecture).
fn intel(cpuid: &Cpuid) -> Option<Geometry> {
    let signature = cpuid.signature[0];
    if (signature >> 8) & 0xf != 6 {
        return None;
    }
    let model = ((signature >> 4) & 0xf) | ((signature >> 12) & 0xf0);
    // A hypervisor may show another model than the real one; only Golden Cove and its successors
    // have AMX.
    let amx = cpuid.features[3] & (1 << 24) != 0;
    let of = |first_base, second, first_1g, second_1g| Geometry {
        first_base,
        first_2m: 32,
        first_1g,
        second,
        second_1g,
        source: GeometrySource::Model,
    };
    match model {
        _ if amx => Some(of(96, 2048, 8, 1024)),
        // Haswell.
        0x3c | 0x3f | 0x45 | 0x46 => Some(of(64, 1024, 4, 0)),
        // Broadwell, Skylake, Kaby Lake, Cascade Lake, Comet Lake.
        0x3d | 0x47 | 0x4f | 0x56 | 0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6 => {
            Some(of(64, 1536, 4, 16))
        }
        // Ice Lake, Tiger Lake, Rocket Lake.
        0x7d | 0x7e | 0x6a | 0x6c | 0x8c | 0x8d | 0xa7 => Some(of(64, 2048, 8, 1024)),
        // Alder Lake, Raptor Lake, Sapphire Rapids, Emerald Rapids, Granite Rapids, Meteor Lake.
        0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0x8f | 0xcf | 0xad | 0xae | 0xaa | 0xac => {
            Some(of(96, 2048, 8, 1024))
        }
        _ => None,
    }
}

/// Decodes AMD's leaves (AMD64 Architecture Programmer's Manual volume 3, appendix E). Since Zen,
/// the second level's values for 4 KiB and 2 MiB are of one structure.
fn amd(cpuid: &Cpuid) -> Option<Geometry> {
    let [huge, base, ..] = cpuid.amd_first;
    let [second_huge, second_base, ..] = cpuid.amd_second;
    let [first_1g, second_1g, ..] = cpuid.amd_1g;
    let data = |word: u32| (word >> 16) & 0xfff;
    let second = data(second_base).max(data(second_huge));
    // Since Zen 5 the unit is 32, because 4096 does not fit into the field. A hypervisor may hide
    // the bit for it (L2TlbSizeX32), but no processor's second level is smaller than 512.
    let in_units = cpuid.amd_features[0] >> 14 & 1 != 0 || second < 512;
    let found = Geometry {
        first_base: (base >> 16) & 0xff,
        first_2m: (huge >> 16) & 0xff,
        first_1g: data(first_1g),
        second: if in_units { 32 * second } else { second },
        second_1g: data(second_1g),
        source: GeometrySource::Processor,
    };
    (found.first_base > 0 && found.second > 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intel_leaves() -> Cpuid {
        Cpuid { vendor: [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69], ..Cpuid::default() }
    }

    fn counts(geometry: Geometry) -> [u32; 5] {
        let Geometry { first_base, first_2m, first_1g, second, second_1g, .. } = geometry;
        [first_base, first_2m, first_1g, second, second_1g]
    }

    #[test]
    fn leaf_18_tells_each_structure() {
        // Invented by the manual's layout: instruction TLBs, loads, stores, a second level in two
        // structures.
        let translation = vec![
            [8, 0, 0, 0],
            [0, 0x0008_0001, 0x20, 0x0000_4022],
            [0, 0x0008_0006, 0x4, 0x0000_4022],
            [0, 0x0010_000f, 0x1, 0x0000_4125],
            [0, 0x0006_0001, 0x10, 0x0000_4024],
            [0, 0x0004_0006, 0x8, 0x0000_4024],
            [0, 0x0008_0008, 0x1, 0x0000_4124],
            [0, 0x0008_0007, 0x80, 0x0000_4043],
            [0, 0x0008_0009, 0x80, 0x0000_4043],
        ];
        let found = Geometry::decode(&Cpuid { translation, ..intel_leaves() });
        assert_eq!((counts(found), found.source), ([96, 32, 8, 1024, 1024], GeometrySource::Processor));
    }

    #[test]
    fn leaf_2_tells_skylake() {
        // Bytes: 63 (32 of 2 MiB, 4 of 1 GiB), 03 (64 of 4 KiB), 76, ff, b5, f0, c3 (1536 and 16).
        let descriptors = [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000];
        let found = Geometry::decode(&Cpuid { descriptors, ..intel_leaves() });
        assert_eq!((counts(found), found.source), ([64, 32, 4, 1536, 16], GeometrySource::Processor));
    }

    #[test]
    fn a_hypervisor_that_hides_the_leaves_leaves_the_model() {
        let hidden = Cpuid { signature: [0x5_0657, 0, 0, 0], ..intel_leaves() };
        assert_eq!(counts(Geometry::decode(&hidden)), [64, 32, 4, 1536, 16]);
        // AMX reveals that the model is not the real one; the descriptors refer to leaf 0x18, which
        // is empty.
        let shown = Cpuid {
            signature: [0xa_0671, 0, 0, 0],
            descriptors: [0x00fe_ff01, 0xf0, 0, 0],
            features: [0, 0, 0, 1 << 24],
            translation: vec![[0; 4]],
            ..intel_leaves()
        };
        let found = Geometry::decode(&shown);
        assert_eq!((counts(found), found.source), ([96, 32, 8, 2048, 1024], GeometrySource::Model));
    }

    #[test]
    fn amd_tells_zen_2() {
        // 64 entries of each size in the first level; 2048 in the second, none of 1 GiB.
        let zen = Cpuid {
            vendor: [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            amd_first: [0xff40_ff40, 0xff40_ff40, 0, 0],
            amd_second: [0x4800_6400, 0x6800_4400, 0, 0],
            amd_1g: [0xf040_f040, 0, 0, 0],
            ..Cpuid::default()
        };
        assert_eq!(counts(Geometry::decode(&zen)), [64, 64, 64, 2048, 0]);
    }

    #[test]
    fn amd_tells_zen_5_in_units_of_32() {
        // Values read on an EPYC 9005 under KVM, which hides the bit of leaf 0x8000_0021.
        let zen = Cpuid {
            vendor: [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            amd_first: [0xff60_ff40, 0xff60_ff40, 0, 0],
            amd_second: [0x4080_2040, 0x6080_4060, 0, 0],
            amd_features: [0x204, 0, 0, 0],
            ..Cpuid::default()
        };
        assert_eq!(counts(Geometry::decode(&zen)), [96, 96, 0, 4096, 0]);
        let listed = Cpuid { amd_features: [0x4204, 0, 0, 0], ..zen.clone() };
        assert_eq!(counts(Geometry::decode(&listed)), [96, 96, 0, 4096, 0]);
    }

    #[test]
    fn the_unknown_is_reported_as_such() {
        assert_eq!(Geometry::decode(&Cpuid::default()), Geometry::FALLBACK);
        assert_eq!(Geometry::decode(&intel_leaves()).source, GeometrySource::Fallback);
        let absurd = Cpuid {
            translation: vec![[u32::MAX, u32::MAX, u32::MAX, 0xffff_ff21]; 3],
            descriptors: [u32::MAX; 4],
            ..intel_leaves()
        };
        Geometry::decode(&absurd);
    }
}
