//! Model of a process whose answers and times are given by tests.

use super::answer::{Advice, Answer, Refusal, Tried};
use super::batches::{Advisable, Timed};
use megapage_snapshot::ProcessId;
use megapage_units::{HUGE_2M, HugePage, Pid, VirtRange};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Process whose regions answer as instructed; it keeps the bytes of the calls' ranges.
pub(super) struct Model {
    pub id: ProcessId,
    pub errno: BTreeMap<HugePage, i32>,
    pub huge: RefCell<BTreeSet<HugePage>>,
    pub shared: BTreeSet<HugePage>,
    pub unmapped: BTreeSet<HugePage>,
    /// Region at which the process does not answer.
    pub unread: Option<HugePage>,
    pub looks: usize,
    pub calls: RefCell<Vec<Vec<u64>>>,
    /// Time of each region of a call: on the wall clock, and of a processor.
    pub took: Duration,
    pub busy: Duration,
    /// Calls after which the machine is short of memory.
    pub calls_to_floor: usize,
}

impl Advisable for Model {
    fn id(&self) -> ProcessId {
        self.id
    }

    fn call(&self, advice: Advice, parts: &[VirtRange]) -> Timed {
        let regions = parts.iter().map(|part| part.len().0.div_ceil(HUGE_2M as u64) as u32).sum::<u32>();
        let answer = self.answer(advice, parts);
        Timed { answer, took: self.took * regions, busy: self.busy * regions }
    }

    fn huge(&mut self, regions: &[HugePage]) -> Vec<bool> {
        regions.iter().map(|region| self.huge.borrow().contains(region)).collect()
    }

    fn unfit(&mut self, regions: &[HugePage]) -> Vec<Option<Refusal>> {
        self.looks += regions.len();
        let unfit = |region: &HugePage| match self.unread == Some(*region) {
            true => Some(Refusal::Locked),
            false => self.shared.contains(region).then_some(Refusal::Shared),
        };
        regions.iter().map(unfit).collect()
    }

    fn is_mapped(&self, region: HugePage) -> Option<bool> {
        Some(!self.unmapped.contains(&region))
    }

    fn is_below_floor(&self) -> bool {
        self.calls.borrow().len() >= self.calls_to_floor
    }
}

impl Model {
    /// Returns a model that refuses these regions with these error numbers, and whose calls take no
    /// time.
    pub fn refusing(refused: &[(u64, i32)]) -> Model {
        Model {
            id: ProcessId { pid: Pid(1), start_ticks: 1, start_stack: 1 },
            errno: refused.iter().map(|&(number, errno)| (region(number), errno)).collect(),
            huge: RefCell::default(),
            shared: BTreeSet::new(),
            unmapped: BTreeSet::new(),
            unread: None,
            looks: 0,
            calls: RefCell::default(),
            took: Duration::ZERO,
            busy: Duration::ZERO,
            calls_to_floor: usize::MAX,
        }
    }

    /// Returns the number of regions that each call has named, for collapses.
    pub fn sizes(&self) -> Vec<u64> {
        let regions =
            |parts: &Vec<u64>| parts.iter().map(|bytes| bytes.div_ceil(HUGE_2M as u64)).sum::<u64>();
        self.calls.borrow().iter().map(regions).collect()
    }

    fn answer(&self, advice: Advice, parts: &[VirtRange]) -> io::Result<u64> {
        self.calls.borrow_mut().push(parts.iter().map(|part| part.len().0).collect());
        let mut advised = 0;
        for part in parts {
            let mut last = None;
            for start in (part.start()..part.end()).step_by(HUGE_2M).map(HugePage::containing) {
                match self.errno.get(&start) {
                    Some(&errno) => last = Some(errno),
                    None => {
                        self.huge.borrow_mut().insert(start);
                    }
                }
                // The kernel goes on after EAGAIN and EINVAL.
                if matches!(last, Some(12 | 16)) {
                    break;
                }
            }
            match last {
                Some(errno) if advised == 0 => return Err(io::Error::from_raw_os_error(errno)),
                Some(_) => break,
                None => advised += part.len().0,
            }
        }
        assert!(advice == Advice::Collapse || parts.iter().all(|part| part.len().0 <= HUGE_2M as u64));
        Ok(advised)
    }
}

pub(super) fn region(number: u64) -> HugePage {
    HugePage::nth(number)
}

pub(super) fn answers(tried: &[Tried]) -> Vec<Answer> {
    tried.iter().map(|tried| tried.answer).collect()
}
