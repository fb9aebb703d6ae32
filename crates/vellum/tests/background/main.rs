//! The threads of a database in the background: what becomes known of their panics, and options that are extreme.

mod extremes;
#[path = "../hooked/mod.rs"]
mod hooked;
mod threads;

use vellum::Options;

fn options() -> Options {
    Options::default().pool_bytes(4 << 20).capacity_bytes(1 << 30).huge_pages(false)
}
