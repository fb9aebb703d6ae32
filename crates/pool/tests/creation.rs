//! Creating files, and what is left of creations that were interrupted.

use std::path::{Path, PathBuf};
use vellum_base::{PAGE_SIZE, PageKind};
use vellum_pool::{CAPACITY_BYTES_MIN, Pool, PoolError, PoolFile, PoolOptions};
use vellum_vm::IoEngine;

fn options() -> PoolOptions {
    PoolOptions::default().application("creation").capacity_bytes(1 << 30)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    (directory, path)
}

/// What is in a file when both superblocks have been written for the first time.
fn first_superblocks(path: &Path, options: &PoolOptions) -> Vec<u8> {
    let pool = Pool::create(path, options).unwrap();
    let bytes = std::fs::read(path).unwrap();
    drop(pool);
    std::fs::remove_file(path).unwrap();
    assert_eq!(bytes.len(), 2 * PAGE_SIZE);
    bytes
}

#[test]
fn an_interrupted_creation_is_named_and_repeated() {
    let (_directory, path) = place();
    let both = first_superblocks(&path, &options());
    let mut second_only = both.clone();
    second_only[..PAGE_SIZE].fill(0);
    // A second creation finds the log of the first.
    let mut file = PoolFile::create(&path, &options()).unwrap();
    file.confirm().unwrap();
    drop(file);
    let confirmed = std::fs::read(&path).unwrap();
    assert_ne!(confirmed, both);
    for left_behind in [vec![], vec![0; 2 * PAGE_SIZE], second_only, both, confirmed] {
        std::fs::write(&path, &left_behind).unwrap();
        let error = Pool::open(&path, &options()).map(drop).unwrap_err();
        assert!(matches!(error, PoolError::Unfinished { .. }), "{error}");
        let error = Pool::open_or_create(&path, &options().read_only(true)).map(drop).unwrap_err();
        assert!(matches!(error, PoolError::Unfinished { .. }), "{error}");
        let (pool, created) = Pool::open_or_create(&path, &options()).unwrap();
        assert!(created);
        let page = pool.allocate(1, PageKind::USER).unwrap().keep().id();
        pool.set_root_slot(0, page.0).unwrap();
        pool.close().unwrap();
        let (pool, created) = Pool::open_or_create(&path, &options()).unwrap();
        assert_eq!((created, pool.root_slot(0)), (false, page.0));
    }
}

#[test]
fn what_is_no_interrupted_creation_is_left_as_it_is() {
    let (_directory, path) = place();
    let foreign = first_superblocks(&path, &options().application("another"));
    Pool::create(&path, &options()).unwrap().close().unwrap();
    let mut cut = std::fs::read(&path).unwrap();
    cut.truncate(2 * PAGE_SIZE);
    let text = b"8192 bytes of text ... ".iter().copied().cycle().take(2 * PAGE_SIZE).collect();
    let zeroes = vec![0; 3 * PAGE_SIZE];
    for contents in [foreign, cut, text, zeroes, b"x".to_vec()] {
        std::fs::write(&path, &contents).unwrap();
        let error = Pool::open_or_create(&path, &options()).map(drop).unwrap_err();
        assert!(!matches!(error, PoolError::Unfinished { .. }), "{error}");
        assert!(std::fs::read(&path).unwrap() == contents, "{error}");
    }
}

#[test]
fn nothing_is_left_of_a_creation_that_fails() {
    let (_directory, path) = place();
    let unusable = options().io_engine(IoEngine::Simulated);
    assert!(matches!(Pool::create(&path, &unusable), Err(PoolError::Vm(_))));
    assert!(!path.exists());
    assert!(matches!(Pool::open_or_create(&path, &unusable), Err(PoolError::Vm(_))));
    assert!(!path.exists());
    Pool::create(&path, &options()).unwrap();
}

#[test]
fn several_threads_create_one_file_among_them() {
    let (_directory, path) = place();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| Pool::open_or_create(&path, &options()).map(|(_, created)| created)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // What was created is not closed here, so those that come later find an unfinished file and create it anew.
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Ok(true))), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(true) | Err(PoolError::Vm(_)))));
}

#[test]
fn a_pool_larger_than_the_machine_is_refused() {
    let (_directory, path) = place();
    for bytes in [u64::MAX, 20 << 40, 999_999 << 30] {
        let error = Pool::create(&path, &options().pool_bytes(bytes)).map(drop).unwrap_err();
        assert!(error.to_string().contains("lower the pool's size"), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn a_capacity_is_kept_or_refused() {
    let (_directory, path) = place();
    for bytes in [0, 1, CAPACITY_BYTES_MIN - 1] {
        let error = Pool::create(&path, &options().capacity_bytes(bytes)).map(drop).unwrap_err();
        assert!(matches!(error, PoolError::CapacityTooSmall { .. }), "{error}");
        assert!(!path.exists());
    }
    for capacity in [CAPACITY_BYTES_MIN, 1 << 20] {
        let pool = Pool::create(&path, &options().capacity_bytes(capacity)).unwrap();
        let error = loop {
            match pool.allocate(1, PageKind::USER) {
                Ok(page) => drop(page.keep()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, PoolError::CapacityExhausted { bytes } if bytes == capacity), "{error}");
        let allocated = pool.statistics().pages_allocated;
        assert!(allocated > capacity / PAGE_SIZE as u64 / 2, "{allocated} pages");
        drop(pool);
        std::fs::remove_file(&path).unwrap();
    }
}
