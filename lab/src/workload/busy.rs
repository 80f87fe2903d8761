//! A program that keeps every processor busy at the lowest nice level, like khugepaged when it
//! never pauses.
//!
//! In a virtual machine an idle processor has stopped, and waking a thread on it costs a call of
//! the host. Beside a program that never pauses this cost disappears: a server answers 1.2 to 3
//! times the requests in the same processor time, on any pages. A comparison by processor time must
//! therefore find the processors in the same state.

use super::requests::READY;
use anyhow::{Context, Result};
use megapage_kernel::spawn::set_nice;
use megapage_testing::processors;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::Write;
use std::thread;

/// Nice level of khugepaged (mm/khugepaged.c: MAX_NICE).
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

/// Keeps a processor busy. It does not use the instruction that marks a waiting loop: a host may
/// take it for a reason to run another program.
fn stay(number: usize) -> ! {
    // If the processor was taken away since, it keeps another one busy.
    let _ = processors::stay_on(number);
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}
