//! A pool of a few pages: what was written comes back, across evictions and across a close.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use vellum_base::{Extent, PageId, PageKind};
use vellum_pool::{Navigation, Pool, PoolError, PoolOptions};

fn fill(extent: Extent, round: u64, bytes: &mut [u8]) {
    let mut rng = StdRng::seed_from_u64(extent.head.0 ^ round << 32);
    rng.fill(bytes);
}

fn check(extent: Extent, round: u64, bytes: &[u8]) {
    let mut expected = vec![0; bytes.len()];
    fill(extent, round, &mut expected);
    assert!(bytes == expected, "{extent} does not hold what was written in round {round}");
}

#[test]
fn contents_survive_evictions_and_a_close() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 30);
    let mut rng = StdRng::seed_from_u64(1);
    let pool = Pool::create(&path, &options).unwrap();
    let mut extents = Vec::new();
    for _ in 0..400 {
        let pages = if rng.random_ratio(1, 4) { rng.random_range(2..12) } else { 1 };
        let mut guard = pool.allocate(pages, PageKind::USER).unwrap();
        let extent = guard.extent();
        fill(extent, 0, guard.payload_mut());
        drop(guard.keep());
        extents.push((extent, 0));
    }
    for round in 1..4000 {
        let at = rng.random_range(0..extents.len());
        let (extent, last) = extents[at];
        if rng.random() {
            check(extent, last, pool.shared(extent).unwrap().payload());
        } else if rng.random_ratio(1, 5) {
            pool.exclusive(extent).unwrap().free();
            extents.swap_remove(at);
        } else {
            let mut guard = pool.exclusive(extent).unwrap();
            check(extent, last, guard.payload());
            fill(extent, round, guard.payload_mut());
            extents[at].1 = round;
        }
        assert!(pool.statistics().pages_resident <= 64);
    }
    pool.set_root_slot(3, 42).unwrap();
    assert!(pool.statistics().pages_evicted > 1000);
    pool.close().unwrap();

    let pool = Pool::open(&path, &options).unwrap();
    assert_eq!(pool.root_slot(3), 42);
    let mut found = Vec::new();
    pool.for_each_extent(|extent| found.push(extent));
    let mut expected: Vec<_> = extents.iter().map(|(extent, _)| *extent).chain(pool.own_extents()).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for (extent, round) in &extents {
        check(*extent, *round, pool.shared(*extent).unwrap().payload());
    }
    let (extent, _) = extents[0];
    let wrong = Extent { pages: extent.pages + 1, ..extent };
    assert!(matches!(pool.shared(wrong), Err(PoolError::Corruption { .. })));
    let beyond = Extent::page(PageId(u64::MAX));
    assert!(matches!(pool.shared(beyond), Err(PoolError::Corruption { .. })));
    // Nothing was changed, so the file stays closed.
    drop(pool);
    Pool::open(&path, &options).unwrap().close().unwrap();
}

#[test]
fn a_pool_that_was_changed_and_not_closed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().capacity_bytes(1 << 30);
    let mut pool = Pool::create(&path, &options).unwrap();
    pool.checkpoint().unwrap();
    pool.checkpoint().unwrap();
    drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    drop(pool);
    assert!(matches!(Pool::open(&path, &options), Err(PoolError::NotClosedCleanly { .. })));
}

#[test]
fn a_change_in_memory_alone_counts_as_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().capacity_bytes(1 << 30);
    let pool = Pool::create(&path, &options).unwrap();
    let extent = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    pool.close().unwrap();
    let pool = Pool::open(&path, &options).unwrap();
    pool.exclusive(extent).unwrap().payload_mut()[0] = 1;
    drop(pool);
    assert!(matches!(Pool::open(&path, &options), Err(PoolError::NotClosedCleanly { .. })));
}

#[test]
fn a_panic_in_the_middle_of_a_change_is_not_declared_sound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().capacity_bytes(1 << 30);
    let mut pool = Pool::create(&path, &options).unwrap();
    let extent = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    pool.checkpoint().unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guard = pool.exclusive(extent).unwrap();
        guard.payload_mut()[0] = 1;
        panic!("half way");
    }));
    assert!(result.is_err());
    assert!(matches!(pool.checkpoint(), Err(PoolError::Panicked)));
    drop(pool);
    assert!(matches!(Pool::open(&path, &options), Err(PoolError::NotClosedCleanly { .. })));
}

#[test]
fn a_change_of_what_unwinds_already_is_sound() {
    struct Changes<'p>(&'p Pool, vellum_base::Extent);

    impl Drop for Changes<'_> {
        fn drop(&mut self) {
            self.0.exclusive(self.1).unwrap().payload_mut()[0] = 2;
            drop(self.0.allocate(1, PageKind::USER).unwrap().keep());
        }
    }

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().capacity_bytes(1 << 30);
    let mut pool = Pool::create(&path, &options).unwrap();
    let extent = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _changes = Changes(&pool, extent);
        panic!("before the change");
    }));
    assert!(result.is_err());
    pool.checkpoint().unwrap();
    drop(pool);
    let pool = Pool::open(&path, &options).unwrap();
    assert_eq!(pool.shared(extent).unwrap().payload()[0], 2);
}

#[test]
fn a_pool_that_is_all_latched_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().pool_bytes(16 * 4096).capacity_bytes(1 << 30);
    let pool = Pool::create(directory.path().join("pool"), &options).unwrap();
    let guards: Vec<_> = (0..16).map(|_| pool.allocate(1, PageKind::USER).unwrap()).collect();
    assert!(matches!(pool.allocate(1, PageKind::USER), Err(PoolError::PoolExhausted { .. })));
    assert!(matches!(pool.allocate(17, PageKind::USER), Err(PoolError::LargerThanPool { .. })));
    drop(guards);
    drop(pool.allocate(16, PageKind::USER).unwrap());
    let tiny = PoolOptions::default().pool_bytes(4096);
    let refused = Pool::create(directory.path().join("tiny"), &tiny);
    assert!(matches!(refused, Err(PoolError::PoolTooSmall { .. })));
    assert!(!directory.path().join("tiny").exists());
}

/// A pool that is too small for what one operation looks at says so, and does not go round for ever.
#[test]
fn an_operation_that_does_not_fit_into_the_pool_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().pool_bytes(16 * 4096).capacity_bytes(1 << 30);
    let pool = Pool::create(directory.path().join("pool"), &options).unwrap();
    // A list: each page refers to the one before it.
    let mut first = PageId(0);
    let mut pages = Vec::new();
    for _ in 0..40 {
        let mut guard = pool.allocate(1, PageKind::USER).unwrap();
        guard.payload_mut()[..8].copy_from_slice(&first.0.to_le_bytes());
        first = guard.keep().id();
        pages.push(first);
    }
    let walk = |first: PageId, steps: usize| {
        pool.run(|| {
            let mut page = pool.root(first)?;
            for _ in 0..steps {
                page = pool.child(&page, 32)?;
            }
            Ok(page.id())
        })
    };
    assert_eq!(walk(first, 8).unwrap(), pages[31]);
    assert!(matches!(walk(first, 39), Err(PoolError::PoolExhausted { pool_pages: 16, .. })));
    assert_eq!(walk(pages[20], 8).unwrap(), pages[12]);
}
