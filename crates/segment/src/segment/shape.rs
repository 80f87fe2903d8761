//! Shape of a segment by its header: of one that is to be made, and of one that is found in a file.

use crate::error::{SegmentError, during};
use crate::header::{self, Found, HEADER_BYTES, Header, Layout};
use crate::name::Name;
use megapage_kernel::directory::huge_page_size_of;
use megapage_kernel::{effective_gid, effective_uid};
use megapage_units::{Bytes, PageSize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the header of a segment in one file without a name, its slot, and the size of the file's
/// huge pages.
pub(super) fn header_of(file: &File, path: &Path) -> Result<(Header, usize, Option<PageSize>), SegmentError> {
    let mut bytes = vec![0; HEADER_BYTES];
    let damaged = |what: String| SegmentError::Damaged { path: path.to_path_buf(), what };
    let length = file.metadata().map_err(during(path, "looking at it"))?.len();
    let read = if length < HEADER_BYTES as u64 { Ok(()) } else { file.read_exact_at(&mut bytes, 0) };
    read.map_err(during(path, "reading the header"))?;
    let (header, slot) = match header::read(&bytes) {
        Found::Header(header, slot) => (*header, slot),
        Found::Nothing => return Err(damaged("it holds no segment".into())),
        Found::Broken(why) => return Err(damaged(why)),
    };
    let huge = huge_page_size_of(file).map_err(during(path, "looking at its pages"))?;
    if header.uid != effective_uid() || header.layout != Layout::SingleFile {
        return Err(damaged(format!("it is a segment of user {}, or in many files", header.uid)));
    }
    if length < header.size().0 || huge.is_some_and(|size| size != header.page_size) {
        return Err(damaged(format!("it has {length} of {} bytes", header.size().0)));
    }
    Ok((header, slot, huge))
}

/// Returns the header of a segment that is to be made. An error is the user's mistake.
pub(crate) fn new_header(
    name: Name,
    page_size: PageSize,
    layout: Layout,
    size: Bytes,
    most: Bytes,
    node: Option<u32>,
    mode: u32,
) -> Result<Header, SegmentError> {
    let page = page_size.bytes().0;
    let (pages, most_pages) = (size.0.div_ceil(page), most.0.max(size.0).div_ceil(page));
    if pages == 0 || most_pages > header::MOST_PAGES {
        return Err(SegmentError::Request(format!(
            "segment {name}: give a size from 1 to {} pages of {page_size}, not {pages} and at most {most_pages}",
            header::MOST_PAGES
        )));
    }
    if mode & !0o777 != 0 || mode & 0o600 != 0o600 {
        return Err(SegmentError::Request(format!(
            "segment {name}: mode {mode:04o} does not let its owner read and write, or has more than permissions"
        )));
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Header {
        generation: 0,
        page_size,
        layout,
        most_pages,
        pages,
        uid: effective_uid(),
        gid: effective_gid(),
        mode,
        node,
        address: 0,
        created,
        openings: 0,
        name,
    })
}

pub(super) fn address_space(header: &Header) -> Result<usize, SegmentError> {
    let bytes = header.most_pages.checked_mul(header.page_size.bytes().0);
    // Half of the address space of a process on x86-64.
    let bytes = bytes.filter(|bytes| *bytes <= 1 << 46).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| {
        let what = format!(
            "segment {}: {} pages of {} are more than fits into a process",
            header.name, header.most_pages, header.page_size
        );
        SegmentError::Request(what)
    })
}
