//! The program in place of the launcher, under its process number.
//!
//! A supervisor knows a service by the process that it has started. systemd takes the program's READY=1 from that process alone
//! (NotifyAccess=main), hands its sockets to it by number (LISTEN_PID), and wants its watchdog fed by it; a container's first
//! process gets the signals. Where no report is wanted nothing is left to do for a launcher, but to promote from outside:
//! that is then done by a process of its own, which ends with the program.

use super::running::PROMOTE_AFTER;
use super::{Prepared, RunError};
use crate::attach::Attachment;
use crate::request::Mechanism;
use crate::text::TextPlan;
use megapage_kernel::background::in_background;
use megapage_kernel::{KernelRoot, helper};
use megapage_units::Pid;
use std::os::unix::process::CommandExt;

/// What systemd sets to the number of the process that it starts (sd_listen_fds(3), sd_watchdog_enabled(3), systemd.exec(5)).
const NUMBERS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];

/// Whether who started us knows us by our number.
pub(super) fn is_supervised() -> bool {
    let own = std::process::id();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_own = |name: &&str| variable(name).and_then(|value| value.to_str()?.parse().ok()) == Some(own);
    own == 1 || variable("NOTIFY_SOCKET").is_some() || NUMBERS.iter().any(is_own)
}

impl Prepared {
    /// Whether the program can take our place: what a report and a map for profilers need is done by the launcher, and
    /// text is moved by agreement with it.
    pub(super) fn can_be_in_place(&self) -> bool {
        let moves = self.text.as_ref().is_some_and(TextPlan::moves);
        // A helper would become the program's child.
        let alone = !helper::was_started();
        self.supervised && !self.request.watched && !moves && !self.request.text.map && alone
    }

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
        let source = self.command(None, None).exec();
        RunError::Exec { program: self.program.path.display().to_string(), source }
    }
}
