//! The choice of a tracker: the best one that this machine and user can use, and that is accurate.

use super::idle_pages::IdlePages;
use super::pagemap::PagemapTracker;
use super::{BpfTracker, Tracker, first_access, self_test};
use megapage_kernel::KernelRoot;
use megapage_kernel::spare::Spare;
use megapage_snapshot::TrackerKind;
use std::fmt;
use thiserror::Error;

/// Tracker that passed its self-test, with its properties.
pub struct Selected {
    /// Selected tracker.
    pub tracker: Box<dyn Tracker>,
    /// Trackers that were tried before it, best first, with the reason why each failed.
    pub skipped: Vec<(TrackerKind, String)>,
    /// Cost to a target of the first access to a base page after a clearing, in nanoseconds of its
    /// processor time. 0 if the tracker clears nothing.
    pub first_access_ns: f64,
}

/// Reason why no tracker was selected.
#[derive(Debug, Error)]
pub enum SelectError {
    /// A captured tree has no accesses.
    #[error("a captured tree has no processes whose accesses could be tracked")]
    NotLive,
    /// The requested tracker cannot be used.
    #[error("the tracker {} cannot be used: {why}", .kind.name())]
    Unusable {
        /// Kind of the tracker.
        kind: TrackerKind,
        /// Reason, in one line.
        why: String,
    },
    /// There is too little memory to test any tracker.
    #[error("no tracker can be tested: {0}")]
    Memory(String),
    /// No tracker can be used.
    #[error("no tracker can be used: {}", listed(.0))]
    NoneUsable(Vec<(TrackerKind, String)>),
}

/// Selects `forced`, or the best tracker that can be used. Each is tried on a child with known
/// accesses. Takes about 10 ms and 10 MiB of memory if the first one passes. The first three times
/// after a boot it takes 0.2 s, and 8 to 128 MiB depending on the spare memory. Selects none if 10
/// MiB may not be taken.
pub fn select(root: &KernelRoot, forced: Option<TrackerKind>) -> Result<Selected, SelectError> {
    if !root.is_live() {
        return Err(SelectError::NotLive);
    }
    let spare = Spare::read(root).map_err(|error| SelectError::Memory(error.to_string()))?;
    spare.allows(self_test::TAKES).map_err(|why| SelectError::Memory(why.to_string()))?;
    if let Some(kind) = forced {
        let (tracker, first_access_ns) =
            prove(root, kind).map_err(|why| SelectError::Unusable { kind, why })?;
        return Ok(Selected { tracker, skipped: Vec::new(), first_access_ns });
    }
    let mut skipped = Vec::new();
    for kind in TrackerKind::ALL {
        match prove(root, kind) {
            Ok((tracker, first_access_ns)) => return Ok(Selected { tracker, skipped, first_access_ns }),
            Err(why) => skipped.push((kind, why)),
        }
    }
    Err(SelectError::NoneUsable(skipped))
}

/// Opens a tracker, tests it, and measures the cost of its clearing to a target.
fn prove(root: &KernelRoot, kind: TrackerKind) -> Result<(Box<dyn Tracker>, f64), String> {
    let mut tracker = open(root, kind)?;
    self_test::self_test(&mut *tracker).map_err(|what| format!("it failed its self-test: {what}"))?;
    // If nothing is cleared, any difference is noise.
    let cost = if kind.tells_accesses() { first_access::known(root, &mut *tracker)? } else { 0.0 };
    Ok((tracker, cost))
}

fn open(root: &KernelRoot, kind: TrackerKind) -> Result<Box<dyn Tracker>, String> {
    fn boxed<T: Tracker + 'static, E: fmt::Display>(
        opened: Result<T, E>,
    ) -> Result<Box<dyn Tracker>, String> {
        match opened {
            Ok(tracker) => Ok(Box::new(tracker)),
            Err(error) => Err(error.to_string()),
        }
    }
    match kind {
        TrackerKind::Bpf => boxed(BpfTracker::open(root)),
        TrackerKind::IdlePages => boxed(IdlePages::new(root)),
        TrackerKind::Pagemap => boxed(PagemapTracker::new(root)),
    }
}

fn listed(skipped: &[(TrackerKind, String)]) -> String {
    let listed: Vec<String> = skipped.iter().map(|(kind, why)| format!("{}: {why}", kind.name())).collect();
    listed.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_that_passes_is_selected() {
        if !megapage_testing::require_root() {
            return;
        }
        let selected = select(&KernelRoot::live(), None).unwrap();
        assert_eq!(selected.tracker.kind(), TrackerKind::Bpf, "{:?}", selected.skipped);
        assert!(selected.first_access_ns > 0.0, "{:?}", selected.skipped);
    }

    #[test]
    fn a_tracker_can_be_forced() {
        if !megapage_testing::require_root() {
            return;
        }
        let selected = select(&KernelRoot::live(), Some(TrackerKind::Pagemap)).unwrap();
        assert_eq!(selected.tracker.kind(), TrackerKind::Pagemap);
        assert_eq!(selected.first_access_ns, 0.0, "{:?}", selected.skipped);
        // A tracker that this kernel may lack either works or names what is missing.
        match select(&KernelRoot::live(), Some(TrackerKind::IdlePages)) {
            Ok(selected) => assert_eq!(selected.tracker.kind(), TrackerKind::IdlePages),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("the tracker idle-pages cannot be used: "), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
        }
    }

    #[test]
    fn a_captured_tree_is_refused() {
        let refused = select(&KernelRoot::captured("fixtures"), None);
        assert!(matches!(refused, Err(SelectError::NotLive)));
    }
}
