//! Models of redo on demand: its beginning, and its end while a thread reads.

use super::{check, note};
use crate::{
    error::PoolError,
    io::on_demand::{OnDemand, RedoOnDemand},
};
use loom::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use std::sync::Arc;
use vellum_base::{Extent, PageId};

const PAGE: PageId = PageId(1);

/// A page, and how often it was redone. Relaxed: what is under test is to show it.
#[derive(Default)]
struct Page(AtomicU64);

impl Page {
    fn redo(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn lacks_changes(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Redoes a page when it is asked.
struct Redo(Arc<Page>);

impl RedoOnDemand for Redo {
    fn redo(&self, page: PageId) -> Result<(), PoolError> {
        assert_eq!(page, PAGE);
        note(1);
        self.0.redo();
        Ok(())
    }

    fn forget(&self, _: PageId) {}
}

/// A page that lacks changes, what redoes it, and what is to be asked.
fn parts() -> (Arc<Page>, Arc<dyn RedoOnDemand>, Arc<OnDemand>) {
    let page = Arc::<Page>::default();
    (page.clone(), Arc::new(Redo(page)), Arc::new(OnDemand::new()))
}

model!(no_page_is_read_that_lacks_changes, [RelaxedEndOfRedo, RelaxedLookAtRedo], [0, 1], || {
    let (page, redo, on_demand) = parts();
    on_demand.begin(Arc::downgrade(&redo));
    let reader = {
        let (page, on_demand) = (page.clone(), on_demand.clone());
        thread::spawn(move || {
            on_demand.before(Extent::page(PAGE)).expect("what redoes pages is gone before its end");
            assert!(!page.lacks_changes(), "a page is read that lacks changes");
            note(0);
        })
    };
    page.redo();
    on_demand.end();
    // Loom switches threads only at its own operations. So it would not notice if the reader followed its reference after
    // it has given up the lock.
    drop(redo);
    reader.join().unwrap();
});

model!(who_sees_that_redo_is_needed_finds_whom_to_ask, [NeededBeforeNamed], [1, 2], || {
    let (page, redo, on_demand) = parts();
    let reader = {
        let (page, on_demand) = (page.clone(), on_demand.clone());
        thread::spawn(move || {
            if on_demand.is_needed() {
                on_demand.before(Extent::page(PAGE)).unwrap();
                assert!(!page.lacks_changes(), "a page is read that lacks changes");
            } else {
                note(2);
            }
        })
    };
    on_demand.begin(Arc::downgrade(&redo));
    reader.join().unwrap();
});
