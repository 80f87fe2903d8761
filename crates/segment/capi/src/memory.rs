//! The work of the entry points for pools, segments and heaps, in terms of the crate `segment`.

use crate::failure::{Failure, errno};
use crate::types::{
    MEGAPAGE_1G, MEGAPAGE_2M, MEGAPAGE_ANY_NODE, MEGAPAGE_FILE_PER_PAGE, MEGAPAGE_POPULATE,
    MEGAPAGE_SINGLE_FILE, MEGAPAGE_UNLINK_ALWAYS, MEGAPAGE_UNLINK_EXISTING, MEGAPAGE_UNLINK_NEVER,
    MEGAPAGE_ZEROED, megapage_handle, megapage_options, megapage_segment_info,
};
use megapage_segment::heap::{Handle, Request, Tag};
use megapage_segment::{Heap, Layout, Name, Options, Segment, Unlink};
use megapage_units::{Bytes, PageSize};
use std::ffi::c_void;

pub fn name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(Failure::invalid)
}

pub fn page_size(bytes: u64) -> Result<PageSize, Failure> {
    match bytes {
        MEGAPAGE_2M => Ok(PageSize::HUGE_2M),
        MEGAPAGE_1G => Ok(PageSize::HUGE_1G),
        _ => Err(Failure::invalid(format!("pages are MEGAPAGE_2M or MEGAPAGE_1G, not {bytes} bytes"))),
    }
}

pub fn default_options(size: u64) -> megapage_options {
    megapage_options {
        size,
        most: 0,
        unlink: MEGAPAGE_UNLINK_EXISTING,
        layout: MEGAPAGE_SINGLE_FILE,
        node: MEGAPAGE_ANY_NODE,
        mode: 0o600,
        flags: 0,
        reserved: 0,
    }
}

pub fn options(name: Name, asked: &megapage_options) -> Result<Options, Failure> {
    if asked.flags & !MEGAPAGE_POPULATE != 0 || asked.reserved != 0 {
        return Err(Failure::invalid(format!(
            "the options have flags {:#x} and reserved {}; flags are MEGAPAGE_POPULATE or 0, reserved is 0",
            asked.flags, asked.reserved
        )));
    }
    Ok(Options {
        name,
        size: Bytes(asked.size),
        most: (asked.most != 0).then_some(Bytes(asked.most)),
        unlink: match asked.unlink {
            MEGAPAGE_UNLINK_EXISTING => Unlink::Existing,
            MEGAPAGE_UNLINK_ALWAYS => Unlink::Always,
            MEGAPAGE_UNLINK_NEVER => Unlink::Never,
            other => return Err(Failure::invalid(format!("{other} is no MEGAPAGE_UNLINK_..."))),
        },
        layout: match asked.layout {
            MEGAPAGE_SINGLE_FILE => Layout::SingleFile,
            MEGAPAGE_FILE_PER_PAGE => Layout::FilePerPage,
            other => return Err(Failure::invalid(format!("{other} is no layout"))),
        },
        node: match asked.node {
            MEGAPAGE_ANY_NODE => None,
            node => Some(u32::try_from(node).map_err(|_| Failure::invalid(format!("{node} is no node")))?),
        },
        mode: asked.mode,
        populate: asked.flags & MEGAPAGE_POPULATE != 0,
    })
}

pub fn info(segment: &Segment) -> megapage_segment_info {
    let opened = segment.opened();
    megapage_segment_info {
        address: segment.address() as u64,
        size: segment.size().0,
        most: segment.most().0,
        page_size: segment.page_size().bytes().0,
        fresh_pages: opened.fresh_pages,
        clean_pages: opened.clean_pages,
        dirty_pages: opened.dirty_pages,
        openings: segment.openings(),
        hugetlb: u32::from(segment.is_on_hugetlb()),
        owner: u32::from(segment.is_owner()),
        same_address: u32::from(opened.same_address),
        reserved: 0,
    }
}

/// Returns the memory of a segment behind the part that the segment keeps for itself: address and
/// bytes.
pub fn contents(segment: &Segment) -> Result<(*mut c_void, u64), Failure> {
    let start = segment.data_start();
    let count = (segment.size().0 - start) / 8;
    let words = segment
        .words(start, count as usize)
        .ok_or_else(|| Failure::new(errno::EIO, format!("{} has no memory", segment.path().display())))?;
    Ok((words.as_ptr().cast_mut().cast(), count * 8))
}

pub fn allocate(heap: &Heap, len: u64, alignment: u64, flags: u32, tag: u64) -> Result<Handle, Failure> {
    if flags & !MEGAPAGE_ZEROED != 0 {
        return Err(Failure::invalid(format!("{flags:#x} has flags that are unknown")));
    }
    let request = Request::new(len, Tag(tag));
    let request = if alignment == 0 { request } else { request.aligned(alignment) };
    Ok(heap.allocate(if flags & MEGAPAGE_ZEROED != 0 { request.zeroed() } else { request })?)
}

/// Returns the first block of this type, by address.
pub fn find(heap: &Heap, tag: u64) -> Result<Option<Handle>, Failure> {
    let blocks = heap.blocks()?;
    Ok(blocks.iter().find(|block| block.tag == Tag(tag)).map(|block| block.handle))
}

/// Returns address and bytes of a block.
pub fn block(heap: &Heap, handle: Handle, tag: u64) -> Result<(*mut c_void, u64), Failure> {
    let block = heap.block(handle, Tag(tag))?;
    Ok((block.words().as_ptr().cast_mut().cast(), block.len()))
}

pub fn ours(handle: megapage_handle) -> Handle {
    Handle { offset: handle.offset, serial: handle.serial }
}

pub fn theirs(handle: Handle) -> megapage_handle {
    megapage_handle { offset: handle.offset, serial: handle.serial }
}
