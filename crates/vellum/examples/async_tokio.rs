//! Asynchronous calls on tokio: thousands of lookups of data larger than the pool, by two worker threads.
//!
//! Run it by `cargo run -p vellum --example async_tokio`.

use std::time::Instant;
use tokio::task::JoinSet;
use vellum::{Database, Options, Result};

const FRUITS: u64 = 60_000;
const LOOKUPS: u64 = 20_000;

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a folder for the example");
    // A megabyte of pages in memory for ten of data.
    let options = Options::default().pool_bytes(1 << 20);
    let database = Database::create(directory.path().join("fruit.vellum"), &options)?;
    let fruit = database.create_table("fruit")?;
    // Each `put` would wait until it is durable. What is sorted is loaded at once.
    let fruits = (0..FRUITS)
        .map(|number| (number.to_be_bytes(), format!("fruit number {number}, {}", "x".repeat(120))));
    fruit.bulk_load(fruits)?;

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.expect("the system has room for two threads");
    let begun = Instant::now();
    runtime.block_on(async {
        let mut lookups = JoinSet::new();
        for index in 0..LOOKUPS {
            let fruit = fruit.clone();
            lookups.spawn(async move {
                let number = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % FRUITS;
                let value = fruit.get_async(number.to_be_bytes()).await?;
                let expected = format!("fruit number {number},");
                assert!(value.is_some_and(|value| value.starts_with(expected.as_bytes())));
                Ok::<_, vellum::Error>(())
            });
        }
        // Writes are futures too.
        assert!(fruit.insert_async("durian", "keep it outside").await?);
        assert!(!fruit.insert_async("durian", "again").await?);
        while let Some(looked_up) = lookups.join_next().await {
            looked_up.expect("no task panics")?;
        }
        // Ranges too, and transactions that are run again after conflicts.
        let basket = &fruit;
        let long_names = database.run_async(|transaction| async move {
            let mut count = 0u64;
            let mut entries = transaction.range_async(basket, ..)?;
            while let Some(entry) = entries.next().await {
                let (_, name) = entry?;
                count += u64::from(name.len() >= 140);
            }
            transaction.put_async(basket, "long names", count.to_be_bytes()).await?;
            Ok(count)
        });
        assert_eq!(long_names.await?, 50_000); // those whose number has five digits
        Ok::<_, vellum::Error>(())
    })?;
    let statistics = database.statistics();
    println!("{LOOKUPS} lookups, {} of which had to read, in {:.0?}", statistics.misses, begun.elapsed());

    drop(fruit);
    database.close() // everything was awaited, so nothing uses it any more
}
