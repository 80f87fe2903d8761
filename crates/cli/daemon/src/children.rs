//! Processes whose memory a forked child shares. When the child has ended, huge pages that writes
//! have split meanwhile can be made huge again, and a pass is due.

use megapage_kernel::KernelRoot;
use megapage_observe::{shares_stack, sharing_child};
use megapage_snapshot::{ProcessId, Snapshot};
use megapage_units::Pid;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most processes that are watched; those with the most memory are taken. A look reads one file of
/// one child of each. Only if that child has ended, it reads a file for each thread of the process,
/// and one for each of its children.
const MOST: usize = 4;
const MOST_THREADS: usize = 16;
/// Longest life of a child that was forked to save something; others are workers of a server, for
/// example.
const LONGEST: Duration = Duration::from_secs(600);

/// Processes that share memory with a child, or did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    known: BTreeMap<ProcessId, Sharing>,
    watched: Vec<ProcessId>,
}

#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// First and last snapshot of the present run of sharing. A snapshot without sharing sets
    /// `since` after `last`.
    since: Duration,
    last: Duration,
    /// True if the next pass would act on the process: it does not fork more often than the quiet
    /// time allows.
    counts: bool,
}

impl Children {
    /// Takes in the processes that share memory, by a new snapshot. A process that shared memory
    /// before, less than `quiet` ago (`limits.fork_quiet`), does not count. With 0 the policy does
    /// not wait for children to end.
    pub fn note(&mut self, snapshot: &Snapshot, quiet: Duration) {
        let now = snapshot.taken;
        let mut former = std::mem::take(&mut self.known);
        let mut watched = Vec::new();
        for process in &snapshot.processes {
            let known = former.remove(&process.id);
            if process.sharing_children.is_none_or(|children| children == 0) {
                let over = known.filter(|known| now.saturating_sub(known.last) < quiet);
                self.known.extend(over.map(|known| (process.id, Sharing { since: now, ..known })));
                continue;
            }
            let sharing = match known {
                // It has shared memory since the last snapshot; a snapshot without sharing would
                // have moved `since`.
                Some(known) if known.since <= known.last => Sharing { last: now, ..known },
                known => Sharing { since: now, last: now, counts: known.is_none() },
            };
            self.known.insert(process.id, sharing);
            if sharing.counts && !quiet.is_zero() && now.saturating_sub(sharing.since) < LONGEST {
                watched.push((std::cmp::Reverse(process.rss), process.id));
            }
        }
        watched.sort_unstable();
        self.watched = watched.into_iter().take(MOST).map(|(_, id)| id).collect();
    }

    /// Returns the processes to watch before the next pass.
    pub fn watched(&self) -> Vec<Watched> {
        self.watched.iter().map(|id| Watched { id: *id, child: None }).collect()
    }
}

/// A process that shares memory with a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    id: ProcessId,
    /// A child that shares the memory; `None` if it is still to be found.
    child: Option<Pid>,
}

/// Returns true if one of these processes shares memory with no child any more. A process that
/// cannot be read does not count.
pub(crate) fn have_ended(root: &KernelRoot, watched: &mut [Watched]) -> bool {
    watched.iter_mut().any(|watched| {
        if watched.child.is_some_and(|child| shares_stack(root, watched.id, child)) {
            return false;
        }
        let found = sharing_child(root, watched.id, MOST_THREADS);
        watched.child = found.flatten();
        found == Some(None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_observe::{Observer, Options, process_id};
    use megapage_units::{Bytes, Pid};
    use std::process::{Command, Stdio};

    fn own() -> Snapshot {
        let options = Options { sample: false, ..Options::default() };
        let own = Pid(std::process::id().cast_signed());
        Observer::start(&KernelRoot::live(), options).unwrap().snapshot(&[own])
    }

    const QUIET: Duration = Duration::from_secs(10);

    fn watched(children: &mut Children, snapshot: &Snapshot) -> Vec<i32> {
        children.note(snapshot, QUIET);
        children.watched().iter().map(|watched| watched.id.pid.0).collect()
    }

    #[test]
    fn the_largest_that_share_are_watched_for_a_while() {
        let mut snapshot = own();
        let template = snapshot.processes[0].clone();
        snapshot.processes = (1..=10)
            .map(|number| {
                let mut process = template.clone();
                process.id.pid = Pid(number);
                process.rss = Bytes::mib(number as u64);
                process.sharing_children = Some(u32::from(number != 9));
                process
            })
            .collect();
        let mut children = Children::default();
        assert_eq!(watched(&mut children, &snapshot), [10, 8, 7, 6]);
        snapshot.taken += LONGEST;
        snapshot.processes[8].sharing_children = Some(1);
        assert_eq!(watched(&mut children, &snapshot), [9], "the others share for too long");
        snapshot.processes.clear();
        assert_eq!(watched(&mut children, &snapshot), [0; 0]);
        assert!(children.known.is_empty());
    }

    #[test]
    fn who_forks_often_is_not_watched() {
        let mut snapshot = own();
        let start = snapshot.taken;
        let mut children = Children::default();
        let mut look = |seconds, sharing| {
            snapshot.taken = start + Duration::from_secs(seconds);
            snapshot.processes[0].sharing_children = Some(sharing);
            !watched(&mut children, &snapshot).is_empty()
        };
        assert!(look(0, 1) && look(5, 2));
        assert!(!look(6, 0));
        assert!(!look(8, 1) && !look(20, 1), "within 10 s of the last");
        assert!(!look(21, 0) && !look(31, 0));
        assert!(look(32, 1));
    }

    #[test]
    fn without_a_wait_no_child_is_watched() {
        let mut snapshot = own();
        snapshot.processes[0].sharing_children = Some(1);
        let mut children = Children::default();
        children.note(&snapshot, Duration::ZERO);
        assert!(children.watched().is_empty());
    }

    /// Asks repeatedly, for half a minute at most, and returns true if the answer is `wanted`.
    fn wait_for(wanted: bool, watched: &mut [Watched]) -> bool {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while have_ended(&KernelRoot::live(), watched) != wanted && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        have_ended(&KernelRoot::live(), watched) == wanted
    }

    #[test]
    fn a_child_that_lives_is_no_news_and_its_end_is() {
        use std::io::{BufRead, BufReader, Write};
        let root = KernelRoot::live();
        // A subshell is forked and executes nothing. It ends with the first line, the shell with
        // the second.
        let script = "exec 3<&0; (read line <&3; :) & echo; wait; read line <&3";
        let piped = |shell: &mut Command| shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut shell = piped(Command::new("sh").args(["-c", script]));
        let mut lines = shell.stdin.take().unwrap();
        // By then it has forked. While it is executed, its values change once more.
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let id = process_id(&root, Pid(shell.id().cast_signed())).unwrap();
        let mut watched = [Watched { id, child: None }];
        // Without the kernel's lists of children nothing is known.
        if sharing_child(&root, id, MOST_THREADS).is_some() {
            assert!(!have_ended(&root, &mut watched) && watched[0].child.is_some(), "{watched:?}");
            writeln!(lines, "one").unwrap();
            assert!(wait_for(true, &mut watched));
        }
        assert!(!have_ended(&root, &mut []));
        drop(lines);
        shell.wait().unwrap();
        assert!(!have_ended(&root, &mut watched), "who has gone is no news");
    }
}
