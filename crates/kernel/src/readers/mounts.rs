//! Mounts, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)), and those of hugetlbfs in
//! particular.

use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, PageSize};
use rustix::mount::MountFlags;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const MOUNTINFO: &str = "proc/self/mountinfo";

/// One line of mountinfo: a mount that this process can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the file system's device, as `stat` gives for its files.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted: `/` unless it is a bind mount.
    pub directory: PathBuf,
    /// Directory on which it is mounted.
    pub point: PathBuf,
    /// The type, such as `hugetlbfs`, `cgroup2`.
    pub fs_type: String,
    /// Options of this mount, such as `ro`, `nosuid`.
    pub options: Vec<String>,
    /// Options of the file system, such as `pagesize=2M`.
    pub super_options: Vec<String>,
}

impl Mount {
    /// Returns the value of the file system's option `name=value`.
    pub fn super_option(&self, name: &str) -> Option<&str> {
        self.super_options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns true if nothing can be written there: the mount or its file system is read-only.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().chain(&self.super_options).any(|option| option == "ro")
    }
}

/// A mounted hugetlbfs (Documentation/admin-guide/mm/hugetlbpage.rst, "Using Huge Pages").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugetlbfsMount {
    /// The mount itself.
    pub mount: Mount,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Most bytes that its files may hold; `None`: all of the pool.
    pub size: Option<Bytes>,
    /// Owner of the root directory. The kernel leaves the option out where it is root.
    pub uid: u32,
    /// Group of the root directory. The kernel leaves the option out where it is root's.
    pub gid: u32,
    /// Permission bits of the root directory when it was mounted. The kernel leaves the option out
    /// where they are 0755.
    pub mode: u32,
}

/// Returns all mounts that this process can see, in the order in which they were mounted.
pub fn mounts(root: &KernelRoot) -> Result<Vec<Mount>, KernelError> {
    read(root, MOUNTINFO)
}

/// Returns the mounts that `file` lists: `proc/PID/mountinfo` those that a process can see.
pub fn read(root: &KernelRoot, file: &str) -> Result<Vec<Mount>, KernelError> {
    let text = root.read(file)?;
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            parse(line).ok_or_else(|| KernelError::Parse {
                path: root.path(file),
                line: index + 1,
                what: format!("expected a mount, found '{line}'"),
            })
        })
        .collect()
}

/// Returns the mounts of type hugetlbfs. Those whose page size is not given are left out: every
/// kernel since 2.6.27 gives it.
pub fn hugetlbfs_mounts(root: &KernelRoot) -> Result<Vec<HugetlbfsMount>, KernelError> {
    let mounts = mounts(root)?;
    Ok(mounts.into_iter().filter(|mount| mount.fs_type == "hugetlbfs").filter_map(hugetlbfs).collect())
}

/// Mounts a hugetlbfs with pages of `size` at `point`, an existing directory. All users may write
/// there (mode 1777, as /tmp): a user who may map hugetlb pages may do so without a file, too. The
/// mount is without programs, devices and set-user-ID. Needs CAP_SYS_ADMIN.
pub fn mount_hugetlbfs(point: &Path, size: PageSize) -> io::Result<()> {
    let flags = MountFlags::NOEXEC | MountFlags::NODEV | MountFlags::NOSUID;
    let options = CString::new(format!("pagesize={},mode=1777", size.bytes().0)).expect("no NUL");
    Ok(rustix::mount::mount("hugetlbfs", point, "hugetlbfs", flags, Some(options.as_c_str()))?)
}

fn hugetlbfs(mount: Mount) -> Option<HugetlbfsMount> {
    let bytes = |name| mount.super_option(name).and_then(|value| value.parse::<Bytes>().ok());
    let number =
        |name, radix| mount.super_option(name).and_then(|value| u32::from_str_radix(value, radix).ok());
    Some(HugetlbfsMount {
        page_size: PageSize::new(bytes("pagesize")?.0)?,
        size: bytes("size"),
        uid: number("uid", 10).unwrap_or(0),
        gid: number("gid", 10).unwrap_or(0),
        mode: number("mode", 8).unwrap_or(0o755),
        mount,
    })
}

/// Parses `36 35 98:0 /directory /point rw,noatime optional:1 - type source rw,errors=continue`.
fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let directory = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let options = list(fields.next()?);
    fields.find(|field| *field == "-")?;
    let fs_type = fields.next()?.to_string();
    let _source = fields.next()?;
    Some(Mount { device, directory, point, fs_type, options, super_options: list(fields.next()?) })
}

fn list(options: &str) -> Vec<String> {
    options.split(',').map(str::to_string).collect()
}

/// Undoes the kernel's escapes: a backslash and three octal digits for space, tab, newline and
/// backslash.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(mountinfo: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc/self")).unwrap();
        fs::write(tree.path().join(MOUNTINFO), mountinfo).unwrap();
        tree
    }

    #[test]
    fn hugetlbfs_options_are_read() {
        let tree = tree(
            "22 1 259:0 / / rw,relatime - ext4 /dev/vda1 rw\n\
             40 22 0:32 / /dev/hugepages rw,relatime shared:17 - hugetlbfs hugetlbfs rw,pagesize=2M\n\
             41 22 0:33 /sub /mnt/big\\040ones ro,nosuid - hugetlbfs none \
             rw,uid=1000,gid=27,mode=770,pagesize=1024M,size=2147483648,min_size=1073741824\n",
        );
        let root = KernelRoot::captured(tree.path());
        assert_eq!(mounts(&root).unwrap().len(), 3);
        let huge = hugetlbfs_mounts(&root).unwrap();
        assert_eq!(huge.len(), 2);
        assert_eq!(huge[0].mount.device, (0, 32));
        assert_eq!((huge[0].page_size, huge[0].size, huge[0].mode), (PageSize::HUGE_2M, None, 0o755));
        assert!(!huge[0].mount.is_read_only());
        let big = &huge[1];
        assert_eq!(big.mount.point, Path::new("/mnt/big ones"));
        assert_eq!(big.mount.directory, Path::new("/sub"));
        assert_eq!((big.page_size, big.size), (PageSize::HUGE_1G, Some(Bytes::gib(2))));
        assert_eq!((big.uid, big.gid, big.mode), (1000, 27, 0o770));
        assert!(big.mount.is_read_only());
    }

    #[test]
    fn what_is_no_mount_is_named_by_its_line() {
        let tree = tree("22 1 259:0 / / rw,relatime - ext4 /dev/vda1 rw\nnonsense\n");
        let error = mounts(&KernelRoot::captured(tree.path())).unwrap_err().to_string();
        assert!(error.ends_with("line 2: expected a mount, found 'nonsense'"), "{error}");
    }
}
