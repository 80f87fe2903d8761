//! Calls of a function in running programs: their number and their time. A BPF program counts them
//! at the function's breakpoint (Documentation/trace/uprobetracer.rst). Layouts are as in
//! `bpf/calls.bpf.c`.

use crate::KernelRoot;
use crate::bpf::{self, Aligned, io_error};
use crate::trusted::open_binary;
use libbpf_rs::{Link, MapCore, MapFlags, Object, UprobeOpts};
use megapage_units::Pid;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Place in a program where calls are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallSite {
    /// Begin of a function, given by its name in the file's symbol tables.
    Function(String),
    /// Place that a program announces (USDT, `sys/sdt.h`).
    Static {
        /// Offset of the instruction, in bytes from the start of the file.
        offset: u64,
        /// Offset of the counter by which the kernel shows the program that the place is traced. 0
        /// if the place has none.
        semaphore: u64,
    },
}

/// Counts since the start of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls that began.
    pub calls: u64,
    /// Calls that returned and whose begin was seen. 0 if time is not taken.
    pub returns: u64,
    /// Total time of these calls.
    pub time: Duration,
}

/// Counter of calls, active until it is dropped. Each call costs the program about a microsecond,
/// twice that with time taken.
#[derive(Debug)]
pub struct CallCounter {
    // The links must end before the programs that they run.
    _links: Vec<Link>,
    object: Object,
}

/// Reason why calls are not counted.
#[derive(Debug, thiserror::Error)]
pub enum NoCalls {
    /// The BPF programs cannot be loaded.
    #[error("BPF: {0} (it takes root, or CAP_BPF and CAP_PERFMON, and Linux 5.15)")]
    Load(String),
    /// No breakpoint can be set.
    #[error("{}: {why}", file.display())]
    Attach {
        /// The file.
        file: PathBuf,
        /// Error of the kernel, or of the reader of its symbols.
        why: String,
    },
}

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/calls.bpf.o")));

/// Only key of a map with one element.
const ONLY: [u8; 4] = [0; 4];

impl CallCounter {
    /// Counts calls at `site` of `file` in each of `pids`. With `timed` it also takes the time from
    /// each call to its return, which a function has and a static probe has not. A process that has
    /// ended makes no more calls.
    ///
    /// If a function calls itself, the outermost call is timed up to its first return: choose
    /// another function.
    pub fn open(
        root: &KernelRoot,
        pids: &[Pid],
        file: &Path,
        site: &CallSite,
        timed: bool,
    ) -> Result<CallCounter, NoCalls> {
        let load = |error: io::Error| NoCalls::Load(error.to_string());
        let attach = |why: String| NoCalls::Attach { file: file.into(), why };
        // libbpf and the kernel get the descriptor. By the file's name they would open any file
        // that its owner has put there by then.
        let opened = open_binary(file).map_err(|error| attach(error.to_string()))?;
        let own = KernelRoot::own_descriptor_path(opened.as_raw_fd());
        let object = bpf::load(OBJECT).map_err(load)?;
        let numbers = own_pid_namespace(root).map_err(load)?;
        let put = bpf::map(&object, "numbers").map_err(load)?.update(&ONLY, &numbers, MapFlags::ANY);
        put.map_err(io_error).map_err(load)?;
        let mut counter = CallCounter { _links: Vec::new(), object };
        let programs: &[(&str, bool)] =
            if timed { &[("begin_call", false), ("end_call", true)] } else { &[("count_call", false)] };
        for pid in pids {
            for (name, at_return) in programs {
                let link = counter.attach(name, *pid, &own, site, *at_return).map_err(|error| {
                    attach(match (error.kind(), site) {
                        (libbpf_rs::ErrorKind::NotFound, CallSite::Function(name)) => {
                            format!("it has no function {name}")
                        }
                        _ => error.to_string(),
                    })
                })?;
                counter._links.push(link);
            }
        }
        Ok(counter)
    }

    fn attach(
        &mut self,
        program: &str,
        pid: Pid,
        file: &Path,
        site: &CallSite,
        at_return: bool,
    ) -> Result<Link, libbpf_rs::Error> {
        let (name, offset, semaphore) = match site {
            CallSite::Function(name) => (Some(name.clone()), 0, 0),
            CallSite::Static { offset, semaphore } => (None, *offset, *semaphore),
        };
        let options = UprobeOpts {
            cookie: pid.0 as u64,
            retprobe: at_return,
            func_name: name,
            ref_ctr_offset: semaphore as usize,
            ..UprobeOpts::default()
        };
        let program = bpf::program(&mut self.object, program)?;
        program.attach_uprobe_with_opts(pid.0, file, offset as usize, options)
    }

    /// Returns the counts so far.
    pub fn read(&self) -> io::Result<Calls> {
        let values = bpf::map(&self.object, "counts")?.lookup_percpu(&ONLY, MapFlags::ANY);
        let values = values.map_err(io_error)?.unwrap_or_default();
        let mut all = Calls::default();
        for value in values {
            let words: Vec<u64> = value
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
                .collect();
            if let [calls, returns, nanoseconds, ..] = words[..] {
                all.calls += calls;
                all.returns += returns;
                all.time += Duration::from_nanos(nanoseconds);
            }
        }
        Ok(all)
    }
}

/// Returns `struct numbers` of the PID namespace in which this process sees process numbers.
fn own_pid_namespace(root: &KernelRoot) -> io::Result<[u8; 16]> {
    let status = rustix::fs::stat(root.path("proc/self/ns/pid"))?;
    // The kernel's own form of the device number, not the form of stat(2).
    let device =
        u64::from(rustix::fs::major(status.st_dev)) << 20 | u64::from(rustix::fs::minor(status.st_dev));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&device.to_ne_bytes());
    bytes[8..].copy_from_slice(&status.st_ino.to_ne_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glibc::glibc_version;
    use crate::maps::read_maps;
    use std::hint::black_box;
    use std::thread;

    #[inline(never)]
    extern "C" fn is_called(milliseconds: u64) -> u64 {
        thread::sleep(Duration::from_millis(black_box(milliseconds)));
        black_box(milliseconds)
    }

    fn own() -> Pid {
        Pid(std::process::id().cast_signed())
    }

    /// Returns the file that holds our code at `address`, and the code's offset in it.
    fn place(address: u64) -> (PathBuf, CallSite) {
        let maps = read_maps(&KernelRoot::live(), own()).unwrap();
        let mapping = maps.iter().find(|it| it.range.start() <= address && address < it.range.end()).unwrap();
        let offset = address - mapping.range.start() + mapping.offset;
        (mapping.name.clone().into(), CallSite::Static { offset, semaphore: 0 })
    }

    fn open(pid: Pid, file: &Path, site: &CallSite, timed: bool) -> Option<Result<CallCounter, NoCalls>> {
        if !megapage_testing::require_root() {
            return None;
        }
        match CallCounter::open(&KernelRoot::live(), &[pid], file, site, timed) {
            Err(NoCalls::Load(why)) => {
                megapage_testing::skip(&format!("no BPF programs here: {why}"));
                None
            }
            counter => Some(counter),
        }
    }

    #[test]
    fn each_call_is_counted_and_timed_and_none_of_another_process() {
        let (file, site) = place(is_called as *const () as u64);
        let Some(timed) = open(own(), &file, &site, true) else { return };
        let timed = timed.unwrap();
        let counted = open(own(), &file, &site, false).unwrap().unwrap();
        // The breakpoint of `others` lies in a file that the process `other` does not map.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let others = open(Pid(other.id() as i32), &file, &site, false).unwrap();
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| is_called(20))).collect();
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let calls = timed.read().unwrap();
        assert_eq!((calls.calls, calls.returns), (4, 4), "{calls:?}");
        assert!(calls.time >= Duration::from_millis(80), "{calls:?}");
        assert_eq!(counted.read().unwrap(), Calls { calls: 4, ..Calls::default() });
        if let Ok(others) = others {
            assert_eq!(others.read().unwrap(), Calls::default());
        }
        other.kill().unwrap();
        other.wait().unwrap();
        drop(timed);
        is_called(0);
        assert_eq!(counted.read().unwrap().calls, 5);
    }

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, hole) = (directory.path().join("pipe"), directory.path().join("hole"));
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::fs::File::create(&hole).unwrap().set_len(1 << 42).unwrap();
        // Without root the test can give no file to another user, and the caller's own files are
        // trusted.
        let given = std::os::unix::fs::chown(&hole, Some(65534), None).is_ok();
        let site = CallSite::Function("main".into());
        let refused = [(pipe, "not a regular file"), (hole, "more than half of it is holes")];
        for (file, why) in refused.into_iter().take(1 + usize::from(given)) {
            let error = CallCounter::open(&KernelRoot::live(), &[own()], &file, &site, true).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(why) && error.contains(file.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn functions_are_found_by_name_or_said_to_be_none() {
        let (libc, _) = place(libc::gnu_get_libc_version as *const () as u64);
        let function = |name: &str| CallSite::Function(name.into());
        let Some(counter) = open(own(), &libc, &function("gnu_get_libc_version"), false) else { return };
        let counter = counter.unwrap();
        let before = counter.read().unwrap().calls;
        black_box(glibc_version());
        assert!(counter.read().unwrap().calls > before);
        let error = open(own(), &libc, &function("gnu_get_libc_colour"), false);
        let error = error.unwrap().unwrap_err().to_string();
        assert!(error.ends_with(": it has no function gnu_get_libc_colour"), "{error}");
    }
}
