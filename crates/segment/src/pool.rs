//! Directory of one application, and the segments in it.

use crate::error::{SegmentError, during};
use crate::files::{self, Content, Whole};
use crate::header::{Header, Layout};
use crate::name::Name;
use crate::segment::{Parts, Place, Role, Segment, check_pages, new_header};
use megapage_kernel::directory::{Directory, huge_page_size_of, is_link_in_the_way};
use megapage_kernel::hugetlb::{PoolScope, counts, nodes};
use megapage_kernel::mounts::{hugetlbfs_mounts, mount_hugetlbfs};
use megapage_kernel::runtime_directory::{LockFile, runtime_directory};
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::{Bytes, PageSize};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of the names of applications' directories: `megapage.UID.NAME`.
pub(crate) const PREFIX: &str = "megapage.";
/// Returns the directory below which a hugetlbfs is mounted if there is none, one for each page
/// size.
fn mounts() -> PathBuf {
    runtime_directory(&KernelRoot::live())
}

/// Longest wait for another process that mounts one at this moment.
const PATIENCE: Duration = Duration::from_secs(10);
/// Attempts to make a directory that another process removes meanwhile.
const MOST_TRIES: usize = 16;

/// Treatment of a segment's files, as by DPDK's `--huge-unlink`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlink {
    /// Existing files of that name are removed first; the memory is fresh. The new files stay
    /// behind.
    #[default]
    Existing,
    /// As `Existing`, and the new files lose their names at once: nothing stays behind, even if the
    /// process is killed.
    Always,
    /// Existing files are reused, old bytes included. This has to be asked for: a process that can
    /// become the user can read the data that the program left.
    Never,
}

/// Properties of a segment that is to be opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name.
    pub name: Name,
    /// Its size, rounded up to whole pages; one that is reused and larger stays as it is.
    pub size: Bytes,
    /// The most that it may ever grow to; fixed when it is made. `None`: its size.
    pub most: Option<Bytes>,
    /// Treatment of its files.
    pub unlink: Unlink,
    /// Arrangement of its pages in files.
    pub layout: Layout,
    /// The NUMA node that its pages are to come from; `None`: any node that the kernel chooses.
    pub node: Option<u32>,
    /// The permission bits of its files. The directory above admits only the user in any case.
    pub mode: u32,
    /// True if the page tables are also filled for reused pages: [`Segment::populate`]. Without it
    /// the time to open does not depend on the size, and the first access to each page takes a
    /// minor fault.
    pub populate: bool,
}

impl Options {
    /// Returns options for a segment of this name and size: fresh, in one file, for its user alone.
    pub fn new(name: Name, size: Bytes) -> Options {
        Options {
            name,
            size,
            most: None,
            unlink: Unlink::default(),
            layout: Layout::default(),
            node: None,
            mode: 0o600,
            populate: false,
        }
    }

    /// Returns the same options, with reuse of existing files.
    pub fn reuse(self) -> Options {
        Options { unlink: Unlink::Never, ..self }
    }
}

/// Pages that opening a segment would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The pages that it would have.
    pub pages: u64,
    /// Those of them that are there and would be reused.
    pub reused_pages: u64,
    /// The pages that would have to be allocated.
    pub new_pages: u64,
    /// The pages that are available: free and reserved by no process, allocated on demand by the
    /// kernel, and those of leftovers that would be removed. `None` for a directory that is not on
    /// hugetlbfs.
    pub available_pages: Option<u64>,
}

/// Result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The memory that the files held.
    pub memory: Bytes,
}

/// Directory of one application: it belongs to its user, and no other user gets in (0700).
#[derive(Debug)]
pub struct Pool {
    directory: Directory,
    page_size: PageSize,
    hugetlb: bool,
    owner: u32,
}

impl Pool {
    /// Opens the pool `application` of this user on a hugetlbfs with pages of `page_size`, and
    /// makes it if there is none. A mount that has it already comes first, then the first one in
    /// which it can be made. If none is mounted, root mounts one below `/run/megapage`; it stays.
    pub fn open(application: &Name, page_size: PageSize) -> Result<Pool, SegmentError> {
        check_pages(page_size)?;
        let name = directory_name(effective_uid(), application);
        let found = || -> Result<Vec<PathBuf>, SegmentError> {
            let mounts = hugetlbfs_mounts(&KernelRoot::live())?;
            let fit = mounts.into_iter().filter(|m| m.page_size == page_size && !m.mount.is_read_only());
            Ok(fit.map(|mount| mount.mount.point).collect())
        };
        let mut points = found()?;
        if points.is_empty() && effective_uid() == 0 {
            mount(page_size, || Ok(!found()?.is_empty()))?;
            points = found()?;
        }
        points.sort_by_key(|point| Directory::open(point).and_then(|mount| mount.child(&name)).is_err());
        let mut refused = Vec::new();
        for point in &points {
            match Directory::open(point).and_then(|mount| child_or_new(&mount, &name)) {
                Ok(directory) => return Pool::of(directory, page_size),
                Err(error) if is_link_in_the_way(&error) => {
                    return Err(SegmentError::Foreign {
                        path: point.join(name),
                        what: "it is a link".into(),
                    });
                }
                Err(error) => refused.push(format!("{}: {error}", point.display())),
            }
        }
        let why = if refused.is_empty() { "none is mounted".into() } else { refused.join("; ") };
        Err(SegmentError::NoMount { size: page_size, why })
    }

    /// Opens the pool `application` of this user in the directory `parent`, which need not be on
    /// hugetlbfs, and makes it if there is none. Elsewhere its segments are on base pages, in units
    /// of `page_size`.
    ///
    /// ```
    /// use megapage_segment::{Options, Pool};
    /// use megapage_units::{Bytes, PageSize};
    /// use std::sync::atomic::Ordering::Relaxed;
    ///
    /// # let tree = tempfile::tempdir()?;
    /// # let directory = tree.path().canonicalize()?;
    /// let pool = Pool::open_in(&directory, &"example".parse()?, PageSize::HUGE_2M)?;
    /// let options = Options::new("starts".parse()?, Bytes::mib(2)).reuse();
    /// for former in 0..3 {
    ///     // As by one start of the program after the other.
    ///     let segment = pool.open_segment(&options)?;
    ///     let starts = &segment.words(segment.data_start(), 1).expect("its first word")[0];
    ///     assert_eq!(starts.fetch_add(1, Relaxed), former);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_in(parent: &Path, application: &Name, page_size: PageSize) -> Result<Pool, SegmentError> {
        check_pages(page_size)?;
        let name = directory_name(effective_uid(), application);
        let path = parent.join(&name);
        let directory = Directory::open(parent).and_then(|parent| child_or_new(&parent, &name));
        match directory {
            Ok(directory) => Pool::of(directory, page_size),
            Err(error) if is_link_in_the_way(&error) => {
                Err(SegmentError::Foreign { path, what: "it is, or is reached by, a symbolic link".into() })
            }
            Err(error) => Err(during(path, "opening the directory of the application")(error)),
        }
    }

    fn of(directory: Directory, page_size: PageSize) -> Result<Pool, SegmentError> {
        let pool = Pool::found(directory, effective_uid())?;
        if pool.hugetlb && pool.page_size != page_size {
            let (path, size) = (pool.path().display(), pool.page_size);
            return Err(SegmentError::Request(format!("{path}: its pages are of {size}, not {page_size}")));
        }
        Ok(Pool { page_size, ..pool })
    }

    /// Returns a pool that was found, to inspect it and to remove from it: root may do so for all
    /// users.
    pub(crate) fn found(directory: Directory, owner: u32) -> Result<Pool, SegmentError> {
        let path = directory.path().to_path_buf();
        let huge = huge_page_size_of(directory.file()).map_err(during(&path, "looking at its pages"))?;
        check_directory(&directory, owner)?;
        Ok(Pool { directory, page_size: huge.unwrap_or(PageSize::HUGE_2M), hugetlb: huge.is_some(), owner })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the size of its pages.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Returns true if its pages are hugetlb pages.
    pub fn is_on_hugetlb(&self) -> bool {
        self.hugetlb
    }

    /// Opens a segment as its owner, and makes it if there is none. [`Segment::opened`] shows the
    /// result. Fails while another process is its owner. If old memory is to be removed, also fails
    /// while any process maps it.
    pub fn open_segment(&self, options: &Options) -> Result<Segment, SegmentError> {
        let header = self.header(options)?;
        let directory = self.lease(&options.name)?;
        if options.unlink == Unlink::Never
            && let Content::Whole(whole) = files::inspect(&directory, self.owner)?
        {
            let mut segment = self.reuse(options, &header, directory, whole)?;
            segment.grow_at_opening(options.size)?;
            if options.populate {
                segment.populate()?;
            }
            return Ok(segment);
        }
        let removed = files::clear(&directory, self.owner)?;
        let path = directory.path().to_path_buf();
        let place = if options.unlink == Unlink::Always {
            self.directory.remove_child(options.name.as_str()).map_err(during(&path, "removing"))?;
            Place::Unlinked(self.directory.try_clone().map_err(during(self.path(), "opening it again"))?)
        } else {
            Place::Named(directory)
        };
        let parts = Parts { removed, ..Parts::of(place, path, self.hugetlb, Role::Owner) };
        Segment::make(header, None, parts).inspect_err(|_| {
            // A segment that could not be made leaves nothing. If the directory is not empty, an
            // error has named its files already.
            let _ = self.directory.remove_child(options.name.as_str());
        })
    }

    /// Maps a segment at its owner's address, to share its contents. It stays when the owner ends,
    /// and cannot be removed meanwhile. Only the same user may map it.
    pub fn share_segment(&self, name: &Name) -> Result<Segment, SegmentError> {
        let directory = self.existing(name)?;
        let missing = || SegmentError::Missing { path: directory.path().to_path_buf() };
        let Content::Whole(whole) = files::inspect(&directory, self.owner)? else { return Err(missing()) };
        let path = directory.path().to_path_buf();
        files::lock_shared(&whole.first, &path)?;
        // Between the first look and the lock it may have been removed, or made to grow: so look
        // again with the lock held.
        let Content::Whole(now) = files::inspect(&directory, self.owner)? else { return Err(missing()) };
        let inode = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
        if inode(&now.first) != inode(&whole.first) {
            return Err(SegmentError::InUse {
                path,
                holder: "another process, which is creating it again".into(),
            });
        }
        self.check_header(&now.header, name, &path)?;
        self.mapped(directory, Whole { first: whole.first, ..now }, Role::Sharer)
    }

    /// Returns the pages that opening would take, without changing anything. A segment that is in
    /// use is judged in its present state.
    pub fn plan(&self, options: &Options) -> Result<Plan, SegmentError> {
        let header = self.header(options)?;
        let found = match self.existing(&options.name) {
            Ok(directory) => Some(directory),
            Err(SegmentError::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        let content = found.as_ref().map(|directory| {
            let reuse = options.unlink == Unlink::Never;
            if reuse { files::inspect(directory, self.owner) } else { Ok(Content::Nothing) }
        });
        let (pages, reused) = match content.transpose()? {
            Some(Content::Whole(whole)) => (whole.header.pages.max(header.pages), whole.header.pages),
            _ => (header.pages, 0),
        };
        let page = self.page_size.bytes().0;
        let leftovers = found.as_ref().map_or(0, |directory| files::held(directory).0 / page);
        let available = match self.hugetlb {
            true => {
                let pool = counts(&KernelRoot::live(), self.page_size, PoolScope::Machine)?;
                let on_demand = pool.overcommit.unwrap_or(0).saturating_sub(pool.surplus);
                Some(pool.available().unwrap_or(0) + on_demand + if reused > 0 { 0 } else { leftovers })
            }
            false => None,
        };
        Ok(Plan { pages, reused_pages: reused, new_pages: pages - reused, available_pages: available })
    }

    /// Removes a segment in any state. Fails while it is open anywhere, or if it holds a foreign
    /// file.
    pub fn remove_segment(&self, name: &Name) -> Result<Removed, SegmentError> {
        let directory = self.lock_existing(name)?;
        let memory = files::clear(&directory, self.owner)?;
        self.directory
            .remove_child(name.as_str())
            .map_err(during(directory.path(), "removing the directory"))?;
        Ok(Removed { memory })
    }

    /// Opens the directory of a segment and locks it for a closer inspection.
    pub(crate) fn lock_existing(&self, name: &Name) -> Result<Directory, SegmentError> {
        let directory = self.existing(name)?;
        files::lock(directory.file(), directory.path())?;
        Ok(directory)
    }

    /// Opens an existing segment for verification: as owner, reusing, and without growing.
    pub(crate) fn open_found(&self, name: &Name) -> Result<Segment, SegmentError> {
        let directory = self.lock_existing(name)?;
        match files::inspect(&directory, self.owner)? {
            Content::Nothing => Err(SegmentError::Missing { path: directory.path().to_path_buf() }),
            Content::Whole(whole) => {
                self.check_header(&whole.header, name, directory.path())?;
                self.map(directory, whole)
            }
        }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    fn header(&self, options: &Options) -> Result<Header, SegmentError> {
        if let Some(node) = options.node {
            let present = nodes(&KernelRoot::live())?;
            if !present.contains(&node) {
                let present: Vec<String> = present.iter().map(u32::to_string).collect();
                let nodes = if present.is_empty() { "none".into() } else { present.join(", ") };
                return Err(SegmentError::Request(format!(
                    "there is no node {node}; this machine has {nodes}"
                )));
            }
        }
        new_header(
            options.name.clone(),
            self.page_size,
            options.layout,
            options.size,
            options.most.unwrap_or(options.size),
            options.node,
            options.mode,
        )
    }

    fn reuse(
        &self,
        options: &Options,
        wanted: &Header,
        directory: Directory,
        whole: Whole,
    ) -> Result<Segment, SegmentError> {
        let found = &whole.header;
        self.check_header(found, &options.name, directory.path())?;
        let different = |what: String| SegmentError::Different { path: directory.path().to_path_buf(), what };
        if found.page_size != wanted.page_size {
            return Err(different(format!("its pages are of {}, not {}", found.page_size, wanted.page_size)));
        }
        if found.layout != wanted.layout {
            return Err(different(format!("its layout is {:?}, not {:?}", found.layout, wanted.layout)));
        }
        if found.node != wanted.node {
            let name = |node: Option<u32>| node.map_or("no node".into(), |node| format!("node {node}"));
            return Err(different(format!("it is bound to {}, not {}", name(found.node), name(wanted.node))));
        }
        if options.most.is_some() && found.most_pages != wanted.most_pages {
            let what = format!("it may grow to {} pages, not {}", found.most_pages, wanted.most_pages);
            return Err(different(what));
        }
        self.map(directory, whole)
    }

    /// Maps a whole segment whose directory is locked, as its owner.
    fn map(&self, directory: Directory, whole: Whole) -> Result<Segment, SegmentError> {
        files::lock_shared(&whole.first, directory.path())?;
        files::trim(&directory, &whole.header)?;
        self.mapped(directory, whole, Role::Owner)
    }

    fn mapped(&self, directory: Directory, whole: Whole, role: Role) -> Result<Segment, SegmentError> {
        let file = files::single_file(&directory, &whole.header)?;
        let path = directory.path().to_path_buf();
        let parts = Parts::of(Place::Named(directory), path, self.hugetlb, role);
        Segment::reuse(whole.header, whole.slot, file, Parts { _first: Some(whole.first), ..parts })
    }

    fn check_header(&self, header: &Header, name: &Name, path: &Path) -> Result<(), SegmentError> {
        if header.name != *name {
            let what = format!("its header says that it is segment {}", header.name);
            return Err(SegmentError::Damaged { path: path.to_path_buf(), what });
        }
        // Elsewhere they are units, and may be of any size.
        if self.hugetlb && header.page_size != self.page_size {
            let what = format!("its header tells of pages of {}", header.page_size);
            return Err(SegmentError::Damaged { path: path.to_path_buf(), what });
        }
        Ok(())
    }

    fn existing(&self, name: &Name) -> Result<Directory, SegmentError> {
        let path = self.path().join(name.as_str());
        match self.directory.child(name.as_str()) {
            Ok(directory) => {
                check_directory(&directory, self.owner)?;
                Ok(directory)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SegmentError::Missing { path }),
            Err(error) if is_link_in_the_way(&error) => {
                Err(SegmentError::Foreign { path, what: "it is a symbolic link".into() })
            }
            Err(error) => Err(during(path, "opening")(error)),
        }
    }

    /// Returns the directory of the segment, with the owner's lock; makes it if there is none. The
    /// lock protects only the directory that the name leads to: one that was removed meanwhile is
    /// given up.
    fn lease(&self, name: &Name) -> Result<Directory, SegmentError> {
        let path = self.path().join(name.as_str());
        for _ in 0..MOST_TRIES {
            match self.directory.make_child(name.as_str(), 0o700) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(during(path, "making the directory of the segment")(error)),
            }
            let directory = match self.existing(name) {
                Err(SegmentError::Missing { .. }) => continue,
                directory => directory?,
            };
            files::lock(directory.file(), &path)?;
            match self.directory.child(name.as_str()) {
                Ok(now) if now.is_same_as(&directory).unwrap_or(false) => return Ok(directory),
                _ => continue,
            }
        }
        Err(SegmentError::InUse { path, holder: "another process, which removes it over and over".into() })
    }
}

/// Returns the name of the application's directory, such as `megapage.1000.redis`.
pub(crate) fn directory_name(uid: u32, application: &Name) -> String {
    format!("{PREFIX}{uid}.{application}")
}

fn child_or_new(parent: &Directory, name: &str) -> io::Result<Directory> {
    match parent.child(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match parent.make_child(name, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => parent.child(name),
            made => made,
        },
        found => found,
    }
}

/// Checks that a directory belongs to `owner`, and is closed to other users.
fn check_directory(directory: &Directory, owner: u32) -> Result<(), SegmentError> {
    let path = directory.path().to_path_buf();
    let metadata = directory.metadata().map_err(during(&path, "looking at the directory"))?;
    if metadata.uid() != owner {
        return Err(SegmentError::Foreign { path, what: format!("it belongs to user {}", metadata.uid()) });
    }
    if metadata.mode() & 0o077 != 0 {
        let what =
            format!("its mode is {:04o}, so that others get in; 0700 is wanted", metadata.mode() & 0o7777);
        return Err(SegmentError::Foreign { path, what });
    }
    Ok(())
}

/// Mounts a hugetlbfs for pages of `size`, unless `is_there` reports, with the lock held, that a
/// process has mounted one.
fn mount(size: PageSize, is_there: impl Fn() -> Result<bool, SegmentError>) -> Result<(), SegmentError> {
    let base = mounts();
    let parent = base.parent().unwrap_or(Path::new("/"));
    let name = base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let directory = |parent: &Directory, name: &str| match parent.make_child(name, 0o755) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => parent.child(name),
        made => made,
    };
    let run = Directory::open(parent).map_err(during(parent, "opening"))?;
    let base_directory = directory(&run, name).map_err(during(&base, "making the directory"))?;
    let lock = base.join("mount.lock");
    let _lock = LockFile::take(&KernelRoot::live(), &lock, PATIENCE)
        .map_err(|error| during(&base, "locking")(io::Error::other(error)))?;
    if is_there()? {
        return Ok(());
    }
    let point = base.join(format!("hugepages-{size}"));
    directory(&base_directory, &format!("hugepages-{size}"))
        .map_err(during(&point, "making the directory"))?;
    mount_hugetlbfs(&point, size).map_err(during(&point, "mounting a hugetlbfs"))
}
