//! The memory limit, as the system sees it. Alone in its file, because it looks at the whole process.

mod common;

use common::{fill, is_filled};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use vellum_base::{Extent, PageKind};
use vellum_pool::{Pool, PoolError, PoolOptions};
use vellum_vm::resident_bytes;

const POOL_BYTES: u64 = 64 * 4096;
const DATA_BYTES: u64 = 48 << 20;
/// What the process may take beside the pool: stacks, buffers of the I/O, states and bits of all pages.
const SLACK_BYTES: u64 = 8 << 20;

#[test]
fn the_process_stays_small_whatever_the_size_of_the_data() {
    let directory = tempfile::tempdir().unwrap();
    let before = resident_bytes().unwrap();
    let options = PoolOptions::default().pool_bytes(POOL_BYTES);
    let pool = Pool::create(directory.path().join("pool"), &options).unwrap();
    let limit = before + POOL_BYTES + SLACK_BYTES;
    let (stop, mut largest) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let outcome = work(&pool);
            stop.store(true, Ordering::Relaxed);
            outcome
        });
        while !stop.load(Ordering::Relaxed) && !worker.is_finished() {
            largest = largest.max(resident_bytes().unwrap());
            assert!(pool.statistics().pages_resident <= POOL_BYTES / 4096);
            std::thread::sleep(Duration::from_millis(1));
        }
        worker.join().unwrap().unwrap();
    });
    assert!(largest <= limit, "{largest} bytes were resident at once, {before} at first");
    assert!(pool.statistics().pages_allocated * 4096 > DATA_BYTES);
}

fn work(pool: &Pool) -> Result<(), PoolError> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut extents: Vec<Extent> = Vec::new();
    let mut pages = 0;
    while pages * 4096 < DATA_BYTES {
        let mut guard = pool.allocate(rng.random_range(1..=8), PageKind::USER)?;
        let extent = guard.extent();
        fill(extent, 1, guard.payload_mut());
        pages += u64::from(extent.pages);
        extents.push(extent);
        drop(guard.keep());
    }
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let extent = extents[rng.random_range(0..extents.len())];
        assert!(is_filled(extent, 1, pool.shared(extent)?.payload()));
    }
    Ok(())
}
