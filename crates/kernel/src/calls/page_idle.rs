//! Bitmap of idle page frames: `/sys/kernel/mm/page_idle/bitmap`
//! (Documentation/admin-guide/mm/idle_page_tracking.rst; CONFIG_IDLE_PAGE_TRACKING).
//!
//! It has one bit for each page frame, in 64-bit words. Writing a one clears the accessed bits of
//! every mapping of the frame and marks it idle; a zero does not change the frame. A read shows
//! which marked frames were not accessed since. Only user memory on the lists of reclaim can be
//! marked, and only the first page of a folio of several pages. Everything else reads as zero.

use crate::{KernelError, KernelRoot};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";
const WORD: u64 = u64::BITS as u64;

/// Bitmap, open for reading and writing.
#[derive(Debug)]
pub struct IdleBitmap {
    file: File,
    path: PathBuf,
}

/// Returns the path of the bitmap's file, as the user would name it.
pub fn path() -> String {
    format!("/{BITMAP}")
}

impl IdleBitmap {
    /// Opens the bitmap: ENOENT on a kernel without it, EACCES without root.
    pub fn open(root: &KernelRoot) -> Result<IdleBitmap, KernelError> {
        let path = root.path(BITMAP);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Ok(IdleBitmap { file, path }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Marks `frames` (ascending) idle. Writes each word once, with all of its frames; touches no
    /// other frame. The kernel skips frames that it does not know, or that are not user memory.
    pub fn mark(&self, frames: &[u64]) -> Result<(), KernelError> {
        for (first, words) in words(frames) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            match self.file.write_all_at(&bytes, first * size_of::<u64>() as u64) {
                Ok(()) => {}
                // The word is beyond the last frame: memory was taken offline meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                Err(source) => return Err(self.error(source)),
            }
        }
        Ok(())
    }

    /// Returns for each of `frames` (ascending) if it is still idle.
    pub fn are_idle(&self, frames: &[u64]) -> Result<Vec<bool>, KernelError> {
        let mut idle = Vec::with_capacity(frames.len());
        for (first, asked) in words(frames) {
            let mut bytes = vec![0; asked.len() * size_of::<u64>()];
            self.fill(&mut bytes, first * size_of::<u64>() as u64)?;
            for (bytes, asked) in bytes.chunks_exact(8).zip(asked) {
                let word = u64::from_ne_bytes(bytes.try_into().expect("a chunk of eight bytes"));
                idle.extend((0..WORD).filter(|bit| asked >> bit & 1 != 0).map(|bit| word >> bit & 1 != 0));
            }
        }
        // A frame that is listed twice has one bit.
        debug_assert_eq!(idle.len(), frames.len(), "frames ascend");
        Ok(idle)
    }

    /// Reads as many bytes as there are; the remainder, beyond the last frame, stays zero.
    fn fill(&self, bytes: &mut [u8], offset: u64) -> Result<(), KernelError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(source) => return Err(self.error(source)),
            }
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> KernelError {
        KernelError::Io { path: self.path.clone(), source }
    }
}

/// Returns the words that hold the bits of `frames` (strictly ascending), as runs of adjacent
/// words. Each run has the number of its first word.
fn words(frames: &[u64]) -> Vec<(u64, Vec<u64>)> {
    let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
    for frame in frames {
        let (word, bit) = (frame / WORD, 1 << (frame % WORD));
        match runs.last_mut() {
            Some((first, words)) if *first + words.len() as u64 == word + 1 => {
                *words.last_mut().expect("never empty") |= bit;
            }
            Some((first, words)) if *first + words.len() as u64 == word => words.push(bit),
            _ => runs.push((word, vec![bit])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn frames_are_gathered_into_words_and_words_into_runs() {
        assert_eq!(words(&[]), []);
        assert_eq!(
            words(&[1, 3, 64, 127, 256]),
            [(0, vec![0b1010, 1 | 1 << 63]), (4, vec![1])],
            "adjacent words are one run, a gap begins another"
        );
    }

    /// Checks the bytes that are written, as a plain file does not have the kernel's meaning of a
    /// zero. They must hold the bits asked for and nothing else, and no byte outside their words.
    #[test]
    fn only_the_words_of_the_frames_are_written() {
        let (_keep, root) = captured_tree(&[(BITMAP, &"x".repeat(48))]);
        let bitmap = IdleBitmap::open(&root).unwrap();
        bitmap.mark(&[64, 66, 191, 256]).unwrap();
        let bytes = std::fs::read(root.path(BITMAP)).unwrap();
        let word = |n: usize| u64::from_ne_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
        let other = u64::from_ne_bytes(*b"xxxxxxxx");
        assert_eq!((0..6).map(word).collect::<Vec<_>>(), [other, 0b101, 1 << 63, other, 1, other]);
        assert_eq!(bitmap.are_idle(&[64, 65, 66, 191, 256]).unwrap(), [true, false, true, true, true]);
        assert_eq!(bitmap.are_idle(&[1 << 20]).unwrap(), [false], "beyond the last frame nothing is idle");
    }

    #[test]
    fn a_kernel_without_the_bitmap_is_reported() {
        let (_keep, root) = captured_tree(&[]);
        assert!(IdleBitmap::open(&root).unwrap_err().is_gone());
    }
}
