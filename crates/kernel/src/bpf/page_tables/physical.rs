//! Physical memory, as page tables show it.

use crate::{KernelError, KernelRoot};

const BASE_PAGE_SHIFT: u32 = 12;

/// Bits of a physical address that an entry holds in place, on arm64 with base pages of 4 KiB, for
/// every processor. Bits 50 and 51 of a 52-bit address lie elsewhere in the entry. They are 0 for
/// all memory below 1 PiB.
const ARM64_BITS: u32 = 50;

/// Returns the mask of the bits of an entry that hold a physical address.
pub fn frame_mask(root: &KernelRoot) -> Result<u64, KernelError> {
    if cfg!(target_arch = "aarch64") {
        return Ok((1 << ARM64_BITS) - (1 << BASE_PAGE_SHIFT));
    }
    x86_frame_mask(root)
}

/// Computes the mask from `address sizes` of `/proc/cpuinfo`, which leaves out the bits that memory
/// encryption uses.
fn x86_frame_mask(root: &KernelRoot) -> Result<u64, KernelError> {
    const FILE: &str = "proc/cpuinfo";
    let text = root.read(FILE)?;
    let bits = text.lines().enumerate().find_map(|(index, line)| {
        let value = line.strip_prefix("address sizes")?.trim_start_matches([' ', '\t', ':']);
        Some((index, value.split_once(" bits physical").and_then(|(bits, _)| bits.parse::<u32>().ok())))
    });
    match bits {
        Some((_, Some(bits))) if (BASE_PAGE_SHIFT + 1..=52).contains(&bits) => {
            Ok((1 << bits) - (1 << BASE_PAGE_SHIFT))
        }
        other => Err(KernelError::Parse {
            path: root.path(FILE),
            line: other.map_or(1, |(index, _)| index + 1),
            what: "expected 'address sizes : N bits physical', 13 to 52".into(),
        }),
    }
}

/// Returns the first physical address after all memory: the highest end of a zone in
/// `/proc/zoneinfo`.
pub fn end(root: &KernelRoot) -> Result<u64, KernelError> {
    const FILE: &str = "proc/zoneinfo";
    let text = root.read(FILE)?;
    let number =
        |line: &str, key: &str| -> Option<u64> { line.trim().strip_prefix(key)?.trim().parse().ok() };
    let (mut spanned, mut end) = (0, 0);
    for line in text.lines() {
        if let Some(pages) = number(line, "spanned ") {
            spanned = pages;
        } else if let Some(start) = number(line, "start_pfn:") {
            end = end.max(start.saturating_add(spanned));
            spanned = 0;
        }
    }
    if end == 0 || end >= 1 << (52 - BASE_PAGE_SHIFT) {
        let what = "expected zones with 'spanned' and 'start_pfn'".into();
        return Err(KernelError::Parse { path: root.path(FILE), line: 1, what });
    }
    Ok(end << BASE_PAGE_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn the_mask_is_of_the_frame_alone() {
        let cpuinfo = |line: &str| captured_tree(&[("proc/cpuinfo", &format!("processor\t: 0\n{line}\n"))]);
        let (_tree, root) = cpuinfo("address sizes\t: 46 bits physical, 48 bits virtual");
        assert_eq!(x86_frame_mask(&root).unwrap(), 0x3fff_ffff_f000);
        for bad in ["address sizes\t: 4600 bits physical", "address sizes\t:", "model\t: 1"] {
            let (_tree, root) = cpuinfo(bad);
            assert!(x86_frame_mask(&root).unwrap_err().to_string().contains("address sizes"), "{bad}");
        }
    }

    #[test]
    fn memory_ends_with_its_last_zone() {
        let zone = |spanned: u64, start: u64| {
            format!(
                "Node 0, zone N\n  pages free 1\n        spanned  {spanned}\n        present  {spanned}\n  start_pfn:           {start}\n"
            )
        };
        let zones = zone(4095, 1) + &zone(0, 0) + &zone(0x50_0000, 0x10_0000);
        let (_tree, root) = captured_tree(&[("proc/zoneinfo", &zones)]);
        assert_eq!(end(&root).unwrap(), 0x60_0000 << 12);
        let (_tree, root) = captured_tree(&[("proc/zoneinfo", "")]);
        assert!(end(&root).is_err());
    }
}
