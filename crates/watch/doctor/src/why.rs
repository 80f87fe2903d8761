//! `megapage doctor --why`: reasons why ranges of a running process are not on huge pages.
//!
//! [`gather_why`] reads; [`Why::of`] is a pure function of its result.

pub mod catalog;
pub mod facts;
mod gather;
mod reasons;

pub use gather::WhyError;
use gather::gather_why;

use crate::catalog::{MORECORE_DEAD, Severity};
use crate::checks::asks_for_heap;
use crate::finding::Finding;
use facts::{Place, WhyFacts};
use megapage_kernel::KernelRoot;
use megapage_observe::{BackingBytes, Leaf, Mapping, MappingKind, wire};
use megapage_units::shown::shell_word;
use megapage_units::{Bytes, Pid, VirtRange};
use reasons::{is_huge, reasons};
use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;
use thiserror::Error;

/// Name and version of the JSON form.
pub const WHY_SCHEMA: &str = "megapage.doctor-why/1";

/// First address that belongs to the kernel.
const KERNEL: u64 = 1 << 63;

/// Subject of the question: `4711`, `4711:7f00deadb000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub pid: Pid,
    /// Address in the process; `None` for the whole process.
    pub address: Option<u64>,
}

/// Reason why a target could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseTargetError {
    /// The part before the colon is not a process number.
    #[error(
        "expected a process number (pgrep finds it by name), or one and an address, such as 4711:7f00deadb000"
    )]
    Pid,
    /// The part after the colon is not a hexadecimal number.
    #[error("'{0}' is not an address in hexadecimal, such as 7f00deadb000")]
    Address(String),
    /// The address belongs to the kernel.
    #[error("{0:x} is an address of the kernel's; a process's are below {KERNEL:x}")]
    Kernel(u64),
}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Target, ParseTargetError> {
        let (pid, address) = match text.split_once(':') {
            Some((pid, address)) => (pid, Some(address)),
            None => (text, None),
        };
        let pid = pid.parse().ok().filter(|pid| *pid > 0).map(Pid).ok_or(ParseTargetError::Pid)?;
        let address = match address {
            None => None,
            Some(text) => {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                // The parser of integers accepts a plus sign, which no address has.
                let value = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
                Some(value.ok_or_else(|| ParseTargetError::Address(text.into()))?)
            }
        };
        match address {
            Some(address) if address >= KERNEL => Err(ParseTargetError::Kernel(address)),
            address => Ok(Target { pid, address }),
        }
    }
}

/// Ranges of one mapping that are not huge for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The mapping, or the kind of mappings if many small ones are taken together.
    pub mapping: String,
    /// Present memory in the ranges.
    #[serde(serialize_with = "wire::bytes", rename = "present_bytes")]
    pub present: Bytes,
    /// Number of ranges; regions that follow each other are one.
    pub ranges: u64,
    /// First of the ranges; the evidence is about it.
    #[serde(serialize_with = "wire::range")]
    pub first: VirtRange,
    /// The reasons, the decisive one first. Never empty.
    pub reasons: Vec<Finding>,
}

/// The one region that was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct At {
    /// Address that was asked about.
    #[serde(serialize_with = "wire::address")]
    pub address: u64,
    /// The mapping that holds it.
    pub mapping: String,
    /// The region, or the part of it that the mapping holds.
    #[serde(serialize_with = "wire::range")]
    pub range: VirtRange,
    /// Kind of pages that map it, in words.
    pub on: &'static str,
    /// Present base pages of the region.
    pub present: u16,
    /// Base pages of it on the shared page of zeros.
    pub zero_page: u16,
    /// Base pages of it that are swapped out.
    pub swapped: u16,
    /// Present base pages by the order of the folio that they lie on: `[0]` 4 KiB, `[4]` 64 KiB,
    /// `[9]` 2 MiB. `None` if the kernel does not say (it takes CAP_SYS_ADMIN).
    pub folios: Option<[u16; 10]>,
}

/// Whole report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Its command name.
    pub name: String,
    /// Backing of its present memory.
    pub backing: BackingBytes,
    /// The region in question; `None` for all.
    pub at: Option<At>,
    /// True if the kernel can promote the process's memory on request (MADV_COLLAPSE).
    pub collapse: bool,
    /// Findings on the start of the process, valid for all its ranges.
    pub start: Vec<Finding>,
    /// Ranges that are not huge and hold something, most memory first. For one address, its range,
    /// even if nothing is present.
    pub groups: Vec<Group>,
}

/// Reads a process, and returns the reasons why ranges of its memory are not on huge pages.
pub fn why(root: &KernelRoot, target: Target) -> Result<Why, WhyError> {
    Why::of(&gather_why(root, target)?, target.address)
}

impl Why {
    /// Puts the reasons together.
    ///
    /// # Errors
    /// [`WhyError::Unmapped`] if nothing is mapped at the address.
    pub(crate) fn of(facts: &WhyFacts, address: Option<u64>) -> Result<Why, WhyError> {
        let process = &facts.process;
        let mut why = Why {
            pid: process.id.pid,
            name: process.name.clone(),
            backing: process.backing,
            at: None,
            collapse: facts.collapse,
            start: dead_morecore(facts).into_iter().collect(),
            groups: Vec::new(),
        };
        match address {
            None => why.groups = groups(facts),
            Some(address) => {
                let place = facts.place_at(address).ok_or(WhyError::Unmapped {
                    pid: process.id.pid,
                    address,
                    nearest: facts.nearest(address),
                })?;
                why.at = Some(at(address, &place));
                let reasons = reasons(facts, &place);
                if !reasons.is_empty() {
                    why.groups.push(Group {
                        mapping: describe(place.mapping),
                        present: place.present(),
                        ranges: 1,
                        first: place.range(),
                        reasons,
                    });
                }
            }
        }
        Ok(why)
    }

    /// Returns true if anything weightier than a note keeps memory from huge pages: the decisive
    /// reason of a range, or the start of the process.
    pub fn has_findings(&self) -> bool {
        let decisive = self.groups.iter().filter_map(|group| group.reasons.first());
        self.start.iter().chain(decisive).any(|reason| reason.severity > Severity::Note)
    }
}

/// Returns the finding for HUGETLB_MORECORE with a C library that has no __morecore. Up to 2.33
/// glibc's file has the version in its name (libc-2.31.so); 2.34, which removed the hook, made it
/// libc.so.6.
fn dead_morecore(facts: &WhyFacts) -> Option<Finding> {
    let morecore = facts.morecore.as_ref().filter(|it| asks_for_heap(&it.value))?;
    let libc = morecore.libc.as_deref()?;
    if libc.rsplit('/').next().is_some_and(|file| file.starts_with("libc-2.")) {
        return None;
    }
    let pid = facts.process.id.pid;
    let finding = Finding::new(
        &MORECORE_DEAD,
        format!("HUGETLB_MORECORE in the environment of process {pid}"),
        &morecore.value,
    );
    Some(finding.and("its C library", libc).fill("PROGRAM", &shell_word(&facts.process.name)))
}

fn at(address: u64, place: &Place<'_>) -> At {
    let region = place.region;
    let on = match (region.map(|region| region.leaf), place.mapping.kind) {
        (Some(Leaf::Hugetlb1g), _) => "a hugetlb page of 1 GiB",
        (Some(Leaf::Hugetlb2m), _) => "a hugetlb page of 2 MiB",
        (Some(Leaf::Huge2m), MappingKind::File | MappingKind::Shared) => {
            "a huge page of 2 MiB of the page cache"
        }
        (Some(Leaf::Huge2m), _) => "a transparent huge page of 2 MiB",
        (_, MappingKind::Hugetlb) => "no page yet; hugetlb pages come with the first touch",
        (Some(Leaf::Base), _) if region.is_some_and(|region| region.present > 0) => "base pages",
        (Some(Leaf::Base) | None, _) => "no page",
    };
    At {
        address,
        mapping: describe(place.mapping),
        range: place.range(),
        on,
        present: region.map_or(0, |region| region.present),
        zero_page: region.map_or(0, |region| region.zero_page),
        swapped: region.map_or(0, |region| region.swapped),
        folios: region.and_then(|region| region.folios),
    }
}

/// Describes a mapping as `7f0000000000-7f0040000000 rw-p anonymous`, with the name if there is
/// one.
fn describe(mapping: &Mapping) -> String {
    let flags = mapping.flags;
    let letter = |set: bool, letter: char| if set { letter } else { '-' };
    let permissions: String = [
        letter(flags.read, 'r'),
        letter(flags.write, 'w'),
        letter(flags.execute, 'x'),
        if flags.shared { 's' } else { 'p' },
    ]
    .into_iter()
    .collect();
    let text = format!("{} {permissions} {}", mapping.range, mapping.kind.name());
    if mapping.name.is_empty() { text } else { format!("{text} {}", mapping.name) }
}

/// Returns the ranges that hold something and are not huge, by mapping and decisive reason, most
/// memory first. Mappings that are too small for a huge page form one group by kind: a process has
/// hundreds.
fn groups(facts: &WhyFacts) -> Vec<Group> {
    let mut groups: BTreeMap<(Option<u64>, &'static str, &'static str), (Group, u64)> = BTreeMap::new();
    for place in (0..facts.process.regions.len()).filter_map(|index| facts.place(index)) {
        let present = place.present();
        if is_huge(&place) || present == Bytes::ZERO {
            continue;
        }
        let reasons = reasons(facts, &place);
        let Some(decisive) = reasons.first().map(|reason| reason.id) else { continue };
        let kind = place.mapping.kind.name();
        let is_small = decisive == catalog::MAPPING_SMALL.id || decisive == catalog::SPECIAL_MAPPING.id;
        let mapping = (!is_small).then(|| place.mapping.range.start());
        let entry = groups.entry((mapping, decisive, kind)).or_insert_with(|| {
            let mapping = match is_small {
                true => format!("small mappings ({kind})"),
                false => describe(place.mapping),
            };
            (Group { mapping, present: Bytes::ZERO, ranges: 0, first: place.range(), reasons }, 0)
        });
        let (group, end) = entry;
        group.present += present;
        group.ranges += u64::from(*end != place.range().start());
        *end = place.range().end();
    }
    let mut groups: Vec<Group> = groups.into_values().map(|(group, _)| group).collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.present), group.first));
    groups
}

#[cfg(test)]
mod tests;
