//! Recordings of many hosts as one fleet. The result does not depend on their order.

use crate::recording::{Header, Line, Moment, Recording};
use std::collections::BTreeMap;

/// Hosts of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// Hosts, by their name or hash.
    pub hosts: BTreeMap<String, Host>,
    /// Notes about excluded recordings, one line each.
    pub notes: Vec<String>,
}

/// Recorded data of one host, one moment after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Constant data; of several recordings, that of the last one.
    pub header: Header,
    /// Moments with the time at which each ends, in seconds since 1970, ascending. No two cover the
    /// same time.
    pub moments: Vec<(f64, Moment)>,
    /// Recorded seconds, and processor seconds that recording took.
    pub recorded: (f64, f64),
}

impl Fleet {
    /// Merges recordings: those of one host follow each other. If two cover the same time, the
    /// earlier one counts.
    pub fn merge(recordings: Vec<Recording>) -> Fleet {
        let mut by_host: BTreeMap<String, Vec<Recording>> = BTreeMap::new();
        for recording in recordings {
            by_host.entry(recording.header.host.clone()).or_default().push(recording);
        }
        let mut fleet = Fleet::default();
        for (name, mut recordings) in by_host {
            recordings.sort_by_cached_key(|recording| (recording.header.start, recording.text()));
            recordings.dedup();
            let Some(header) = recordings.last().map(|recording| recording.header.clone()) else { continue };
            let recorded = recordings.iter().fold((0.0, 0.0), |(seconds, own), recording| {
                let at = recording.moments.last().map_or(0.0, |last| last.at);
                (seconds + at, own + recording.own_share().unwrap_or(0.0) * at)
            });
            let start = |recording: &Recording| recording.header.start as f64;
            let mut moments: Vec<(f64, Moment)> = recordings
                .iter()
                .flat_map(|it| it.moments.iter().map(move |moment| (start(it) + moment.at, moment.clone())))
                .collect();
            let text = |moment: &Moment| Line::Moment(moment.clone()).text();
            moments.sort_by(|(a, x), (b, y)| a.total_cmp(b).then_with(|| text(x).cmp(&text(y))));
            let spanning = |moments: &[(f64, Moment)]| moments.iter().filter(|(_, it)| it.span > 0.0).count();
            let before = spanning(&moments);
            let moments = without_overlaps(moments);
            let count = before - spanning(&moments);
            if count > 0 {
                fleet.notes.push(format!("{name}: {count} moments were left out: recorded twice"));
            }
            if moments.iter().all(|(_, moment)| moment.span <= 0.0) {
                fleet.notes.push(format!("{name}: nothing but a single moment was recorded: left out"));
                continue;
            }
            fleet.hosts.insert(name, Host { header, moments, recorded });
        }
        fleet
    }
}

/// Removes moments that begin before the end of the one before, with a tolerance for differences of
/// clocks.
fn without_overlaps(moments: Vec<(f64, Moment)>) -> Vec<(f64, Moment)> {
    let mut kept: Vec<(f64, Moment)> = Vec::with_capacity(moments.len());
    for (at, moment) in moments {
        let last = kept.last().filter(|(_, it)| it.span > 0.0).map_or(f64::NEG_INFINITY, |(last, _)| *last);
        let tolerated = (moment.span / 2.0).min(5.0);
        // The first moment of a recording spans no time. It is useful only as the first of all.
        let is_new = if moment.span > 0.0 { at - moment.span + tolerated >= last } else { kept.is_empty() };
        if is_new {
            kept.push((at, moment));
        }
    }
    kept
}

impl Host {
    /// Returns the seconds that the moments span.
    pub fn seconds(&self) -> f64 {
        self.moments.iter().map(|(_, moment)| moment.span).sum()
    }

    /// Returns the names of the host's services, ascending.
    pub fn services(&self) -> Vec<&str> {
        let services = self.moments.iter().flat_map(|(_, moment)| &moment.services);
        let mut names: Vec<&str> = services.map(|service| service.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{header, moment};

    fn recording(host: &str, start: u64, moments: &[(f64, f64)]) -> Recording {
        let moments = moments.iter().map(|(at, span)| moment(*at, *span)).collect();
        Recording { header: header(host, start), moments, end: None }
    }

    #[test]
    fn recordings_merge_in_any_order() {
        let parts = vec![
            recording("a", 1000, &[(0.0, 0.0), (60.0, 60.0), (120.0, 60.0)]),
            recording("a", 1130, &[(0.0, 0.0), (60.0, 60.0)]),
            recording("b", 1000, &[(0.0, 0.0), (60.0, 60.0)]),
            // The same file twice, and another recorder at the same time.
            recording("a", 1000, &[(0.0, 0.0), (60.0, 60.0), (120.0, 60.0)]),
            recording("a", 1010, &[(0.0, 0.0), (60.0, 60.0)]),
        ];
        let first = Fleet::merge(parts.clone());
        assert_eq!(first.hosts["a"].seconds(), 180.0);
        assert_eq!(first.hosts["b"].seconds(), 60.0);
        assert_eq!(first.notes.len(), 1, "{:?}", first.notes);
        for turn in 1..parts.len() {
            let mut other = parts.clone();
            other.rotate_left(turn);
            assert_eq!(Fleet::merge(other), first);
        }
        let mut backwards = parts;
        backwards.reverse();
        assert_eq!(Fleet::merge(backwards), first);
    }

    #[test]
    fn one_moment_is_no_recording_to_plan_from() {
        let fleet = Fleet::merge(vec![recording("a", 5, &[(0.0, 0.0)])]);
        assert!(fleet.hosts.is_empty() && fleet.notes.len() == 1);
    }
}
