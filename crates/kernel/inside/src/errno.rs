//! errno, which an allocator leaves as it finds it, and cancellation, which must not hit a thread
//! that holds a lock.
//!
//! File-level obligation: errno is written at the calling thread's own location, and the state of
//! cancellation is that thread's own.

#![allow(unsafe_code)]

use libc::c_int;
use std::ptr;

/// An error number, as errno(3) lists them. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// No memory, or (hugetlb) no unreserved page in the pool.
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    /// Something is there already.
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    /// An argument that makes no sense, or that the kernel is too old for.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// Another process has it in use.
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    /// Not permitted.
    pub const EPERM: Errno = Errno(libc::EPERM);

    /// Returns the number that the calling thread's last failed call of the C library has left in
    /// errno.
    pub fn last() -> Errno {
        // SAFETY: the location is this thread's own and always valid.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

/// Guard that saves the caller's errno and puts it back when dropped: an allocator must not change
/// it.
#[derive(Debug)]
pub struct ErrnoGuard {
    errno: c_int,
}

impl ErrnoGuard {
    /// Remembers errno as it is now.
    pub fn save() -> ErrnoGuard {
        ErrnoGuard { errno: Errno::last().0 }
    }

    /// Returns the value that was saved.
    pub fn saved(&self) -> Errno {
        Errno(self.errno)
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        set_errno(self.errno);
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE of pthread.h.
const CANCEL_DISABLE: c_int = 1;

/// Guard against cancellation (pthread_cancel(3)) of the calling thread, while it lives. Functions
/// of the C library that fork are cancellation points. A thread that ends in one would leave its
/// locks locked. The calls of [`crate::call`] are no cancellation points.
#[derive(Debug)]
pub struct NoCancel {
    former: c_int,
    // The state is that of one thread.
    _here: std::marker::PhantomData<*mut ()>,
}

impl NoCancel {
    /// Defers cancellation from now on.
    pub fn begin() -> NoCancel {
        let mut former = CANCEL_DISABLE;
        // SAFETY: the state is one that pthread.h knows. The former one goes into a live integer.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut former) };
        NoCancel { former, _here: std::marker::PhantomData }
    }
}

impl Drop for NoCancel {
    fn drop(&mut self) {
        // SAFETY: the same call gave this state; nothing is written through a null pointer.
        unsafe { pthread_setcancelstate(self.former, ptr::null_mut()) };
    }
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: i32) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_waits_and_is_given_back_as_it_was() {
        let state = || {
            let mut former = -1;
            // SAFETY: as in `NoCancel::begin`.
            unsafe {
                pthread_setcancelstate(CANCEL_DISABLE, &mut former);
                pthread_setcancelstate(former, ptr::null_mut());
            }
            former
        };
        let outside = state();
        assert_ne!(outside, CANCEL_DISABLE, "threads start so");
        {
            let _guard = NoCancel::begin();
            assert_eq!(state(), CANCEL_DISABLE);
            drop(NoCancel::begin());
            assert_eq!(state(), CANCEL_DISABLE, "an inner guard does not end the outer one");
        }
        assert_eq!(state(), outside);
    }

    #[test]
    fn errno_is_kept() {
        set_errno(libc::EXDEV);
        {
            let _guard = ErrnoGuard::save();
            set_errno(libc::EINVAL);
        }
        assert_eq!(Errno::last(), Errno(libc::EXDEV));
    }
}
