//! TLBs of Arm's cores, by design: no instruction that a program may execute shows their geometry.

use crate::{Geometry, GeometrySource};

/// Design of a core: two fields of its MIDR_EL1 (Arm Architecture Reference Manual, D24.2.122).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArmCore {
    /// Designer of the core: 0x41 is Arm Limited.
    pub implementer: u8,
    /// Number of the design among the implementer's: 12 bits.
    pub part: u16,
}

impl ArmCore {
    /// Returns the fields of MIDR_EL1.
    pub const fn of_midr(midr: u64) -> ArmCore {
        ArmCore { implementer: (midr >> 24) as u8, part: (midr >> 4) as u16 & 0xfff }
    }
}

/// Entries of the first-level data TLB, which holds pages of all sizes up to 512 MiB, and of the
/// second level. They are from each core's Technical Reference Manual (chapter Memory management,
/// "TLB organization"). Other designers publish no such values, so their designs are missing.
const ARM_LIMITED: [(u16, u32, u32); 10] = [
    // Cortex-A53, A55, A57, A72, A73, A76.
    (0xd03, 10, 512),
    (0xd05, 16, 1024),
    (0xd07, 32, 1024),
    (0xd08, 32, 1024),
    (0xd09, 48, 1024),
    (0xd0b, 48, 1280),
    // Neoverse N1, V1, N2, V2.
    (0xd0c, 48, 1280),
    (0xd40, 40, 2048),
    (0xd49, 44, 1280),
    (0xd4f, 48, 2048),
];

const fn geometry(first: u32, second: u32, source: GeometrySource) -> Geometry {
    // An entry of 1 GiB is stored as two of 512 MiB.
    let (first_1g, second_1g) = (first / 2, second / 2);
    Geometry { first_base: first, first_2m: first, first_1g, second, second_1g, source }
}

/// Returns the smallest geometry of these cores: a program may run on any of them. If any core is
/// unknown, returns [`Geometry::ARM_FALLBACK`].
pub(crate) fn of_cores(cores: &[ArmCore]) -> Geometry {
    let known = |core: &ArmCore| {
        let found = ARM_LIMITED.iter().find(|(part, ..)| core.implementer == 0x41 && *part == core.part)?;
        Some(geometry(found.1, found.2, GeometrySource::Model))
    };
    let all: Option<Vec<Geometry>> = cores.iter().map(known).collect();
    let smallest = all.and_then(|all| all.into_iter().min_by_key(|one| (one.second, one.first_base)));
    smallest.unwrap_or(Geometry::ARM_FALLBACK)
}

impl Geometry {
    /// Geometry of the Cortex-A72, for an unknown Arm core: no later server core has a smaller one.
    pub const ARM_FALLBACK: Geometry = geometry(32, 1024, GeometrySource::Fallback);
}

#[cfg(test)]
mod tests {
    use super::*;

    const N1: ArmCore = ArmCore { implementer: 0x41, part: 0xd0c };
    const A72: ArmCore = ArmCore { implementer: 0x41, part: 0xd08 };

    #[test]
    fn a_core_is_known_by_two_fields() {
        // The MIDR of Graviton 2.
        assert_eq!(ArmCore::of_midr(0x413f_d0c1), N1);
        assert_eq!(ArmCore::of_midr(0xf_0510), ArmCore { implementer: 0, part: 0x51 });
    }

    #[test]
    fn a_known_core_is_a_model_and_never_measured() {
        let found = of_cores(&[N1, N1]);
        assert_eq!((found.first_base, found.first_2m, found.second), (48, 48, 1280));
        assert_eq!(found.source, GeometrySource::Model);
    }

    #[test]
    fn of_several_kinds_the_smallest_counts() {
        assert_eq!(of_cores(&[N1, A72]), of_cores(&[A72]));
    }

    #[test]
    fn the_unknown_is_reported_as_such() {
        let other = ArmCore { implementer: 0xc0, ..N1 };
        for cores in [&[][..], &[other], &[N1, other]] {
            assert_eq!(of_cores(cores), Geometry::ARM_FALLBACK, "{cores:?}");
        }
        assert_eq!(Geometry::ARM_FALLBACK.source, GeometrySource::Fallback);
    }
}
