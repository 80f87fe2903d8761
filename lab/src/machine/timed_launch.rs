//! Timed starts of a child in each of the possible ways: fork(2), vfork(2), posix_spawn(3).
//!
//! File-level obligation: a child that shares or copies the caller's memory makes only system calls
//! until it has executed another program or is killed. It allocates nothing and takes no lock,
//! since other threads of the caller may have held any. The arguments for the kernel are
//! initialised and outlive the call.
//!
//! fork and vfork are the bare system calls: so neither the handlers of pthread_atfork(3) nor the C
//! library's own work is part of the times. Also, a program that uses this does not import fork(2).

#![allow(unsafe_code)]

use megapage_units::Pid;
use std::ffi::CStr;
use std::io;
use std::ptr;
use std::time::{Duration, Instant};

/// A way to start a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// fork(2), then execve(2) in the child.
    Fork,
    /// vfork(2), then execve(2) in the child: the call returns when that is done. Only on x86-64.
    Vfork,
    /// posix_spawn(3): the call returns when the program has been executed.
    PosixSpawn,
}

/// Times of a launch, on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The time until the call returned to the parent.
    pub call: Duration,
    /// The time until the program that was started had ended and was collected.
    pub whole: Duration,
}

/// Starts `program` without arguments, with an empty environment, and waits for its end. Fails if
/// it does not exit with 0; a program that cannot be executed counts as status 127. Fails with
/// `Unsupported` if there is no such way here.
pub fn launch(how: Launch, program: &CStr) -> io::Result<Launched> {
    let arguments = [program.as_ptr(), ptr::null()];
    let environment = [ptr::null()];
    let start = Instant::now();
    let pid = match how {
        Launch::Fork => {
            let pid = bare_fork()?;
            if pid == 0 {
                // SAFETY: this is the child; all three are terminated as execve(2) requires.
                unsafe {
                    libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
                    libc::_exit(127)
                }
            }
            pid
        }
        Launch::Vfork => bare_vfork(program, &arguments, &environment)?,
        Launch::PosixSpawn => {
            let mut pid = 0;
            // SAFETY: as above; posix_spawn(3) does not change the objects of the pointers to
            // mutable.
            let errno = unsafe {
                libc::posix_spawn(
                    &mut pid,
                    program.as_ptr(),
                    ptr::null(),
                    ptr::null(),
                    arguments.as_ptr().cast(),
                    environment.as_ptr().cast(),
                )
            };
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            pid
        }
    };
    let call = start.elapsed();
    let status = collect(pid)?;
    let whole = start.elapsed();
    if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
        let name = program.to_string_lossy();
        return Err(io::Error::other(format!("{name} ended with status {status:#x}, not with 0")));
    }
    Ok(Launched { call, whole })
}

/// Calls fork(2) without the C library. Returns 0 in the child.
fn bare_fork() -> io::Result<i32> {
    // SAFETY: without CLONE_VM the child has a copy of the memory, this stack included; every
    // caller keeps the file's obligation in it.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0usize, 0usize, 0usize, 0usize) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid as i32),
    }
}

/// Calls vfork(2) and execve(2) without a return in between: the child shares this stack and must
/// not change it.
#[cfg(target_arch = "x86_64")]
fn bare_vfork(
    program: &CStr,
    arguments: &[*const libc::c_char; 2],
    environment: &[*const libc::c_char; 1],
) -> io::Result<i32> {
    let answer: i64;
    // SAFETY: the child runs only these instructions, which touch no memory and no stack: it
    // executes the program, or exits with 127. The parent, which is suspended for that time, then
    // finds its registers as the kernel saved them; a system call destroys only rcx and r11. The
    // strings are as in `launch`.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, {execve}",
            "syscall",
            "mov edi, 127",
            "mov eax, {exit}",
            "syscall",
            "2:",
            execve = const libc::SYS_execve,
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_vfork => answer,
            in("rdi") program.as_ptr(),
            in("rsi") arguments.as_ptr(),
            in("rdx") environment.as_ptr(),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(answer as i32) }
}

#[cfg(not(target_arch = "x86_64"))]
fn bare_vfork(
    _program: &CStr,
    _arguments: &[*const libc::c_char; 2],
    _environment: &[*const libc::c_char; 1],
) -> io::Result<i32> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "vfork is timed on x86-64 alone"))
}

/// Waits for the end of `pid`. Returns its status as wait(2) has it.
fn collect(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A child that holds a copy of the caller's memory and does nothing, until the value is dropped or
/// the thread that made it ends. It stands for a snapshot of programs that fork to save.
#[derive(Debug)]
pub struct HeldChild {
    pid: i32,
    call: Duration,
}

impl HeldChild {
    /// Forks it.
    pub fn fork() -> io::Result<HeldChild> {
        let parent = std::process::id() as i32;
        let start = Instant::now();
        let pid = bare_fork()?;
        if pid == 0 {
            // SAFETY: this is the child; the calls take no memory. The parent may have ended before
            // the first.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
                while libc::getppid() == parent {
                    libc::pause();
                }
                libc::_exit(0)
            }
        }
        Ok(HeldChild { pid, call: start.elapsed() })
    }

    /// Returns the child's number.
    pub fn pid(&self) -> Pid {
        Pid(self.pid)
    }

    /// Returns the time of the call, on the wall.
    pub fn call(&self) -> Duration {
        self.call
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        // SAFETY: no memory is passed; the child is ours and not collected, so that no other
        // process has its identifier.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let _ = collect(self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::KernelRoot;
    use megapage_kernel::process::read_status;

    const WAYS: [Launch; 3] = [Launch::Fork, Launch::Vfork, Launch::PosixSpawn];

    #[test]
    fn every_way_starts_a_program_and_waits_for_it() {
        for how in WAYS {
            match launch(how, c"/bin/true") {
                Ok(took) => {
                    assert!(took.whole >= took.call && took.call > Duration::ZERO, "{how:?} {took:?}")
                }
                Err(error) => {
                    let elsewhere = cfg!(not(target_arch = "x86_64")) && how == Launch::Vfork;
                    assert!(elsewhere && error.kind() == io::ErrorKind::Unsupported, "{how:?} {error}");
                }
            }
        }
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_an_error() {
        for how in WAYS {
            let failed = launch(how, c"/bin/false").unwrap_err().to_string();
            let absent = launch(how, c"/no/such/program").unwrap_err();
            if how == Launch::PosixSpawn {
                assert_eq!(absent.raw_os_error(), Some(libc::ENOENT));
            } else if how == Launch::Fork || cfg!(target_arch = "x86_64") {
                assert!(absent.to_string().contains("0x7f00"), "{absent}");
                assert!(failed.contains("/bin/false ended with status 0x100"), "{failed}");
            }
        }
    }

    #[test]
    fn a_held_child_lives_until_it_is_dropped() {
        let child = HeldChild::fork().unwrap();
        let (pid, root) = (child.pid(), KernelRoot::live());
        assert_eq!(read_status(&root, pid).unwrap().parent, Pid(std::process::id() as i32));
        drop(child);
        assert!(read_status(&root, pid).is_err_and(|error| error.is_gone()));
    }
}
