//! What the tests of this crate share.

use vellum::{Database, Error, Options};

/// A small database of which nothing happens in the background.
pub fn options() -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .background_eviction(false)
        .huge_pages(false)
        .background_checkpoints(false)
}

/// A transaction has changed what this would change: one that was committed, or one that is open.
#[track_caller]
pub fn assert_conflict<T: std::fmt::Debug>(done: vellum::Result<T>, is_committed: bool) {
    assert!(
        matches!(&done, Err(Error::Conflict { committed, .. }) if *committed == is_committed),
        "{done:?}"
    );
}

/// Every page is sound.
#[track_caller]
pub fn assert_clean(database: &Database) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}
