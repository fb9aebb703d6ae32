//! What a transaction has changed and claimed, while it is open and after its commit, until no snapshot needs it.

use crate::before::{Before, BeforeImage};
use crate::coarse::{Coarse, KEYS_MAX};
use crate::depot::{Depot, Kept};
use crate::exposure::Exposure;
use crate::home::{Home, Own};
use crate::reads::ReadSet;
use crate::undo_buffer::UndoBuffer;
use crate::undo_list::UndoList;
use hashbrown::HashTable;
use smallvec::SmallVec;
use std::{cell::RefCell, sync::Arc};
use vellum_access::BlobReference;
use vellum_base::primitive::{AtomicBool, Ordering};
use vellum_pool::PoolError;

/// Leftovers, each with a number.
pub(crate) type Left = SmallVec<[(u64, Arc<Leftovers>); 2]>;

/// Undo buffers with more room are not kept: for so many changes, or so many bytes of keys and values.
const CHANGES_MAX: usize = 256;
const BYTES_MAX: usize = 32 << 10;
/// A batch has this many undo buffers: a thread keeps up to two batches, and the depot `BATCHES_MAX`.
const BUFFERS: usize = 8;
const BATCHES_MAX: usize = 16;

thread_local! {
    /// What the thread keeps for its next transactions.
    static KEPT: RefCell<Kept<UndoBuffer>> = const { RefCell::new(Kept::new()) };
}

static DEPOT: Depot<UndoBuffer> = Depot::new(BATCHES_MAX);

/// An empty undo buffer with room for `few` changes or more.
pub(crate) fn undo_buffer(few: usize) -> UndoBuffer {
    take_back(give_up);
    // Fails if the thread is about to end.
    let kept = KEPT.try_with(|kept| kept.borrow_mut().take(&DEPOT));
    kept.ok().flatten().unwrap_or_else(|| UndoBuffer::with_room_for(few))
}

/// Gives up an undo buffer, whose memory is kept for others unless that is much.
fn give_up_buffer(mut buffer: UndoBuffer) {
    let (changes, bytes) = buffer.room();
    if (1..=CHANGES_MAX).contains(&changes) && bytes <= BYTES_MAX {
        buffer.clear();
        let _ = KEPT.try_with(|kept| kept.borrow_mut().keep(buffer, &DEPOT, BUFFERS));
    }
}

thread_local! {
    /// Where other threads give back what this one has left behind.
    static OWN: RefCell<Option<Own<Arc<Leftovers>>>> = const { RefCell::new(None) };
}

/// The home of the calling thread; `None` if the thread is about to end.
fn home_of_thread() -> Option<Arc<Home<Arc<Leftovers>>>> {
    OWN.try_with(|own| own.borrow_mut().get_or_insert_with(Own::new).home().clone()).ok()
}

/// Whether this is the home of the calling thread.
fn is_own(home: &Arc<Home<Arc<Leftovers>>>) -> bool {
    let is_own = |own: &RefCell<Option<Own<_>>>| {
        own.borrow().as_ref().is_some_and(|own| Arc::ptr_eq(own.home(), home))
    };
    OWN.try_with(is_own).unwrap_or_default()
}

/// Gives up what other threads have given back to this one.
fn take_back(give_up: impl Fn(Arc<Leftovers>)) {
    let taken = OWN.try_with(|own| own.borrow_mut().as_mut().map(Own::take));
    // `OWN` is not borrowed now: it is looked at again when leftovers go.
    let Ok(Some(mut taken)) = taken else { return };
    taken.drain(..).for_each(give_up);
    let _ = OWN.try_with(|own| own.borrow_mut().as_mut().map(|own| own.put_room(taken)));
}

/// Gives up what a transaction has left behind, if no other thread still looks at it.
pub(crate) fn give_up(left: Arc<Leftovers>) {
    if let Some(left) = Arc::into_inner(left) {
        give_up_buffer(left.changed);
    }
}

/// A large value that a transaction has replaced.
pub(crate) struct Large {
    /// The record that had it; without values.
    pub record: Before,
    pub reference: BlobReference,
}

impl Large {
    /// The large value of a before-image, if it has one.
    pub fn of(before: BeforeImage<'_>) -> Option<Self> {
        let reference = before.large()?;
        Some(Self { record: before.without_value(), reference })
    }

    pub fn copy(&self) -> Self {
        Self { record: self.record.clone(), reference: self.reference }
    }
}

/// What a transaction leaves behind, until no snapshot needs it.
// Rare contents are apart, so that a thread that finds leftovers no longer needed touches little of them.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// What it has changed.
    pub changed: UndoBuffer,
    /// How many bytes of keys and old values these changes have, including large values.
    pub bytes: u64,
    /// Where leftovers go back to: the thread that committed the transaction.
    home: Option<Arc<Home<Arc<Self>>>>,
    rest: Option<Box<Rest>>,
    /// Whether some of the changes have removed records.
    has_removals: bool,
    /// Whether its changes are in the table of versions.
    is_entered: AtomicBool,
    /// The slot of its undo buffer, if that is searched.
    pub slot: Option<usize>,
}

/// What only few transactions leave behind.
#[derive(Default)]
struct Rest {
    /// Other records that it has claimed.
    touched: Vec<Before>,
    /// Records changed by transactions that were committed before, with no snapshot between them and this one.
    joined: HashTable<Before>,
    /// Those that they have only claimed.
    joined_touched: HashTable<Before>,
    /// Records changed by transactions that were committed before, if they are too many for `joined`.
    coarse: Option<Box<Coarse>>,
    /// The large values that it has replaced.
    large: Vec<Large>,
    /// The first of the transactions that were committed before.
    earliest: Option<u64>,
    /// Lists of records for which memory had no room.
    spilled: Vec<UndoList>,
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.touched.is_empty()
            && self.joined.is_empty()
            && self.joined_touched.is_empty()
            && self.coarse.is_none()
            && self.large.is_empty()
            && self.spilled.is_empty()
    }
}

impl Rest {
    /// Whether it is what one transaction has left behind, all of it in memory.
    fn is_of_one(&self) -> bool {
        self.joined.is_empty()
            && self.joined_touched.is_empty()
            && self.coarse.is_none()
            && self.spilled.is_empty()
    }

    /// Keeps the records that were joined coarsely.
    fn make_coarse(&mut self) {
        let coarse = self.coarse.get_or_insert_default();
        self.joined.drain().for_each(|record| coarse.add(record.image()));
        self.joined = HashTable::new();
    }
}

/// Adds to records, which have no values, those of others and new ones.
fn join_records(
    records: &mut HashTable<Before>,
    mut others: HashTable<Before>,
    new: impl Iterator<Item = Before>,
) {
    if records.len() < others.len() {
        std::mem::swap(records, &mut others);
    }
    for record in others.drain().chain(new) {
        records.entry(record.hash(), |one| one.is_same(record.image()), Before::hash).or_insert(record);
    }
}

/// What a transaction has changed, what it has only claimed, and what it has moved to a file.
pub(crate) type Taken = (UndoBuffer, Vec<Before>, Option<UndoList>);

impl Leftovers {
    /// Finds a changed record that a transaction with these reads has read.
    pub fn find(&self, reads: &ReadSet) -> Result<Option<Before>, PoolError> {
        let mut found = None;
        self.for_each_changed(|record| {
            if reads.has(record.tree, record.key()) {
                found = Some(record.without_value());
            }
            found.is_none().then_some(())
        })?;
        let coarse = self.rest.as_ref().and_then(|rest| rest.coarse.as_ref());
        Ok(found.or_else(|| coarse.and_then(|coarse| coarse.find(reads))))
    }

    /// The leftovers of a transaction that has made these changes, claimed these other records, and replaced these
    /// large values.
    pub fn new(
        (changed, touched, spilled): Taken,
        large: Vec<Large>,
        bytes: u64,
        exposure: Exposure,
    ) -> Self {
        let has_removals = changed.iter().any(|undo| undo.is_removal);
        let rest = Rest { touched, large, spilled: spilled.into_iter().collect(), ..Rest::default() };
        let rest = (!rest.is_empty()).then(|| Box::new(rest));
        let is_entered = AtomicBool::new(exposure == Exposure::Entered);
        let slot = exposure.slot();
        Self { changed, bytes, home: home_of_thread(), rest, has_removals, is_entered, slot }
    }

    /// Whether its changes are in the table of versions.
    pub fn is_entered(&self) -> bool {
        // Relaxed: the lock of its slot has been taken since it was entered.
        self.is_entered.load(Ordering::Relaxed)
    }

    /// Notes that its changes are in the table of versions from now on. Its slot is locked.
    pub fn note_entered(&self) {
        self.is_entered.store(true, Ordering::Relaxed);
    }

    /// About how much memory its changes take.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes + (self.changed.len() * UndoBuffer::CHANGE_BYTES) as u64
    }

    /// The records that it has claimed and not changed.
    pub fn touched(&self) -> &[Before] {
        self.rest.as_ref().map_or(&[], |rest| &rest.touched)
    }

    /// The parts that [`new`](Self::new) was given.
    pub fn into_taken(self) -> Taken {
        let Rest { touched, mut spilled, .. } = self.rest.map_or_else(Rest::default, |rest| *rest);
        (self.changed, touched, spilled.pop())
    }

    /// The leftovers of large values alone.
    pub fn of_large(large: Vec<Large>) -> Self {
        Self { rest: Some(Box::new(Rest { large, ..Rest::default() })), ..Self::default() }
    }

    /// The large values that it has replaced.
    pub fn large(&self) -> &[Large] {
        self.rest.as_ref().map_or(&[], |rest| &rest.large)
    }

    /// The first commit that has left some of it behind; `time` is the last.
    pub fn earliest(&self, time: u64) -> u64 {
        self.earliest_joined().unwrap_or(time)
    }

    fn earliest_joined(&self) -> Option<u64> {
        self.rest.as_ref().and_then(|rest| rest.earliest)
    }

    /// Whether it takes long to test reads against it: there are many records, or a file is read.
    pub fn is_long_to_test(&self) -> bool {
        const MANY: usize = 1024;
        let is_long =
            |rest: &Rest| !rest.spilled.is_empty() || rest.coarse.is_some() || rest.joined.len() > MANY;
        self.changed.len() > MANY || self.rest.as_deref().is_some_and(is_long)
    }

    /// Whether any records are known.
    pub fn has_keys(&self) -> bool {
        let has_keys = |rest: &Rest| !(rest.joined.is_empty() && rest.spilled.is_empty());
        !self.changed.is_empty() || self.rest.as_deref().is_some_and(has_keys)
    }

    /// Whether so many records are known that less is to be known of each of them.
    pub fn is_to_be_coarse(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.joined.len() > KEYS_MAX)
    }

    /// What is needed once it has been pruned: the keys of changed records, and large values.
    pub fn condensed(&self) -> Result<Self, PoolError> {
        let (large, earliest) = (self.large().iter().map(Large::copy).collect(), self.earliest_joined());
        let mut rest = Rest { large, earliest, ..Rest::default() };
        self.for_each_changed(|record| {
            match &mut rest.coarse {
                Some(coarse) => coarse.add(record),
                None => {
                    join_records(&mut rest.joined, HashTable::new(), [record.without_value()].into_iter())
                }
            }
            if rest.joined.len() > KEYS_MAX {
                rest.make_coarse();
            }
            Some(())
        })?;
        Ok(Self { rest: Some(Box::new(rest)), ..Self::default() })
    }

    /// Gives the leftovers up when no snapshot needs them: to the thread whose memory they are.
    pub fn go_home(self: Arc<Self>) {
        /// Larger ones are not given back, so that a thread that has become idle keeps little.
        const CHANGES_MAX: usize = 64;
        let is_little =
            |rest: &Rest| rest.is_of_one() && rest.touched.len() + rest.large.len() <= CHANGES_MAX;
        let is_small = self.changed.len() <= CHANGES_MAX && self.rest.as_deref().is_none_or(is_little);
        let home = self.home.as_ref().filter(|home| is_small && !is_own(home));
        let refused = match home.cloned() {
            Some(home) => home.give_back(self).err(),
            None => Some(self),
        };
        refused.into_iter().for_each(give_up);
    }

    /// Shows the records whose versions are to be looked up and removed when no snapshot needs them: all records of a
    /// large transaction, or of several that were joined. Of a small one, only removed records, whose keys cost scans
    /// as long as they are there, and those that may have been removed. The others go when their shard is
    /// [swept](crate::shard).
    pub fn for_each_to_prune(&self, mut show: impl FnMut(BeforeImage<'_>)) -> Result<(), PoolError> {
        /// No more changes than this are few.
        const FEW: usize = if cfg!(test) { 4 } else { 256 };
        if self.changed.len() <= FEW && self.rest.as_deref().is_none_or(Rest::is_of_one) {
            if self.has_removals {
                let removed = self.changed.iter().filter(|undo| undo.is_removal);
                removed.for_each(|undo| show(undo.before));
            }
            self.rest.iter().flat_map(|rest| &rest.touched).for_each(|record| show(record.image()));
            return Ok(());
        }
        self.for_each_record(|record| {
            show(record);
            Some(())
        })
    }

    /// A copy with only the large values, and the records that had them, if there are any.
    pub fn only_large(&self) -> Option<Self> {
        let large: Vec<_> = self.large().iter().map(Large::copy).collect();
        (!large.is_empty()).then(|| {
            let mut joined = HashTable::new();
            let records = large.iter().map(|large| large.record.clone());
            join_records(&mut joined, HashTable::new(), records);
            let earliest = self.earliest_joined();
            Self {
                rest: Some(Box::new(Rest { joined, large, earliest, ..Rest::default() })),
                ..Self::default()
            }
        })
    }

    /// Shows the records that were changed or claimed, some of them several times, until `show` returns `None`.
    pub fn for_each_record(
        &self,
        mut show: impl FnMut(BeforeImage<'_>) -> Option<()>,
    ) -> Result<(), PoolError> {
        let rest = self.rest.iter().flat_map(|rest| rest.touched.iter().chain(&rest.joined_touched));
        match rest.into_iter().try_for_each(|record| show(record.image())) {
            Some(()) => self.for_each_of(false, show),
            None => Ok(()),
        }
    }

    /// Shows the records that the transaction has left changed, some of them several times, until `show` returns
    /// `None`.
    fn for_each_changed(&self, show: impl FnMut(BeforeImage<'_>) -> Option<()>) -> Result<(), PoolError> {
        self.for_each_of(true, show)
    }

    /// Shows the records that were changed; of those in the file also the others, unless `is_changed`.
    fn for_each_of(
        &self,
        is_changed: bool,
        mut show: impl FnMut(BeforeImage<'_>) -> Option<()>,
    ) -> Result<(), PoolError> {
        let changed = self.changed.iter().map(|undo| undo.before);
        let joined = self.rest.iter().flat_map(|rest| &rest.joined).map(Before::image);
        let mut goes_on = changed.chain(joined).try_for_each(&mut show);
        for list in self.rest.iter().flat_map(|rest| &rest.spilled) {
            if goes_on.is_some() {
                let show = |record: BeforeImage<'_>| {
                    goes_on = show(record);
                    goes_on
                };
                if is_changed { list.for_each_changed(show) } else { list.for_each_record(show) }?;
            }
        }
        Ok(())
    }

    /// Takes over what earlier commits, of which the last is that of `time`, have left behind. No snapshot sees those and not
    /// these. Returns the large values that the earlier commits brought and these replaced: no snapshot sees them.
    pub fn join(&mut self, time: u64, mut other: Self) -> Vec<Large> {
        let rest = &mut **self.rest.get_or_insert_default();
        rest.earliest = Some(other.earliest(time));
        let mut others = other.rest.take().unwrap_or_default();
        let changed = other.changed.iter().map(|undo| undo.before.without_value());
        join_records(&mut others.joined, HashTable::new(), changed);
        // What a record had when these began is what the earlier ones left there, if they have changed it.
        let is_new = |large: &mut Large| {
            let hash = large.record.hash();
            others.joined.find(hash, |record| record.is_same(large.record.image())).is_some()
        };
        let unseen = rest.large.extract_if(.., is_new).collect();
        let changed = self.changed.iter().map(|undo| undo.before.without_value());
        join_records(&mut rest.joined, std::mem::take(&mut others.joined), changed);
        let touched =
            others.touched.drain(..).chain(rest.touched.drain(..)).map(|record| record.without_value());
        join_records(&mut rest.joined_touched, std::mem::take(&mut others.joined_touched), touched);
        give_up_buffer(std::mem::take(&mut other.changed));
        give_up_buffer(std::mem::take(&mut self.changed));
        if rest.large.len() < others.large.len() {
            std::mem::swap(&mut rest.large, &mut others.large);
        }
        rest.large.append(&mut others.large);
        match (&mut rest.coarse, others.coarse) {
            (Some(coarse), Some(other)) => coarse.join(*other),
            (None, other) => rest.coarse = other,
            (Some(_), None) => {}
        }
        if rest.coarse.is_some() {
            rest.make_coarse();
        }
        rest.spilled.append(&mut others.spilled);
        self.bytes += other.bytes;
        *self.is_entered.get_mut() |= other.is_entered();
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::undo_buffer::Undo;
    use std::{
        sync::{Weak, mpsc},
        thread,
    };
    use vellum_base::{Lsn, PageId};

    fn left(changes: usize) -> Arc<Leftovers> {
        let mut changed = UndoBuffer::default();
        for _ in 0..changes {
            let before = BeforeImage::new((PageId(1), b"key"), 0, None);
            changed.push(Undo { before, lsn: Lsn(1), is_touched: false, is_removal: false, pages: 0 });
        }
        Arc::new(Leftovers::new((changed, Vec::new(), None), Vec::new(), 0, Exposure::Entered))
    }

    fn taken_back() -> usize {
        let count = std::cell::Cell::new(0);
        take_back(|_| count.set(count.get() + 1));
        count.get()
    }

    #[test]
    fn another_thread_gives_back_what_is_small_as_far_as_there_is_room() {
        const SOME: usize = 100;
        let own = left(3);
        let weak = Arc::downgrade(&own);
        own.go_home();
        assert!(weak.upgrade().is_none(), "one's own is given up at once");
        let all: Vec<_> = (0..SOME).map(|_| left(3)).chain([left(65)]).collect();
        thread::scope(|scope| scope.spawn(|| all.into_iter().for_each(Leftovers::go_home)).join().unwrap());
        let first = taken_back();
        assert!((1..SOME).contains(&first), "{first} were given back");
        assert_eq!(taken_back(), 0);
        let again = left(1);
        thread::scope(|scope| scope.spawn(|| again.go_home()).join().unwrap());
        assert_eq!(taken_back(), 1);
    }

    #[test]
    fn what_belongs_to_a_thread_that_has_ended_is_given_up() {
        let (sender, receiver) = mpsc::channel::<Arc<Leftovers>>();
        let (go, wait) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            (0..2).for_each(|_| sender.send(left(1)).unwrap());
            wait.recv().unwrap();
        });
        let (early, late) = (receiver.recv().unwrap(), receiver.recv().unwrap());
        let weak: Vec<Weak<Leftovers>> = [&early, &late].map(Arc::downgrade).into();
        early.go_home();
        assert!(weak[0].upgrade().is_some());
        go.send(()).unwrap();
        thread.join().unwrap();
        assert!(weak[0].upgrade().is_none());
        late.go_home();
        assert!(weak[1].upgrade().is_none());
    }
}
