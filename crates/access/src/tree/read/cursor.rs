//! Cursors: walking a range of keys in either direction.
//!
//! A cursor keeps an optimistic guard on its leaf, and copies records out of the leaf in groups: a few at first,
//! because most ranges are short, then more, then whole leaves; or as many as will be asked for, if that is known.
//! After each group the guard is validated, so all copies from one leaf belong to one moment. If the leaf has changed
//! before the next group, the cursor finds its place again by its key.
//!
//! At the end of the leaf the cursor goes to the next child of the leaf's parent if the parent has not changed;
//! otherwise down the tree, to the leaf beyond the fence. It holds no latch between calls. Two groups may show
//! different moments.
//!
//! If the tree has a [`View`](crate::View), and the leaf is not older than it, the whole leaf is copied, and *resolved*
//! before it is validated: the cursor walks a list of what the view sees of the leaf, including removed records. At any
//! moment a removed key lies within the fences of one leaf, whatever happens to leaves. With a snapshot the list
//! belongs to one moment. Without a snapshot each record does, and a commit may come between two of them.

mod copy_size;
mod entry;
mod key;
mod prepare;
mod scan;
mod stand;

pub use entry::{CursorPosition, Entry};

use crate::error::AccessError;
use crate::node::{LeafCopy, NodeView};
use crate::tree::descend::{Approach, Direction, NOT_ITS_FENCES, Place, Towards, leads_on};
use crate::tree::read::record::{copy_records, value_in};
use crate::tree::read::{
    read_ahead::ReadAhead,
    seen_leaf::{SeenLeaf, Wanted, resolve},
};
use crate::tree::{Tree, check_key};
use copy_size::{FEW, GROUPS_BYTES, MAY_GO_ON, copy_size, leaves_beyond, resolve_size};
use key::CursorKey;
use stand::{Stand, end_in, key_of, towards};
use std::ops::Bound;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// Walks the entries of a range in both directions.
///
/// A cursor stands *between* two entries: [`next`](Self::next) steps over the entry after it and returns that entry,
/// [`previous`](Self::previous) the entry before it. A new cursor stands at the beginning of its range.
///
/// An entry that is in the range all the time is returned once in each pass, in order; one that is inserted or removed
/// meanwhile may be returned or not. A step that fails leaves the cursor where it was, and can be repeated.
///
/// ```
/// use std::ops::Bound;
/// use vellum_access::Tree;
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// for (name, number) in [(b"one", b"1"), (b"two", b"2"), (b"six", b"6")] {
///     tree.insert(name, number)?;
/// }
/// let mut cursor = tree.range(Bound::Excluded(b"one"), Bound::Unbounded)?;
/// let entry = cursor.next()?.expect("there is one after `one`");
/// assert_eq!((entry.key(), entry.inline_value()), (&b"six"[..], Some(&b"6"[..])));
/// cursor.seek_to_end();
/// assert_eq!(cursor.previous()?.map(|entry| entry.key().to_vec()), Some(b"two".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cursor<'p, P: Pager + 'p> {
    tree: Tree<'p, P>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// Where the cursor stands, whatever happens to the leaf.
    stand: Stand,
    /// The key before or after which the cursor stands: that of the entry that was returned last.
    key: CursorKey,
    /// The leaf in which it stands; `None` before the first step, and when the leaf has changed.
    place: Option<Place<'p, P>>,
    /// The records copied out of that leaf.
    leaf: LeafCopy,
    /// What is seen of the leaf, if that may differ from what it holds. The copy is then of the whole leaf, and hidden.
    seen: Option<Box<SeenLeaf>>,
    /// The slot after the cursor, or the index in what is seen.
    index: usize,
    /// The slot at which the range ends; more than the leaf has if the range extends beyond the leaf.
    end: usize,
    /// How many groups have been copied since the cursor began or was moved.
    groups: usize,
    /// How many more entries are expected to be asked for; more than [`FEW`] if unknown.
    expected: usize,
    ahead: ReadAhead<'p, P>,
    /// Whether a leaf is latched when the cursor comes to it, and not copied.
    in_place: bool,
    /// Such a leaf, until it is shown.
    latched: Option<P::Shared<'p>>,
}

/// The result of an attempt to fetch records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fetched {
    /// The cursor is closer to the next record, or has it.
    More,
    /// The range has no more records.
    End,
    /// The cursor would have to wait, and must not.
    WouldWait,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// A cursor over the entries whose keys lie between the bounds, which stands at the beginning.
    ///
    /// # Errors
    /// If a bound is longer than a key can be.
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<Cursor<'p, P>, AccessError> {
        for bound in [lower, upper] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                check_key(key)?;
            }
        }
        Ok(Cursor {
            tree: *self,
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            stand: Stand::Start,
            key: CursorKey::default(),
            place: None,
            leaf: LeafCopy::default(),
            seen: None,
            index: 0,
            end: usize::MAX,
            groups: 0,
            expected: usize::MAX,
            ahead: ReadAhead::new(),
            in_place: false,
            latched: None,
        })
    }
}

impl<'p, P: Pager> Cursor<'p, P> {
    /// Goes to the beginning of the range.
    pub fn seek_to_start(&mut self) {
        self.put(Stand::Start);
    }

    /// Goes to the end of the range, for walking backwards.
    pub fn seek_to_end(&mut self) {
        self.put(Stand::End);
    }

    /// Moves to right before `key`, whether or not the tree has it; to the nearer end of the range if it is outside.
    ///
    /// # Errors
    /// If the key is too long.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), AccessError> {
        check_key(key)?;
        if self.is_before_range(key) {
            self.put(Stand::Start);
        } else if self.is_after_range(key) {
            self.put(Stand::End);
        } else {
            self.put(Stand::Before);
            self.key.set(key);
        }
        Ok(())
    }

    /// Where the cursor stands. If steps led from one position to another, it has seen all entries between the two.
    pub fn position(&self) -> CursorPosition<'_> {
        match self.stand {
            Stand::Start => CursorPosition::Start,
            Stand::End => CursorPosition::End,
            Stand::Before => CursorPosition::Before(&self.key),
            Stand::After => CursorPosition::After(&self.key),
        }
    }

    /// Says that no more entries than this are wanted from here on: if not in memory, their leaves are read together.
    pub fn expect(&mut self, entries: usize) {
        self.expected = entries;
    }

    fn put(&mut self, stand: Stand) {
        self.stand = stand;
        self.groups = 0;
        self.leave();
        self.ahead.reset(Direction::Forward);
    }

    /// Steps over the next entry and returns it; `None` at the end of the range.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    // Inlined: an entry is many words, and would otherwise be copied through memory. Callees only say if there is one.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "the entry borrows from the cursor")]
    pub fn next(&mut self) -> Result<Option<Entry<'_, 'p, P>>, AccessError> {
        while self.index >= self.end || !self.leaf.holds(self.index) {
            if self.seen.as_ref().is_some_and(|seen| self.index < seen.count()) {
                return Ok(if self.step_seen(Direction::Forward)? {
                    self.entry_seen(self.index - 1)
                } else {
                    None
                });
            }
            if self.fetch(Direction::Forward, true)? != Fetched::More {
                return Ok(None);
            }
        }
        let index = self.index;
        self.key.load(self.leaf.view(), index);
        self.stand = Stand::Before;
        let Some(value) = value_in(self.leaf.view(), index) else { return Err(self.damaged()) };
        (self.stand, self.index) = (Stand::After, index + 1);
        self.expected = self.expected.wrapping_sub(1);
        Ok(Some(Entry { tree: &self.tree, key: &self.key, value }))
    }

    /// Steps over the next record that is seen of the leaf; false if that record is not in the range.
    #[inline(never)]
    fn step_seen(&mut self, direction: Direction) -> Result<bool, AccessError> {
        let is_forward = direction == Direction::Forward;
        let index = if is_forward { self.index } else { self.index.saturating_sub(1) };
        self.load_seen_key(index);
        let (end, not_yet, passed) = match direction {
            Direction::Forward => (self.is_after_range(&self.key), (Stand::End, Stand::Before), Stand::After),
            Direction::Backward => {
                (self.is_before_range(&self.key), (Stand::Start, Stand::After), Stand::Before)
            }
        };
        if end {
            self.stand = not_yet.0;
            return Ok(false);
        }
        self.stand = not_yet.1;
        if self.entry_seen(index).is_none() {
            return Err(self.damaged());
        }
        (self.stand, self.index) = (passed, if is_forward { index + 1 } else { index });
        self.expected = self.expected.wrapping_sub(1);
        Ok(true)
    }

    /// A record that is seen of the leaf, whose key has been loaded; `None` if it is damaged.
    #[inline(always)]
    fn entry_seen(&self, index: usize) -> Option<Entry<'_, 'p, P>> {
        let value = self.seen.as_ref()?.value(&self.leaf, index)?;
        Some(Entry { tree: &self.tree, key: &self.key, value })
    }

    /// Steps back over the entry before and returns it; `None` at the beginning of the range.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    #[inline(always)]
    pub fn previous(&mut self) -> Result<Option<Entry<'_, 'p, P>>, AccessError> {
        let index = loop {
            match self.index.checked_sub(1) {
                Some(index) if self.leaf.holds(index) => break index,
                Some(index) if self.seen.is_some() => {
                    return Ok(if self.step_seen(Direction::Backward)? {
                        self.entry_seen(index)
                    } else {
                        None
                    });
                }
                _ if self.fetch(Direction::Backward, true)? != Fetched::More => return Ok(None),
                _ => {}
            }
        };
        self.key.load(self.leaf.view(), index);
        if self.is_before_range(&self.key) {
            self.stand = Stand::Start;
            return Ok(None);
        }
        self.stand = Stand::After;
        let Some(value) = value_in(self.leaf.view(), index) else { return Err(self.damaged()) };
        (self.stand, self.index) = (Stand::Before, index);
        self.expected = self.expected.wrapping_sub(1);
        Ok(Some(Entry { tree: &self.tree, key: &self.key, value }))
    }

    /// Takes one step towards having the next record in this direction copied.
    #[inline(never)]
    fn fetch(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        let Some(place) = &self.place else { return self.arrive(direction, may_wait) };
        if self.is_at_end(direction) {
            return self.go_on(direction, may_wait);
        }
        let size =
            copy_size(self.groups, self.expected, (self.index, self.leaf.count(), self.end), direction);
        let copied = copy_records(&place.node, (self.index, direction), size, &mut self.leaf);
        self.groups += 1;
        // A range that is longer than its first group and comes to the end of the leaf will usually go on beyond it.
        if self.groups == GROUPS_BYTES.len() && self.leaf.holds_end(direction == Direction::Forward) {
            self.fetch_header(direction, 1);
        }
        if copied.is_err() || !self.tree.is_settled(&place.node) {
            // The leaf has changed, so neither the copy nor the position in it holds any more; or it must be resolved.
            self.leave();
        }
        Ok(Fetched::More)
    }

    /// Whether the leaf has no further record in this direction that is in the range.
    fn is_at_end(&self, direction: Direction) -> bool {
        match direction {
            Direction::Forward => {
                self.index >= self.seen.as_ref().map_or(self.leaf.count().min(self.end), |seen| seen.count())
            }
            Direction::Backward => self.index == 0,
        }
    }

    /// Finds the leaf in which the cursor stands.
    fn arrive(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        let (key, stand) = match (self.stand, &self.lower, &self.upper) {
            (Stand::Start, Bound::Included(key), _) | (Stand::End, _, Bound::Excluded(key)) => {
                (key, Stand::Before)
            }
            (Stand::Start, Bound::Excluded(key), _) | (Stand::End, _, Bound::Included(key)) => {
                (key, Stand::After)
            }
            _ => {
                let from_edge = matches!(self.stand, Stand::Start | Stand::End);
                return self.land_together(direction, (None, from_edge), may_wait);
            }
        };
        self.key.set(key);
        self.stand = stand;
        self.land_together(direction, (None, false), may_wait)
    }

    /// Like [`land`](Self::land), but reads the leaves of a short range side by side; `from_edge` helps to count them.
    fn land_together(
        &mut self,
        direction: Direction,
        (sibling, from_edge): (Option<(P::Optimistic<'p>, usize)>, bool),
        may_wait: bool,
    ) -> Result<Fetched, AccessError> {
        let bound = key_of(if direction == Direction::Forward { &self.upper } else { &self.lower });
        let is_short = (2..=FEW).contains(&self.expected);
        let may_end_soon = self.expected > FEW && self.groups == 0 && bound.is_some();
        if !may_wait || !(is_short || may_end_soon) {
            return self.land(direction, sibling, may_wait);
        }
        let landed = self.land(direction, sibling, false)?;
        if landed != Fetched::WouldWait {
            return Ok(landed);
        }
        let bound = key_of(if direction == Direction::Forward { &self.upper } else { &self.lower });
        let towards = towards(self.stand, direction, &self.key);
        let expected = is_short.then_some((self.expected, from_edge));
        self.ahead.begin(&self.tree, (direction, towards), expected, bound);
        let landed = self.land(direction, None, true)?;
        self.tree.hints.inspect(|hints| hints.leaves.note(self.leaf.count()));
        Ok(landed)
    }

    /// Goes from the end of a leaf to the next leaf in this direction, if that leaf has any part of the range.
    fn go_on(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        if self.seen.as_ref().is_some_and(|seen| seen.has_more(direction)) {
            return self.resolve_more(direction, may_wait);
        }
        let fence = self.key.cleared();
        let view = self.leaf.view();
        let bound = key_of(if direction == Direction::Forward { &self.upper } else { &self.lower });
        let more = match direction {
            Direction::Forward => view.upper_fence(fence) && bound.is_none_or(|upper| &fence[..] < upper),
            Direction::Backward => view.lower_fence(fence) && !self.is_before_range(&self.key),
        };
        if !more {
            self.stand = match direction {
                Direction::Forward => Stand::End,
                Direction::Backward => Stand::Start,
            };
            return Ok(Fetched::End);
        }
        self.stand = Stand::After;
        let sibling = self.place.as_ref().and_then(|place| place.sibling(direction, 1));
        if may_wait && self.expected <= FEW {
            return self.go_on_to_few(direction, sibling);
        }
        self.ahead.advance(&self.tree, (direction, may_wait), (&self.key, sibling), bound);
        // A cursor that has come this far will read the next leaves too. Their headers are fetched first: translating a
        // page's address takes longest, and the current leaf is copied meanwhile.
        let far = self.groups >= GROUPS_BYTES.len();
        if far {
            self.fetch_header(direction, 3);
            if self.groups == GROUPS_BYTES.len() {
                self.fetch_header(direction, 2);
            }
        }
        let landed = self.land(direction, sibling, may_wait)?;
        if far && landed == Fetched::More {
            self.fetch_contents(direction);
        }
        Ok(landed)
    }

    /// Resolves more of the leaf, which may have changed meanwhile.
    fn resolve_more(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        if let Some(last) = self.seen.as_ref().and_then(|seen| seen.last_before_more(direction)) {
            let (is_beyond, end, stand) = match direction {
                Direction::Forward => (self.is_after_range(last), Stand::End, Stand::After),
                Direction::Backward => (self.is_before_range(last), Stand::Start, Stand::Before),
            };
            if is_beyond {
                self.stand = end;
                return Ok(Fetched::End);
            }
            self.key.set(last);
            self.stand = stand;
        }
        self.leave();
        self.arrive(direction, may_wait)
    }

    /// Goes to the next leaf if few entries are expected: prefetches into the cache only the leaves that hold them.
    fn go_on_to_few(
        &mut self,
        direction: Direction,
        sibling: Option<(P::Optimistic<'p>, usize)>,
    ) -> Result<Fetched, AccessError> {
        let leaves = self.expected.div_ceil(self.leaf.count().max(1));
        if leaves > 1 {
            self.fetch_header(direction, 2);
        }
        self.ahead.go_on(&self.tree, direction);
        self.land_together(direction, (sibling, true), true)
    }

    /// Goes to the cursor's leaf by `sibling` if that parent is unchanged, else down the tree. Copies records of it.
    fn land(
        &mut self,
        direction: Direction,
        mut sibling: Option<(P::Optimistic<'p>, usize)>,
        may_wait: bool,
    ) -> Result<Fetched, AccessError> {
        self.leave();
        let Self { tree, key, upper, leaf, seen, groups, expected, in_place, latched, .. } = self;
        let stand = self.stand;
        let approach = if self.ahead.is_scan() { Approach::InPassing } else { Approach::Direct };
        let towards = towards(stand, direction, key);
        let may_go_on = (MAY_GO_ON..=FEW).contains(expected).then_some(direction);
        loop {
            let landed = tree.attempt(may_wait, || {
                sibling = sibling.filter(|(parent, _)| parent.validate().is_ok());
                *seen = None;
                let place = match sibling {
                    Some((parent, place)) => tree.leaf_of(parent, place, approach)?,
                    None => tree.leaf_at(towards, approach, may_go_on)?,
                };
                let view = NodeView::new(place.node.bytes());
                let towards = match (towards, direction) {
                    (Towards::Key(_) | Towards::After(_), Direction::Forward) if sibling.is_some() => {
                        Towards::First
                    }
                    (Towards::Key(_) | Towards::After(_), Direction::Backward) if sibling.is_some() => {
                        Towards::Last
                    }
                    (towards, _) => towards,
                };
                if !tree.is_settled(&place.node) {
                    let wanted = Wanted::by(
                        direction,
                        towards,
                        stand == Stand::After,
                        resolve_size(*groups, *expected),
                    );
                    let resolved = resolve(tree, &place.node, leaf, &wanted)?;
                    let index = match towards {
                        Towards::First => 0,
                        Towards::Last => resolved.count(),
                        Towards::Key(key) | Towards::After(key) => {
                            resolved.position(leaf, key, stand == Stand::After)
                        }
                    };
                    leaf.hide();
                    *seen = Some(Box::new(resolved));
                    return Ok((place, index, usize::MAX));
                }
                // They are copied after the search, and lie at the other end of the page.
                scan::fetch(tree, &place.node, view.range_of_fences());
                let index = match towards {
                    Towards::First => 0,
                    Towards::Last => view.count(),
                    Towards::Key(key) | Towards::After(key) => {
                        let find = view.find_between_fences(key);
                        find.index + usize::from(find.found && stand == Stand::After)
                    }
                };
                let end = end_in(view, upper);
                let reach = (index, view.count(), end);
                let beyond = leaves_beyond(*expected, reach, direction);
                // The next leaf has been fetched together with this one.
                let first = if may_go_on.is_some() && sibling.is_none() { 2 } else { 1 };
                if beyond >= first
                    && let Some(page) = place.neighbour(direction, first)
                {
                    tree.pager.prefetch(page, 0, NodeView::<&[u8]>::GUIDE_BYTES);
                }
                if *in_place {
                    leaf.begin(view);
                    *latched = Some(scan::latch(tree, &place.node, reach, *expected)?);
                    return Ok((place, index, end));
                }
                let size = copy_size(*groups, *expected, reach, direction);
                if size.is_some() {
                    leaf.begin(view);
                }
                copy_records(&place.node, (index, direction), size, leaf)?;
                Ok::<_, Interrupt>((place, index, end))
            });
            if !matches!(landed, Ok(Some(_))) {
                // The copied records were not resolved.
                leaf.clear();
                *seen = None;
            }
            // A tree that was replaced may have been emptied since, and may hold what the transaction that has replaced it had
            // stored there before. The other one has the key's place, too.
            if tree.follow() {
                leaf.clear();
                (*seen, *latched, sibling) = (None, None, None);
                continue;
            }
            let Some((place, index, end)) = landed? else { return Ok(Fetched::WouldWait) };
            if leads_on(leaf.view(), towards) {
                *groups += 1;
                let goes_beyond = leaves_beyond(*expected, (index, leaf.count(), end), direction) > 0;
                (self.place, self.index, self.end) = (Some(place), index, end);
                if goes_beyond {
                    self.fetch_contents(direction);
                }
                return Ok(Fetched::More);
            }
            leaf.clear();
            (*seen, *latched) = (None, None);
            if sibling.take().is_none() {
                return Err(PoolError::contents(place.node.id(), NOT_ITS_FENCES).into());
            }
        }
    }

    /// Prefetches the first bytes to be read of the leaf `distance` leaves further into the processor's cache.
    fn fetch_header(&self, direction: Direction, distance: usize) {
        let place = self.place.as_ref();
        if let Some(page) = place.and_then(|place| place.neighbour(direction, distance)) {
            self.tree.pager.prefetch(page, 0, NodeView::<&[u8]>::GUIDE_BYTES);
        }
    }

    /// Prefetches the rest of the next leaf that is in use, according to its header.
    fn fetch_contents(&self, direction: Direction) {
        let sibling = self.place.as_ref().and_then(|place| place.sibling(direction, 1));
        let Some((parent, at)) = sibling else { return };
        if let Ok(Place { node, .. }) = self.tree.leaf_of(parent, at, Approach::InPassing) {
            let used = NodeView::new(node.bytes()).bytes_in_use();
            used.into_iter().for_each(|bytes| scan::fetch(&self.tree, &node, bytes));
        }
    }

    /// Forgets the leaf in which the cursor stands.
    fn leave(&mut self) {
        self.place = None;
        self.seen = None;
        self.leaf.clear();
        self.key.leave();
    }

    fn load_seen_key(&mut self, index: usize) {
        let key = self.key.cleared();
        if let Some(seen) = &self.seen {
            seen.append_key(&self.leaf, index, key);
        }
    }

    /// Whether every key of the range is greater than `key`.
    fn is_before_range(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(lower) => key < &lower[..],
            Bound::Excluded(lower) => key <= &lower[..],
            Bound::Unbounded => false,
        }
    }

    /// Whether every key of the range is less than `key`.
    fn is_after_range(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) => key > &upper[..],
            Bound::Excluded(upper) => key >= &upper[..],
            Bound::Unbounded => false,
        }
    }

    #[cold]
    fn damaged(&self) -> AccessError {
        let page = self.place.as_ref().map_or(self.tree.root(), |place| place.node.id());
        PoolError::contents(page, "a record of this leaf lies outside of it").into()
    }
}
