//! Tables: writing, reading, ranges in both directions, closing and opening again.
//!
//! Run it by `cargo run -p vellum --example quickstart`.

use vellum::{Database, Options, Put, Result, TableName};

/// The colours of fruit, by name. Without the types it would be a table from bytes to bytes.
const FRUIT: TableName<str, str> = TableName::new("fruit");

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a folder for the example");
    let path = directory.path().join("fruit.vellum");
    // 16 MiB of pages in memory, however large the file becomes.
    let options = Options::default().pool_bytes(16 << 20);

    let database = Database::create(&path, &options)?;
    let fruit = database.create_table(FRUIT)?;
    for (name, colour) in [("apple", "red"), ("banana", "yellow"), ("cherry", "red"), ("lime", "green")] {
        assert_eq!(fruit.put(name, colour)?, Put::Inserted);
    }
    // Each operation is atomic, and says what it found.
    assert_eq!(fruit.put("apple", "green")?, Put::Replaced);
    assert!(!fruit.insert("banana", "brown")?, "insert leaves what is there");
    assert!(fruit.remove("cherry")?);
    drop(fruit); // the database can be closed when nothing uses it any more
    database.close()?;

    let database = Database::open(&path, &options.read_only(true))?;
    let fruit = database.table(FRUIT)?;
    assert_eq!(fruit.get("apple")?.as_deref(), Some("green"));
    assert_eq!(fruit.get("cherry")?, None);

    println!("from b on:");
    for entry in fruit.range("b"..)? {
        let (name, colour) = entry?;
        println!("  {name:<8} {colour}");
    }

    println!("all, backwards:");
    let mut names = Vec::new();
    for entry in fruit.range(..)?.rev() {
        let (name, colour) = entry?;
        println!("  {name:<8} {colour}");
        names.push(name);
    }
    assert_eq!(names, ["lime", "banana", "apple"]);

    let shape = fruit.shape()?;
    println!("{} entries in {} levels of pages", shape.entries, shape.height);
    assert_eq!(shape.entries, 3);
    Ok(())
}
