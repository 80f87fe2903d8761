//! Runs the program in place of the launcher, under its process number, if no report is requested.
//!
//! The starter of the launcher knows the program by that number. A shell knows its job by it, and a
//! container passes signals to its first process. A supervisor such as systemd takes READY=1 only
//! from that process (NotifyAccess=main), passes sockets to it by LISTEN_PID, and expects its
//! watchdog messages. Only promotion from outside would need a launcher. A process beside the
//! program does that, and ends with it.

use super::running::PROMOTE_AFTER;
use super::{Prepared, RunError};
use crate::attach::Attachment;
use crate::request::Mechanism;
use megapage_kernel::KernelRoot;
use megapage_kernel::background::in_background;
use megapage_kernel::spawn::execute;
use megapage_units::Pid;

impl Prepared {
    /// Executes the program; returns the reason if that fails. `say` gets a line if nothing
    /// promotes it.
    pub(super) fn replace_us(&self, root: &KernelRoot, say: impl Fn(String)) -> RunError {
        if self.plan.uses(Mechanism::Outside) {
            let attachment = Attachment {
                pid: Pid(std::process::id() as i32),
                once: false,
                require: false,
                fork: self.request.fork,
                after: PROMOTE_AFTER,
                watched: false,
                // The plan has followed the verdict already.
                heed_verdict: false,
            };
            // Without a report, promotion is not reported.
            let begun = in_background(|| drop(attachment.run(root, |_| {})));
            if let Err(error) = begun {
                say(format!("no external promotion: {error}"));
            }
        }
        let source = execute(&mut self.command(None, None), self.name());
        RunError::Exec { program: self.program.path.display().to_string(), source }
    }
}
