//! Code of a helper process: it takes requests, makes one system call for each (or reads one file,
//! or parts of one), and replies.
//!
//! File-level obligation: a helper shares all memory with its owner, including the thread-local
//! storage of the thread that started it. Nothing here may use that storage: no allocation, no C
//! library, no panic. Only raw system calls are made, and only the helper's own region is used,
//! which the owner keeps until the helper has ended. During a request the slot belongs to the
//! helper, before and after to the owner. The message over the socket hands it over.

#![allow(unsafe_code)]

use crate::raw_syscall::{syscall, thread_time};
use std::mem::{offset_of, size_of, zeroed};

/// Most bytes that one request carries, each way.
pub(super) const DATA: usize = 256 << 10;
/// Length of the longest path of a request, its NUL included.
pub(super) const PATH: usize = 128;
/// Most parts of a file that one request reads.
pub(super) const PARTS: usize = 16;
/// Place of a request that has no descriptor.
pub(super) const NO_PLACE: usize = usize::MAX;

/// Request of the owner.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Opens `path` with the flags in `arguments[0]`; the descriptor comes with the reply.
    Open = 0,
    /// Opens `path`, and reads its first bytes into the data.
    Read = 1,
    /// Reads on in the file of the last [`Request::Read`].
    ReadOn = 2,
    /// Makes system call `number` with `arguments`. The argument at `place` is replaced by the
    /// descriptor that came along.
    Call = 3,
    /// Reads `arguments[1]` bytes from each of the first `arguments[0]` places of the file that
    /// came along. The parts go into the data, one behind the other, up to the first part that is
    /// short.
    Parts = 4,
}

/// Memory by which owner and helper exchange requests and replies.
#[repr(C)]
pub(super) struct Slot {
    pub(super) request: Request,
    pub(super) place: usize,
    pub(super) number: libc::c_long,
    pub(super) arguments: [usize; 6],
    pub(super) path: [u8; PATH],
    /// Offsets in the file at which parts begin.
    pub(super) places: [u64; PARTS],
    /// Kernel's answer: a negated error number, or the result of the call. For a read, the number
    /// of bytes.
    pub(super) answer: isize,
    /// True if a read has come to the end of its file.
    pub(super) ended: bool,
    /// Processor time of the request.
    pub(super) nanoseconds: u64,
    // The helper's descriptor of the socket, and the owner's number, for the start.
    pub(super) socket: i32,
    pub(super) owner: i32,
    pub(super) data: [u8; DATA],
}

/// Runs the helper until its owner ends. `slot` points to a [`Slot`].
pub(super) extern "C" fn body(slot: *mut libc::c_void) -> libc::c_int {
    let slot = slot.cast::<Slot>();
    // SAFETY: the owner keeps the region for as long as this process lives; before the first
    // request the slot is the helper's. Pointers given to these calls lead only to constants.
    let socket = unsafe {
        let (socket, owner) = ((*slot).socket as usize, (*slot).owner);
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize]);
        if syscall(libc::SYS_getppid, []) != owner as isize {
            exit();
        }
        let name = c"megapage-helper".as_ptr().expose_provenance();
        syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name]);
        syscall(libc::SYS_chdir, [c"/".as_ptr().expose_provenance()]);
        // The owner's locks and sockets must not stay open here.
        if socket > 0 {
            syscall(libc::SYS_close_range, [0, socket.wrapping_sub(1)]);
        }
        syscall(libc::SYS_close_range, [socket.wrapping_add(1), i32::MAX as usize]);
        socket
    };
    let mut file = -1isize;
    loop {
        // SAFETY: the socket is open, and the slot is ours from the request to the reply.
        unsafe {
            let Some(passed) = receive(socket) else { exit() };
            let before = thread_time();
            let reply = serve(slot, passed, &mut file);
            (*slot).nanoseconds = thread_time().wrapping_sub(before);
            let sent = send(socket, reply);
            close(passed);
            if reply != file {
                close(reply);
            }
            if !sent {
                exit();
            }
        }
    }
}

/// Serves one request. Returns the descriptor that goes with the reply, or -1.
///
/// # Safety
/// The slot is the helper's. The pointers among a call's arguments lead into the slot, as its owner
/// ensures.
unsafe fn serve(slot: *mut Slot, passed: isize, file: &mut isize) -> isize {
    // SAFETY: as the caller promises; the path ends in a NUL within its field.
    unsafe {
        let path = (&raw const (*slot).path).expose_provenance();
        let open = |flags: usize| {
            let flags = flags | libc::O_CLOEXEC as usize;
            syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags])
        };
        match (*slot).request {
            Request::Open => {
                let opened = open((*slot).arguments[0]);
                (*slot).answer = if opened < 0 { opened } else { 0 };
                return opened.max(-1);
            }
            Request::Read => {
                close(*file);
                *file = open(libc::O_RDONLY as usize);
                if *file < 0 {
                    (*slot).answer = *file;
                    return -1;
                }
                fill(slot, file);
            }
            Request::ReadOn => fill(slot, file),
            Request::Call => {
                let mut arguments = (*slot).arguments;
                let place = (*slot).place;
                if let Some(argument) = arguments.get_mut(place) {
                    *argument = passed as usize;
                }
                (*slot).answer = syscall((*slot).number, arguments);
            }
            Request::Parts => (*slot).answer = read_parts(slot, passed),
        }
    }
    -1
}

/// Reads the parts that are asked for. Returns the number of bytes, or a negated error number if
/// the first part failed.
///
/// # Safety
/// As for [`serve`].
unsafe fn read_parts(slot: *mut Slot, file: isize) -> isize {
    // SAFETY: as the caller promises; each part that is read lies within the data, however many are
    // asked for.
    unsafe {
        let data = (&raw mut (*slot).data).expose_provenance();
        let [count, length, ..] = (*slot).arguments;
        let places = (&raw const (*slot).places).cast::<u64>();
        let (mut part, mut done) = (0usize, 0usize);
        while part < count && part < PARTS && length <= DATA.wrapping_sub(done) {
            let place = places.wrapping_add(part).read() as usize;
            part = part.wrapping_add(1);
            let arguments = [file as usize, data.wrapping_add(done), length, place, 0, 0];
            let mut read = syscall(libc::SYS_pread64, arguments);
            while read == -(libc::EINTR as isize) {
                read = syscall(libc::SYS_pread64, arguments);
            }
            if read < 0 {
                return if done == 0 { read } else { done as isize };
            }
            done = done.wrapping_add(read as usize);
            if read as usize != length {
                break;
            }
        }
        done as isize
    }
}

/// Fills the data from the open file.
///
/// # Safety
/// As for [`serve`].
unsafe fn fill(slot: *mut Slot, file: &mut isize) {
    let mut length = 0usize;
    // SAFETY: as the caller promises; the bytes read go to the remainder of the data.
    unsafe {
        let data = (&raw mut (*slot).data).expose_provenance();
        (*slot).ended = false;
        while length < DATA {
            let rest = DATA.wrapping_sub(length);
            let read = syscall(libc::SYS_read, [*file as usize, data.wrapping_add(length), rest]);
            if read == -(libc::EINTR as isize) {
                continue;
            }
            if read <= 0 {
                (*slot).ended = true;
                close(*file);
                *file = -1;
                if read < 0 {
                    (*slot).answer = read;
                    return;
                }
                break;
            }
            length = length.wrapping_add(read as usize);
        }
        (*slot).answer = length as isize;
    }
}

/// Control message with one descriptor, as `CMSG_SPACE(4)` lays it out on 64-bit machines.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptor: i32,
    padding: i32,
}

/// Waits for a request. Returns the descriptor that came along, or -1. `None`: the owner is gone.
///
/// # Safety
/// `socket` is the helper's.
unsafe fn receive(socket: usize) -> Option<isize> {
    // SAFETY: plain words, for which zeros are valid; the structures live through the call.
    unsafe {
        let (mut byte, mut control): (u8, Control) = (0, zeroed());
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
        loop {
            let address = (&raw mut message).expose_provenance();
            let flags = libc::MSG_CMSG_CLOEXEC as usize;
            match syscall(libc::SYS_recvmsg, [socket, address, flags]) {
                1 => break,
                answer if answer == -(libc::EINTR as isize) => {}
                _ => return None,
            }
        }
        let came = message.msg_controllen >= offset_of!(Control, padding)
            && control.header.cmsg_type == libc::SCM_RIGHTS;
        Some(if came { control.descriptor as isize } else { -1 })
    }
}

/// Replies, with the descriptor `reply` if it is one. Returns true if the owner is still there.
///
/// # Safety
/// `socket` is the helper's.
unsafe fn send(socket: usize, reply: isize) -> bool {
    // SAFETY: plain words, for which zeros are valid; the structures live through the call.
    unsafe {
        let (mut byte, mut control): (u8, Control) = (0, zeroed());
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if reply >= 0 {
            control.header.cmsg_len = offset_of!(Control, padding);
            control.header.cmsg_level = libc::SOL_SOCKET;
            control.header.cmsg_type = libc::SCM_RIGHTS;
            control.descriptor = reply as i32;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>();
        }
        let address = (&raw mut message).expose_provenance();
        syscall(libc::SYS_sendmsg, [socket, address, libc::MSG_NOSIGNAL as usize]) == 1
    }
}

/// Closes the descriptor, if it is one.
///
/// # Safety
/// The descriptor, if it is one, is used by no other code of this process.
unsafe fn close(descriptor: isize) {
    if descriptor >= 0 {
        // SAFETY: as the caller promises.
        unsafe { syscall(libc::SYS_close, [descriptor as usize]) };
    }
}

fn exit() -> ! {
    loop {
        // SAFETY: the process ends; nothing is passed.
        unsafe { syscall(libc::SYS_exit_group, []) };
    }
}
