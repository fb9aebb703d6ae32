//! What is resident in a whole pool.

use crate::{Pool, PoolOptions};
use std::sync::Arc;
use vellum_base::PageKind;
use vellum_vm::SimulatedFile;

#[test]
fn a_changed_page_that_is_seen_twice_is_named_once_and_in_order() {
    let options = PoolOptions::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 24)
        .background_eviction(false)
        .huge_pages(false);
    let mut pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    for _ in 0..5 {
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
    let pages = pool.allocator().pages();
    let all = pages.changed();
    assert_eq!(all.len(), 5);
    let twice = pages.changed_among(|see| {
        all.iter().rev().chain(&all[2..]).for_each(|extent| see(*extent));
    });
    assert_eq!(twice, all);
    pool.checkpoint().unwrap();
    assert_eq!(pool.allocator().pages().changed(), []);
}
