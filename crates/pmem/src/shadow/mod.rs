//! A model of persistent memory, and the tests that run the store on it.
//!
//! [`Shadow`] is a medium in ordinary memory that records, for each word, which values it has had since the last one
//! that is certain to be durable. A flush remembers the value at that time, and a fence of the same lane makes it
//! certain. At a crash each word may hold any value from the certain one on, whatever the others hold: words are what
//! memory persists in one piece, and nothing is assumed about the order within a cache line. [`CrashStates`] enumerates
//! all such states, or a sample of them.
//!
//! A flush or a fence can be omitted by its [`Site`]: the tests must notice every omission.

mod concurrent;
mod costs;
mod damage;
mod history;
mod killed;
mod model;
mod omissions;
mod reclaiming;
mod records;
mod scenarios;
mod updates;

use crate::{
    error::{PmemError, Result},
    mapping::Mapping,
    medium::{Lane, Medium, Site},
    memory::Memory,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// One of the two steps of making a store durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    Flush,
    Fence,
}

/// A step at a site.
pub type Switch = (Site, Step);

/// Called before each fence takes effect: the moment of greatest uncertainty.
pub type Observer = Box<dyn FnMut(&CrashStates) + Send>;

/// The medium.
pub struct Shadow {
    memory: Memory,
    _mapping: Mapping,
    capacity: AtomicU64,
    most: u64,
    /// Of how many bytes the size after a cut is a multiple, as that of a file.
    cut_step: u64,
    books: Mutex<Books>,
    observer: Mutex<Option<Observer>>,
}

#[derive(Default)]
struct Books {
    /// The values that are certain to be durable, one for each word.
    durable: Vec<u64>,
    /// The other values that words may hold.
    uncertain: BTreeMap<usize, History>,
    /// For each lane, the words it flushed, and which of their values.
    pending: BTreeMap<u64, Vec<(usize, u64)>>,
    omitted: Option<Switch>,
    seen: BTreeSet<Switch>,
    costs: Costs,
}

/// The work that was requested from the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Costs {
    /// Cache lines written back.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
    /// Bytes stored.
    pub bytes: u64,
}

/// The values of a word; the first is certain to be durable, unless a later one is.
struct History {
    first: u64,
    values: VecDeque<u64>,
}

/// The states that a crash at one moment may leave.
#[derive(Clone)]
pub struct CrashStates {
    durable: Vec<u64>,
    /// The words with several possible values, the certain value first.
    pub choices: Vec<(usize, Vec<u64>)>,
    most: u64,
}

impl Shadow {
    /// An empty medium with room for `most` bytes.
    pub fn new(most: u64) -> Self {
        Self::with(vec![], most)
    }

    /// A medium with the contents that a crash left.
    pub fn with(image: Vec<u64>, most: u64) -> Self {
        let mapping = Mapping::reserve(most.next_multiple_of(4096) as usize, "a shadow").unwrap();
        // SAFETY: the mapping lives as long as the memory, and is accessed through it alone.
        let memory = unsafe { Memory::new(mapping.base(), most) };
        for (word, to) in image.iter().zip(memory.words(0, image.len())) {
            to.store(*word, Ordering::Relaxed);
        }
        let capacity = AtomicU64::new(image.len() as u64 * 8);
        let books = Mutex::new(Books { durable: image, ..Books::default() });
        Self { memory, _mapping: mapping, capacity, most, cut_step: 1, books, observer: Mutex::new(None) }
    }

    /// After a cut the size is a multiple of this many bytes.
    pub fn cut_at(self, cut_step: u64) -> Self {
        Self { cut_step, ..self }
    }

    /// Omits a step from now on.
    pub fn omit(self, switch: Option<Switch>) -> Self {
        self.books().omitted = switch;
        self
    }

    /// Calls an observer before each fence.
    pub fn observe(self, observer: Observer) -> Self {
        self.set_observer(observer);
        self
    }

    /// Calls an observer before each fence from now on.
    pub fn set_observer(&self, observer: Observer) {
        *self.observer.lock().unwrap() = Some(observer);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// How many words there are.
    pub fn capacity_words(&self) -> u64 {
        self.capacity() / 8
    }

    /// The word of this number.
    pub fn word(&self, number: u64) -> u64 {
        self.memory.word(number * 8).load(Ordering::Relaxed)
    }

    /// The steps that were taken, or omitted.
    pub fn seen(&self) -> BTreeSet<Switch> {
        self.books().seen.clone()
    }

    /// The work requested so far.
    pub fn costs(&self) -> Costs {
        self.books().costs
    }

    /// The states that a crash now may leave.
    pub fn crash_states(&self) -> CrashStates {
        let books = self.books();
        let open = books.uncertain.iter().filter(|(_, history)| history.values.len() > 1);
        let choices = open.map(|(word, history)| (*word, history.values.iter().copied().collect()));
        CrashStates { durable: books.durable.clone(), choices: choices.collect(), most: self.most }
    }
}

impl CrashStates {
    /// How many states there are, if they can be counted.
    pub fn count(&self) -> Option<u64> {
        self.choices.iter().try_fold(1u64, |count, (_, values)| count.checked_mul(values.len() as u64))
    }

    /// What is left if only the process ends now: everything that it stored, no more certain than before, except for
    /// pending flushes.
    pub fn killed(&self) -> Shadow {
        let shadow = Shadow::with(self.image(|_, values| values[values.len() - 1]), self.most);
        let history =
            |(word, values): &(usize, Vec<u64>)| (*word, History { first: 0, values: values.clone().into() });
        *shadow.books() = Books {
            durable: self.durable.clone(),
            uncertain: self.choices.iter().map(history).collect(),
            ..Books::default()
        };
        shadow
    }

    fn image(&self, pick: impl Fn(usize, &[u64]) -> u64) -> Vec<u64> {
        let mut image = self.durable.clone();
        for (number, (word, values)) in self.choices.iter().enumerate() {
            if let Some(to) = image.get_mut(*word) {
                *to = pick(number, values);
            }
        }
        image
    }

    /// Calls `visit` with all states if there are at most `most`. Otherwise with `most` of them: the two extremes,
    /// first the one in which nothing is lost, then states that differ from an extreme in one word, and random ones.
    /// Returns whether it was all.
    pub fn for_each(&self, most: u64, seed: u64, mut visit: impl FnMut(Shadow)) -> bool {
        let mut show = |image: Vec<u64>| visit(Shadow::with(image, self.most));
        if let Some(count) = self.count().filter(|count| *count <= most) {
            for state in 0..count {
                let mut rest = state;
                let mut digits = vec![0; self.choices.len()];
                for (digit, (_, values)) in digits.iter_mut().zip(&self.choices) {
                    *digit = (rest % values.len() as u64) as usize;
                    rest /= values.len() as u64;
                }
                show(self.image(|number, values| values[digits[number]]));
            }
            return true;
        }
        let last = |values: &[u64]| values[values.len() - 1];
        show(self.image(|_, values| last(values)));
        show(self.image(|_, values| values[0]));
        // The first words of many: heads come before contents.
        let alone = (most / 3).min(self.choices.len() as u64) as usize;
        let stride = (self.choices.len() / alone.max(1)).max(1);
        for one in (0..self.choices.len()).step_by(stride) {
            show(self.image(|number, values| if number == one { last(values) } else { values[0] }));
            show(self.image(|number, values| if number == one { values[0] } else { last(values) }));
        }
        let mut random = seed;
        let mut draw = move || {
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            crate::layout::mix(random)
        };
        for _ in 0..most / 3 {
            let draws: Vec<u64> = self.choices.iter().map(|_| draw()).collect();
            show(self.image(|number, values| values[(draws[number] % values.len() as u64) as usize]));
        }
        false
    }
}

impl Medium for Shadow {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn touched(&self, at: u64, bytes: usize) {
        let mut books = self.books();
        let books = &mut *books;
        books.costs.bytes += bytes as u64;
        for word in (at / 8) as usize..((at + bytes as u64).div_ceil(8)) as usize {
            let value = self.memory.word(word as u64 * 8).load(Ordering::Relaxed);
            let durable = books.durable[word];
            match books.uncertain.get_mut(&word) {
                Some(history) if history.values.back() == Some(&value) => {}
                Some(history) => history.values.push_back(value),
                None if value == durable => {}
                None => {
                    let values = VecDeque::from([durable, value]);
                    books.uncertain.insert(word, History { first: 0, values });
                }
            }
        }
    }

    fn flush(&self, lane: &mut Lane, site: Site, at: u64, bytes: usize) {
        let mut books = self.books();
        books.seen.insert((site, Step::Flush));
        if books.omitted == Some((site, Step::Flush)) {
            return;
        }
        books.costs.lines += (at + bytes as u64).div_ceil(64) - at / 64;
        let lines = (at / 64 * 8) as usize..((at + bytes as u64).div_ceil(64) * 8) as usize;
        let flushed: Vec<(usize, u64)> = books
            .uncertain
            .range(lines)
            .map(|(word, history)| (*word, history.first + history.values.len() as u64 - 1))
            .collect();
        books.pending.entry(lane.number).or_default().extend(flushed);
    }

    fn fence(&self, lane: &mut Lane, site: Site) -> Result<()> {
        let omitted = {
            let mut books = self.books();
            books.seen.insert((site, Step::Fence));
            books.costs.fences += 1;
            books.omitted == Some((site, Step::Fence))
        };
        // A test may plant a panic in an observer.
        if let Some(observer) = self.observer.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            observer(&self.crash_states());
        }
        if omitted {
            return Ok(());
        }
        let mut books = self.books();
        let books = &mut *books;
        for (word, number) in books.pending.remove(&lane.number).unwrap_or_default() {
            let Some(history) = books.uncertain.get_mut(&word) else { continue };
            while history.first < number {
                history.first += 1;
                history.values.pop_front();
            }
            books.durable[word] = history.values[0];
        }
        // Histories with a single value are kept as long as a pending flush of a thread may refer to their numbers.
        if books.pending.is_empty() {
            books.uncertain.retain(|_, history| history.values.len() > 1);
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn grow(&self, to: u64) -> Result<()> {
        if to > self.most {
            return Err(PmemError::Full { reason: "the shadow may not grow further".into() });
        }
        let mut books = self.books();
        let to = to.max(self.capacity());
        books.durable.resize((to / 8) as usize, 0);
        self.capacity.store(to, Ordering::Relaxed);
        Ok(())
    }

    fn shrink(&self, to: u64) -> Result<()> {
        let to = to.next_multiple_of(self.cut_step);
        if to >= self.capacity() {
            return Ok(());
        }
        let mut books = self.books();
        let words = (to / 8) as usize;
        books.durable.truncate(words);
        books.uncertain.split_off(&words);
        books.pending.values_mut().for_each(|pending| pending.retain(|(word, _)| *word < words));
        for word in self.memory.words(to, ((self.capacity() - to) / 8) as usize) {
            word.store(0, Ordering::Relaxed);
        }
        self.capacity.store(to, Ordering::Relaxed);
        Ok(())
    }
}

/// The shadow by itself.
mod tests {
    use super::*;

    fn set(shadow: &Shadow, at: u64, value: u64) {
        shadow.memory.word(at).store(value, Ordering::Relaxed);
        shadow.touched(at, 8);
    }

    fn states(shadow: &Shadow, words: [u64; 2]) -> BTreeSet<[u64; 2]> {
        let mut found = BTreeSet::new();
        let all = shadow.crash_states().for_each(1000, 1, |state| {
            found.insert(words.map(|at| state.memory.word(at).load(Ordering::Relaxed)));
        });
        assert!(all);
        found
    }

    #[test]
    fn what_is_not_flushed_and_fenced_may_or_may_not_be_there() {
        let shadow = Shadow::new(4096);
        shadow.grow(4096).unwrap();
        let mut lane = Lane::default();
        set(&shadow, 0, 1);
        set(&shadow, 0, 2);
        set(&shadow, 64, 9);
        let every = BTreeSet::from([[0, 0], [1, 0], [2, 0], [0, 9], [1, 9], [2, 9]]);
        assert_eq!(states(&shadow, [0, 64]), every);
        shadow.flush(&mut lane, Site::Record, 0, 8);
        assert_eq!(states(&shadow, [0, 64]), every, "a flush alone makes nothing certain");
        set(&shadow, 0, 3);
        shadow.fence(&mut Lane { number: 7, ..Lane::default() }, Site::Record).unwrap();
        assert_eq!(states(&shadow, [0, 64]).len(), 8, "another lane's fence does not count");
        shadow.fence(&mut lane, Site::Record).unwrap();
        assert_eq!(states(&shadow, [0, 64]), BTreeSet::from([[2, 0], [3, 0], [2, 9], [3, 9]]));
    }

    #[test]
    fn a_step_that_is_left_out_has_no_effect() {
        for step in [Step::Flush, Step::Fence] {
            let shadow = Shadow::new(4096).omit(Some((Site::Record, step)));
            shadow.grow(4096).unwrap();
            let mut lane = Lane::default();
            set(&shadow, 0, 1);
            shadow.flush(&mut lane, Site::Record, 0, 8);
            shadow.fence(&mut lane, Site::Record).unwrap();
            assert_eq!(states(&shadow, [0, 64]).len(), 2);
            shadow.flush(&mut lane, Site::Publish, 0, 8);
            shadow.fence(&mut lane, Site::Publish).unwrap();
            assert_eq!(states(&shadow, [0, 64]).len(), 1);
        }
    }
}
