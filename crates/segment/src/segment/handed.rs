//! A segment on its way from one owner to the next: as descriptors, and mapped before it is owned.

use super::shape::header_of;
use super::{Parts, Place, Role, Segment};
use crate::error::{SegmentError, during};
use crate::files::{self, Content};
use crate::header::{self, Found, HEADER_BYTES, Header};
use megapage_kernel::directory::{Directory, can_shrink, huge_page_size_of};
use megapage_kernel::effective_uid;
use megapage_units::PageSize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Descriptors that lead to a segment and hold its owner's lock. A lock of flock(2) belongs to the
/// open file description, and the descriptors of both processes lead to the same one.
#[derive(Debug)]
pub(crate) enum Offered {
    /// The directory with its files.
    Named(Directory),
    /// The directory of the pool, and the file, which has no name.
    Unlinked(Directory, File),
    /// The memory file.
    Memory(File),
}

impl Segment {
    /// Returns descriptors for the next owner, and the path for messages.
    pub(crate) fn offer(&self) -> Result<(Offered, PathBuf), SegmentError> {
        let path = self.path();
        let refused = |what: &str| SegmentError::Request(format!("{}: {what}", path.display()));
        if !self.is_owner() {
            return Err(refused("only its owner hands a segment over"));
        }
        let book = self.book();
        let failed = || during(path, "duplicating its descriptors");
        let directory = |directory: &Directory| directory.try_clone().map_err(failed());
        let file = || book.file.as_ref().map(File::try_clone).transpose().map_err(failed());
        let offered = match (&self.parts.place, file()?) {
            (Place::Named(named), _) => Offered::Named(directory(named)?),
            (Place::Unlinked(parent), Some(file)) => Offered::Unlinked(directory(parent)?, file),
            (Place::Memory, Some(file)) => Offered::Memory(file),
            (_, None) => {
                return Err(refused(
                    "its files, one for each page, have neither names nor descriptors any more; to hand it over, make it \
                     in a single file, or keep its files",
                ));
            }
        };
        Ok((offered, path.to_path_buf()))
    }

    /// Maps an offered segment without writing to it: [`Segment::adopt`] makes this process its
    /// owner.
    pub(crate) fn of_offer(offered: Offered, path: PathBuf) -> Result<Segment, SegmentError> {
        let parts = |place: Place, _first: Option<File>, hugetlb: bool| Parts {
            _first,
            ..Parts::of(place, path.clone(), hugetlb, Role::Successor)
        };
        match offered {
            Offered::Named(directory) => {
                let huge =
                    huge_page_size_of(directory.file()).map_err(during(&path, "looking at its pages"))?;
                let Content::Whole(whole) = files::inspect(&directory, effective_uid())? else {
                    return Err(SegmentError::Missing { path });
                };
                check(&whole.header, huge, &path)?;
                if path.file_name().is_none_or(|name| name != whole.header.name.as_str()) {
                    let what = format!("its header says that it is segment {}", whole.header.name);
                    return Err(SegmentError::Damaged { path, what });
                }
                files::lock_shared(&whole.first, &path)?;
                let file = files::single_file(&directory, &whole.header)?;
                let parts = parts(Place::Named(directory), Some(whole.first), huge.is_some());
                Segment::reuse(whole.header, whole.slot, file, parts)
            }
            Offered::Unlinked(directory, file) => {
                let (header, slot, huge) = header_of(&file, &path)?;
                check(&header, huge, &path)?;
                Segment::reuse(
                    header,
                    slot,
                    Some(file),
                    parts(Place::Unlinked(directory), None, huge.is_some()),
                )
            }
            Offered::Memory(file) => {
                if can_shrink(&file) {
                    let what = "it can be truncated while it is in use (no F_SEAL_SHRINK)".into();
                    return Err(SegmentError::Damaged { path, what });
                }
                let (header, slot, huge) = header_of(&file, &path)?;
                check(&header, huge, &path)?;
                Segment::reuse(header, slot, Some(file), parts(Place::Memory, None, huge.is_some()))
            }
        }
    }

    /// Becomes its owner: the former one has given it up, or has ended.
    pub(crate) fn adopt(&mut self) {
        self.parts.role = Role::Owner;
        self.begin();
    }

    /// Owns it once more after a successor that may have been its owner has ended. The header is as
    /// the successor left it.
    pub(crate) fn resume(&mut self) -> Result<(), SegmentError> {
        let words = self.raw(0, HEADER_BYTES / 8).unwrap_or_default();
        let bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
        match header::read(&bytes) {
            Found::Header(header, slot) if header.name == self.name && header.pages == self.pages() => {
                let mut book = self.book();
                (book.header, book.slot) = (*header, slot);
            }
            _ => {
                return Err(SegmentError::Damaged {
                    path: self.path().to_path_buf(),
                    what: "its header is not the one that it had before it was handed over".into(),
                });
            }
        }
        self.begin();
        Ok(())
    }
}

/// Checks that the pages are of the size that the header names.
fn check(header: &Header, huge: Option<PageSize>, path: &Path) -> Result<(), SegmentError> {
    match huge.filter(|size| *size != header.page_size) {
        Some(size) => {
            let what = format!("its pages are of {size}, and its header says {}", header.page_size);
            Err(SegmentError::Damaged { path: path.to_path_buf(), what })
        }
        None => Ok(()),
    }
}
