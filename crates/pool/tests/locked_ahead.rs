//! A process that locks all memory that it will ever map. Alone in its file, because it is the whole process that does.

use vellum_base::PageKind;
use vellum_pool::{Pool, PoolOptions};
use vellum_vm::resident_bytes;

const POOL_BYTES: u64 = 1 << 20;

unsafe extern "C" {
    fn mlockall(flags: i32) -> i32;
}

#[test]
fn a_pool_takes_no_more_memory_than_its_limit_in_a_process_that_locks_what_it_maps() {
    const CURRENT_AND_FUTURE: i32 = 1 | 2;
    let directory = tempfile::tempdir().unwrap();
    // SAFETY: it locks memory, and changes none.
    if unsafe { mlockall(CURRENT_AND_FUTURE) } != 0 {
        return eprintln!("the system does not let this process lock its memory");
    }
    let before = resident_bytes().unwrap();
    let options = PoolOptions::default().pool_bytes(POOL_BYTES).capacity_bytes(1 << 30).huge_pages(false);
    let pool = Pool::create(directory.path().join("f"), &options).unwrap();
    for _ in 0..8192 {
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
    // Stacks and what the allocator maps are in memory as a whole.
    let grown = resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < POOL_BYTES + (64 << 20), "{grown} bytes more; {:?}", pool.statistics());
}
