//! Failures of entry points: a negative errno, and a message for the calling thread.

use crate::pointers::Out;
use megapage_kernel::{KernelRoot, OtherBasePages, require_base_pages};
use megapage_segment::SegmentError;
use megapage_segment::heap::HeapError;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Numbers of errno(3) that the header names. They are the same on every architecture that megapage
/// is built for.
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const EBADF: i32 = 9;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const ENODATA: i32 = 61;
    pub const EPROTO: i32 = 71;
    pub const EBADMSG: i32 = 74;
    pub const EPROTOTYPE: i32 = 91;
    pub const EOPNOTSUPP: i32 = 95;
    pub const EADDRINUSE: i32 = 98;
    pub const ENOTCONN: i32 = 107;
    pub const ESTALE: i32 = 116;
}

/// The reason why an entry point failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub errno: i32,
    pub message: String,
}

impl Failure {
    /// Returns a failure with this message, as one line that steers no terminal: programs show it
    /// as it is.
    pub fn new(errno: i32, message: impl Into<String>) -> Failure {
        Failure { errno, message: megapage_units::shown::one_line(&message.into()) }
    }

    /// Returns a failure that the caller caused.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(errno::EINVAL, message)
    }

    /// Returns the failure of a system call, which failed while doing `what`.
    pub fn system(what: &str, error: &io::Error) -> Failure {
        Failure::new(error.raw_os_error().unwrap_or(errno::EIO), format!("{what}: {error}"))
    }
}

impl From<SegmentError> for Failure {
    fn from(error: SegmentError) -> Failure {
        let number = match &error {
            SegmentError::NoMount { .. } => errno::ENODEV,
            SegmentError::Foreign { .. } => errno::EPERM,
            SegmentError::Damaged { .. } => errno::EBADMSG,
            SegmentError::InUse { .. } => errno::EBUSY,
            SegmentError::Missing { .. } => errno::ENOENT,
            SegmentError::Short { .. } => errno::ENOMEM,
            SegmentError::Request(_) => errno::EINVAL,
            SegmentError::Different { .. } => errno::EEXIST,
            SegmentError::Address { .. } => errno::EADDRINUSE,
            SegmentError::Full { .. } => errno::ENOSPC,
            SegmentError::Upgrade { .. } => errno::EPROTO,
            SegmentError::System { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
            SegmentError::Kernel(_) => errno::EIO,
            SegmentError::BasePages(_) => errno::EOPNOTSUPP,
        };
        Failure::new(number, error.to_string())
    }
}

impl From<HeapError> for Failure {
    fn from(error: HeapError) -> Failure {
        let number = match error {
            HeapError::Segment(error) => return error.into(),
            HeapError::None(_) => errno::ENODATA,
            HeapError::Damaged { .. } => errno::EBADMSG,
            HeapError::Stale(_) => errno::ESTALE,
            HeapError::Type { .. } => errno::EPROTOTYPE,
            HeapError::Full { .. } => errno::ENOSPC,
            HeapError::Request(_) => errno::EINVAL,
            HeapError::NotOwner(_) => errno::EPERM,
            HeapError::Root(_) => errno::EBUSY,
        };
        Failure::new(number, error.to_string())
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Returns the message of the last failure in this thread; empty if there was none. It is valid
/// until the next failure in this thread.
pub(crate) fn message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Runs `work`, which has no result, by [`answer`].
pub(crate) fn done(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    answer(|| work().map(|()| 0))
}

/// Runs `work` by [`answer`], and writes its result. Does nothing if the pointer for the result is
/// null or misaligned.
pub(crate) fn give<T: Copy>(result: *mut T, what: &str, work: impl FnOnce() -> Result<T, Failure>) -> c_int {
    answer(|| {
        let out = Out::new(result, what)?;
        out.write(work()?);
        Ok(0)
    })
}

/// Runs an entry point. A failure becomes a negative errno, and so does a panic.
///
/// On a kernel with other base pages than 4 KiB it does nothing: -EOPNOTSUPP.
pub(crate) fn answer(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let work = || {
        let refused = |other: OtherBasePages| Failure::new(errno::EOPNOTSUPP, other.to_string());
        require_base_pages(&KernelRoot::live()).map_err(refused)?;
        work()
    };
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::new(errno::EIO, "libmegapage_c has an internal error; please report it"))
    });
    result.unwrap_or_else(|failure| {
        let text: String = failure.message.chars().filter(|c| *c != '\0').collect();
        MESSAGE.set(CString::new(text).unwrap_or_default());
        -failure.errno
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_segment::heap::Handle;

    #[test]
    fn failures_are_numbers_and_words_of_their_thread() {
        assert_eq!(answer(|| Ok(7)), 7);
        let stale = HeapError::Stale(Handle { offset: 64, serial: 1 });
        assert_eq!(answer(|| Err(stale.into())), -errno::ESTALE);
        let said = || MESSAGE.with_borrow(|message| message.to_str().unwrap().to_string());
        assert!(said().contains("offset 0x40"), "{}", said());
        std::thread::spawn(move || assert_eq!(said(), "")).join().unwrap();
        assert_eq!(answer(|| Ok(0)), 0);
        assert!(said().contains("offset 0x40"), "success does not touch it");
    }

    #[test]
    fn a_panic_stays_inside() {
        assert_eq!(answer(|| panic!("a fault")), -errno::EIO);
    }
}
