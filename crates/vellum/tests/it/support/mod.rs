//! What the tests of this crate share.

use vellum::Options;

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
