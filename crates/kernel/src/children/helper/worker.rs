//! Helper process, as its owner handles it: started, asked, killed, collected.
//!
//! File-level obligation: the region of a helper (its stack and its slot) is mapped before it
//! starts and removed only after it was collected. The owner touches the slot only between a reply
//! and the next request.

#![allow(unsafe_code)]

use super::super::child::Child;
use super::body::{DATA, NO_PLACE, PARTS, PATH, Request, Slot, body};
use crate::mapped::Mapped;
use crate::raw_syscall::start_process;
use crate::spawn::wait_readable;
use megapage_inside::without_signals;
use megapage_units::BASE_PAGE;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Size of the helper's stack: its deepest call takes some hundred bytes.
const STACK: usize = 64 << 10;
const REGION: usize = (STACK + size_of::<Slot>()).next_multiple_of(BASE_PAGE);

/// Helper process, with its socket and its region.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    socket: OwnedFd,
    /// Region of the helper; `None` while this value is dropped.
    region: Option<Mapped>,
}

impl Worker {
    /// Starts a helper. It ends by [`Worker::kill`], with this value, or with the calling thread.
    pub(super) fn start() -> io::Result<Worker> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let region = Mapped::anonymous(REGION, BASE_PAGE, libc::MAP_PRIVATE)?;
        // SAFETY: nothing is in the first page, which becomes the guard of the stack.
        let _ = unsafe { region.protect(BASE_PAGE, libc::PROT_NONE) };
        let mut worker = Worker { child: Child::of(0), socket: ours, region: Some(region) };
        let slot = worker.slot();
        slot.socket = theirs.as_raw_fd();
        slot.owner = std::process::id() as i32;
        slot.request = Request::Call;
        let top = worker.slot_address();
        // SAFETY: the helper runs `body` alone, on a separate stack, which ends where its slot
        // begins; its signals are blocked. It does not share descriptors, so that our locks and
        // sockets end with us even if it is stuck. It shares memory, so that starting it takes no
        // copy of our page tables.
        let pid = without_signals(|| unsafe { start_process(top, body, top.cast()) });
        if pid < 0 {
            return Err(io::Error::from_raw_os_error(-pid as i32));
        }
        worker.child = Child::of(pid as i32);
        Ok(worker)
    }

    /// Returns the address of the slot, which follows the stack within the region.
    fn slot_address(&self) -> *mut u8 {
        self.region.as_ref().map_or(std::ptr::null_mut(), Mapped::address).wrapping_add(STACK)
    }

    fn slot(&mut self) -> &mut Slot {
        // SAFETY: the slot lies in the region, aligned to a page, and zeros are a valid slot.
        // Between a reply and the next request this process owns it; `&mut self` ensures that.
        unsafe { &mut *self.slot_address().cast() }
    }

    /// Returns the bytes that go with a request and a reply.
    pub(super) fn data(&mut self) -> &mut [u8; DATA] {
        &mut self.slot().data
    }

    /// Returns the address of the data, for the arguments of a call.
    pub(super) fn data_address(&self) -> usize {
        self.slot_address().wrapping_add(offset_of!(Slot, data)).expose_provenance()
    }

    /// Sends a request for a file. ENAMETOOLONG if the path is longer than [`PATH`] - 1 bytes.
    pub(super) fn request_file(&mut self, request: Request, path: &[u8], flags: i32) -> io::Result<()> {
        if path.len() >= PATH || path.contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let mut field = [0; PATH];
        field[..path.len()].copy_from_slice(path);
        let slot = self.slot();
        slot.path = field;
        slot.arguments = [flags as usize, 0, 0, 0, 0, 0];
        self.send(request, None)
    }

    /// Sends a request for more of the file.
    pub(super) fn request_more(&mut self) -> io::Result<()> {
        self.send(Request::ReadOn, None)
    }

    /// Sends a request for a system call whose first argument is `descriptor`; the others are
    /// `rest`. All that they point to must lie in the data: the caller, [`super::Session`], ensures
    /// that.
    pub(super) fn request_call(
        &mut self,
        number: libc::c_long,
        descriptor: BorrowedFd<'_>,
        rest: [usize; 5],
    ) -> io::Result<()> {
        let [b, c, d, e, f] = rest;
        let slot = self.slot();
        slot.number = number;
        slot.arguments = [0, b, c, d, e, f];
        self.send(Request::Call, Some(descriptor))
    }

    /// Sends a request for `length` bytes from each of these places of a file. `InvalidInput` if
    /// there are more than [`PARTS`] places, or all parts together are larger than the data.
    pub(super) fn request_parts(
        &mut self,
        descriptor: BorrowedFd<'_>,
        length: usize,
        places: &[u64],
    ) -> io::Result<()> {
        let mut field = [0; PARTS];
        let fits = length.checked_mul(places.len()).is_some_and(|bytes| bytes <= DATA);
        let Some(first) = field.get_mut(..places.len()).filter(|_| fits) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        first.copy_from_slice(places);
        let slot = self.slot();
        slot.places = field;
        slot.arguments = [places.len(), length, 0, 0, 0, 0];
        self.send(Request::Parts, Some(descriptor))
    }

    /// Sends a request to wait for a signal of `set` (a bit for each number, from 1 on):
    /// sigtimedwait(2). The reply's answer is the signal's number, and `siginfo_t` lies in the data
    /// behind the set.
    pub(super) fn request_signal(&mut self, set: u64) -> io::Result<()> {
        let bytes = set.to_ne_bytes();
        // The pointers of the call lead into the data.
        let at = self.data_address();
        let slot = self.slot();
        slot.data[..bytes.len()].copy_from_slice(&bytes);
        slot.number = libc::SYS_rt_sigtimedwait;
        slot.arguments = [at, at + bytes.len(), 0, bytes.len(), 0, 0];
        self.send(Request::Call, None)
    }

    fn send(&mut self, request: Request, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let place = if descriptor.is_some() { 0 } else { NO_PLACE };
        let slot = self.slot();
        slot.request = request;
        slot.place = place;
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the reply for at most `time`. Returns true if it, or the helper's end, has come.
    pub(super) fn wait(&self, time: Duration) -> io::Result<bool> {
        wait_readable(self.socket.as_fd(), time)
    }

    /// Returns the reply that has come: the kernel's answer, and a descriptor if one was asked for.
    /// BrokenPipe: the helper has ended without a reply.
    pub(super) fn reply(&mut self) -> io::Result<Reply> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let came = match recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        if came == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let Slot { answer, ended, nanoseconds, .. } = *self.slot();
        Ok(Reply { answer, ended, descriptor, took: Duration::from_nanos(nanoseconds) })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.pid().0
    }

    /// Kills it. It ends at once, unless it waits for an event that only another process can cause.
    pub(super) fn kill(&self) {
        self.child.kill();
    }

    /// Returns true if it has ended, and was collected.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.has_ended()
    }
}

/// Reply of a helper, see [`Worker::reply`].
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: isize,
    pub(super) ended: bool,
    pub(super) descriptor: Option<OwnedFd>,
    pub(super) took: Duration,
}

impl Reply {
    /// Returns the answer as the C library would give it.
    pub(super) fn result(&self) -> io::Result<usize> {
        match self.answer {
            error @ ..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            answer => Ok(answer as usize),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        // A helper that still lives keeps its region, without end if no caller collects it later.
        if !self.has_ended() {
            std::mem::forget(self.region.take());
        }
    }
}
