//! Blocks of a heap: the handles that lead to them, and access to their contents.

use super::element::{Element, HEADER, State};
use super::{Book, Heap, HeapError, memory};
use megapage_kernel::fill_words;
use std::fmt;
use std::sync::atomic::AtomicU64;

/// Type of a block's contents: a number that the program chooses, and never gives another meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Returns a number for a name such as `index/2` (FNV-1a).
    pub const fn named(name: &str) -> Tag {
        let bytes = name.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        Tag(hash)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Reference to a block, in this run and after a restart. It consists of two numbers, which may be
/// stored anywhere, in other blocks too. Its reader checks that it leads to a block that is still
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The first byte, from the start of the segment.
    pub offset: u64,
    /// The number of the allocation; never zero, and never given twice in one heap.
    pub serial: u64,
}

/// View of a block. It stays readable while the heap is borrowed. If another process frees the
/// block meanwhile, it shows the bytes that are stored there later.
#[derive(Clone, Copy, Debug)]
pub struct Block<'heap> {
    words: &'heap [AtomicU64],
    len: u64,
    tag: Tag,
}

impl<'heap> Block<'heap> {
    /// Returns its length in bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no bytes; every block has at least one.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its type.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns its memory as words; the last may have bytes beyond the length.
    pub fn words(&self) -> &'heap [AtomicU64] {
        self.words
    }

    /// Reads bytes from byte `at` on. Returns `false`, and reads nothing, if they are not all in
    /// the block.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        let fits = self.fits(at, bytes.len());
        if fits {
            memory::read_bytes(self.words, at as usize, bytes);
        }
        fits
    }

    /// Writes bytes from byte `at` on. Returns `false`, and writes nothing, if they do not all fit.
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let fits = self.fits(at, bytes.len());
        if fits {
            memory::write_bytes(self.words, at as usize, bytes);
        }
        fits
    }

    /// Stores `value` to each word, including those of bytes beyond the length. Large blocks are
    /// stored at the rate of memset(3).
    pub fn fill(&self, value: u64) {
        fill_words(self.words, value);
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        memory::read_bytes(self.words, 0, &mut bytes);
        bytes
    }

    fn fits(&self, at: u64, bytes: usize) -> bool {
        at.checked_add(bytes as u64).is_some_and(|end| end <= self.len)
    }
}

/// One of the blocks of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its handle.
    pub handle: Handle,
    /// Its type.
    pub tag: Tag,
    /// Its bytes, as asked for.
    pub len: u64,
}

/// An element that a handle leads to.
#[derive(Debug)]
pub(super) struct Found {
    pub at: u64,
    pub element: Element,
}

/// Attempts to read a header of another process's heap, which may be writing it at that moment.
const MOST_READS: usize = 1000;

impl Heap {
    /// Returns the block that a handle leads to, if it is of this type.
    pub fn block(&self, handle: Handle, tag: Tag) -> Result<Block<'_>, HeapError> {
        let found = self.look_up(handle)?;
        let element = found.element;
        if element.tag != tag.0 {
            return Err(HeapError::Type { handle, found: Tag(element.tag), wanted: tag });
        }
        let words = memory::words(&self.segment, handle.offset, element.len.div_ceil(8))?;
        Ok(Block { words, len: element.len, tag })
    }

    /// Returns the root that [`Heap::set_root`] was given last, in this run or before.
    pub fn root(&self) -> Result<Option<Handle>, HeapError> {
        if self.segment.is_owner() {
            return Ok(self.state().root);
        }
        // Its owner may have given it another root since.
        self.look(|| self.read_own_header().map(|own| own.root))
    }

    /// Returns all blocks, by address. A restarted program finds among these the blocks to which it
    /// had not yet stored a handle. Only the owner may call it.
    pub fn blocks(&self) -> Result<Vec<BlockInfo>, HeapError> {
        let book = self.owned_book()?;
        let mut blocks = Vec::new();
        let mut at = self.start;
        while at < book.end {
            let element = self.element(&book, at)?;
            if element.state == State::Used {
                let handle = Handle { offset: at + HEADER, serial: element.serial };
                blocks.push(BlockInfo { handle, tag: Tag(element.tag), len: element.len });
            }
            at += element.size;
        }
        Ok(blocks)
    }

    /// Returns the element that a handle leads to, if it is still the same.
    pub(super) fn used(&self, book: &Book, handle: Handle) -> Result<Found, HeapError> {
        self.used_before(book.end, handle)
    }

    /// Returns the same without the lock: a checksum confirms that its contents were there at one
    /// moment. If that fails, another thread may have been changing the header, or there is no
    /// element: a second look, with the lock, decides.
    fn look_up(&self, handle: Handle) -> Result<Found, HeapError> {
        if let Ok(found) = self.used_before(self.segment.size().0, handle) {
            return Ok(found);
        }
        self.look(|| self.used(&self.state(), handle))
    }

    /// Returns the element that a handle leads to, in a heap that ends no later than at `end`.
    fn used_before(&self, end: u64, handle: Handle) -> Result<Found, HeapError> {
        let stale = || HeapError::Stale(handle);
        let at =
            handle.offset.checked_sub(HEADER).filter(|at| at.is_multiple_of(HEADER)).ok_or_else(stale)?;
        if at < self.start || at >= end {
            return Err(stale());
        }
        // The bytes there need not be a header: only those with a checksum under this heap's salt
        // are.
        let image = memory::load(&self.segment, at)?;
        let element = Element::decode(&image, at, self.seal, end - at).map_err(|_| stale())?;
        if element.state != State::Used || element.serial != handle.serial {
            return Err(stale());
        }
        Ok(Found { at, element })
    }

    /// Reads again after an error if another process owns the heap: it may be changing it at that
    /// moment.
    fn look<T>(&self, read: impl Fn() -> Result<T, HeapError>) -> Result<T, HeapError> {
        let tries = if self.segment.is_owner() { 1 } else { MOST_READS };
        for _ in 1..tries {
            if let Ok(found) = read() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        read()
    }
}
