//! Which pages change hands, and which operations have pages to which nothing refers, while a thread looks for pages that
//! belong to nothing.

use std::{collections::BTreeMap, ops::Range};

/// The pages that were allocated or freed, or that something refers to again, since the first of the present watches
/// began: one bit a page. Several watches share it, so one may be told of what happened before it began.
#[derive(Default)]
pub(super) struct Watched {
    watches: usize,
    pages: Vec<u64>,
}

impl Watched {
    pub fn begin(&mut self) {
        self.watches += 1;
    }

    /// Ends a watch; returns whether there are others.
    pub fn end(&mut self) -> bool {
        self.watches -= 1;
        self.watches > 0
    }

    pub fn add(&mut self, pages: Range<u64>) {
        for page in pages {
            let index = (page / 64) as usize;
            if index >= self.pages.len() {
                self.pages.resize(index + 1, 0);
            }
            if let Some(word) = self.pages.get_mut(index) {
                *word |= 1 << (page % 64);
            }
        }
    }

    pub fn contains(&self, page: u64) -> bool {
        self.pages.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }
}

/// The operations that have extents to which nothing refers: not yet, or not any more.
#[derive(Default)]
pub(super) struct Unfinished {
    /// The number that the next ones get.
    number: u64,
    /// How many of each number there are.
    operations: BTreeMap<u64, usize>,
}

impl Unfinished {
    /// Begins an operation; returns a number for [`end`](Self::end).
    pub fn begin(&mut self) -> u64 {
        *self.operations.entry(self.number).or_default() += 1;
        self.number
    }

    pub fn end(&mut self, number: u64) {
        if let Some(count) = self.operations.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.operations.remove(&number);
            }
        }
    }

    /// A number that all operations that have begun by now are below.
    pub fn above_all(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Whether no operation below this number is left.
    pub fn are_over(&self, below: u64) -> bool {
        self.operations.keys().next().is_none_or(|first| *first >= below)
    }
}
