//! A process that locks all its memory. Alone in its file, because it is the whole process that does.

use vellum_base::PageKind;
use vellum_pool::{Pool, PoolOptions};
use vellum_vm::{ReleaseMethod, resident_bytes};

const POOL_BYTES: u64 = 8 << 20;

unsafe extern "C" {
    fn mlockall(flags: i32) -> i32;
}

#[test]
fn the_limit_holds_in_a_process_that_locks_its_memory() {
    const CURRENT_ON_FAULT: i32 = 1 | 4;
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().pool_bytes(POOL_BYTES).capacity_bytes(1 << 30).huge_pages(false);
    let pool = Pool::create(directory.path().join("f"), &options).unwrap();
    // SAFETY: it locks memory, and changes none.
    if unsafe { mlockall(CURRENT_ON_FAULT) } != 0 {
        return eprintln!("the system does not let this process lock its memory");
    }
    let before = resident_bytes().unwrap();
    for _ in 0..32768 {
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
    let statistics = pool.statistics();
    let grown = resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < POOL_BYTES + (8 << 20), "{grown} bytes more; {statistics:?}");
    // The kernel refuses to release locked memory, and exmap does not ask it.
    assert_eq!(statistics.releases_refused > 0, statistics.release_method != ReleaseMethod::Exmap);
}
