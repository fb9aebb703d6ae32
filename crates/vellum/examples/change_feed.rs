//! A program that follows what others commit: here it keeps an index by value of a table of names, on a thread of its own.
//!
//! ```text
//! cargo run -p vellum --example change_feed
//! ```

use std::{collections::BTreeMap, thread, time::Duration};
use vellum::{ChangesFrom, Database, Event, Options, TableName};

const PEOPLE: TableName<str, str> = TableName::new("people");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let database = Database::create(directory.path().join("people.vellum"), &Options::default())?;
    let people = database.create_table(PEOPLE)?;

    // A feed may begin at any position that the log or its archive still has; this one begins now.
    let mut changes = database.changes(ChangesFrom::Now)?;
    let follower = thread::spawn(move || {
        let mut towns: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut commits = 0;
        // It waits until something is committed; after a second without that it ends.
        while let Some(commit) = changes.next_within(Duration::from_secs(1))? {
            commits += 1;
            for change in &commit.changes {
                match &change.event {
                    Event::Inserted { key, value } | Event::Replaced { key, value } => {
                        // A large value may be gone by now; then the feed soon tells of the next.
                        if let Some(town) = value.read()?.value() {
                            towns.insert(key.clone(), town);
                        }
                    }
                    Event::Removed { key } => drop(towns.remove(key)),
                    _ => {}
                }
            }
        }
        // A program that keeps this goes on there: `database.changes(position)`.
        println!("{commits} commits, the last at {}", changes.position());
        Ok::<_, vellum::Error>(towns)
    });

    people.put("Ada", "London")?;
    database.run(|transaction| {
        transaction.put(&people, "Grace", "New York")?;
        transaction.put(&people, "Emmy", "Erlangen")
    })?;
    let undone = database.begin()?;
    undone.put(&people, "Nobody", "Nowhere")?;
    undone.rollback()?;
    people.put("Emmy", "Göttingen")?;
    people.remove("Ada")?;

    let towns = follower.join().expect("it does not panic")?;
    for (name, town) in &towns {
        println!("{} lives in {}", String::from_utf8_lossy(name), String::from_utf8_lossy(town));
    }
    assert_eq!(towns.len(), 2);
    drop(people);
    database.close()?;
    Ok(())
}
