//! The machine: processors and kernel release.

use crate::{KernelError, KernelRoot};

/// Facts about a machine that a reader of a measurement made on it must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processors' model, as `/proc/cpuinfo` names it. Empty where it names none (other
    /// architectures).
    pub processor: String,
    /// Processors that are online.
    pub processors: usize,
    /// True if the processor says that it runs under a hypervisor (the `hypervisor` flag of x86).
    pub virtualised: bool,
    /// The kernel's release, as in `uname -r`.
    pub kernel: String,
}

/// Returns the release of the running kernel, as uname(2) shows it.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Reads `/proc/cpuinfo` and `/proc/sys/kernel/osrelease`.
pub fn machine(root: &KernelRoot) -> Result<Machine, KernelError> {
    let text = root.read("proc/cpuinfo")?;
    let fields = || text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.trim(), v.trim()));
    let first = |name: &str| fields().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
    Ok(Machine {
        processor: first("model name").to_string(),
        processors: fields().filter(|(key, _)| *key == "processor").count(),
        virtualised: first("flags").split_whitespace().any(|flag| flag == "hypervisor"),
        kernel: root.read("proc/sys/kernel/osrelease")?.trim().to_string(),
    })
}

/// A processor, as the CPUID instruction of x86 numbers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// `GenuineIntel`, `AuthenticAMD`; empty on other architectures.
    pub vendor: String,
    /// The family, with the extended family added.
    pub family: u32,
    /// The model, with the extended model included.
    pub model: u32,
}

/// Returns the first processor in `/proc/cpuinfo`. A hypervisor may give it any number.
pub fn processor(root: &KernelRoot) -> Result<Processor, KernelError> {
    let text = root.read("proc/cpuinfo")?;
    let first = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
    };
    Ok(Processor {
        vendor: first("vendor_id").to_string(),
        family: first("cpu family").parse().unwrap_or_default(),
        model: first("model").parse().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_captured_machine_is_reported() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc/sys/kernel")).unwrap();
        fs::write(tree.path().join("proc/sys/kernel/osrelease"), "6.18.44\n").unwrap();
        let processor =
            |number| format!("processor\t: {number}\nmodel name\t: A: B\nflags\t\t: fpu hypervisor\n\n");
        fs::write(tree.path().join("proc/cpuinfo"), processor(0) + &processor(1)).unwrap();
        let found = machine(&KernelRoot::captured(tree.path())).unwrap();
        let expected =
            Machine { processor: "A: B".into(), processors: 2, virtualised: true, kernel: "6.18.44".into() };
        assert_eq!(found, expected);
        assert!(machine(&KernelRoot::live()).unwrap().processors > 0);
    }

    #[test]
    fn a_processor_is_known_by_its_numbers() {
        let (_tree, root) = crate::root::captured_tree(&[(
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 63\nmodel name\t: E5 v3\n",
        )]);
        let expected = Processor { vendor: "GenuineIntel".into(), family: 6, model: 63 };
        assert_eq!(processor(&root).unwrap(), expected);
        let (_tree, root) = crate::root::captured_tree(&[("proc/cpuinfo", "processor\t: 0\n")]);
        assert_eq!(processor(&root).unwrap(), Processor::default());
    }
}
