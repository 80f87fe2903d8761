//! The processors that a thread of this process may run on.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Returns the numbers of the processors that the calling thread may run on, in order
/// (sched_getaffinity(2)).
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number)).collect())
}

/// Binds the calling thread to one processor (sched_setaffinity(2)). Fails with EINVAL if it may
/// not run there.
pub fn stay_on(number: usize) -> io::Result<()> {
    if number >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL.into());
    }
    let mut set = CpuSet::new();
    set.set(number);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_the_processor_that_it_was_given() {
        let last = *allowed().unwrap().last().unwrap();
        let thread = std::thread::spawn(move || {
            stay_on(last).unwrap();
            allowed().unwrap()
        });
        assert_eq!(thread.join().unwrap(), [last]);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        for number in [CpuSet::MAX_CPU - 1, usize::MAX] {
            assert_eq!(
                stay_on(number).unwrap_err().raw_os_error(),
                Some(Errno::INVAL.raw_os_error()),
                "{number}"
            );
        }
    }
}
