//! Layout that each linker makes.

use crate::programs;

use megapage_kernel::KernelRoot;
use megapage_remap::Placement;
use megapage_remap::check::check;
use megapage_remap::layout::linker_flags;
use programs::{build, on_disk, output};
use std::fs;

const MIB: u64 = 1 << 20;
const PIE: &[&str] = &["-fPIE", "-pie"];
const FIXED: &[&str] = &["-no-pie"];

/// Checks the program as the linker packs it, and with the options that `check` names for it.
fn linker(name: &str, known_as: Option<&str>) {
    let directory = on_disk();
    for (placement, kind) in [(Placement::Independent, PIE), (Placement::Fixed, FIXED)] {
        let fuse = format!("-fuse-ld={name}");
        let options = [kind, &[fuse.as_str()]].concat();
        let Some(plain) = build(directory.path(), "plain", &options) else { return };
        let found = check(&KernelRoot::live(), &plain).unwrap();
        assert_eq!((found.placement, found.linker.as_deref()), (placement, known_as), "{name}");
        // 6 MiB of code and 5 of constants, wherever they start.
        assert!((6 * MIB..=16 * MIB).contains(&found.anonymous_bytes), "{name}: {found:?}");
        if placement == Placement::Independent {
            assert_eq!(found.prime_bytes, 0, "{name} promises no place");
        }

        let flags = linker_flags(found.linker.as_deref());
        assert_eq!(found.flags, flags);
        let options = [&options[..], &[flags.flags]].concat();
        let tuned = build(directory.path(), "tuned", &options).unwrap();
        let found = check(&KernelRoot::live(), &tuned).unwrap();
        assert!(found.placed_at_huge);
        assert!(found.segments.iter().all(|part| part.congruent), "{name}: {found:?}");
        assert!(found.prime_bytes >= 10 * MIB, "{name}: {found:?}");
        assert_eq!(output(&tuned), output(&plain));
        fs::remove_file(&plain).unwrap();
        fs::remove_file(&tuned).unwrap();
    }
}

#[test]
fn gnu_ld() {
    linker("bfd", None);
}

#[test]
fn gold() {
    linker("gold", Some("gold"));
}

#[test]
fn lld() {
    linker("lld", Some("lld"));
}

#[test]
fn mold() {
    linker("mold", Some("mold"));
}
