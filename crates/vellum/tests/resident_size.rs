//! The memory that the process takes, against what the pool counts. Alone in its file, because it looks at the whole
//! process.

use vellum::{Database, Options};

/// What the process may take beside the pool: buffers of the I/O, states and bits of all pages.
const SLACK_BYTES: u64 = 12 << 20;
/// The log's buffer, which is in memory beside the pool, and the bits of pages that the log has.
const LOG_BYTES: u64 = 5 << 20;

/// The resident size of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn it_is_what_the_pool_counts_whatever_the_sizes_of_the_values() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = vec![7; 9 << 20];
    let before = resident_bytes();
    let options = Options::default().log_buffer_bytes(4 << 20);
    let database = Database::create(directory.path().join("mixed"), &options).unwrap();
    let table = database.create_table("values").unwrap();
    let mut number = 0u32;
    let mut put = |length: usize| {
        number += 1;
        table.put(number.to_be_bytes(), &bytes[..length]).unwrap();
    };
    for round in 0..40 {
        for row in 0..400 {
            put(100 + row % 300);
        }
        // Values of all sizes: in a leaf, in the pool, past it.
        if round % 2 == 1 {
            [1_000, 3_000, 20_000, 300_000, 2_000_000].into_iter().for_each(&mut put);
        }
        put(9 << 20);
        let statistics = database.statistics();
        let (counted, limit) = (statistics.pages_resident * 4096, statistics.pages_limit * 4096);
        assert!(counted <= limit);
        let grown = resident_bytes().saturating_sub(before);
        assert!(
            grown <= counted + SLACK_BYTES + LOG_BYTES,
            "round {round}: {counted} bytes counted, {grown} resident"
        );
    }
    drop(table);
    database.close().unwrap();
}
