//! Values that code within malloc needs, read from kernel files without allocating.
//!
//! File-level obligation: each path is a C string; each buffer is writable and of the length
//! stated; a descriptor is opened and closed by its [`Descriptor`].

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::system::call;
use megapage_units::PageSize;
use std::ffi::CStr;

/// A file that is open for reading, closed when dropped. No method allocates or changes errno.
#[derive(Debug)]
pub struct Descriptor(usize);

impl Descriptor {
    /// Opens a file for reading (open(2)).
    pub fn open(path: &CStr) -> Result<Descriptor, Errno> {
        Descriptor::open_for(path, libc::O_RDONLY)
    }

    pub(crate) fn open_for(path: &CStr, access: libc::c_int) -> Result<Descriptor, Errno> {
        let flags = (access | libc::O_CLOEXEC) as usize;
        // SAFETY: the path is a C string.
        unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0]) }
            .map(Descriptor)
    }

    /// Returns the number of the descriptor.
    pub fn number(&self) -> libc::c_int {
        self.0 as libc::c_int
    }

    /// Reads on (read(2)); returns how many bytes came, 0 at the end.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer is writable and of the given length.
        unsafe { call(libc::SYS_read, [self.0, buffer.as_mut_ptr() as usize, buffer.len()]) }
    }

    /// Reads words from a byte of the file on (pread(2)); returns how many came whole.
    pub fn read_words(&self, words: &mut [u64], offset: usize) -> Result<usize, Errno> {
        let arguments = [self.0, words.as_mut_ptr() as usize, size_of_val(words), offset];
        // SAFETY: the buffer is writable and of the given length, and any bytes are a word.
        unsafe { call(libc::SYS_pread64, arguments) }.map(|bytes| bytes / size_of::<u64>())
    }

    /// Calls ioctl(2).
    ///
    /// # Safety
    /// The argument is what the request says.
    pub(crate) unsafe fn control(&self, request: libc::Ioctl, argument: usize) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { call(libc::SYS_ioctl, [self.0, request as usize, argument]) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        let _ = unsafe { call(libc::SYS_close, [self.0]) };
    }
}

/// Returns the number of unreserved pages (Free - Rsvd) in the pool of `size`: the next mapping can
/// have them. `None` where the kernel has no such pool. Reads sysfs without allocating.
pub fn hugetlb_available(size: PageSize) -> Option<u64> {
    let value = |name: &str| {
        let mut path = [0u8; 96];
        let len = write_path(&mut path, size.kib(), name)?;
        read_number(&path[..len])
    };
    Some(value("free_hugepages")?.saturating_sub(value("resv_hugepages")?))
}

/// Returns the number of free pages of `size` on a node, including those that are reserved for
/// mappings. `None` where there is no such node. Does not allocate.
pub(crate) fn hugetlb_free_on_node(size: PageSize, node: usize) -> Option<u64> {
    use std::io::Write;
    let mut path = [0u8; 128];
    let mut rest = &mut path[..];
    let kib = size.kib();
    write!(rest, "/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/free_hugepages\0").ok()?;
    let len = 128 - rest.len();
    read_number(&path[..len])
}

/// Returns the default size of hugetlb pages (`Hugepagesize` of /proc/meminfo); `None` where it
/// does not say. Does not allocate.
pub fn default_hugetlb_size() -> Option<PageSize> {
    const NAME: &[u8] = b"\nHugepagesize:";
    let mut text = [0u8; 4096];
    let len = read_file(b"/proc/meminfo\0", &mut text)?;
    let at = text[..len].windows(NAME.len()).position(|window| window == NAME)?;
    PageSize::new(first_number(&text[at..len])?.checked_mul(1024)?)
}

fn write_path(buffer: &mut [u8; 96], kib: u64, name: &str) -> Option<usize> {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}\0").ok()?;
    let left = rest.len();
    Some(buffer.len() - left)
}

/// Returns true if madvise can obtain transparent huge pages: the setting is not `never`, and
/// PR_SET_THP_DISABLE does not rule them out for the process. Does not allocate.
pub fn thp_is_possible() -> bool {
    let mut text = [0u8; 2048];
    let allowed = match read_file(b"/sys/kernel/mm/transparent_hugepage/enabled\0", &mut text) {
        Some(len) => !text[..len].windows(7).any(|window| window == b"[never]"),
        // Without /sys, as in a chroot: the kernel counts them if it has them.
        None => read_file(b"/proc/meminfo\0", &mut text)
            .is_some_and(|len| text[..len].windows(14).any(|window| window == b"AnonHugePages:")),
    };
    // SAFETY: this prctl takes no pointer.
    let disabled = unsafe { call(libc::SYS_prctl, [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0]) };
    allowed && disabled != Ok(1)
}

/// Returns true if the kernel gives transparent huge pages on advice alone, or not at all. Does not
/// allocate.
pub fn thp_only_on_advice() -> bool {
    let mut text = [0u8; 64];
    let setting = read_file(b"/sys/kernel/mm/transparent_hugepage/enabled\0", &mut text);
    setting.is_some_and(|len| !text[..len].windows(8).any(|window| window == b"[always]"))
}

/// Returns MemAvailable and MemTotal of /proc/meminfo in bytes. Does not allocate.
pub fn memory_available_and_total() -> Option<(u64, u64)> {
    let mut text = [0u8; 512];
    let len = read_file(b"/proc/meminfo\0", &mut text)?;
    let field = |name: &[u8]| {
        let at = text[..len].windows(name.len()).position(|window| window == name)? + name.len();
        first_number(&text[at..len]).map(|kib| kib << 10)
    };
    Some((field(b"MemAvailable:")?, field(b"MemTotal:")?))
}

/// Returns the resident memory of this process in bytes, exact to within the kernel's batches.
/// `None` where /proc is not mounted. Does not allocate.
pub fn own_resident() -> Option<u64> {
    let mut text = [0u8; 128];
    let len = read_file(b"/proc/self/statm\0", &mut text)?;
    let pages = text[..len].split(|byte| *byte == b' ').nth(1)?;
    Some(first_number(pages)? * megapage_units::BASE_PAGE as u64)
}

/// Returns how many threads this process has; `None` where /proc is not mounted. Does not allocate.
pub fn thread_count() -> Option<u64> {
    own_stat(|fields| first_number(fields.nth(17)?))
}

/// Returns true if the thread that ran `main` has ended (by pthread_exit) and at most `others`
/// further threads remain. Does not allocate.
pub fn main_has_ended(others: u64) -> bool {
    // A main thread that has ended stays as a zombie, and counts.
    own_stat(|fields| Some(fields.next()? == b"Z")) == Some(true)
        && thread_count().is_some_and(|count| count <= 1 + others)
}

/// Calls `read` with the fields of /proc/self/stat that follow the command name, the state first.
fn own_stat<R>(read: impl FnOnce(&mut dyn Iterator<Item = &[u8]>) -> Option<R>) -> Option<R> {
    let mut text = [0u8; 1024];
    let len = read_file(b"/proc/self/stat\0", &mut text)?;
    // The command name may hold anything: count fields after its closing parenthesis.
    let after = text[..len].iter().rposition(|&byte| byte == b')')? + 1;
    read(&mut text[after..len].split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty()))
}

fn read_number(path: &[u8]) -> Option<u64> {
    let mut text = [0u8; 32];
    let len = read_file(path, &mut text)?;
    first_number(&text[..len])
}

pub(crate) fn first_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().skip_while(|byte| !byte.is_ascii_digit());
    let mut value: Option<u64> = None;
    for byte in digits.take_while(|byte| byte.is_ascii_digit()) {
        value = Some(value.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(byte - b'0'))?);
    }
    value
}

/// Reads up to a buffer's length from `path`, which must end in a NUL byte.
pub(crate) fn read_file(path: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let path = CStr::from_bytes_with_nul(path).ok()?;
    Descriptor::open(path).ok()?.read(buffer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_without_allocation() {
        let before = crate::counted_tests::allocations();
        let (memory, size, threads) = (memory_available_and_total(), default_hugetlb_size(), thread_count());
        let (resident, pool) = (own_resident(), hugetlb_available(PageSize::HUGE_2M));
        let _ = (thp_is_possible(), thp_only_on_advice(), hugetlb_free_on_node(PageSize::HUGE_2M, 0));
        assert_eq!(crate::counted_tests::allocations(), before);
        let (available, total) = memory.unwrap();
        assert!(
            0 < available
                && available < total
                && resident.unwrap() > 0
                && pool.is_none_or(|free| free < total)
        );
        assert!(size.is_none_or(|size| size > PageSize::BASE));
        assert!(threads.unwrap() >= 1);
        assert_eq!(first_number(b"  12 kB"), Some(12));
        assert_eq!(first_number(b"none"), None);
        assert_eq!(first_number(b"99999999999999999999"), None);
    }
}
