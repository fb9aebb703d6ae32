//! Writes to a tree: the leaf is found without latches, and latched at the end.

use crate::blob::{BlobReference, MAX_VALUE_BYTES};
use crate::error::{AccessError, damaged};
use crate::gateway::{
    AtomicChange, Latched, PageChange, PageSet, PinnedContents, UnlinkedExtents, ValueImage, abandon, persist,
};
use crate::isolation::{Claim, Intent};
use crate::node::{MAX_INLINE_RECORD_BYTES, MAX_INLINE_VALUE_BYTES, NodeError, NodeView, ValueKind};
use crate::tree::change::{blob::write_blob, expected::Expected};
use crate::tree::read::record::{RecordLocation, StoredValue, value_in};
use crate::tree::{Tree, TreeHints, change::merge::is_sparse, check_key};
use std::io::Read;
use vellum_base::PageId;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// How often a write tries to put a record into a full leaf and splits the leaf. Usually a few attempts suffice; it
/// takes more while other threads fill the leaf again. The limit ends the attempts in a damaged leaf that never gets
/// room.
pub(in crate::tree) const ATTEMPTS_MAX: u32 = 1 << 16;

/// The effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The key was new.
    Inserted,
    /// The key had a value, which was replaced.
    Replaced,
    /// Nothing was done: the tree had the key and should not have had it, or vice versa.
    Refused,
}

/// The condition for storing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// The key must be new.
    Insert,
    /// The key must have a value, which is replaced.
    Update,
    /// No condition.
    Upsert,
}

/// The condition for a write, and its kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Mode<'h> {
    Insert,
    Update,
    Upsert,
    /// Replace this value, and no other.
    Exchange(&'h Expected<'h>),
    /// Store what was there before: a large value is already allocated.
    Restore,
}

impl From<WriteMode> for Mode<'_> {
    #[inline(always)]
    fn from(mode: WriteMode) -> Self {
        match mode {
            WriteMode::Insert => Self::Insert,
            WriteMode::Update => Self::Update,
            WriteMode::Upsert => Self::Upsert,
        }
    }
}

/// A value that is about to be stored: see [`Tree::prepare`]. If it is dropped instead, its space is free again.
#[must_use]
pub struct Prepared<'p, P: Pager> {
    pager: &'p P,
    small: Vec<u8>,
    /// The extent of a large value.
    large: Option<(BlobReference, UnlinkedExtents<'p, P>)>,
}

impl<P: Pager> Drop for Prepared<'_, P> {
    fn drop(&mut self) {
        if let Some((reference, _unlinked)) = self.large.take() {
            abandon(self.pager, reference);
        }
    }
}

/// The result of an attempt to put a record into its leaf; `None` if the leaf is full.
type Placed = Result<Result<Option<Written>, Claim>, Interrupt>;

impl<'p, P: Pager> Tree<'p, P> {
    /// Stores `value` under `key` if the key is new; returns whether the key was new.
    ///
    /// # Errors
    /// If the key or value is too long, the disk is full, or a page cannot be read or written. The tree is
    /// then as it was.
    #[inline]
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, AccessError> {
        Ok(self.write(key, value, WriteMode::Insert)? == Written::Inserted)
    }

    /// Replaces the value of `key` if it has one; returns whether it did.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, AccessError> {
        Ok(self.write(key, value, WriteMode::Update)? == Written::Replaced)
    }

    /// Stores `value` under `key`, whether or not it has a value; returns which of the two happened.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    #[inline]
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Written, AccessError> {
        self.write(key, value, WriteMode::Upsert)
    }

    /// Stores the next `length` bytes of `source` under `key`, without holding all of them in memory at once.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert), and if `source` fails or ends too early.
    pub fn upsert_from(
        &self,
        key: &[u8],
        length: u64,
        source: &mut dyn Read,
    ) -> Result<Written, AccessError> {
        self.upsert_prepared(key, self.prepare(key, length, source)?)
    }

    /// Reads the next `length` bytes of `source`, which are to be stored under `key` by
    /// [`upsert_prepared`](Self::upsert_prepared). A large value is written to its place. The tree stays as it is.
    ///
    /// # Errors
    /// As for [`upsert_from`](Self::upsert_from).
    pub fn prepare(
        &self,
        key: &[u8],
        length: u64,
        source: &mut dyn Read,
    ) -> Result<Prepared<'p, P>, AccessError> {
        check_key(key)?;
        if length > MAX_VALUE_BYTES {
            return Err(AccessError::ValueTooLong { bytes: length });
        }
        let (pager, mut small, mut large) = (self.pager, Vec::new(), None);
        if is_inline(key, length) {
            small.resize(length as usize, 0);
            source.read_exact(&mut small).map_err(AccessError::Source)?;
        } else {
            let unlinked = UnlinkedExtents::begin(pager);
            large = Some((write_blob(pager, length, source)?, unlinked));
        }
        Ok(Prepared { pager, small, large })
    }

    /// [`upsert`](Self::upsert) of a value that was prepared for this key.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    pub fn upsert_prepared(&self, key: &[u8], mut value: Prepared<'p, P>) -> Result<Written, AccessError> {
        match value.large.take() {
            Some((reference, _unlinked)) => self.place_blob(key, reference, Mode::Upsert),
            None => self.upsert(key, &value.small),
        }
    }

    /// Removes `key` and its value; returns whether it was there.
    ///
    /// # Errors
    /// If a page cannot be read or written. The tree is then as it was.
    pub fn remove(&self, key: &[u8]) -> Result<bool, AccessError> {
        self.remove_if(key, None)
    }

    /// Removes `key` and its value, if the value is the expected one.
    pub(in crate::tree) fn remove_if(
        &self,
        key: &[u8],
        expected: Option<Expected<'_>>,
    ) -> Result<bool, AccessError> {
        check_key(key)?;
        let removed = self.pager.run(|| self.try_remove(key, expected, ()))?;
        let removed = removed.map_err(|claim| self.denied(claim, key))?;
        if removed == Some(true) {
            // The key is gone, whether or not this succeeds. Nodes that are not merged now cost space until the next
            // removal nearby; a page that cannot be read is reported by operations that need its contents.
            let _ = self.merge(key, 0);
        }
        Ok(removed.is_some())
    }

    /// Stores `value` under `key` if `mode` allows it: [`insert`](Self::insert), [`update`](Self::update) or
    /// [`upsert`](Self::upsert).
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    pub fn write(&self, key: &[u8], value: &[u8], mode: WriteMode) -> Result<Written, AccessError> {
        self.write_as(key, value, mode.into())
    }

    /// [`write`](Self::write), inlined: the parts of the tree handle need not lie in memory. The code is long, so this
    /// is not for functions with many instances.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    #[inline(always)]
    pub fn write_inlined(&self, key: &[u8], value: &[u8], mode: WriteMode) -> Result<Written, AccessError> {
        self.write_as_inlined(key, value, mode.into())
    }

    #[inline(never)]
    pub(in crate::tree) fn write_as(
        &self,
        key: &[u8],
        value: &[u8],
        mode: Mode,
    ) -> Result<Written, AccessError> {
        self.write_as_inlined(key, value, mode)
    }

    #[inline(always)]
    fn write_as_inlined(&self, key: &[u8], value: &[u8], mode: Mode) -> Result<Written, AccessError> {
        check_key(key)?;
        if is_inline(key, value.len() as u64) {
            self.place_inlined(key, value, ValueKind::Inline, mode)
        } else {
            self.write_blob(key, value.len() as u64, &mut &value[..], mode)
        }
    }

    #[inline(never)]
    fn write_blob(
        &self,
        key: &[u8],
        length: u64,
        source: &mut dyn Read,
        mode: Mode,
    ) -> Result<Written, AccessError> {
        // So that no large value is written in vain. The leaf decides later whether the tree has the key.
        let depends = matches!(mode, Mode::Insert | Mode::Update);
        if depends {
            let refused = self.pager.run(|| self.refuses(&self.find(key)?, key, mode))?;
            if refused.map_err(|claim| self.denied(claim, key))? {
                return Ok(Written::Refused);
            }
        }
        let _unlinked = UnlinkedExtents::begin(self.pager);
        let reference = write_blob(self.pager, length, source)?;
        self.place_blob(key, reference, mode)
    }

    /// Puts the reference to a large value that was just written into its leaf; frees the value if that fails.
    pub(in crate::tree) fn place_blob(
        &self,
        key: &[u8],
        reference: BlobReference,
        mode: Mode,
    ) -> Result<Written, AccessError> {
        let _pinned = PinnedContents::begin(self.pager);
        let persisted = persist(self.pager, reference).map_err(AccessError::from);
        let written = persisted.and_then(|()| self.place(key, &reference.encode(), ValueKind::Blob, mode));
        if !matches!(written, Ok(Written::Inserted | Written::Replaced)) {
            abandon(self.pager, reference);
        }
        written
    }

    /// Puts a record into its leaf, and splits full nodes on the way.
    #[inline(never)]
    pub(in crate::tree) fn place(
        &self,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
        mode: Mode,
    ) -> Result<Written, AccessError> {
        self.place_inlined(key, value, kind, mode)
    }

    #[inline(always)]
    fn place_inlined(
        &self,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
        mode: Mode,
    ) -> Result<Written, AccessError> {
        match self.try_place(key, value, kind, mode) {
            Ok(Ok(Some(written))) => Ok(written),
            placed => self.place_again(placed, key, value, kind, mode),
        }
    }

    /// Continues after the first attempt. Out of line: most changes take one attempt, and keep nothing for the next
    /// one.
    #[cold]
    #[inline(never)]
    fn place_again(
        &self,
        mut placed: Placed,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
        mode: Mode,
    ) -> Result<Written, AccessError> {
        for _ in 0..ATTEMPTS_MAX {
            let placed_now = match placed {
                Ok(placed) => placed,
                Err(interrupt) => {
                    self.pager.resolve(interrupt)?;
                    self.pager.run(|| self.try_place(key, value, kind, mode))?
                }
            };
            match placed_now.map_err(|claim| self.denied(claim, key))? {
                Some(written) => return Ok(written),
                None => self.split(key, 0, key, value.len())?,
            }
            placed = self.try_place(key, value, kind, mode);
        }
        Err(PoolError::contents(self.root(), "splitting its leaves makes no room in them").into())
    }

    /// Puts a record into the leaf that covers its key.
    #[inline(always)]
    fn try_place(&self, key: &[u8], value: &[u8], kind: ValueKind, mode: Mode) -> Placed {
        let leaf = match self.hinted_leaf(key) {
            Some(leaf) => leaf,
            None => self.leaf(key)?,
        };
        self.place_in_leaf(leaf, key, value, kind, mode)
    }

    /// Puts a small value into the leaf that covers its key. `None` if the leaf is full, the value is not small, or the
    /// record must not be changed: then [`write`](Self::write) is to be used, which may wait.
    pub(in crate::tree) fn write_in_leaf(
        &self,
        leaf: P::Optimistic<'p>,
        key: &[u8],
        value: &[u8],
        mode: Mode,
    ) -> Result<Option<Written>, Interrupt> {
        if !is_inline(key, value.len() as u64) {
            return Ok(None);
        }
        Ok(self.place_in_leaf(leaf, key, value, ValueKind::Inline, mode)?.unwrap_or(None))
    }

    /// The leaf to which this thread appended last, if it has not changed since and covers `key`.
    #[inline(always)]
    fn hinted_leaf(&self, key: &[u8]) -> Option<P::Optimistic<'p>> {
        let end = self.hints?.ends.mine();
        let (page, token) = end.get()?;
        // It has not changed, so it is still a leaf of this tree.
        match self.pager.reacquire(page, token) {
            Some(leaf) if NodeView::new(leaf.bytes()).covers(key) => Some(leaf),
            _ => {
                end.clear();
                None
            }
        }
    }

    /// Puts a record into the leaf that covers its key, and frees the blob that it replaces. `None` if the leaf is full.
    #[inline(always)]
    fn place_in_leaf(
        &self,
        leaf: P::Optimistic<'p>,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
        mode: Mode,
    ) -> Placed {
        let find = RecordLocation::of(leaf, key);
        if mode != Mode::Upsert {
            match self.refuses(&find, key, mode)? {
                Ok(false) => {}
                refused => return Ok(refused.map(|_| Some(Written::Refused))),
            }
        }
        let leaf = Latched::latch(leaf)?;
        let (at, value) = ((find.index, find.found), ValueImage { kind, bytes: value });
        if self.pager.needs_lsn() {
            self.place_with_lsn(leaf, at, key, value, mode)
        } else {
            self.place_latched::<false>(leaf, at, key, value, mode)
        }
    }

    /// [`place_latched`](Self::place_latched), kept out of the code for a change that needs no LSN.
    #[inline(never)]
    fn place_with_lsn(
        &self,
        leaf: Latched<'p, P>,
        at: (usize, bool),
        key: &[u8],
        value: ValueImage<'_>,
        mode: Mode,
    ) -> Placed {
        self.place_latched::<true>(leaf, at, key, value, mode)
    }

    /// Puts a record into slot `index` of its leaf. `found` says whether the record is there already.
    // The compiler knows whether the change needs an LSN: if not, it drops all the code for it.
    #[inline(always)]
    fn place_latched<const NEEDS_LSN: bool>(
        &self,
        leaf: Latched<'p, P>,
        (index, found): (usize, bool),
        key: &[u8],
        value: ValueImage<'_>,
        mode: Mode,
    ) -> Placed {
        let old = if found { self.old_blob(leaf.id(), leaf.view(), index)? } else { None };
        if let Mode::Exchange(expected) = mode {
            if !expected.is_held(leaf.view(), index) {
                self.check_root()?;
                return Ok(Ok(Some(Written::Refused)));
            }
            if value.kind == ValueKind::Inline && *expected == Expected::Inline(value.bytes) {
                return self.keep_latched(&leaf, (index, key), NEEDS_LSN);
            }
        }
        if mode == Mode::Restore
            && value.kind == ValueKind::Blob
            && old.is_some_and(|old| *value.bytes == old.encode())
        {
            // It has been restored already.
            return Ok(Ok(Some(Written::Replaced)));
        }
        self.check_root()?;
        if self.claims(NEEDS_LSN)
            && let Err(claim) =
                self.claim(&leaf, (key, found.then_some(index)), Intent::Put { bytes: value.bytes.len() })?
        {
            return Ok(Err(claim));
        }
        let AtomicChange { pages: mut leaf, mut recording, needs } = self.begin_change(leaf, NEEDS_LSN);
        if mode == Mode::Restore {
            recording.restore();
        }
        let result = if found {
            recording.replace(&mut leaf, index, key, value)
        } else {
            recording.apply(&mut leaf, Some(index), &PageChange::Insert { key, value })
        };
        match result {
            Ok(()) if found => {
                let change = AtomicChange { pages: leaf, recording, needs };
                change.commit_by(self.recorder(), self.freed(old.map(|blob| blob.extent())));
                Ok(Ok(Some(Written::Replaced)))
            }
            Ok(()) => {
                let hints = if leaf.view().goes_on(index) { self.hints } else { None };
                let leaf = AtomicChange { pages: leaf, recording, needs }.commit_by(self.recorder(), None);
                if let Some(TreeHints { ends, .. }) = hints {
                    ends.mine().set(leaf.id(), leaf.token());
                }
                Ok(Ok(Some(Written::Inserted)))
            }
            Err(error) => {
                self.give_up_claim();
                if matches!(error, NodeError::Full) { Ok(Ok(None)) } else { Err(damaged(leaf.id(), error)) }
            }
        }
    }

    /// Exchanges a value in a latched leaf for an equal one: the record is only reserved, and nothing is logged.
    #[inline(never)]
    fn keep_latched(&self, leaf: &Latched<'p, P>, (index, key): (usize, &[u8]), needs_lsn: bool) -> Placed {
        self.check_root()?;
        if self.claims(needs_lsn) {
            if let Err(claim) = self.claim(leaf, (key, Some(index)), Intent::Reserve)? {
                return Ok(Err(claim));
            }
            if let Some(recorder) = self.recorder() {
                recorder.unchanged();
            }
        }
        Ok(Ok(Some(Written::Replaced)))
    }

    /// The location of the record of `key`, or the place for it.
    #[inline(always)]
    fn find(&self, key: &[u8]) -> Result<RecordLocation<P::Optimistic<'p>>, Interrupt> {
        Ok(RecordLocation::of(self.leaf(key)?, key))
    }

    /// Whether a write changes nothing because of what the leaf holds. Such a write latches nothing.
    #[inline(always)]
    fn refuses(
        &self,
        find: &RecordLocation<P::Optimistic<'p>>,
        key: &[u8],
        mode: Mode,
    ) -> Result<Result<bool, Claim>, Interrupt> {
        if mode == Mode::Restore || find.found != (mode == Mode::Insert) {
            return Ok(Ok(false));
        }
        let checked = self.check(&find.leaf, key);
        find.leaf.validate()?;
        self.check_vain()?;
        Ok(checked.map(|()| true))
    }

    /// Removes a record and frees the blob that it referred to, together with other changes; returns whether the leaf
    /// should be merged.
    pub(in crate::tree) fn try_remove<S: PageSet<'p, P>>(
        &self,
        key: &[u8],
        expected: Option<Expected<'_>>,
        others: S,
    ) -> Result<Result<Option<bool>, Claim>, Interrupt> {
        let find = self.find(key)?;
        if !find.found {
            let checked = self.check(&find.leaf, key);
            find.leaf.validate()?;
            self.check_vain()?;
            return Ok(checked.map(|()| None));
        }
        let leaf = Latched::latch(find.leaf)?;
        if expected.is_some_and(|expected| !expected.is_held(leaf.view(), find.index)) {
            self.check_root()?;
            return Ok(Ok(None));
        }
        let old = self.old_blob(leaf.id(), leaf.view(), find.index)?;
        self.check_root()?;
        let needs_lsn = self.pager.needs_lsn();
        if self.claims(needs_lsn)
            && let Err(claim) = self.claim(&leaf, (key, Some(find.index)), Intent::Remove)?
        {
            return Ok(Err(claim));
        }
        let mut change = self.begin_change((leaf, others), needs_lsn);
        let AtomicChange { pages: (leaf, _), recording, .. } = &mut change;
        if let Err(error) = recording.remove(leaf, find.index, key) {
            self.give_up_claim();
            return Err(damaged(leaf.id(), error));
        }
        let sparse = is_sparse(leaf.view());
        change.commit_by(self.recorder(), self.freed(old.map(|blob| blob.extent())));
        Ok(Ok(Some(sparse)))
    }

    /// The large value to which a record of a latched leaf refers, and which will be freed.
    fn old_blob(
        &self,
        id: PageId,
        leaf: NodeView<&[u8]>,
        index: usize,
    ) -> Result<Option<BlobReference>, Interrupt> {
        match value_in(leaf, index) {
            Some(StoredValue::Inline(_)) => Ok(None),
            Some(StoredValue::Blob(reference)) if self.pager.is_extent(reference.extent()) => {
                Ok(Some(reference))
            }
            _ => Err(damaged(id, "a reference to a large value is damaged")),
        }
    }
}

/// Whether a value is stored in the leaf itself.
pub(in crate::tree) fn is_inline(key: &[u8], length: u64) -> bool {
    length <= MAX_INLINE_VALUE_BYTES as u64 && key.len() as u64 + length <= MAX_INLINE_RECORD_BYTES as u64
}
