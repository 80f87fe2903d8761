//! Chunks of a span while the lock of their group is held. Only then may the heap change their
//! memory.

use super::{GROUP, HugeHeap, LOCKS};
use crate::prim::Prim;
use crate::span::Span;
use megapage_inside::{Held, Owned};
use megapage_units::HUGE_2M;
use std::ops::Deref;

/// A span, with the lock of a group of its chunks held.
#[derive(Debug)]
pub(super) struct Group<'a> {
    span: &'a Span,
    held: Held<'a>,
}

impl Group<'_> {
    /// Returns the memory of `count` chunks from `index` on, which must be of this group. Without
    /// other threads, or with all groups locked, they may be of several groups.
    pub(super) fn chunks_at(&self, index: usize, count: usize) -> Owned<'_> {
        self.span.range.own(&self.held, index * HUGE_2M, count * HUGE_2M)
    }

    /// Returns the memory of chunk `index`.
    pub(super) fn chunk_at(&self, index: usize) -> Owned<'_> {
        self.chunks_at(index, 1)
    }
}

impl Deref for Group<'_> {
    type Target = Span;

    fn deref(&self) -> &Span {
        self.span
    }
}

impl<K: Prim> HugeHeap<K> {
    /// Waits for the lock of the group of chunk `index`, and takes it.
    pub(super) fn hold<'a>(&'a self, span: &'a Span, index: usize) -> Group<'a> {
        Group { span, held: self.groups[lock_of(span, index)].hold() }
    }

    /// Takes the lock of the group of chunk `index` if it is free.
    pub(super) fn try_hold<'a>(&'a self, span: &'a Span, index: usize) -> Option<Group<'a>> {
        self.groups[lock_of(span, index)].try_hold().map(|held| Group { span, held })
    }

    /// Runs `work` with every group locked, in the only order in which several groups are ever
    /// locked.
    pub(super) fn with_all_held<R>(&self, span: &Span, work: impl FnOnce(&Group) -> R) -> R {
        let [first, others @ ..] = &self.groups;
        let group = Group { span, held: first.hold() };
        let _others = std::array::from_fn::<_, { LOCKS - 1 }, _>(|at| others[at].hold());
        work(&group)
    }
}

fn lock_of(span: &Span, index: usize) -> usize {
    (span.range.start() / HUGE_2M / GROUP + index / GROUP) % LOCKS
}
