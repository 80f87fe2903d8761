//! Swap on a compressed device in memory (Documentation/admin-guide/blockdev/zram.rst), for the
//! life of a value.
//!
//! File-level obligation: the paths given to swapon(2) and swapoff(2) are terminated strings that
//! outlive the call.

#![allow(unsafe_code)]

use crate::undo::Undo;
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::{BASE_PAGE, Bytes};
use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Swap space on a separate zram device. Dropping it reads its contents back, and removes the
/// device; so does the end of this process by a kill.
#[derive(Debug)]
pub struct ZramSwap {
    root: KernelRoot,
    number: u64,
    device: PathBuf,
    is_on: bool,
    undo: Option<Undo>,
}

const CONTROL: &str = "sys/class/zram-control";
/// `$1` is the device; `$2` and `$4` are written `$3` and `$5`.
const SWAP_OFF: &str = "swapoff \"$1\"; echo \"$3\" > \"$2\"; echo \"$5\" > \"$4\"";

impl ZramSwap {
    /// Adds a device of `size` to the machine's swap space. `Ok(None)`: this kernel has no zram
    /// (CONFIG_ZRAM, or the module is not loaded). Memory that is swapped out takes its compressed
    /// size.
    ///
    /// # Errors
    /// EACCES, EPERM: needs root with CAP_SYS_ADMIN. EBUSY, ENOMEM: the kernel's.
    pub fn start(root: &KernelRoot, size: Bytes) -> Result<Option<ZramSwap>, KernelError> {
        // Reading makes a device, and gives its number.
        let number = match root.read_u64(format!("{CONTROL}/hot_add")) {
            Err(error) if error.is_gone() => return Ok(None),
            number => number?,
        };
        let device = root.path(format!("dev/zram{number}"));
        let mut swap = ZramSwap { root: root.clone(), number, device, is_on: false, undo: None };
        let last_words = swap.last_words();
        let words = last_words.iter().flat_map(|(file, text)| [file.as_os_str(), text.as_ref()]);
        let arguments: Vec<&OsStr> = [swap.device.as_os_str()].into_iter().chain(words).collect();
        let undo = Undo::start(SWAP_OFF, &arguments);
        swap.undo = Some(undo.map_err(|source| KernelError::Io { path: swap.device.clone(), source })?);
        swap.root.write(format!("sys/block/zram{number}/disksize"), &size.0.to_string())?;
        let formatted =
            write_header(&swap.device, size).and_then(|()| swap_call(libc::SYS_swapon, &swap.device));
        match formatted {
            Ok(()) => swap.is_on = true,
            Err(source) => return Err(KernelError::Io { path: swap.device.clone(), source }),
        }
        Ok(Some(swap))
    }

    /// Returns the last writes: to reset the device, and to remove it.
    fn last_words(&self) -> Vec<(PathBuf, String)> {
        vec![
            (self.root.path(format!("sys/block/zram{}/reset", self.number)), "1".into()),
            (self.root.path(format!("{CONTROL}/hot_remove")), self.number.to_string()),
        ]
    }

    /// Returns the bytes that are swapped out to it now, before compression.
    pub fn used(&self) -> Result<Bytes, KernelError> {
        let path = format!("sys/block/zram{}/mm_stat", self.number);
        let text = self.root.read(&path)?;
        let first = text.split_whitespace().next().and_then(|value| value.parse().ok());
        first.map(Bytes).ok_or_else(|| KernelError::Parse {
            path: self.root.path(path),
            line: 1,
            what: "expected the size of the stored data".into(),
        })
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        // Each step needs the one before; if one fails, the device stays and is seen in swapon(8).
        let is_off = !self.is_on || swap_call(libc::SYS_swapoff, &self.device).is_ok();
        for (path, text) in self.last_words().iter().filter(|_| is_off) {
            let _ = std::fs::write(path, text);
        }
        if let Some(undo) = self.undo.take() {
            undo.release();
        }
    }
}

/// Writes the same as mkswap(8): `union swap_header` of linux/swap.h, version 1, without a label.
fn write_header(device: &Path, size: Bytes) -> io::Result<()> {
    let pages = size.0 / BASE_PAGE as u64;
    let last = u32::try_from(pages.saturating_sub(1)).map_err(io::Error::other)?;
    let mut header = vec![0u8; BASE_PAGE];
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last.to_ne_bytes());
    header[BASE_PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(&header)?;
    file.sync_all()
}

fn swap_call(call: libc::c_long, device: &Path) -> io::Result<()> {
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: the string is terminated and lives through the call; swapoff(2) takes no second
    // argument.
    match unsafe { libc::syscall(call, path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::meminfo;

    #[test]
    fn a_kernel_without_zram_is_no_error() {
        let tree = tempfile::tempdir().unwrap();
        let none = ZramSwap::start(&KernelRoot::captured(tree.path()), Bytes::mib(16)).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn swap_comes_and_goes() {
        if !crate::require_machine() {
            return;
        }
        let _lock = crate::MachineLock::take();
        let root = KernelRoot::live();
        let Some(swap) = ZramSwap::start(&root, Bytes::mib(16)).unwrap() else {
            return crate::skip("needs a kernel with zram");
        };
        let swaps = root.read("proc/swaps").unwrap();
        let device = format!("/dev/zram{}", swap.number);
        assert!(swaps.lines().any(|line| line.split_whitespace().next() == Some(&device)), "{swaps}");
        assert!(meminfo(&root).unwrap().swap_total.unwrap() >= Bytes::mib(15));
        assert!(swap.used().unwrap() <= Bytes::mib(16));
        drop(swap);
        assert!(!root.read("proc/swaps").unwrap().contains(&device));
        assert!(!Path::new(&device).exists());
        // The shell removes the device of a killed owner.
        let mut swap = ZramSwap::start(&root, Bytes::mib(16)).unwrap().expect("it was there just now");
        let device = format!("/dev/zram{}", swap.number);
        drop(swap.undo.take());
        assert!(!root.read("proc/swaps").unwrap().contains(&device));
        assert!(!Path::new(&device).exists());
        // There is nothing left to do, and no other program's device is touched.
        swap.is_on = false;
        std::mem::forget(swap);
    }
}
