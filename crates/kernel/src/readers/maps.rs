//! `/proc/PID/maps`: the mappings of a process (proc_pid_maps(5)). Unlike smaps it does not walk
//! page tables. It takes some microseconds for each mapping, whatever its size.

use crate::{KernelError, KernelRoot};
use megapage_units::{Pid, VirtRange};
use std::io;

/// One mapping (VMA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses.
    pub range: VirtRange,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// MAP_SHARED.
    pub shared: bool,
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device; (0, 0) for anonymous memory.
    pub device: (u32, u32),
    /// The inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// The file, `[heap]`, `[stack]`, `[anon:NAME]`, or empty.
    pub name: String,
}

/// Most mappings that [`read_maps`] reads of one process: as many as the largest `vm.max_map_count`
/// in use allows (1,048,576; the kernel's own default is 65,530). They take 200 MB.
pub const MOST_MAPPINGS: usize = 1 << 20;

/// Returns the mappings of `pid`, ascending; none for a kernel thread or a zombie. Needs the right
/// to trace the process (`PTRACE_MODE_READ_FSCREDS`): EACCES without it. More than
/// [`MOST_MAPPINGS`] are an error.
pub fn read_maps(root: &KernelRoot, pid: Pid) -> Result<Vec<Mapping>, KernelError> {
    read_maps_within(root, pid, MOST_MAPPINGS)
}

/// Returns the mappings of `pid`. More than `most` are an error of kind FileTooLarge; no more than
/// those are read then.
pub fn read_maps_within(root: &KernelRoot, pid: Pid, most: usize) -> Result<Vec<Mapping>, KernelError> {
    match read_first_maps(root, pid, most)? {
        (mappings, false) => Ok(mappings),
        (_, true) => {
            let path = root.path(format!("proc/{pid}/maps"));
            let source = io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {most} mappings"));
            Err(KernelError::Io { path, source })
        }
    }
}

/// Returns the first `most` mappings of `pid`, and true if there are more. Those are not read.
fn read_first_maps(root: &KernelRoot, pid: Pid, most: usize) -> Result<(Vec<Mapping>, bool), KernelError> {
    let relative = format!("proc/{pid}/maps");
    let (mut found, mut bad, mut more) = (Vec::new(), None, false);
    root.each_line(&relative, |number, line| {
        if found.len() == most {
            more = true;
            return false;
        }
        match parse_line(line) {
            Some(mapping) => found.push(mapping),
            None => bad = Some((number, format!("expected a mapping, found '{line}'"))),
        }
        bad.is_none()
    })?;
    match bad {
        Some((line, what)) => Err(KernelError::Parse { path: root.path(&relative), line, what }),
        None => Ok((found, more)),
    }
}

/// Parses `7f00-7f10 rw-p 00000000 fe:01 42    /a file`.
fn parse_line(line: &str) -> Option<Mapping> {
    // Five fields with one space between them; the name is padded, and may hold spaces.
    let mut fields = line.splitn(6, ' ');
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = VirtRange::new(hexadecimal(start)?, hexadecimal(end)?)?;
    let &[read, write, execute, shared] = fields.next()?.as_bytes() else { return None };
    let offset = hexadecimal(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(Mapping {
        range,
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: shared == b's',
        offset,
        device: (number(major)?, number(minor)?),
        inode: fields.next()?.parse().ok()?,
        name: fields.next().unwrap_or_default().trim_start().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn every_form_of_a_line_is_read() {
        let (_keep, root) = captured_tree(&[(
            "proc/9/maps",
            "55d1c7a00000-55d1c7a21000 rw-p 00000000 00:00 0                          [heap]\n\
             7f0000000000-7f0040000000 rw-p 00000000 00:00 0 \n\
             7f4000000000-7f4000200000 r-xs 00001000 fe:1f 1042                       /a file (deleted)\n\
             ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n",
        )]);
        let found = read_maps(&root, Pid(9)).unwrap();
        let names: Vec<&str> = found.iter().map(|mapping| mapping.name.as_str()).collect();
        assert_eq!(names, ["[heap]", "", "/a file (deleted)", "[vsyscall]"]);
        assert_eq!(found[1].range, VirtRange::new(0x7f00_0000_0000, 0x7f00_4000_0000).unwrap());
        assert!(found[0].read && found[0].write && !found[0].execute && !found[0].shared);
        let file = &found[2];
        assert!(file.shared && file.execute && !file.write);
        assert_eq!((file.offset, file.device, file.inode), (0x1000, (0xfe, 0x1f), 1042));
    }

    #[test]
    fn what_is_no_mapping_is_named_by_its_line() {
        let (_keep, root) =
            captured_tree(&[("proc/9/maps", "1000-2000 rw-p 0 00:00 0 \n2000-1000 rw-p 0 0:0 0 \n")]);
        let error = read_maps(&root, Pid(9)).unwrap_err().to_string();
        assert!(error.contains("maps: line 2: expected a mapping"), "{error}");
        assert!(read_maps(&root, Pid(10)).unwrap_err().is_gone());
    }

    #[test]
    fn no_more_are_read_than_asked_for() {
        let line = "1000-2000 rw-p 00000000 00:00 0 \n";
        // The last line is no mapping: it is not reached.
        let (_keep, root) = captured_tree(&[("proc/9/maps", &format!("{}bad\n", line.repeat(3)))]);
        assert!(matches!(read_first_maps(&root, Pid(9), 3), Ok((found, true)) if found.len() == 3));
        assert!(matches!(read_first_maps(&root, Pid(9), 2), Ok((found, true)) if found.len() == 2));
        assert!(read_first_maps(&root, Pid(9), 4).is_err());
    }

    #[test]
    fn maps_and_smaps_list_the_same_code() {
        let root = KernelRoot::live();
        let own = Pid(std::process::id() as i32);
        let here = maps_and_smaps_list_the_same_code as fn() as usize as u64;
        let holds = |range: VirtRange| range.start() <= here && here < range.end();
        let code = read_maps(&root, own).unwrap().into_iter().find(|mapping| holds(mapping.range)).unwrap();
        assert!(code.execute && !code.write && code.name.starts_with('/'));
        let smaps = crate::smaps::read_smaps(&root, own).unwrap();
        assert!(smaps.iter().any(|mapping| mapping.range == code.range && mapping.name == code.name));
    }
}
