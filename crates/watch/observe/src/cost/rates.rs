//! Rates of visits from first touches.

use super::touches::Record;

/// Slowest rate that is distinguished from none: a visit in 20 s.
const SLOWEST: f64 = 0.05;
/// Largest number of rates of the grid, each twice the one before, up to 13 million visits of a
/// page a second. The grid ends earlier if nine of ten pages are touched before the first reading:
/// faster rates cannot be determined.
const MOST_RATES: usize = 29;
/// Largest number of steps of the fit. It converges from above; further steps change the sum of
/// rates by less than 1 %.
const STEPS: usize = 400;
/// Share of the pages moved from rate to rate below which the fit ends.
const SETTLED: f64 = 1e-5;

/// Distribution of pages over rates of visits: shares of a grid of rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Share of pages for each rate of the grid, ascending from rate 0.
    shares: Vec<f64>,
}

/// Returns rate number `index` of the grid.
fn rate(index: usize) -> f64 {
    if index == 0 { 0.0 } else { SLOWEST * 2f64.powi(index as i32 - 1) }
}

/// Returns the chance that a page of this rate is first touched as in `record`.
fn chance(record: &Record, rate: f64) -> f64 {
    let upto = if record.before.is_finite() { (-rate * record.before).exp() } else { 0.0 };
    match rate {
        0.0 => f64::from(record.before.is_infinite()),
        _ => (-rate * record.after).exp() - upto,
    }
}

impl Rates {
    /// Fits the mixture of rates that makes `records` most likely (EM over the shares of the grid;
    /// each page is visited at random moments). Returns `None` without records.
    pub fn fit(records: &[Record]) -> Option<Rates> {
        let total: f64 = records.iter().map(|record| record.count).sum();
        if total <= 0.0 {
            return None;
        }
        let first = records.iter().map(|record| record.before).fold(f64::INFINITY, f64::min);
        let known =
            1 + (0..MOST_RATES).take_while(|&index| rate(index) * first < std::f64::consts::LN_10).count();
        let rates: Vec<f64> = (0..known).map(rate).collect();
        let chances: Vec<Vec<f64>> =
            records.iter().map(|record| rates.iter().map(|&rate| chance(record, rate)).collect()).collect();
        // Each rate begins with equally many visits. Shares that the records do not need fade from
        // there. A large start at fast rates would leave many visits.
        let mut shares: Vec<f64> = rates.iter().map(|&rate| 1.0 / rate.max(SLOWEST)).collect();
        for _ in 0..STEPS {
            let mut next = vec![0.0; shares.len()];
            for (record, chances) in records.iter().zip(&chances) {
                let likely: f64 = shares.iter().zip(chances).map(|(share, chance)| share * chance).sum();
                if likely > 0.0 {
                    for ((next, share), chance) in next.iter_mut().zip(&shares).zip(chances) {
                        *next += record.count * share * chance / likely;
                    }
                }
            }
            let sum: f64 = next.iter().sum();
            if sum <= 0.0 {
                break;
            }
            let before = std::mem::replace(&mut shares, next.into_iter().map(|share| share / sum).collect());
            let moved: f64 = shares.iter().zip(&before).map(|(now, before)| (now - before).abs()).sum();
            if moved < SETTLED {
                break;
            }
        }
        Some(Rates { shares })
    }

    /// Returns the classes: the share of pages, and their visits per second of processor time.
    /// Leaves out empty ones.
    pub fn classes(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.shares
            .iter()
            .enumerate()
            .filter(|(_, share)| **share > 1e-9)
            .map(|(index, &share)| (share, rate(index)))
    }

    /// Returns the mean visits of a page per second.
    pub fn mean(&self) -> f64 {
        self.classes().map(|(share, rate)| share * rate).sum()
    }

    /// Returns the expected visits per second of the pages of one record, all of its count
    /// together.
    pub fn visits(&self, record: &Record) -> f64 {
        let (mut sum, mut weight) = (0.0, 0.0);
        for (share, rate) in self.classes() {
            let weighs = share * chance(record, rate);
            sum += weighs * rate;
            weight += weighs;
        }
        if weight > 0.0 { record.count * sum / weight } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the records of `count` pages of one rate, read at `times`.
    fn records(count: f64, rate: f64, times: &[f64]) -> Vec<Record> {
        let mut after = 0.0;
        let mut records = Vec::new();
        for &before in times.iter().chain([&f64::INFINITY]) {
            let share = (-rate * after).exp() - if before.is_finite() { (-rate * before).exp() } else { 0.0 };
            records.push(Record { after, before, count: count * share });
            after = before;
        }
        records
    }

    const TIMES: [f64; 6] = [0.001, 0.00316, 0.01, 0.0316, 0.1, 0.316];

    #[test]
    fn one_rate_and_two_are_recovered() {
        for rate in [0.5, 15.0, 400.0] {
            let fitted = Rates::fit(&records(1000.0, rate, &TIMES)).unwrap();
            let found = fitted.mean();
            assert!((0.8..1.25).contains(&(found / rate)), "{rate}: {found}");
        }
        let mut both = records(1000.0, 300.0, &TIMES);
        both.extend(records(9000.0, 1.0, &TIMES));
        let fitted = Rates::fit(&both).unwrap();
        let hot: f64 = fitted.classes().filter(|(_, rate)| *rate > 30.0).map(|(share, _)| share).sum();
        assert!((0.08..0.12).contains(&hot), "{hot}");
    }

    #[test]
    fn pages_never_touched_have_no_rate() {
        let never = Record { after: 0.3, before: f64::INFINITY, count: 512.0 };
        let fitted = Rates::fit(&[never]).unwrap();
        assert!(fitted.mean() < 0.5, "{fitted:?}");
        assert!(Rates::fit(&[]).is_none());
    }

    #[test]
    fn pages_touched_at_once_have_the_fastest_measurable_rate() {
        let at_once = Record { after: 0.0, before: 0.001, count: 512.0 };
        let found = Rates::fit(&[at_once]).unwrap().mean();
        assert!((2e3..1e4).contains(&found), "{found}");
    }

    #[test]
    fn a_page_is_judged_by_its_own_record_too() {
        let mut both = records(500.0, 300.0, &TIMES);
        both.extend(records(500.0, 1.0, &TIMES));
        let fitted = Rates::fit(&both).unwrap();
        let early = fitted.visits(&Record { after: 0.0, before: 0.001, count: 1.0 });
        let late = fitted.visits(&Record { after: 0.1, before: f64::INFINITY, count: 1.0 });
        assert!(early > 100.0 && late < 5.0, "{early} {late}");
    }
}
