//! The program in place of the launcher, under its process number, where no report is asked for.
//!
//! The starter of the launcher knows the program by that number: a shell its job, a supervisor
//! (systemd takes READY=1 from that process alone with NotifyAccess=main, hands its sockets to it
//! by LISTEN_PID, and wants its watchdog fed by it), a container, whose first process gets the
//! signals. All that a launcher could still do is to promote from outside: a process beside the
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
    /// Executes the program; returns why it could not. `say` gets a line if nothing promotes it.
    pub(super) fn replace_us(&self, root: &KernelRoot, say: impl Fn(String)) -> RunError {
        if self.plan.uses(Mechanism::Outside) {
            let attachment = Attachment {
                pid: Pid(std::process::id() as i32),
                once: false,
                require: false,
                fork: self.request.fork,
                after: PROMOTE_AFTER,
                watched: false,
                // The plan has heeded it.
                heed_verdict: false,
            };
            // Without a report promotion is not reported.
            let begun = in_background(|| drop(attachment.run(root, |_| {})));
            if let Err(error) = begun {
                say(format!("no external promotion: {error}"));
            }
        }
        let source = execute(&mut self.command(None, None), self.name());
        RunError::Exec { program: self.program.path.display().to_string(), source }
    }
}
