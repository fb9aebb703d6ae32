//! How many flushes of the TLB batches take on `/dev/exmap`. In a file of its own, and so in an address space of its own:
//! a call that meets another one's flush under way there flushes too. Without the device it does nothing, and says so.

use std::sync::Arc;
use vellum_base::PAGE_SIZE;
use vellum_vm::{PageMemory, PageMemoryOptions, PageRange, ReleaseMethod, SimulatedFile};

/// Every third page of the mapping.
const PAGES: usize = 512;

fn page(memory: &PageMemory, number: usize) -> *mut u8 {
    memory.pages.base().as_ptr().wrapping_add(3 * number * PAGE_SIZE)
}

#[test]
fn pages_come_and_go_in_batches_with_one_flush_each() {
    let options = PageMemoryOptions {
        wanted_bytes: 3 * PAGES * PAGE_SIZE,
        least_bytes: 3 * PAGES * PAGE_SIZE,
        resident_pages_max: 1024,
        method: Some(ReleaseMethod::Exmap),
    };
    let memory = match PageMemory::reserve(&options, Arc::new(SimulatedFile::new(1))) {
        Ok(memory) => memory,
        Err(error) => {
            assert!(std::env::var_os("EXMAP_EXPECTED").is_none(), "the device should be there: {error}");
            eprintln!("SKIPPED: {error}");
            return;
        }
    };
    let ranges: Vec<_> =
        (0..PAGES).map(|number| PageRange { address: page(&memory, number), bytes: PAGE_SIZE }).collect();
    for round in 1..=10 {
        memory.releaser.supply(&ranges).unwrap();
        for number in 0..PAGES {
            // SAFETY: the page has memory, and this test is alone with it.
            unsafe { page(&memory, number).write_bytes(round, PAGE_SIZE) };
        }
        // SAFETY: every page of the mapping can be read.
        assert!((0..PAGES).all(|number| unsafe { page(&memory, number).read_volatile() } == round));
        // SAFETY: the ranges lie in the mapping, and no reference into it exists.
        unsafe { memory.releaser.release(&ranges).unwrap() };
    }
    let counters = memory.releaser.exmap_counters().unwrap();
    assert_eq!((counters.pages_supplied, counters.pages_released), (5120, 5120));
    assert_eq!((counters.flushes, counters.flushes_blank), (10, 0));
    assert_eq!(memory.releaser.fallback_count(), 0);
}
