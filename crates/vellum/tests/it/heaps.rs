//! Heaps of objects in databases: beside tables, after crashes, in backups.

use crate::support::options;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use vellum::objects::{Array, Heap, ObjectError, Persistent, Ref, Text};
use vellum::{Backup, Database, Durability, Error, Options, Problem, Result, Salvage};
use vellum_vm::SimulatedDisk;

#[derive(Persistent, Clone, PartialEq, Debug)]
struct Item {
    number: u64,
    name: Text,
    next: Option<Ref<Item>>,
}

#[derive(Persistent, Clone, PartialEq, Debug, Default)]
struct All {
    steps: u64,
    items: Array<Ref<Item>>,
}

fn create(disk: &SimulatedDisk, options: &Options) -> (Database, Heap) {
    let database = Database::create_in(Arc::new(disk.clone()), "data", options).unwrap();
    let heap = database.create_heap("heap").unwrap();
    (database, heap)
}

/// Makes the root, with `count` items.
fn fill(heap: &Heap, count: u64) -> Ref<All> {
    let root = heap.allocate(&All::default()).unwrap();
    heap.set_root(Some(root)).unwrap();
    for number in 0..count {
        let items = heap.change(|change| {
            let item = change.allocate(&Item { number, name: "item".into(), next: None })?;
            change.update(root, |all: &mut All| all.items.push(item))
        });
        items.unwrap();
    }
    root
}

fn clean(database: &Database) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn heaps_and_tables_have_the_same_names() {
    let disk = SimulatedDisk::new(1);
    let (database, heap) = create(&disk, &options());
    database.create_table("table").unwrap();
    assert!(matches!(database.create_heap("table"), Err(Error::TableExists { .. })));
    assert!(matches!(database.create_table("heap"), Err(Error::TableExists { .. })));
    for refused in [database.create_heap("heap").map(drop), database.create_table("heap").map(drop)] {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("a heap of objects that is called so"), "{said}");
    }
    let said = database.heap("none").map(drop).unwrap_err().to_string();
    assert!(said.contains("no such heap") && said.contains("`heaps`"), "{said}");
    assert!(matches!(database.heap("table"), Err(Error::IsTable { .. })));
    assert!(matches!(database.heap("nothing"), Err(Error::NoSuchTable { .. })));
    for refused in [
        database.table("heap").map(drop),
        database.table_as_bytes("heap").map(drop),
        database.drop_table("heap"),
        database.clear_table("heap"),
        database.run(|transaction| transaction.drop_table("heap")),
        database.run(|transaction| transaction.table("heap").map(drop)),
    ] {
        assert!(matches!(refused, Err(Error::IsHeap { .. })), "{refused:?}");
    }
    assert_eq!(database.heaps().unwrap(), ["heap"]);
    assert_eq!(database.tables().unwrap().len(), 1);
    assert!(matches!(database.drop_heap("heap"), Err(Error::TableInUse { .. })));
    fill(&heap, 300);
    clean(&database);
    let before = database.statistics().pages_allocated;
    database.rename_table("heap", "other").unwrap();
    drop(heap);
    fill(&database.create_heap("heap").unwrap(), 1);
    database.drop_heap("other").unwrap();
    database.drop_heap("heap").unwrap();
    assert!(database.heaps().unwrap().is_empty());
    clean(&database);
    assert!(database.statistics().pages_allocated < before);
    // The catalog, the table, and what belongs to the file.
    database.drop_table("table").unwrap();
}

#[test]
fn a_reference_to_a_heap_that_was_dropped_leads_to_nothing() {
    let disk = SimulatedDisk::new(1);
    let (database, heap) = create(&disk, &options());
    let item = heap.allocate(&Item { number: 1, name: "old".into(), next: None }).unwrap();
    drop(heap);
    database.drop_heap("heap").unwrap();
    let heap = database.create_heap("heap").unwrap();
    fill(&heap, 100);
    assert!(matches!(heap.get(item), Err(Error::Objects(ObjectError::Dangling { .. }))));
    let near = heap.allocate_near(item, &Item { number: 2, name: "new".into(), next: None }).unwrap();
    assert_eq!(heap.get(near).unwrap().number, 2);
}

/// A heap that another thread opens while it is being dropped would lose what that thread stores.
#[test]
fn a_heap_cannot_be_opened_while_it_is_being_dropped() {
    let (database, heap) = create(&SimulatedDisk::new(9), &options());
    let item = |number| Item { number, name: "x".repeat(2000).as_str().into(), next: None };
    (0..1500).for_each(|number| _ = heap.allocate(&item(number)).unwrap());
    drop(heap);
    let pages = || database.statistics().pages_allocated;
    let before = pages();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| database.drop_heap("heap"));
        while pages() == before && !dropping.is_finished() {
            std::thread::yield_now();
        }
        // It is under way, unless this thread had to wait for a processor.
        let opened = database.heap("heap");
        let stored = opened.as_ref().ok().map(|heap| heap.allocate(&item(0)));
        let second = database.drop_heap("heap");
        dropping.join().unwrap().unwrap();
        if let (Ok(heap), Some(Ok(stored))) = (&opened, &stored) {
            assert_eq!(heap.get(*stored).unwrap(), item(0));
        }
        for refused in [opened.map(drop), second] {
            assert!(
                matches!(refused, Err(Error::Conflict { committed: false, .. } | Error::NoSuchTable { .. })),
                "{refused:?}"
            );
        }
    });
    assert!(database.heaps().unwrap().is_empty());
    // Ends a transaction, which frees what was left.
    fill(&database.create_heap("heap").unwrap(), 1);
    database.drop_heap("heap").unwrap();
    assert!(pages() < before - 700, "{before} before, {} now", pages());
    clean(&database);
}

#[test]
fn a_database_that_is_open_for_reading_shows_its_objects() {
    let disk = SimulatedDisk::new(1);
    let (database, heap) = create(&disk, &options());
    fill(&heap, 50);
    drop(heap);
    database.create_heap("empty").unwrap();
    database.close().unwrap();
    let database = Database::open_in(Arc::new(disk), "data", &options().read_only(true)).unwrap();
    let heap = database.heap("heap").unwrap();
    let all = heap.get(heap.root::<All>().unwrap().unwrap()).unwrap();
    assert_eq!(all.items.len(), 50);
    assert!(heap.allocate(&all).is_err());
    assert!(heap.set(all.items[0], &Item { number: 0, name: "".into(), next: None }).is_err());
    assert_eq!(database.heap("empty").unwrap().root::<All>().unwrap(), None);
    clean(&database);
}

/// What the objects of a heap hold, as a model has it.
type State = Vec<(u64, usize)>;

fn state(heap: &Heap) -> Result<(u64, State)> {
    let all = heap.get(heap.root::<All>()?.expect("it is made first"))?;
    let items = all.items.iter().map(|item| heap.get(*item).map(|item| (item.number, item.name.len())));
    Ok((all.steps, items.collect::<Result<_>>()?))
}

/// A change of several objects, with names of up to `longest` bytes. The state is what it makes of it, if it happens.
fn step(
    heap: &Heap,
    root: Ref<All>,
    number: u64,
    (random, longest): (&mut StdRng, usize),
    state: &mut State,
) -> Result<()> {
    let mut all = heap.get(root)?;
    all.steps = number;
    let length = match random.random_range(0..30) {
        0 => 9000,
        1 | 2 => 2500,
        _ => random.random_range(0..longest),
    };
    let name: Text = "n".repeat(length).into();
    let chosen: Vec<usize> = (0..3).map(|_| random.random_range(0..all.items.len())).collect();
    let (adds, removes) =
        (random.random_range(0..4) == 0, all.items.len() > 10 && random.random_range(0..4) == 0);
    for index in chosen.iter().copied() {
        state[index] = (number, length);
    }
    if adds {
        state.push((number, length));
    }
    if removes {
        state.remove(chosen[1]);
    }
    let before = all.clone();
    heap.change(|change| {
        let mut all = before.clone();
        for index in &chosen {
            change.update(all.items[*index], |item: &mut Item| {
                item.number = number;
                item.name = name.clone();
            })?;
        }
        if adds {
            let item = Item { number, name: name.clone(), next: Some(all.items[chosen[2]]) };
            let item = change.allocate_near(all.items[chosen[0]], &item)?;
            all.items.push(item);
        }
        if removes {
            let index = chosen[1];
            change.delete(all.items.remove(index))?;
            // Nothing refers to it any more.
            for item in &all.items {
                if change.get(*item)?.next == Some(before.items[index]) {
                    change.update(*item, |item: &mut Item| item.next = None)?;
                }
            }
        }
        change.set(root, &all)
    })
}

/// Changes beside checkpoints, until the disk fails or power goes. What is there afterwards is what some number of changes have left, at
/// least those that were acknowledged as durable, and all of each of them.
fn crashes(seed: u64, durability: Durability, fails: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let disk = SimulatedDisk::new(seed);
    // With more objects than the pool has room for, or few that are changed again and again.
    let (count, longest, pool_pages) = if seed.is_multiple_of(3) { (400, 2000, 160) } else { (40, 150, 512) };
    let options = options().durability(durability).pool_bytes(pool_pages << 12);
    let (database, heap) = create(&disk, &options);
    let root = fill(&heap, count);
    let table = database.create_table("table").unwrap();
    database.sync().unwrap();
    let mut now: State = (0..count).map(|number| (number, 4)).collect();
    let (mut history, mut acknowledged) = (vec![now.clone()], 0);
    let last = random.random_range(20..250);
    if fails {
        disk.fail_from(random.random_range(50..2000));
    }
    for number in 1..=last {
        let mut next = now.clone();
        let done = step(&heap, root, number, (&mut random, longest), &mut next);
        // One that has failed may have happened all the same.
        history.push(next.clone());
        if let Err(error) = done {
            assert!(fails, "{error}");
            break;
        }
        now = next;
        let _ = table.put(number.to_be_bytes(), vec![1; 100]);
        if random.random_range(0..60) == 0 {
            let _ = database.checkpoint();
        }
        let is_synced = match durability {
            Durability::Synced => true,
            _ => random.random_range(0..150) == 0 && database.sync().is_ok(),
        };
        if is_synced {
            acknowledged = number;
        }
    }
    let crashed = if random.random() { disk.crash() } else { disk.kill() };
    drop((table, heap));
    let _ = database.close();
    crashed.heal();
    for round in 0..2 {
        let database = Database::open_in(Arc::new(crashed.clone()), "data", &options).unwrap();
        let heap = database.heap("heap").unwrap();
        let (steps, found) = state(&heap).unwrap();
        assert!(steps >= acknowledged, "{steps} of {acknowledged}, round {round}");
        assert_eq!(found, history[steps as usize], "after {steps} changes, round {round}");
        clean(&database);
        drop(heap);
        database.close().unwrap();
    }
}

#[test]
fn changes_are_there_after_a_crash_and_whole() {
    for seed in 0..30 {
        println!("seed {seed}");
        crashes(seed, Durability::Synced, false);
        crashes(seed + 1000, Durability::Deferred, false);
    }
}

#[test]
fn so_they_are_when_the_disk_has_failed_before() {
    for seed in 0..40 {
        println!("seed {seed}");
        crashes(seed + 2000, Durability::Synced, true);
    }
}

/// A crash at any moment of creating a heap and dropping it.
#[test]
fn a_heap_is_made_and_dropped_with_a_crash_anywhere() {
    for failing in 1..160 {
        let disk = SimulatedDisk::new(failing);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        disk.fail_from(failing);
        let done = (|| {
            let heap = database.create_heap("heap")?;
            let root = heap.allocate(&All::default())?;
            heap.set_root(Some(root))?;
            for number in 0..30 {
                let name = "n".repeat(if number % 10 == 0 { 9000 } else { 300 }).into();
                let item = heap.allocate(&Item { number, name, next: None })?;
                heap.update(root, |all: &mut All| all.items.push(item))?;
            }
            drop(heap);
            database.drop_heap("heap")
        })();
        let crashed = disk.crash();
        drop(database);
        crashed.heal();
        let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
        let report = database.verify(|_| {});
        // What was made and not referred to yet is unreachable, and nothing else is wrong.
        let is_wrong =
            |problem: &&Problem| !matches!(problem, Problem::Unreachable { .. } | Problem::Dangling { .. });
        let wrong: Vec<_> = report.problems.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{failing}: {wrong:?}");
        if let [name] = &database.heaps().unwrap()[..] {
            database.drop_heap(name).unwrap();
        }
        clean(&database);
        if done.is_ok() {
            return;
        }
    }
    panic!("all of it takes more operations");
}

#[test]
fn a_backup_has_the_objects() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let database = Database::create(path("data"), &Options::default()).unwrap();
    let heap = database.create_heap("heap").unwrap();
    let root = fill(&heap, 500);
    let (mut random, mut now) = (StdRng::seed_from_u64(1), (0..500).map(|number| (number, 4)).collect());
    std::thread::scope(|scope| {
        let (heap, now, random) = (&heap, &mut now, &mut random);
        let changes = scope.spawn(move || {
            for number in 1..200 {
                step(heap, root, number, (random, 150), now).unwrap();
            }
        });
        database.backup(path("backup")).unwrap();
        changes.join().unwrap();
    });
    assert_eq!(state(&heap).unwrap(), (199, now));
    let backup = Backup::open(path("backup")).unwrap();
    Backup::restore(&[backup], path("restored"), &Options::default()).unwrap();
    let restored = Database::open(path("restored"), &Options::default()).unwrap();
    clean(&restored);
    let (steps, found) = state(&restored.heap("heap").unwrap()).unwrap();
    assert!(found.len() > 100 && steps < 200);
}

#[test]
fn a_feed_tells_nothing_of_heaps() {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk), "data", &options()).unwrap();
    let mut changes = database.changes(vellum::ChangesFrom::Now).unwrap();
    let heap = database.create_heap("heap").unwrap();
    fill(&heap, 100);
    drop(heap);
    database.drop_heap("heap").unwrap();
    database.create_table("table").unwrap();
    let first = changes.next().unwrap().unwrap();
    assert_eq!(&*first.changes[0].table, "table");
}

#[test]
fn a_salvage_names_tables_and_heaps_apart() {
    let disk = SimulatedDisk::new(12);
    let (database, heap) = create(&disk, &options());
    fill(&heap, 3);
    database.create_table("table").unwrap();
    drop(heap);
    database.close().unwrap();
    let salvage = Salvage::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    assert_eq!((salvage.tables().0, salvage.heaps()), (vec!["table".to_owned()], vec!["heap".to_owned()]));
}

/// A type of one name, as two versions of a program have it.
mod before {
    #[derive(vellum::objects::Persistent, Clone, PartialEq, Debug)]
    pub struct Song {
        pub title: vellum::objects::Text,
    }
}

#[derive(Persistent, Clone, PartialEq, Debug)]
struct Song {
    title: Text,
    year: u64,
}

#[test]
fn all_handles_know_of_a_conversion() {
    let (database, first) = create(&SimulatedDisk::new(7), &options());
    let second = database.heap("heap").unwrap();
    let old = |title: &str| before::Song { title: title.into() };
    let song = second.allocate(&old("a")).unwrap();
    let converted = first.convert(|old: before::Song| Song { title: old.title, year: 0 }).unwrap();
    for heap in [&first, &second] {
        let error = heap.allocate(&old("b")).unwrap_err();
        assert!(matches!(error, Error::Objects(ObjectError::TypeChanged { .. })), "{error}");
        let song = Ref::<Song>::from_bits(song.to_bits()).unwrap();
        assert_eq!(heap.get(song).unwrap(), Song { title: "a".into(), year: 0 });
    }
    assert_eq!(converted.objects, 1);
}

#[test]
fn all_handles_use_the_space_that_one_has_freed() {
    let (database, first) = create(&SimulatedDisk::new(8), &options());
    let second = database.heap("heap").unwrap();
    let mut bytes = Vec::new();
    for _ in 0..6 {
        let item = |number| Item { number, name: "x".repeat(150).as_str().into(), next: None };
        let items: Vec<_> = (0..5000).map(|number| second.allocate(&item(number)).unwrap()).collect();
        for item in items.iter().skip(1) {
            first.delete(*item).unwrap();
        }
        bytes.push(database.statistics().pages_allocated);
    }
    assert!(bytes.last().unwrap() < &(bytes.first().unwrap() * 3 / 2), "{bytes:?}");
}
