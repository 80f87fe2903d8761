//! What is known elsewhere of processes, for which they are left alone.

use megapage_kernel::KernelRoot;
use megapage_units::Pid;
use std::fmt::Debug;

/// Knows processes that are to be left alone.
pub trait Veto: Debug + Send {
    /// Why this one is, in one line; `None`: it is not. In each pass it is asked of each process that the configuration chooses,
    /// but for those that it names by number.
    fn of(&mut self, root: &KernelRoot, pid: Pid) -> Option<String>;
}

/// Nothing is known.
#[derive(Clone, Copy, Debug)]
pub struct NoVeto;

impl Veto for NoVeto {
    fn of(&mut self, _root: &KernelRoot, _pid: Pid) -> Option<String> {
        None
    }
}
