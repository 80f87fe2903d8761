use super::*;
use crate::synthetic::{self, HostModel, fleet, mixed_fleet};

fn of(recordings: Vec<Recording>) -> Plan {
    plan(recordings, &Options { threads: 2, ..Options::default() }, &|_| ()).unwrap()
}

/// Returns Kendall's tau-b.
fn tau_b(pairs: &[(f64, f64)]) -> f64 {
    let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
    for (at, one) in pairs.iter().enumerate() {
        for other in &pairs[..at] {
            let (x, y) = (one.0 - other.0, one.1 - other.1);
            let sign = |value: f64| if value == 0.0 { 0.0 } else { value.signum() };
            sum += sign(x) * sign(y);
            first += sign(x).abs();
            second += sign(y).abs();
        }
    }
    sum / f64::sqrt(first * second)
}

#[test]
fn services_of_thirty_mixed_hosts_are_ranked_as_they_gain() {
    let (recordings, known) = mixed_fleet(30, 1);
    let plan = of(recordings);
    let gains: BTreeMap<&str, f64> = plan
        .services
        .iter()
        .filter_map(|it| it.gain.map(|gain| (it.service.as_str(), gain.likely)))
        .collect();
    let pairs: Vec<(f64, f64)> =
        known.iter().filter_map(|(name, gain)| gains.get(name.as_str()).map(|it| (*it, *gain))).collect();
    assert!(pairs.len() >= 12, "{pairs:?}");
    let tau = tau_b(&pairs);
    assert!(tau >= 0.7, "tau {tau}: {pairs:?}");
    // The first service gains, and those without a gain have a reason.
    assert!(known[&plan.first[0]] > 1.1, "{:?}", plan.first);
    for service in plan.services.iter().filter(|it| known.get(&it.service).is_some_and(|it| *it < 1.01)) {
        assert!(!service.verdict.is_for() && !service.why.is_empty(), "{service:?}");
    }
}

#[test]
fn the_order_of_the_recordings_does_not_matter() {
    let (recordings, _) = mixed_fleet(6, 3);
    let first = of(recordings.clone());
    let mut other = recordings;
    other.reverse();
    assert_eq!(of(other.clone()), first);
    other.rotate_left(2);
    assert_eq!(of(other), first);
}

#[test]
fn a_pool_is_as_large_as_what_is_needed_at_once() {
    let plan = of(fleet(&[HostModel::plain("h", 0.3)]));
    let [host] = &plan.hosts[..] else { panic!("one host") };
    let regions = u64::from(HostModel::plain("h", 0.3).regions);
    assert_eq!((host.huge_pages, host.pool_2m_pages, host.pool_1g_pages), (regions, regions, 0));
    let expected = (regions * HUGE_2M as u64) as f64 / host.memory_bytes as f64;
    assert!((host.pool_share - expected).abs() < 1e-9);
    assert_eq!(plan.first, ["plain"]);
    assert!(plan.sentence.ends_with("enable first plain"), "{}", plan.sentence);
    assert!(plan.notes.iter().any(|note| note.contains("less than half a day")), "{:?}", plan.notes);
}

#[test]
fn nothing_to_gain_needs_no_pool() {
    let plan = of(fleet(&[HostModel::plain("h", 0.0)]));
    assert!(plan.first.is_empty() && plan.sentence.contains("leave all as they are"));
    assert_eq!((plan.hosts[0].huge_pages, plan.hosts[0].pool_2m_pages), (0, 0));
    assert_eq!(plan.saved_cpu_seconds_per_day, Amount { low: 0.0, likely: 0.0, high: 0.0 });
}

#[test]
fn what_cannot_be_planned_is_said() {
    let error = |recordings, policy: &str| {
        let options = Options { policy: policy.into(), ..Options::default() };
        plan(recordings, &options, &|_| ()).unwrap_err().to_string()
    };
    assert!(error(Vec::new(), "megapage").contains("nothing to plan from"));
    assert!(error(Vec::new(), "best").contains("no policy is named 'best'"));
    let one = Recording {
        header: synthetic::header("h", 0),
        moments: vec![synthetic::moment(0.0, 0.0)],
        end: None,
    };
    assert!(error(vec![one], "megapage").contains("a single moment"));
}
