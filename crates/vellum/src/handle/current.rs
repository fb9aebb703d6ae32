//! Reads of the tree that a table has now.
//!
//! A read outside of transactions finds the root of the current tree, and then reads that tree. In between, a transaction may
//! replace the tree, and its former pages may be freed; the root stays, and is empty. Such a read finds nothing, though there was
//! something at any time; or what the transaction had stored there before, which is never to be seen. So a read looks afterwards
//! whether the tree is still the current one, and if not, reads the next one.

use super::Handle;
use crate::Result;
use vellum_access::{NumberedRoot, Tree};
use vellum_pool::Pool;

impl Handle {
    /// What `read` finds in the tree that is the current one before and after it.
    #[track_caller]
    pub(crate) fn find<'h, T>(
        &'h self,
        mut read: impl FnMut(Tree<'h, Pool>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        loop {
            let seen = self.open.current.word();
            match read(self.tree()) {
                Ok(_) if self.was_replaced(seen) => {}
                found => return found,
            }
        }
    }

    /// Whether this tree is no longer the current one, or is just being replaced.
    #[inline]
    pub(crate) fn was_replaced(&self, seen: NumberedRoot) -> bool {
        !self.open.current.is(seen)
    }

    /// [`multi_get_by`](Self::multi_get_by) of the tree that is the current one.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) {
        let seen = self.open.current.word();
        self.multi_get_by(self.tree(), keys, |index, value| {
            if self.was_replaced(seen)
                && value.is_ok()
                && let Some(key) = keys.get(index)
            {
                return self.show_next(key.as_ref(), |value| visit(index, value));
            }
            visit(index, value);
        });
    }

    /// Shows the value of a key of [`multi_get`](Self::multi_get) after the tree was found to be replaced.
    #[cold]
    #[inline(never)]
    fn show_next(&self, key: &[u8], show: impl FnOnce(Result<Option<&[u8]>>)) {
        match self.get(key) {
            Ok(value) => show(Ok(value.as_deref())),
            Err(error) => show(Err(error)),
        }
    }

    /// [`get_into`](Self::get_into), for the caller that is to have it within itself.
    #[inline(always)]
    pub(crate) fn get_into_inlined(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool> {
        // Not that of the tree, which would have to be kept while it is read. If the tree is a later one, it is read again.
        let seen = self.open.current.word();
        match self.get_into_by(self.tree(), key, target) {
            Ok(_) if self.was_replaced(seen) => self.get_into_next(key, target),
            found => found,
        }
    }

    /// [`get_into`](Self::get_into) after the tree was found to be replaced.
    #[cold]
    #[inline(never)]
    fn get_into_next(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool> {
        let found = self.find(|tree| Ok(self.get_into_by(tree, key, target)?.then_some(())))?;
        Ok(found.is_some())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Answer, Database, Options, Table};
    use std::sync::Arc;
    use vellum_vm::SimulatedFile;

    /// A table, and what loads the same entries in place of those that it has.
    fn replaced() -> (Table, impl Fn()) {
        let file = Arc::new(SimulatedFile::new(1));
        let database = Database::create_on(file, &Options::default().huge_pages(false)).unwrap();
        let table = database.create_table("table").unwrap();
        let replace = move || {
            let transaction = database.begin().unwrap();
            transaction.clear_table("table").unwrap();
            let entries = (0..500_u32).map(|key| (key.to_be_bytes(), [7; 100]));
            transaction.bulk_load(&transaction.table("table").unwrap(), entries).unwrap();
            transaction.commit().unwrap();
        };
        replace();
        (table, replace)
    }

    #[test]
    fn batches_find_what_has_replaced_their_tree() {
        let (table, replace) = replaced();
        let keys: Vec<_> = (0..400_u32).map(u32::to_be_bytes).collect();
        let mut submissions = table.submissions();
        for (tag, key) in keys.iter().enumerate() {
            submissions.submit_get(key, tag as u64);
        }
        replace();
        let mut found = 0;
        while !submissions.is_empty() {
            submissions.wait();
            submissions.reap(|_, key, answer| match answer.unwrap() {
                Answer::Value(Some(_)) => found += 1,
                other => panic!("{other:?} for {key:?}"),
            });
        }
        assert_eq!(found, 400);
        let check = |index: usize, value: crate::Result<Option<&[u8]>>| {
            assert!(value.unwrap().is_some(), "key {index}");
            if index == 0 {
                replace();
            }
        };
        table.multi_get_with(&keys, check);
        table.multi_get_part_with(&keys, 0..4, check);
        let mut lookups = table.lookups(&keys);
        for number in 0..400 {
            let (key, value) = lookups.next().unwrap();
            assert!(value.unwrap().is_some(), "{key:?}");
            if number % 50 == 7 {
                replace();
            }
        }
    }

    #[test]
    fn a_read_goes_on_in_the_tree_that_has_replaced_its_own() {
        let (table, replace) = replaced();
        let key = 300_u32.to_be_bytes();
        let mut roots = Vec::new();
        let found = table.handle.find(|tree| {
            roots.push(tree.root());
            if roots.len() < 4 {
                replace();
            }
            Ok(tree.get(&key)?)
        });
        assert_eq!(found.unwrap(), Some(vec![7; 100]));
        assert_eq!(roots.len(), 4, "the former trees were empty");
        // A root that is the current one again is that of another tree.
        let root = table.handle.tree().root();
        let mut times = 0;
        let found = table.handle.find(|tree| {
            times += 1;
            if times > 1 {
                return Ok(tree.get(&key)?);
            }
            replace();
            let found = tree.get(&key)?;
            (0..10).take_while(|_| table.handle.tree().root() != root).for_each(|_| replace());
            assert!(found.is_none() && table.handle.tree().root() == root);
            Ok(found)
        });
        assert_eq!((found.unwrap(), times), (Some(vec![7; 100]), 2));
        // What is not there is looked for once.
        let mut times = 0;
        let found = table.handle.find(|tree| {
            times += 1;
            Ok(tree.get(b"none")?)
        });
        assert_eq!((found.unwrap(), times), (None, 1));
    }
}
