//! Changing a value where it lies.

use crate::tree::{
    Batch, Found, Tree, Written, change::write::Mode, check_key, descend::group::GROUP_SIZE,
    descend::operation::Located, latch, view_of,
};
use crate::{
    AccessError,
    blob::write_blob,
    error::damaged,
    node::{Find, NodeMut, NodeView, ValueKind},
    value::{Held, Value},
};
use vellum_base::PageId;
use vellum_pool::{ExclusivePage, Interrupt, OptimisticPage, Pager};

/// How one attempt ended.
enum Attempt<T> {
    Nothing,
    Changed(T),
    /// The value is a large one.
    Large,
}

/// A leaf in which values were changed one after the other, and nothing else happened.
#[derive(Clone, Copy)]
struct Changed {
    /// The page, and its token when the values were found in it.
    found: (PageId, u64),
    /// Its token after the last change.
    left: u64,
}

/// Whether a key is the one before, or differs from it in the last byte alone.
#[inline]
fn follows<K: AsRef<[u8]>>(keys: &[K], index: usize) -> bool {
    let key = |index: usize| keys.get(index).and_then(|key| key.as_ref().split_last());
    let before = index.checked_sub(1).and_then(key);
    before.zip(key(index)).is_some_and(|((_, before), (_, this))| before == this)
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Lets `change` change the bytes of the value of `key`, whose length stays the same, and returns what it
    /// returns; `None`, without calling it, if there is no value. Nobody reads or writes the value in between,
    /// so that several threads may count in one value.
    ///
    /// A value in a leaf is changed where it lies, under the leaf's latch: `change` should be short, and must not
    /// use the tree. A large value is copied, changed and stored anew, and if somebody else was faster, again:
    /// `change` may then be called several times, each time with the value as it is then; what it returned
    /// last counts. If it panics, the pool takes the page for half changed and is not closed cleanly any more.
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`update`](Self::update). The value is then as it was.
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// tree.insert(b"visits", &[7, 0])?;
    /// let before = tree.modify(b"visits", |value| {
    ///     value[0] += 1;
    ///     value[0] - 1
    /// })?;
    /// assert_eq!((before, tree.get(b"visits")?), (Some(7), Some(vec![8, 0])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn modify<T>(
        &self,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        check_key(key)?;
        loop {
            match self.pager.run(|| self.try_modify(key, &mut change))? {
                Attempt::Nothing => return Ok(None),
                Attempt::Changed(result) => return Ok(Some(result)),
                Attempt::Large => {
                    if let Some(result) = self.exchange_blob(key, &mut change)? {
                        return Ok(Some(result));
                    }
                }
            }
        }
    }

    /// Does for many keys what [`modify`](Self::modify) does for one, with up to `depth` reads under way at once: lets
    /// `change` change the values, each with the number of its key, and tells `visit` of each whether there was one. Each
    /// change is atomic by itself. If a key occurs twice, its value is changed twice.
    ///
    /// Several changes are on their way to their leaves at once, so their cache misses overlap.
    ///
    /// # Errors
    /// Each change has its own, as for [`modify`](Self::modify).
    pub fn multi_modify<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        mut change: impl FnMut(usize, &mut [u8]),
        mut visit: impl FnMut(usize, Result<bool, AccessError>),
    ) {
        let (mut number, mut last) = (0, None);
        let mut change_one = |key: &[u8], located: Result<Option<Located>, AccessError>, last: &mut _| {
            let mut change_it = |value: &mut [u8]| change(number, value);
            let changed = located.and_then(|located| {
                let Some(at) = located else { return Ok(false) };
                // If that fails, the leaf has changed since, or the value is a large one.
                Ok(self.modify_at(at, last, &mut change_it) || self.modify(key, change_it)?.is_some())
            });
            visit(number, changed);
            number += 1;
        };
        let mut rest = keys;
        while !rest.is_empty() {
            let (group, located) = self.locate_firsts(rest);
            let Some(located) = located else { break };
            let (mut firsts, mut done) = (located.into_iter(), 0);
            for (index, key) in group.iter().map(AsRef::as_ref).enumerate() {
                let located = if follows(group, index) {
                    self.beside(key, last).map(Some).or_else(|| self.locate_one(key))
                } else {
                    firsts.next()
                };
                let Some(located) = located else { break };
                change_one(key, Ok(located), &mut last);
                done = index + 1;
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        if rest.is_empty() {
            return;
        }
        // Something has to be waited for: for as much as can be at once.
        let mut batch: Batch<'_, P, _, &[u8]> = Batch::new(self.pager, depth);
        batch.locate(*self, rest.iter().map(AsRef::as_ref), |key, at| change_one(key, at, &mut last));
    }

    /// The keys that make a group, and where the values are of those that do not follow another one; nothing if that cannot
    /// be found without waiting. What follows is mostly in the same leaf, and looked for there first.
    fn locate_firsts<'k, K: AsRef<[u8]>>(
        &self,
        keys: &'k [K],
    ) -> (&'k [K], Option<[Option<Located>; GROUP_SIZE]>) {
        let mut firsts = [&[][..]; GROUP_SIZE];
        let (mut count, mut end) = (0, 0);
        for (index, key) in keys.iter().enumerate() {
            if !follows(keys, index) {
                let Some(first) = firsts.get_mut(count) else { break };
                *first = key.as_ref();
                count += 1;
            }
            end = index + 1;
        }
        let located = firsts.get(..count).and_then(|firsts| self.locate_group(firsts));
        (keys.get(..end).unwrap_or_default(), located)
    }

    /// Where the value of a key is, or that there is none; nothing if that cannot be found without waiting.
    fn locate_one(&self, key: &[u8]) -> Option<Option<Located>> {
        self.locate_group(&[key]).and_then(|located| located.first().copied())
    }

    /// Where the value of a key is, if it is in the leaf in which one was changed last.
    fn beside(&self, key: &[u8], last: Option<Changed>) -> Option<Located> {
        let Changed { found: (leaf, token), left } = last?;
        let page = self.pager.reacquire(leaf, left)?;
        let Find { index, found } = NodeView::new(page.bytes()).find(key);
        page.validate().ok()?;
        found.then_some(Located { leaf, token, index })
    }

    /// Changes a small value in a leaf that is what it was when it was found there, but for the `last` changes, which move
    /// nothing.
    fn modify_at(&self, at: Located, last: &mut Option<Changed>, change: &mut impl FnMut(&mut [u8])) -> bool {
        let found = (at.leaf, at.token);
        let token = last.filter(|last| last.found == found).map_or(at.token, |last| last.left);
        let Some(leaf) = self.pager.reacquire(at.leaf, token) else { return false };
        let Ok(mut guard) = latch::<P>(leaf) else { return false };
        let changed = matches!(Self::change_at(&mut guard, at.index, change), Ok(Attempt::Changed(())));
        if changed {
            *last = Some(Changed { found, left: self.pager.relax(guard).token() });
        }
        changed
    }

    fn try_modify<T>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Attempt<T>, Interrupt> {
        let leaf = self.leaf(key)?;
        let find = NodeView::new(leaf.bytes()).find(key);
        if !find.found {
            leaf.validate()?;
            return Ok(Attempt::Nothing);
        }
        // Latching fails if the leaf has changed, so what was found before still holds.
        let mut guard = latch::<P>(leaf)?;
        Self::change_at(&mut guard, find.index, change)
    }

    #[inline]
    fn change_at<T>(
        guard: &mut P::Exclusive<'p>,
        index: usize,
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Attempt<T>, Interrupt> {
        if view_of(guard).value_location(index).kind == ValueKind::Blob {
            return Ok(Attempt::Large);
        }
        let id = guard.id();
        let mut node = NodeMut::new(guard.page_mut());
        let value = node.value_mut(index).map_err(|fault| damaged(id, fault))?;
        Ok(Attempt::Changed(change(value)))
    }

    /// Stores a changed copy of a large value, unless it is another one by then, or none any more.
    fn exchange_blob<T>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        let mut small = Vec::new();
        let Found::Blob(old, guard) = self.look_up(key, &mut small)? else { return Ok(None) };
        let mut value = Value::<P>(Held::Blob { guard, length: old.length as usize }).into_vec();
        let result = change(&mut value);
        let new = write_blob(self.pager, old.length, &mut &value[..])?;
        let written = self.place_blob(key, new, Mode::Exchange(old))?;
        Ok((written == Written::Replaced).then_some(result))
    }
}
