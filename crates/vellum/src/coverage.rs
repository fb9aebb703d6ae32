//! What a cursor of a serializable transaction has read: the stretches of its range that it has passed over.
//!
//! A cursor that steps from one place to another has seen all entries between the two, and that there are no others.
//! Everything counts as read between the furthest places that it reached from where it was put. While the cursor is
//! open, its whole range counts as read, so nothing is missed if it is never dropped.

use crate::{plant::Plant, shared::Inner};
use std::ops::Bound;
use vellum_access::CursorPosition;
use vellum_base::PageId;
use vellum_txn::{Edge, Transaction};

/// In which direction a cursor steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Forward,
    Backward,
}

/// The part of a range that a cursor has read.
pub(crate) struct Coverage<'t> {
    transaction: &'t Transaction,
    inner: &'t Inner,
    tree: PageId,
    request: u64,
    /// The range of the cursor.
    start: Edge,
    end: Edge,
    /// The stretch since the cursor was put somewhere, up to where it last turned.
    from: Edge,
    to: Edge,
    last: Step,
}

impl<'t> Coverage<'t> {
    /// For a cursor at the beginning of its range; none if its transaction is not serializable.
    pub fn begin(
        transaction: &'t Transaction,
        tree: PageId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        inner: &'t Inner,
    ) -> Option<Box<Self>> {
        if !transaction.is_serializable() {
            return None;
        }
        let (start, end) = (Edge::lower(lower), Edge::upper(upper));
        if start >= end {
            // There is nothing in it to read.
            return None;
        }
        let request = transaction.request(tree, start.clone(), end.clone())?;
        let (from, to) = (start.clone(), start.clone());
        Some(Box::new(Self { transaction, inner, tree, request, start, end, from, to, last: Step::Forward }))
    }

    /// The cursor is about to step from where it stands.
    #[inline]
    pub fn step(&mut self, step: Step, at: CursorPosition<'_>) {
        if self.inner.is_planted(Plant::RangeAsItsKeys)
            && let CursorPosition::Before(key) | CursorPosition::After(key) = at
        {
            self.transaction.note_keys(self.tree, [key]);
        }
        if step != self.last && !self.inner.is_planted(Plant::TurnsForgotten) {
            self.last = step;
            self.extend(at);
        }
    }

    /// The cursor is about to be put elsewhere, or to be dropped.
    pub fn leave(&mut self, at: CursorPosition<'_>) {
        self.extend(at);
        if !self.inner.is_planted(Plant::RangeAsItsKeys) {
            self.transaction.note_range(self.tree, self.from.clone(), self.to.clone());
        }
    }

    /// The cursor was put here.
    pub fn arrive(&mut self, at: CursorPosition<'_>) {
        (self.from, self.to) = (self.edge(at), self.edge(at));
    }

    /// The cursor is dropped.
    pub fn end(&mut self, at: CursorPosition<'_>) {
        self.leave(at);
        self.transaction.fulfil(self.request);
    }

    fn extend(&mut self, at: CursorPosition<'_>) {
        let is_end = matches!(at, CursorPosition::Start | CursorPosition::End);
        if is_end && self.inner.is_planted(Plant::RangeToItsLastKey) {
            return;
        }
        let edge = self.edge(at);
        if edge < self.from {
            self.from = edge;
        } else if edge > self.to {
            self.to = edge;
        }
    }

    fn edge(&self, at: CursorPosition<'_>) -> Edge {
        match at {
            CursorPosition::Start => self.start.clone(),
            CursorPosition::End => self.end.clone(),
            CursorPosition::Before(key) => Edge::At { key: key.to_vec(), after: false },
            CursorPosition::After(key) => Edge::At { key: key.to_vec(), after: true },
        }
    }
}
