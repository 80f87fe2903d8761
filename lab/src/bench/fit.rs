//! Memory that a bench may take, without what the machine has to keep free.

use anyhow::{Result, ensure};
use megapage_act::pool::floor;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_units::Bytes;

/// Returns the memory that the machine can give. Fails if `needed` would leave it with too little,
/// and names what to use `instead`.
pub fn must_fit(what: &str, needed: Bytes, instead: &str) -> Result<Bytes> {
    must_fit_or(what, needed, |_| format!("use {instead}"))
}

/// Returns the memory that the machine can give now: the available memory above the safe floor.
pub fn can_give() -> Result<Bytes> {
    memory_and_floor().map(|(available, least)| available.saturating_sub(least))
}

/// Returns the available memory, and the part of it that has to stay free.
fn memory_and_floor() -> Result<(Bytes, Bytes)> {
    let memory = meminfo(&KernelRoot::live())?;
    Ok((memory.available.unwrap_or_default(), floor(memory.total.unwrap_or_default())))
}

/// Does the same as [`must_fit`], but calls `instead` with the memory that the machine can give.
pub fn must_fit_or(what: &str, needed: Bytes, instead: impl FnOnce(Bytes) -> String) -> Result<Bytes> {
    let (available, least) = memory_and_floor()?;
    let can_give = available.saturating_sub(least);
    ensure!(
        can_give >= needed,
        "{what} needs {needed} of memory; {available} are available, of which {least} stay free: {}",
        instead(can_give)
    );
    Ok(can_give)
}
