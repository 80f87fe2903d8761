//! Advice on a program: its gain from huge pages, the pages to use, the way to get them, and their
//! cost.
//!
//! [`Advisor`] observes a process and gathers [`Facts`]; [`judge`] makes [`Advice`] from them.
//!
//! Architecture invariant: the verdict is a pure function of facts, and every value in it says
//! whether it was measured, estimated or tried. A program that is advised to switch gains, at the
//! lower end of the interval, at least [`verdict::WORTH_IT`].

#![forbid(unsafe_code)]

mod advice;
mod advisor;
mod applications;
mod facts;
mod group;
mod interval;
mod origin;
mod trial;
mod verdict;
mod watch;

pub use advice::{Advice, Gain, How, Memory, PageKind, Verdict};
pub use advisor::{AdviseError, Advisor, Basis, Options};
pub use group::{Group, groups};
pub use trial::{Trial, TrialOutcome};
pub use watch::{Ended, Watch};

use facts::{Attach, Facts, Judged};
use group::Shared;
use trial::try_out;
use verdict::judge;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "megapage.advise/1";
