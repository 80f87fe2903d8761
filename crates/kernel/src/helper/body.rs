//! What a helper process runs: it takes requests, makes one system call for each (or reads one file, or parts of one, or primes memory), and replies.
//!
//! File-level obligation: a helper shares all memory with its owner, the thread-local storage of the thread that started it
//! included. Nothing here may use that: no allocation, no C library, no panic, only raw system calls and the helper's own
//! region, which the owner keeps until the helper has ended. While a request is under way the slot is the helper's; before
//! and after, the owner's; the message over the socket hands it over.

#![allow(unsafe_code)]

use crate::raw_syscall::syscall;
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::mem::{offset_of, size_of, zeroed};

/// Bytes that one request can carry, each way.
pub(super) const DATA: usize = 256 << 10;
/// The longest path of a request, its NUL included.
pub(super) const PATH: usize = 128;
/// The most parts of a file that one request reads.
pub(super) const PARTS: usize = 16;
/// Bytes of a set of processors: 8192 of them.
const PROCESSORS: usize = 1 << 10;
/// No descriptor goes with the request.
pub(super) const NO_PLACE: usize = usize::MAX;

/// The request.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Opens `path` with the flags in `arguments[0]`; the descriptor comes with the reply.
    Open = 0,
    /// Opens `path`, and reads its first bytes into the data.
    Read = 1,
    /// Reads on in the file of the last [`Request::Read`].
    ReadOn = 2,
    /// Makes system call `number` with `arguments`, of which the one at `place` is the descriptor that came along.
    Call = 3,
    /// Reads `arguments[1]` bytes from each of the first `arguments[0]` places of the file that came along, one part behind the
    /// other into the data, up to the first that is not there in full.
    Parts = 4,
    /// Takes `arguments[1]` huge pages of the owner's memory from `arguments[0]` on, as far as there are any, and releases them. If
    /// `arguments[2]` is not 0 the helper remains on its processor, whose list they are on, until it has called process_madvise(2) or
    /// is to open a file.
    Prime = 5,
}

/// What owner and helper hand each other.
#[repr(C)]
pub(super) struct Slot {
    pub(super) request: Request,
    pub(super) place: usize,
    pub(super) number: libc::c_long,
    pub(super) arguments: [usize; 6],
    pub(super) path: [u8; PATH],
    /// Where in the file parts begin.
    pub(super) places: [u64; PARTS],
    /// The kernel's answer: a negated error number, or what the call returns. Of a read, how many bytes there are.
    pub(super) answer: isize,
    /// Whether a read has come to the end of its file.
    pub(super) ended: bool,
    /// Processor time of the request.
    pub(super) nanoseconds: u64,
    // The owner's and the helper's descriptors of the socket, and the owner: for the start.
    pub(super) socket: i32,
    pub(super) owner: i32,
    /// The processors that the helper ran on before [`Request::Prime`], how many bytes of them are known (0: it runs where it
    /// may), and room for a set of one: all zeros.
    processors: [u8; PROCESSORS],
    known: usize,
    one: [u8; PROCESSORS],
    pub(super) data: [u8; DATA],
}

/// The helper's life. `slot` points to a [`Slot`].
pub(super) extern "C" fn body(slot: *mut libc::c_void) -> libc::c_int {
    let slot = slot.cast::<Slot>();
    // SAFETY: the owner keeps the region for as long as this process lives; before the first request the slot is the
    // helper's. No call is given a pointer to anything else but a constant.
    let socket = unsafe {
        let (socket, owner) = ((*slot).socket as usize, (*slot).owner);
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
        if syscall(libc::SYS_getppid, [0; 6]) != owner as isize {
            exit();
        }
        let name = c"megapage-helper".as_ptr().expose_provenance();
        syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]);
        syscall(libc::SYS_chdir, [c"/".as_ptr().expose_provenance(), 0, 0, 0, 0, 0]);
        // The owner's locks and sockets must not live on here.
        if socket > 0 {
            syscall(libc::SYS_close_range, [0, socket.wrapping_sub(1), 0, 0, 0, 0]);
        }
        syscall(libc::SYS_close_range, [socket.wrapping_add(1), i32::MAX as usize, 0, 0, 0, 0]);
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

/// Serves one request; the descriptor that goes with the reply, or -1.
///
/// # Safety
/// The slot is the helper's. What the arguments of a call point to lies in the slot, as its owner has seen to.
unsafe fn serve(slot: *mut Slot, passed: isize, file: &mut isize) -> isize {
    // SAFETY: as the caller promises; the path ends in a NUL within its field.
    unsafe {
        let path = (&raw const (*slot).path).expose_provenance();
        let open = |flags: usize| {
            let flags = flags | libc::O_CLOEXEC as usize;
            syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0])
        };
        if matches!((*slot).request, Request::Open | Request::Read) {
            // Other work: the call has not come.
            run_anywhere(slot);
        }
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
                if (*slot).number == libc::SYS_process_madvise {
                    run_anywhere(slot);
                }
            }
            Request::Parts => (*slot).answer = read_parts(slot, passed),
            Request::Prime => {
                let [start, count, remains, ..] = (*slot).arguments;
                run_anywhere(slot);
                (*slot).answer = prime(start, count);
                if (*slot).answer > 0 && remains != 0 {
                    run_here(slot);
                }
            }
        }
    }
    -1
}

/// Reads the parts that are asked for: how many bytes came, or a negated error number where none did.
///
/// # Safety
/// As for [`serve`].
unsafe fn read_parts(slot: *mut Slot, file: isize) -> isize {
    // SAFETY: as the caller promises; each part that is read lies within the data, however many are asked for.
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

/// Has the helper run on its present processor alone, where that can be undone.
///
/// # Safety
/// As for [`serve`].
unsafe fn run_here(slot: *mut Slot) {
    let mut processor = 0u32;
    let address = (&raw mut processor).expose_provenance();
    // SAFETY: as the caller promises; the kernel writes one number, and no more than the size of a set.
    unsafe {
        let set = (&raw mut (*slot).processors).expose_provenance();
        let known = syscall(libc::SYS_sched_getaffinity, [0, PROCESSORS, set, 0, 0, 0]);
        let found = syscall(libc::SYS_getcpu, [address, 0, 0, 0, 0, 0]);
        let byte = (processor / 8) as usize;
        if known <= 0 || found < 0 || byte >= PROCESSORS {
            return;
        }
        let one = (&raw mut (*slot).one).cast::<u8>();
        one.wrapping_add(byte).write(1 << (processor % 8));
        syscall(libc::SYS_sched_setaffinity, [0, PROCESSORS, one.expose_provenance(), 0, 0, 0]);
        one.wrapping_add(byte).write(0);
        (*slot).known = known as usize;
    }
}

/// Undoes [`run_here`].
///
/// # Safety
/// As for [`serve`].
unsafe fn run_anywhere(slot: *mut Slot) {
    // SAFETY: as the caller promises; the set was written by the kernel.
    unsafe {
        if (*slot).known > 0 {
            let set = (&raw const (*slot).processors).expose_provenance();
            syscall(libc::SYS_sched_setaffinity, [0, (*slot).known, set, 0, 0, 0]);
            (*slot).known = 0;
        }
    }
}

/// Takes so many huge pages, and releases them: how many there were, or a negated error number where there was none.
///
/// # Safety
/// The memory from `start` on is reserved for this, and no other code uses it.
unsafe fn prime(start: usize, count: usize) -> isize {
    let advise = |place: usize, length: usize, advice: i32| {
        let address = start.wrapping_add(place.wrapping_mul(HUGE_2M));
        // SAFETY: as the caller promises; whatever the memory holds is of no use.
        unsafe { syscall(libc::SYS_madvise, [address, length, advice as usize, 0, 0, 0]) }
    };
    // Without any page there is no page table, and nothing is collapsed.
    let populate = |place| advise(place, BASE_PAGE, libc::MADV_POPULATE_WRITE);
    let collapse = |place, count: usize| advise(place, count.wrapping_mul(HUGE_2M), libc::MADV_COLLAPSE);
    // Each call empties the queues of all processors, which takes long where they are busy: one for all.
    let (mut place, mut taken, mut answer) = (0usize, 0usize, 0isize);
    while place < count && populate(place) >= 0 {
        place = place.wrapping_add(1);
    }
    if place == count && collapse(0, count) >= 0 {
        taken = count;
    }
    // One by one: where they run out, those before were had.
    while taken < count && answer >= 0 {
        answer = populate(taken);
        if answer >= 0 {
            answer = collapse(taken, 1);
        }
        if answer >= 0 {
            taken = taken.wrapping_add(1);
        }
    }
    // Also what a failure has left.
    advise(0, count.wrapping_mul(HUGE_2M), libc::MADV_DONTNEED);
    if taken == 0 { answer } else { taken as isize }
}

/// Fills the data from the open file.
///
/// # Safety
/// As for [`serve`].
unsafe fn fill(slot: *mut Slot, file: &mut isize) {
    let mut length = 0usize;
    // SAFETY: as the caller promises; what is read goes to the remainder of the data.
    unsafe {
        let data = (&raw mut (*slot).data).expose_provenance();
        (*slot).ended = false;
        while length < DATA {
            let rest = DATA.wrapping_sub(length);
            let read = syscall(libc::SYS_read, [*file as usize, data.wrapping_add(length), rest, 0, 0, 0]);
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

/// A control message with one descriptor, as `CMSG_SPACE(4)` lays it out on 64-bit machines.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptor: i32,
    padding: i32,
}

/// Waits for a request: the descriptor that came along, or -1. `None`: the owner is gone.
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
            match syscall(libc::SYS_recvmsg, [socket, address, flags, 0, 0, 0]) {
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

/// Replies, with a descriptor where `reply` is one; whether the owner is still there.
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
        syscall(libc::SYS_sendmsg, [socket, address, libc::MSG_NOSIGNAL as usize, 0, 0, 0]) == 1
    }
}

/// # Safety
/// The descriptor, if it is one, is used by no other code of this process.
unsafe fn close(descriptor: isize) {
    if descriptor >= 0 {
        // SAFETY: as the caller promises.
        unsafe { syscall(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Processor time of the helper, in nanoseconds.
fn thread_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let address = (&raw mut time).expose_provenance();
    // SAFETY: `time` is writable.
    unsafe {
        syscall(libc::SYS_clock_gettime, [libc::CLOCK_THREAD_CPUTIME_ID as usize, address, 0, 0, 0, 0]);
    }
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn exit() -> ! {
    loop {
        // SAFETY: the process ends; nothing is passed.
        unsafe { syscall(libc::SYS_exit_group, [0; 6]) };
    }
}
