//! Inventory of segments: those of every user on every hugetlbfs, as far as this user may look.

use crate::error::{SegmentError, during};
use crate::files::{self, Content};
use crate::header::{CLEAN, Layout, PAGE_STATES};
use crate::heap::{Depth, Heap, HeapError, Verified};
use crate::name::Name;
use crate::pool::{PREFIX, Pool};
use megapage_kernel::directory::Directory;
use megapage_kernel::mounts::hugetlbfs_mounts;
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::Bytes;
use serde::{Serialize, Serializer};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The most directories of applications, and segments of each, that are looked at.
const MOST: usize = 10_000;

megapage_units::named! {
    /// Present condition of a segment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Condition {
        /// Another process has it open.
        InUse = "in use",
        /// No process has it open. It can be opened again. It holds its memory until then, or until
        /// it is removed.
        Kept = "kept",
        /// Its files are no whole segment, or some are foreign.
        Damaged = "damaged",
    }
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The application that it belongs to.
    pub application: Name,
    /// Its name.
    pub name: Name,
    /// Its user.
    pub uid: u32,
    /// Its directory.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// Its present condition.
    pub condition: Condition,
    /// The fault, or the process that has it open, if that is known.
    pub because: Option<String>,
    /// True if its pages are hugetlb pages.
    pub hugetlb: bool,
    /// The memory that its files hold.
    #[serde(rename = "memory_bytes", serialize_with = "bytes")]
    pub memory: Bytes,
    /// Contents of its header; `None` if it is damaged.
    pub shape: Option<Shape>,
}

/// Contents of a whole segment's header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The size of its pages, such as `2m`.
    pub page_size: String,
    /// The number of its pages.
    pub pages: u64,
    /// Those of them that may hold old bytes.
    pub dirty_pages: u64,
    /// The most that it may grow to.
    pub most_pages: u64,
    /// Their arrangement in files.
    pub layout: Layout,
    /// The group that it was made with.
    pub gid: u32,
    /// The permission bits of its files, in octal.
    pub mode: String,
    /// The NUMA node that it is bound to.
    pub node: Option<u32>,
    /// Time at which it was made, in seconds since 1970.
    pub created: u64,
    /// Number of times that it was opened again.
    pub openings: u64,
}

fn bytes<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes.0)
}

/// The segments that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// The segments, by path.
    pub segments: Vec<Listed>,
    /// Directories of applications that this user may not look into, or that are not in the right
    /// state.
    pub skipped: Vec<String>,
}

/// Failure to find a segment by name.
#[derive(Debug, Error)]
pub enum LookupError {
    /// There is none of that name.
    #[error("'{0}' is no segment; see megapage segments list")]
    None(String),
    /// There are several.
    #[error("'{name}' may be any of {}; give APPLICATION/NAME, or the path", .paths.join(", "))]
    Several {
        /// The name, as given.
        name: String,
        /// Their paths.
        paths: Vec<String>,
    },
}

/// Result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soundness {
    /// The files and the header are sound, and there is no heap: the memory is empty, or a program
    /// uses it by itself.
    NoHeap,
    /// The heap is sound.
    Heap {
        /// Its contents.
        verified: Verified,
        /// True if an operation of a killed program had to be completed.
        recovered: bool,
    },
}

/// Lists all segments on all hugetlbfs that are mounted, and in these directories.
pub fn inventory(root: &KernelRoot, directories: &[PathBuf]) -> Result<Inventory, SegmentError> {
    let mut found = Inventory::default();
    let mut parents: Vec<PathBuf> =
        hugetlbfs_mounts(root)?.into_iter().map(|mount| mount.mount.point).collect();
    for directory in directories {
        // A directory that was asked for must be there; a mount may have gone meanwhile.
        Directory::open(directory).map_err(during(directory, "opening"))?;
        parents.push(directory.clone());
    }
    parents.sort();
    parents.dedup();
    for parent in parents {
        let Ok(directory) = Directory::open(&parent) else { continue };
        let Ok((names, _)) = directory.names(MOST) else {
            found.skipped.push(format!("{}: it may not be read", parent.display()));
            continue;
        };
        for name in names {
            let Some((uid, application)) = name.to_str().and_then(application_of) else { continue };
            let path = parent.join(&name);
            let child = name.to_str().map(|name| directory.child(name)).transpose();
            let pool = match child.map_err(during(&path, "opening")) {
                Ok(Some(child)) => Pool::found(child, uid),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match pool {
                Ok(pool) => list(&pool, &application, &mut found),
                Err(error) => found.skipped.push(error.to_string()),
            }
        }
    }
    found.segments.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Parses the name of an application's directory, such as `megapage.1000.redis`.
fn application_of(name: &str) -> Option<(u32, Name)> {
    let (uid, application) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Some((uid.parse().ok()?, application.parse().ok()?))
}

fn list(pool: &Pool, application: &Name, found: &mut Inventory) {
    let Ok((names, _)) = pool.directory().names(MOST) else {
        found.skipped.push(format!("{}: it may not be read", pool.path().display()));
        return;
    };
    for name in names {
        let Some(name) = name.to_str().and_then(|name| name.parse::<Name>().ok()) else { continue };
        let path = pool.path().join(name.as_str());
        let Ok(directory) = pool.directory().child(name.as_str()) else { continue };
        let mut listed = Listed {
            application: application.clone(),
            name,
            uid: pool.owner(),
            path,
            condition: Condition::Damaged,
            because: None,
            hugetlb: pool.is_on_hugetlb(),
            memory: files::held(&directory),
            shape: None,
        };
        let mut holder = files::holders(directory.file());
        match files::inspect(&directory, pool.owner()) {
            Ok(Content::Nothing) => {
                listed.because = Some("it was not made to the end, or not removed".into())
            }
            Ok(Content::Whole(whole)) => {
                holder = holder.or_else(|| files::holders(&whole.first));
                listed.condition = Condition::Kept;
                let mut states = vec![0; whole.header.pages as usize];
                let read = whole.first.read_exact_at(&mut states, PAGE_STATES);
                let is_dirty = |state: &&u8| **state != CLEAN || read.is_err();
                let header = whole.header;
                listed.shape = Some(Shape {
                    page_size: header.page_size.to_string(),
                    pages: header.pages,
                    dirty_pages: states.iter().filter(is_dirty).count() as u64,
                    most_pages: header.most_pages,
                    layout: header.layout,
                    gid: header.gid,
                    mode: format!("{:04o}", header.mode),
                    node: header.node,
                    created: header.created,
                    openings: header.openings,
                });
            }
            Err(error) => listed.because = Some(error.to_string()),
        }
        if let Some(holder) = holder {
            listed.condition = Condition::InUse;
            listed.because = Some(holder);
        }
        found.segments.push(listed);
    }
}

impl Inventory {
    /// Returns the segment that a user means by `NAME`, `APPLICATION/NAME` or its path.
    pub fn find(&self, text: &str) -> Result<&Listed, LookupError> {
        let is_meant = |listed: &&Listed| {
            let full = format!("{}/{}", listed.application, listed.name);
            listed.name.as_str() == text || full == text || listed.path == Path::new(text)
        };
        let mut meant = self.segments.iter().filter(is_meant);
        match (meant.next(), meant.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(LookupError::None(text.into())),
            (Some(_), Some(_)) => Err(LookupError::Several {
                name: text.into(),
                paths: self
                    .segments
                    .iter()
                    .filter(is_meant)
                    .map(|one| one.path.display().to_string())
                    .collect(),
            }),
        }
    }
}

impl Listed {
    fn pool(&self) -> Result<Pool, SegmentError> {
        let path = self.path.parent().unwrap_or(&self.path);
        let directory = Directory::open(path).map_err(during(path, "opening"))?;
        Pool::found(directory, self.uid)
    }

    /// Removes the segment: its memory goes back to the pool. Fails while it is open anywhere, or
    /// if its directory holds a foreign file. Root may do so for all users.
    pub fn remove(&self) -> Result<Bytes, SegmentError> {
        Ok(self.pool()?.remove_segment(&self.name)?.memory)
    }

    /// Checks that a removal would succeed now, as far as it can be known without one.
    pub fn may_be_removed(&self) -> Result<(), SegmentError> {
        let directory = self.pool()?.lock_existing(&self.name)?;
        files::check_removable(&directory, self.uid)
    }

    /// Returns true if it belongs to this process's user.
    pub fn is_own(&self) -> bool {
        self.uid == effective_uid()
    }

    /// Opens the segment as its owner would, which completes an operation that a killed program has
    /// left half done. Then checks the heap in it, all free memory included. Only its user may call
    /// it.
    pub fn verify(&self) -> Result<Soundness, HeapError> {
        let segment = self.pool()?.open_found(&self.name)?;
        if !Heap::begins(&segment)? {
            return Ok(Soundness::NoHeap);
        }
        let heap = Heap::open(segment)?;
        let verified = heap.verify(Depth::Memory)?;
        Ok(Soundness::Heap { verified, recovered: heap.statistics().recovered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Options;
    use megapage_units::PageSize;

    #[test]
    fn segments_are_found_and_told_apart() {
        let tree = tempfile::tempdir().unwrap();
        let parent = std::fs::canonicalize(tree.path()).unwrap();
        let look = || inventory(&KernelRoot::live(), std::slice::from_ref(&parent)).unwrap();
        let ours = |inventory: Inventory| -> Vec<Listed> {
            inventory.segments.into_iter().filter(|segment| segment.path.starts_with(&parent)).collect()
        };
        assert!(ours(look()).is_empty());
        let pool = |application: &str| {
            Pool::open_in(&parent, &application.parse().unwrap(), PageSize::HUGE_2M).unwrap()
        };
        let options = |name: &str| Options::new(name.parse().unwrap(), Bytes::mib(4)).reuse();
        let open = pool("one").open_segment(&options("open")).unwrap();
        open.words(open.data_start(), 1).unwrap();
        drop(Heap::format(pool("one").open_segment(&options("kept")).unwrap()).unwrap());
        drop(pool("two").open_segment(&options("kept")).unwrap());
        std::fs::write(pool("two").path().join("kept/pages"), "x").unwrap();
        std::fs::create_dir(parent.join("megapage.x.y")).unwrap();
        let found = ours(look());
        let conditions: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.condition)).collect();
        assert_eq!(conditions.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["kept", "open", "kept"]);
        assert_eq!((found[0].condition, found[2].condition), (Condition::Kept, Condition::Damaged));
        let shape = found[1].shape.as_ref().unwrap();
        assert_eq!((shape.pages, shape.dirty_pages, shape.page_size.as_str()), (2, 1, "2m"));
        assert!(found[0].memory >= Bytes::mib(4));
        assert!(found[2].because.as_ref().unwrap().contains("truncated to 1 bytes"));

        let inventory = look();
        assert!(inventory.find("nothing").unwrap_err().to_string().contains("is no segment"));
        assert!(matches!(inventory.find("kept"), Err(LookupError::Several { .. })));
        let kept = inventory.find("one/kept").unwrap();
        assert_eq!(inventory.find(kept.path.to_str().unwrap()).unwrap(), kept);
        assert!(matches!(kept.verify().unwrap(), Soundness::Heap { recovered: false, .. }));
        assert!(matches!(inventory.find("two/kept").unwrap().verify(), Err(HeapError::Segment(_))));
        assert!(matches!(inventory.find("open").unwrap().remove(), Err(SegmentError::InUse { .. })));
        drop(open);
        assert_eq!(inventory.find("open").unwrap().verify().unwrap(), Soundness::NoHeap);
        for name in ["open", "one/kept", "two/kept"] {
            inventory.find(name).unwrap().remove().unwrap();
        }
        assert!(ours(look()).is_empty());
    }

    #[test]
    fn memory_that_a_program_uses_by_itself_is_no_damaged_heap() {
        let tree = tempfile::tempdir().unwrap();
        let parent = std::fs::canonicalize(tree.path()).unwrap();
        let pool = Pool::open_in(&parent, &"one".parse().unwrap(), PageSize::HUGE_2M).unwrap();
        let open = |name: &str| {
            pool.open_segment(&Options::new(name.parse().unwrap(), Bytes::mib(4)).reuse()).unwrap()
        };
        let store = |segment: &crate::Segment, value: u64| {
            let first = segment.data_start();
            segment.words(first, 1).unwrap()[0].store(value, std::sync::atomic::Ordering::Relaxed);
        };
        let verify = |name: &str| {
            inventory(&KernelRoot::live(), std::slice::from_ref(&parent))
                .unwrap()
                .find(name)
                .unwrap()
                .verify()
        };
        let own = open("own");
        store(&own, 1);
        drop(own);
        assert_eq!(verify("own").unwrap(), Soundness::NoHeap);
        drop(Heap::format(open("heap")).unwrap());
        let damaged = open("heap");
        store(&damaged, 1);
        drop(damaged);
        assert!(matches!(verify("heap"), Err(HeapError::Damaged { .. })), "a heap without its first word");
    }

    #[test]
    fn directories_that_are_not_there_are_an_error() {
        let error = inventory(&KernelRoot::live(), &["/nonexistent/huge".into()]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/huge"), "{error}");
        assert_eq!(application_of("megapage.7.a.b"), Some((7, "a.b".parse().unwrap())));
        assert_eq!(application_of("megapage.root.a"), None);
    }
}
