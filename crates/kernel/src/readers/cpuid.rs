//! Identification by the processor itself: CPUID on x86, MIDR_EL1 on Arm.

use crate::KernelRoot;
#[cfg(target_arch = "x86_64")]
use megapage_tlb::Cpuid;
use megapage_tlb::{ArmCore, Processor};
use std::collections::BTreeSet;

/// Returns the data that shows the geometry of the TLBs. On x86 it is of the processor that this
/// runs on, whatever `root` is.
pub fn processor_of_tlbs(root: &KernelRoot) -> Processor {
    #[cfg(target_arch = "x86_64")]
    {
        let _ = root;
        Processor::X86(cpuid_of_tlbs())
    }
    #[cfg(not(target_arch = "x86_64"))]
    Processor::Arm(arm_cores(root))
}

/// Returns the kinds of Arm core. MIDR_EL1 of each processor in sysfs shows them
/// (Documentation/arch/arm64/cpu-feature-registers.rst), else `/proc/cpuinfo`. Empty where neither
/// does.
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
fn arm_cores(root: &KernelRoot) -> Vec<ArmCore> {
    const PROCESSORS: &str = "sys/devices/system/cpu";
    let midr = |name: &String| {
        let text = root.read(format!("{PROCESSORS}/{name}/regs/identification/midr_el1")).ok()?;
        hexadecimal(text.trim())
    };
    let names = root.list(PROCESSORS).unwrap_or_default();
    let cores: BTreeSet<ArmCore> = names.iter().filter_map(midr).map(ArmCore::of_midr).collect();
    if cores.is_empty() {
        cores_of_cpuinfo(&root.read("proc/cpuinfo").unwrap_or_default())
    } else {
        cores.into_iter().collect()
    }
}

/// Returns the kinds of core by the lines `CPU implementer` and `CPU part`, which follow each other
/// for each processor.
fn cores_of_cpuinfo(text: &str) -> Vec<ArmCore> {
    let mut cores = BTreeSet::new();
    let mut implementer = None;
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = hexadecimal(value.trim());
        match key.trim() {
            "CPU implementer" => implementer = value.and_then(|value| u8::try_from(value).ok()),
            "CPU part" => {
                let part = value.and_then(|value| u16::try_from(value).ok());
                cores.extend(implementer.zip(part).map(|(implementer, part)| ArmCore { implementer, part }));
            }
            _ => {}
        }
    }
    cores.into_iter().collect()
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Most subleaves of leaf 0x18 that are read; the largest seen in the wild is 8.
#[cfg(target_arch = "x86_64")]
const MOST_STRUCTURES: u32 = 32;

/// Reads the words of CPUID that give the geometry of the TLBs. Leaves that the processor lacks are
/// zeros.
#[cfg(target_arch = "x86_64")]
fn cpuid_of_tlbs() -> Cpuid {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
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
    use crate::root::captured_tree;
    use megapage_tlb::Geometry;

    #[test]
    fn this_processor_has_a_tlb() {
        let processor = processor_of_tlbs(&KernelRoot::live());
        let geometry = Geometry::of(&processor);
        assert!(geometry.first_base >= 10 && geometry.second >= geometry.first_base, "{geometry:?}");
        assert_eq!(matches!(processor, Processor::X86(_)), cfg!(target_arch = "x86_64"));
    }

    #[test]
    fn arm_cores_are_read_from_sysfs_and_else_from_cpuinfo() {
        let little = ArmCore { implementer: 0x41, part: 0xd05 };
        let big = ArmCore { implementer: 0x41, part: 0xd0b };
        let processor = |part| format!("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n");
        let cpuinfo = processor("0xd0b") + &processor("0xd05") + &processor("0xd0b");
        let (_tree, root) = captured_tree(&[("proc/cpuinfo", &cpuinfo)]);
        assert_eq!(arm_cores(&root), [little, big]);
        let midr = |n: u32| format!("sys/devices/system/cpu/cpu{n}/regs/identification/midr_el1");
        let (_tree, root) = captured_tree(&[
            ("proc/cpuinfo", &cpuinfo),
            (&midr(0), "0x00000000412fd050\n"),
            (&midr(1), "0x00000000412fd050\n"),
            ("sys/devices/system/cpu/possible", "0-1\n"),
        ]);
        assert_eq!(arm_cores(&root), [little]);
        for nothing in ["", "CPU part\t: 0xd0b\n", "CPU implementer\t: 0x4141\nCPU part\t: 0xd0b\n"] {
            let (_tree, root) = captured_tree(&[("proc/cpuinfo", nothing)]);
            assert_eq!(arm_cores(&root), [], "{nothing}");
        }
    }
}
