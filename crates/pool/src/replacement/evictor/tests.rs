//! The evictor in a whole pool.

use crate::{Pool, PoolOptions};
use std::sync::Arc;
use vellum_base::{Extent, PageId, PageKind};
use vellum_vm::SimulatedFile;

fn filled(pool: &Pool, pages: u32, value: u8) -> Extent {
    let mut guard = pool.allocate(pages, PageKind::USER).unwrap();
    guard.payload_mut().fill(value);
    guard.keep().extent()
}

/// Between the moment when the clock finds an extent and the moment when it is latched, the extent is freed, and
/// shorter ones take its place.
#[test]
fn an_extent_that_was_replaced_since_it_was_found_is_left_alone() {
    for dirty in [false, true] {
        let options =
            PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24).background_eviction(false);
        let mut pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let old = filled(&pool, 3, 1);
        pool.checkpoint().unwrap();
        if dirty {
            pool.exclusive(old).unwrap().payload_mut().fill(2);
        }
        // The next free page is one of these, so that the extent's place is taken by three single ones.
        let found = pool.evictor().gather(3, 1 << 20, |_| true);
        assert_eq!(found, [old]);
        pool.exclusive(old).unwrap().free();
        let mut singles = Vec::new();
        while !(old.head.0..old.end().0).all(|page| singles.contains(&Extent::page(PageId(page)))) {
            assert!(singles.len() < 20, "the place is not taken");
            singles.push(filled(&pool, 1, 3));
        }
        if !dirty {
            pool.checkpoint().unwrap();
        }
        // The clock has passed the new extents too.
        let head = pool.table().state(old.head);
        assert!(head.load().is_marked() || head.try_mark(head.load()));
        assert_eq!(head.load().is_dirty(), dirty);
        let resident = pool.statistics().pages_resident;
        let written = pool.statistics().pages_written;
        // One of them is latched, as its owner may do.
        let held = pool.exclusive(Extent::page(PageId(old.head.0 + 1))).unwrap();
        assert_eq!(pool.evictor().evict(found).unwrap(), 0);
        assert!(held.payload().iter().all(|byte| *byte == 3), "memory of another extent was released");
        drop(held);
        assert_eq!(pool.statistics().pages_resident, resident);
        assert_eq!(pool.statistics().pages_written, written);
        for single in singles {
            assert!(pool.shared(single).unwrap().payload().iter().all(|byte| *byte == 3));
        }
    }
}
