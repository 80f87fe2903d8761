//! A program that keeps every processor busy at the lowest nice level, as khugepaged is when it never pauses.
//!
//! In a virtual machine an idle processor has stopped, and who wakes a thread on it pays for a call of the host. Beside anything that
//! never pauses this is saved: a server answers 1.2 to 3 times the requests in the same processor time, whatever its pages. What is
//! compared by processor time must find the processors alike.

use super::requests::READY;
use anyhow::{Context, Result};
use megapage_kernel::processors;
use megapage_kernel::spawn::set_nice;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::Write;
use std::thread;

/// khugepaged's (mm/khugepaged.c: MAX_NICE).
const NICE: i32 = 19;

/// Says [`READY`], and keeps each processor that it may use busy until it is killed.
pub fn run(mut out: impl Write) -> Result<Infallible> {
    set_nice(NICE).context("setpriority")?;
    let mut others = processors::allowed().context("sched_getaffinity")?;
    let own = others.pop().context("no processor")?;
    for number in others {
        thread::Builder::new().spawn(move || stay(number)).context("a thread")?;
    }
    writeln!(out, "{READY}").and_then(|()| out.flush()).context("standard output")?;
    stay(own)
}

/// Without the instruction by which a loop says that it waits: a host may take it for a reason to run somebody else.
fn stay(number: usize) -> ! {
    // One that was taken away since: it keeps another busy.
    let _ = processors::stay_on(number);
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}
