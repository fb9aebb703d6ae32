//! Verification beside everything else that uses a database.

use crate::support::{assert_clean, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use vellum::objects::{Array, Persistent, Ref, Text};
use vellum::{Database, Error, ErrorKind, Options, Result, Table, TableOptions};
use vellum_vm::SimulatedDisk;

#[derive(Persistent, Clone, PartialEq, Debug)]
struct Item {
    text: Text,
    next: Option<Ref<Item>>,
}

#[derive(Persistent, Clone, PartialEq, Debug, Default)]
struct All {
    items: Array<Ref<Item>>,
}

type Work = fn(&Place, &mut StdRng) -> Result<()>;

/// What threads do meanwhile, each one of these all the time.
const WORKS: [Work; 8] =
    [change_records, store_large_values, change_tables, clear_and_load, load, read, compact, change_objects];

struct Place {
    database: Database,
    records: Table,
    large: Table,
    plain: Table,
    contents: Table,
    objects: vellum::objects::Heap,
}

impl Place {
    fn new(options: &Options) -> Self {
        let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", options).unwrap();
        let [records, large, contents] =
            ["records", "large", "contents"].map(|name| database.create_table(name).unwrap());
        let plain = TableOptions::default().versions(false);
        let plain = database.create_table_with("plain", plain).unwrap();
        let objects = database.create_heap("objects").unwrap();
        let root = objects.allocate(&All::default()).unwrap();
        objects.set_root(Some(root)).unwrap();
        Self { database, records, large, plain, contents, objects }
    }
}

fn key(random: &mut StdRng) -> Vec<u8> {
    let number = random.random_range(0..3_000_u32);
    format!("{:05}{:x<2$}", number, "", (number % 150) as usize).into_bytes()
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..10) {
        0 => random.random_range(200_000..400_000),
        1..5 => random.random_range(0..100),
        _ => random.random_range(2_000..30_000),
    };
    vec![random.random(); length]
}

/// Nodes are split and merged.
fn change_records(place: &Place, random: &mut StdRng) -> Result<()> {
    for _ in 0..300 {
        place.records.put(key(random), vec![1; random.random_range(0..300)])?;
    }
    let from = key(random);
    let to = [&from[..2], &[0xff]].concat();
    place.records.remove_range(&from[..]..&to[..]).map(drop)
}

/// Many of them are rolled back.
fn store_large_values(place: &Place, random: &mut StdRng) -> Result<()> {
    let transaction = place.database.begin()?;
    for _ in 0..random.random_range(1..10) {
        let key = [random.random_range(0..40)];
        match random.random_range(0..4) {
            0 => drop(transaction.remove(&place.large, key)?),
            1 => {
                let savepoint = transaction.savepoint();
                transaction.put(&place.large, key, value(random))?;
                transaction.rollback_to(savepoint)?;
            }
            _ => drop(transaction.put(&place.large, key, value(random))?),
        }
        place.plain.put([random.random_range(0..20)], value(random))?;
    }
    if random.random() { transaction.commit().map(drop) } else { transaction.rollback() }
}

/// Tables come and go.
fn change_tables(place: &Place, random: &mut StdRng) -> Result<()> {
    let name = format!("table {}", random.random_range(0..3));
    let transaction = place.database.begin()?;
    if !place.database.tables()?.iter().any(|table| table.name == name) {
        let table: Table = transaction.create_table(&name[..])?;
        for _ in 0..random.random_range(0..400) {
            transaction.put(&table, key(random), value(random).get(..500).unwrap_or_default())?;
        }
    } else {
        match random.random_range(0..3) {
            0 => transaction.rename_table(&name, &format!("{name} again"))?,
            1 => transaction.clear_table(&name)?,
            _ => transaction.drop_table(&name)?,
        }
    }
    let _ = place.database.drop_table(&format!("{name} again"));
    if random.random_ratio(3, 4) { transaction.commit().map(drop) } else { transaction.rollback() }
}

fn clear_and_load(place: &Place, random: &mut StdRng) -> Result<()> {
    let transaction = place.database.begin()?;
    transaction.clear_table("contents")?;
    let count = random.random_range(0..3000_u32);
    let large = random.random_range(0..500);
    let value = |number: u32| vec![7; if number.is_multiple_of(500) { 20_000 } else { 20 + large }];
    transaction.bulk_load(&place.contents, (0..count).map(|number| (number.to_be_bytes(), value(number))))?;
    if random.random_ratio(3, 4) { transaction.commit().map(drop) } else { transaction.rollback() }
}

/// Outside of transactions, and slowly.
fn load(place: &Place, random: &mut StdRng) -> Result<()> {
    let name = "loaded";
    let table: Table = place.database.table_or_create(name)?;
    let pause = Duration::from_micros(random.random_range(0..300));
    table.bulk_load((0..300_u32).map(|number| {
        thread::sleep(pause);
        (number.to_be_bytes(), vec![number as u8; 50 + 7000 * usize::from(number.is_multiple_of(5))])
    }))?;
    drop(table);
    place.database.drop_table(name)
}

/// Snapshots hold up what is replaced.
fn read(place: &Place, random: &mut StdRng) -> Result<()> {
    let transaction = place.database.begin()?;
    thread::sleep(Duration::from_millis(random.random_range(0..50)));
    for entry in transaction.range(&place.large, ..)? {
        entry?;
    }
    transaction.commit().map(drop)
}

fn compact(place: &Place, random: &mut StdRng) -> Result<()> {
    if random.random_ratio(1, 4) {
        place.database.compact(|_| true)?;
    }
    thread::sleep(Duration::from_millis(random.random_range(0..20)));
    match place.database.checkpoint() {
        Err(Error::WithoutLog) => Ok(()),
        done => done,
    }
}

fn change_objects(place: &Place, random: &mut StdRng) -> Result<()> {
    let root: Ref<All> = place.objects.root()?.expect("it has been set");
    let count = place.objects.get(root)?.items.len();
    let length = if random.random_ratio(1, 10) { 9_000 } else { 50 };
    place.objects.change(|change| {
        if count > 100 {
            let all = change.get(root)?;
            all.items.iter().try_for_each(|item| change.delete(*item).map(drop))?;
            return change.update(root, |all: &mut All| all.items = Array::default());
        }
        let item = change.allocate(&Item { text: "x".repeat(length).into(), next: None })?;
        change.update(root, |all: &mut All| all.items.push(item))
    })?;
    Ok(())
}

/// Verifies again and again while threads do all of this.
fn verify_beside_work(options: &Options, time: Duration) {
    let place = Place::new(options);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut undecided, mut verified) = (0, 0);
    thread::scope(|scope| {
        for (seed, work) in (0..).zip(WORKS) {
            let (place, is_over, done) = (&place, &is_over, &done);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while !is_over.load(Ordering::Relaxed) {
                    match work(place, &mut random) {
                        Ok(()) => drop(done.fetch_add(1, Ordering::Relaxed)),
                        // They get into each other's way.
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::AlreadyExists
                            ) || matches!(error, Error::TableInUse { .. }),
                            "{error}"
                        ),
                    }
                }
            });
        }
        let began = Instant::now();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while began.elapsed() < time {
                let report = place.database.verify(|_| {});
                assert!(report.is_clean(), "verification {verified}: {:?}", report.problems);
                undecided += usize::from(report.undecided_pages > 0);
                verified += 1;
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    let done = done.into_inner();
    println!("{verified} verifications, {undecided} of them undecided, beside {done} works");
    assert!(verified > 2 && done > 50);
    let report = place.database.verify(|_| {});
    assert_eq!(report.undecided_pages, 0);
    assert_clean(&place.database);
}

#[test]
fn nothing_that_is_changed_meanwhile_is_taken_for_damaged_or_lost() {
    verify_beside_work(&options().version_memory_bytes(20_000), Duration::from_secs(3));
}

#[test]
fn nor_is_it_without_a_log() {
    verify_beside_work(&options().log(false), Duration::from_secs(2));
}
