//! JSON that is reported over the socket.

use super::Telemetry;
use megapage_snapshot::daemon::{
    DECISIONS_SCHEMA, DaemonStatus, Decision, Decisions, PassStatus, STATUS_SCHEMA, Totals,
};
use std::time::Duration;

impl Telemetry {
    /// Returns the state at the time `now` since boot; `cpu` and `resident` are the daemon's.
    pub(crate) fn status(&self, now: Duration, cpu: Duration, resident: Option<u64>) -> DaemonStatus {
        let mut totals = Totals::default();
        self.moved.values().for_each(|sum| totals.add(sum));
        DaemonStatus {
            schema: STATUS_SCHEMA.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            running_seconds: now.saturating_sub(self.started).as_secs_f64(),
            policy: self.last.as_ref().map(|last| last.policy.to_string()).unwrap_or_default(),
            dry_run: self.last.as_ref().is_some_and(|last| last.dry_run),
            passes: self.passes,
            last_pass: self.last.as_ref().map(|last| PassStatus {
                ago_seconds: now.saturating_sub(last.ended).as_secs_f64(),
                ..last.status.clone()
            }),
            totals,
            cpu_seconds: cpu.as_secs_f64(),
            resident_bytes: resident,
            processes: self.heaviest().into_iter().map(|known| known.status.clone()).collect(),
        }
    }

    /// Returns the decisions after the one numbered `since`, at most the `last` of them. The
    /// addresses of regions are only included if `addresses` is true: they are the layout of other
    /// users' processes, which takes ptrace rights to read.
    pub(crate) fn decisions(&self, since: u64, last: usize, addresses: bool, now: Duration) -> Decisions {
        let after = self.decided.saturating_sub(since);
        let kept = after.min(self.decisions.len() as u64);
        let shown = (kept as usize).min(last);
        Decisions {
            schema: DECISIONS_SCHEMA.into(),
            newest: self.decided,
            lost: after - kept,
            decisions: self
                .decisions
                .iter()
                .skip(self.decisions.len() - shown)
                .map(|decision| Decision {
                    ago_seconds: (now.as_secs_f64() - decision.at_seconds).max(0.0),
                    region: decision.region.clone().filter(|_| addresses),
                    ..decision.clone()
                })
                .collect(),
        }
    }
}
