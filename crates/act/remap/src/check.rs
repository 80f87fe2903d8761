//! Gain that a file would have from huge pages, and the means.

use crate::layout::{self, HUGE, LinkerFlags};
use crate::prime::{Target, is_placed_huge};
use crate::{Placement, RemapError, Segment, read_binary};
use megapage_kernel::KernelRoot;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Findings about one file.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// Its placement in memory.
    pub placement: Placement,
    /// The linker that made it, if that left its name; GNU ld leaves none.
    pub linker: Option<String>,
    /// Its LOAD segments, by address.
    pub segments: Vec<SegmentCheck>,
    /// GNU_RELRO: the part that is made read-only after relocation.
    pub relro: Option<Relro>,
    /// True if it is placed at a multiple of 2 MiB: by its header, or (a library) by the kernel's
    /// present choice of address.
    pub placed_at_huge: bool,
    /// Bytes that lie in huge folios now, so that 2 MiB entries map them; `None` if the kernel does
    /// not report it.
    pub now_bytes: Option<u64>,
    /// Bytes that 2 MiB entries could map after `megapage remap prime`.
    pub prime_bytes: u64,
    /// Bytes that a copy in anonymous memory could have on huge pages, data and .bss included. It
    /// is a lower bound if the file is not placed at a multiple of 2 MiB.
    pub anonymous_bytes: u64,
    /// Bytes that 2 MiB entries could map after priming if it were linked with `flags`.
    pub relinked_bytes: u64,
    /// The options for the linker that made it.
    pub flags: LinkerFlags,
    /// The options for other linkers.
    pub other_flags: Vec<LinkerFlags>,
}

/// GNU_RELRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Relro {
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Findings about one segment.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentCheck {
    /// The segment.
    #[serde(flatten)]
    pub segment: Segment,
    /// Bytes of .bss: zeros that the file does not hold.
    pub bss_bytes: u64,
    /// True if file offset and address agree modulo 2 MiB.
    pub congruent: bool,
    /// Bytes that 2 MiB entries could map after priming; 0 if its segments are not aligned to
    /// 2 MiB.
    pub prime_bytes: u64,
    /// Bytes that a copy in anonymous memory could have on huge pages, or a lower bound of them.
    pub anonymous_bytes: u64,
}

impl Check {
    /// Returns true if a part of it could be on huge pages: primed, or moved by
    /// `megapage run --text`.
    pub fn gains(&self) -> bool {
        self.prime_bytes > 0 || self.anonymous_bytes > 0
    }
}

/// Looks at `path`. Reads its headers, and only those of its other pages that are in memory
/// already.
pub fn check(root: &KernelRoot, path: &Path) -> Result<Check, RemapError> {
    let binary = read_binary(path)?;
    let placed = is_placed_huge(path, &binary)?;
    let target = Target::open(root, path, &binary)?;
    let segments: Vec<SegmentCheck> = binary
        .segments
        .iter()
        .map(|segment| SegmentCheck {
            bss_bytes: segment.memory_size - segment.file_size,
            congruent: layout::is_congruent(segment),
            prime_bytes: match layout::whole_blocks(segment, binary.size) {
                Some(range) if placed => range.length,
                _ => 0,
            },
            anonymous_bytes: layout::anonymous(segment, placed),
            segment: segment.clone(),
        })
        .collect();
    let flags = layout::linker_flags(binary.linker.as_deref());
    Ok(Check {
        file: path.to_path_buf(),
        placement: binary.placement,
        relro: binary.relro.map(|(address, bytes)| Relro { address, bytes }),
        placed_at_huge: placed,
        now_bytes: if placed { target.huge(root)? } else { Some(0) },
        prime_bytes: if placed { target.possible() } else { 0 },
        anonymous_bytes: segments.iter().map(|segment| segment.anonymous_bytes).sum(),
        relinked_bytes: binary.segments.iter().map(layout::relinked).sum(),
        flags,
        other_flags: layout::LINKER_FLAGS.iter().filter(|other| **other != flags).copied().collect(),
        linker: binary.linker,
        segments,
    })
}

const _: () = assert!(HUGE == 2 << 20, "the linkers' flags name 2 MiB");
