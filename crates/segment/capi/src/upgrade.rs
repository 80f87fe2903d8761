//! The work of the entry points for upgrades: handles become segments, and segments become handles.

use crate::failure::{Failure, errno};
use crate::tables::{HEAPS, LISTENERS, SEGMENTS};
use crate::types::MEGAPAGE_UPGRADE_MOST;
use crate::waiting::Waiting;
use ::megapage_segment::upgrade::{Extras, Listener, MOST_SEGMENTS, Successor, TakenOver, take_over};
use ::megapage_segment::{Heap, Segment};
use std::path::Path;
use std::time::Duration;

const _: () = assert!(MEGAPAGE_UPGRADE_MOST == MOST_SEGMENTS);

/// Kind of object that a handle stood for.
#[derive(Clone, Copy)]
enum Kind {
    Heap,
    Segment,
}

/// Takes the segment of a handle away from all threads.
fn taken(id: u64) -> Result<(Kind, Segment), Failure> {
    if HEAPS.holds(id) {
        return Ok((Kind::Heap, HEAPS.take(id)?.into_segment()));
    }
    Ok((Kind::Segment, SEGMENTS.take(id)?))
}

/// Gives the handle its object back.
fn put_back(id: u64, kind: Kind, segment: Segment) -> Result<(), Failure> {
    match kind {
        Kind::Segment => SEGMENTS.put_back(id, segment),
        Kind::Heap => HEAPS.put_back(id, Heap::open(segment)?),
    }
    Ok(())
}

/// Hands over the objects of the handles. Then closes the handles and the listener. On an error
/// every handle keeps its object, unless the successor has damaged it.
pub fn hand_over(listener: u64, ids: &[u64], patience: Duration) -> Result<bool, Failure> {
    if ids.len() > MOST_SEGMENTS {
        return Err(Failure::invalid(format!("{} segments are more than {MOST_SEGMENTS}", ids.len())));
    }
    if !LISTENERS.get(listener)?.has_successor() {
        return Err(Failure::new(
            errno::ENOTCONN,
            "no successor waits; hand over after megapage_upgrade_wait has answered 1",
        ));
    }
    let (ours, successor): (Listener, Option<Successor>) = LISTENERS.take(listener)?.into_parts();
    let back = |ours: Listener| LISTENERS.put_back(listener, Waiting::with(ours));
    let mut kinds = Vec::with_capacity(ids.len());
    let mut segments = Vec::with_capacity(ids.len());
    let mut wrong = None;
    for id in ids {
        match taken(*id) {
            Ok((kind, segment)) => {
                kinds.push((*id, kind, segment.path().to_path_buf()));
                segments.push(segment);
            }
            Err(failure) => {
                wrong = Some(failure);
                break;
            }
        }
    }
    let (Some(successor), None) = (successor, &wrong) else {
        // The successor's connection is closed here: it goes on alone, and nothing has changed.
        back(ours);
        for ((id, kind, _), segment) in kinds.into_iter().zip(segments) {
            put_back(id, kind, segment)?;
        }
        return Err(wrong.unwrap_or_else(|| Failure::new(errno::ENOTCONN, "no successor waits")));
    };
    match ours.hand_over(successor, segments, &Extras::default(), patience) {
        Ok(handed) => Ok(handed.confirmed),
        Err(kept) => {
            back(kept.listener);
            // A segment that the successor has damaged is not among `kept.segments`.
            let mut places = kinds.into_iter();
            let mut failure: Failure = kept.error.into();
            for segment in kept.segments {
                let Some((id, kind, _)) = places.by_ref().find(|(.., path)| path == segment.path()) else {
                    continue;
                };
                if let Err(damaged) = put_back(id, kind, segment) {
                    failure = damaged;
                }
            }
            Err(failure)
        }
    }
}

/// Returns handles for the segments that a predecessor has handed over; none if there is no
/// predecessor.
pub fn taken_over(path: &Path, patience: Duration) -> Result<Vec<u64>, Failure> {
    match take_over(path, patience)? {
        None => Ok(Vec::new()),
        Some(TakenOver { segments, .. }) => {
            Ok(segments.into_iter().map(|segment| SEGMENTS.add(segment)).collect())
        }
    }
}

/// Opens the heap in a segment, or makes one, and closes the segment's handle. Returns the heap's
/// handle, and true if the heap was found. The segment's handle stays open if the segment is
/// another process's or in use; a damaged heap closes it.
pub fn heap_of(id: u64) -> Result<(u64, bool), Failure> {
    let segment = SEGMENTS.get(id)?;
    if !segment.is_owner() {
        return Err(Failure::new(errno::EPERM, "the segment is another process's; use megapage_heap_share"));
    }
    drop(segment);
    let (heap, found) = Heap::open_or_format(SEGMENTS.take(id)?)?;
    Ok((HEAPS.add(heap), found))
}
