//! Tests of the whole workload on a store in memory: the population, the mix, several threads, and that each check
//! finds what is planted for it.

use super::keys::{self, District};
use super::rows::{customer, district, history, order, order_line, stock, warehouse};
use super::*;
use crate::config::Skew;
use crate::config::{Choice, EngineName, TransactionSettings};
use crate::config::{KeyKind, Order, ValueSizes};
use crate::engines::memory_store::MemoryStore;
use crate::engines::store::{Access, Session};
use std::path::PathBuf;
use std::time::Duration;

const PLACE: District = District { warehouse: 1, number: 7 };

fn workload(warehouses: u32) -> Tpcc {
    let specification = Specification {
        engine: EngineName::Vellum.into(),
        workload: Workload::Tpcc { warehouses },
        tuples: tuples(warehouses),
        keys: KeyKind::U64,
        values: ValueSizes::one(0),
        skew: Skew::Uniform,
        pool_bytes: 1 << 30,
        threads_max: 4,
        clients_max: 1,
        duration: Duration::from_millis(300),
        warm_up: Duration::ZERO,
        seed: 3,
        order: Order::Sequential,
        lmdb_write_map: Choice::Auto,
        transactions: TransactionSettings::default(),
        directory: PathBuf::new(),
    };
    Tpcc::new(&specification).unwrap()
}

fn loaded(warehouses: u32) -> (Tpcc, MemoryStore) {
    let (workload, store) = (workload(warehouses), MemoryStore::with(keys::TABLES.len()));
    workload.load(&store).unwrap();
    (workload, store)
}

fn problems(workload: &Tpcc, store: &MemoryStore) -> Vec<String> {
    workload.check(store).unwrap().problems
}

fn run(workload: &Tpcc, store: &MemoryStore, threads: usize, round: u64) -> Pass {
    let pace = Pace { clients: 1, threads, round, duration: Duration::from_millis(300), sample_every: 1 };
    workload.pass(store, &pace).unwrap()
}

#[test]
fn the_tables_are_as_large_as_the_specification_says() {
    let (workload, store) = loaded(1);
    assert!(problems(&workload, &store).is_empty());
    let sizes = [
        (keys::WAREHOUSE, 1),
        (keys::DISTRICT, 10),
        (keys::CUSTOMER, 30_000),
        (keys::CUSTOMER_BY_NAME, 30_000),
        (keys::HISTORY, 30_000),
        (keys::NEW_ORDER, 9000),
        (keys::ORDER, 30_000),
        (keys::ORDER_BY_CUSTOMER, 30_000),
        (keys::ITEM, 100_000),
        (keys::STOCK, 100_000),
    ];
    for (table, size) in sizes {
        assert_eq!(store.table(table).len(), size, "{}", keys::TABLES[table]);
    }
    let lines = store.table(keys::ORDER_LINE).len();
    assert!((298_000..302_000).contains(&lines), "{lines}");
    assert_eq!(tuples(1), 1 + 10 + 3 * 30_000 + 9000 + 300_000 + 200_000);
}

#[test]
fn transactions_of_any_number_of_threads_leave_everything_consistent() {
    let (workload, store) = loaded(2);
    // As many warehouses as threads, more of them, and fewer, so that some threads share one.
    for (round, threads) in (0..).zip([1, 2, 5]) {
        let pass = run(&workload, &store, threads, round);
        assert!(pass.operations > 200 && pass.latencies.samples() == pass.operations);
        assert_eq!(problems(&workload, &store), Vec::<String>::new(), "{threads} threads");
    }
    let (counts, remarks) = workload.summary().unwrap();
    for (kind, percent) in [
        ("new_order", 45.0),
        ("payment", 43.0),
        ("order_status", 4.0),
        ("delivery", 4.0),
        ("stock_level", 4.0),
    ] {
        let measured = counts[kind]["percent"].as_f64().unwrap();
        assert!((measured - percent).abs() < 2.5, "{kind}: {measured}");
        assert!(remarks[0].contains(kind), "{remarks:?}");
    }
    let (rolled_back, all) = (
        counts["new_order"]["rolled_back"].as_u64().unwrap(),
        counts["new_order"]["count"].as_u64().unwrap(),
    );
    assert!(rolled_back > 0 && rolled_back < all / 30, "{rolled_back} of {all}");
}

/// Applies the five transactions in turn, with the effects that the specification gives them.
#[test]
fn each_transaction_changes_what_it_should() {
    let (workload, store) = loaded(1);
    let rows = |table: usize| store.table(table).len();
    let before: Vec<usize> = (0..keys::TABLES.len()).map(rows).collect();
    let mut session = store.session().unwrap();
    let mut random = Random::new(Generator::new(5, 0, 0));
    let home = |_: &mut Random| 1;

    let mut lines = 0;
    for _ in 0..20 {
        let input = new_order::Input::draw(&mut random, &workload.constants, 1, home, 1);
        lines += rows(keys::ORDER_LINE);
        let outcome = new_order::run(&mut session.begin(Access::Write).unwrap(), &input).unwrap();
        lines = rows(keys::ORDER_LINE) - lines;
        assert!(if outcome == outcome::Outcome::Done { (5..=15).contains(&lines) } else { lines == 0 });
        lines = 0;
    }
    let orders = rows(keys::ORDER) - before[keys::ORDER];
    assert!((15..=20).contains(&orders));
    assert_eq!(rows(keys::NEW_ORDER) - before[keys::NEW_ORDER], orders);

    let input = payment::Input::draw(&mut random, &workload.constants, 1, home, 1);
    payment::run(&mut session.begin(Access::Write).unwrap(), &input, &keys::history(1, 0)).unwrap();
    assert_eq!(rows(keys::HISTORY), before[keys::HISTORY] + 1);

    let input = delivery::Input::draw(&mut random, 1, false, 1);
    delivery::run(&mut session.begin(Access::Write).unwrap(), &input).unwrap();
    assert_eq!(rows(keys::NEW_ORDER), before[keys::NEW_ORDER] + orders - 10);
    assert_eq!(problems(&workload, &store).iter().filter(|text| !text.contains("condition 11")).count(), 0);
}

#[test]
fn an_order_is_not_delivered_before_the_one_before_it() {
    let (_, store) = loaded(1);
    // The oldest new order is on its way: its number is handed out, and nothing of it is there.
    let oldest = keys::order(PLACE, DELIVERED + 1);
    store.table(keys::NEW_ORDER).remove(&oldest[..]);
    store.table(keys::ORDER).remove(&oldest[..]);
    let mut session = store.session().unwrap();
    let mut random = Random::new(Generator::new(5, 0, 0));
    let input = delivery::Input::draw(&mut random, 1, true, 1);
    let outcome = delivery::run(&mut session.begin(Access::Write).unwrap(), &input).unwrap();
    assert_eq!(outcome, outcome::Outcome::Skipped(1));
    assert!(store.table(keys::NEW_ORDER).contains_key(&keys::order(PLACE, DELIVERED + 2)[..]));
}

#[test]
fn the_customer_in_the_middle_is_found_by_name() {
    let (_, store) = loaded(1);
    let name = random::last_name(42);
    let mut all: Vec<([u8; 16], u32)> = Vec::new();
    for (key, row) in store.table(keys::CUSTOMER).iter() {
        if keys::district_of(key) == PLACE && *customer::LAST.get(row) == name {
            all.push((*customer::FIRST.get(row), keys::customer_of(key)));
        }
    }
    all.sort_unstable();
    let expected = all[all.len().div_ceil(2) - 1].1;
    let mut session = store.session().unwrap();
    let mut transaction = session.begin(Access::Read).unwrap();
    assert_eq!(payment::Who::Name(name).find(&mut transaction, PLACE).unwrap(), Some(expected));
    assert_eq!(payment::Who::Name([b'x'; 16]).find(&mut transaction, PLACE).unwrap(), None);
}

/// Plants something by `plant`, looks for what should be found, and takes it out again.
fn planted(
    workload: &Tpcc,
    store: &MemoryStore,
    table: usize,
    key: &[u8],
    plant: impl Fn(&mut Vec<u8>),
    expected: &[&str],
) {
    let before = store.table(table).get(key).cloned();
    let mut row = before.clone().unwrap_or_default();
    plant(&mut row);
    if before.as_ref() == Some(&row) {
        store.table(table).remove(key);
    } else {
        store.table(table).insert(key.to_vec(), row);
    }
    let found = problems(workload, store);
    for text in expected {
        assert!(found.iter().any(|problem| problem.contains(text)), "{text} is not among {found:#?}");
    }
    assert!(found.len() <= expected.len(), "more than {expected:?}: {found:#?}");
    match before {
        Some(before) => store.table(table).insert(key.to_vec(), before),
        None => store.table(table).remove(key),
    };
}

#[test]
fn every_condition_finds_what_is_planted_for_it() {
    let (workload, store) = loaded(1);
    let plant = |table: usize, key: &[u8], plant: &dyn Fn(&mut Vec<u8>), expected: &[&str]| {
        planted(&workload, &store, table, key, plant, expected);
    };
    // What a planting leaves as it is, is removed.
    let removed: &dyn Fn(&mut Vec<u8>) = &|_| {};
    let order_key = |number| keys::order(PLACE, number);

    plant(
        keys::WAREHOUSE,
        &keys::warehouse(1),
        &|row| warehouse::YEAR_TO_DATE.add(row, 1),
        &["condition 1: ", "condition 8: "],
    );
    plant(keys::WAREHOUSE, &keys::warehouse(1), removed, &["warehouse 1 is missing"]);
    let district_key = keys::district(PLACE);
    plant(
        keys::DISTRICT,
        &district_key,
        &|row| district::YEAR_TO_DATE.add(row, -1),
        &["condition 1: ", "condition 9: "],
    );
    plant(
        keys::DISTRICT,
        &district_key,
        &|row| district::NEXT_ORDER.add(row, 1),
        &["the last new order is 3000", "the last order is 3000"],
    );
    plant(keys::NEW_ORDER, &order_key(2500), removed, &["condition 3: ", "condition 5: ", "condition 11: "]);
    plant(keys::NEW_ORDER, &order_key(3000), removed, &["condition 2: ", "condition 5: ", "condition 11: "]);
    plant(keys::NEW_ORDER, &order_key(2100), &|row| row.clear(), &["condition 5: ", "condition 11: "]);
    plant(keys::ORDER, &order_key(17), &|row| order::LINES.set(row, 16), &["condition 4: ", "condition 6: "]);
    let payment = |row: &mut Vec<u8>| {
        row.resize(history::BYTES, 0);
        history::AMOUNT.set(row, 1);
        history::WAREHOUSE.set(row, 1);
        history::DISTRICT.set(row, 7);
        history::CUSTOMER.set(row, 5);
    };
    let history_key = keys::history(9, 9);
    plant(keys::HISTORY, &history_key, &payment, &["condition 8: ", "condition 9: ", "that do not exist"]);
    let of_customer = |row: &mut Vec<u8>| {
        payment(row);
        history::CUSTOMER_WAREHOUSE.set(row, 1);
        history::CUSTOMER_DISTRICT.set(row, 7);
    };
    plant(keys::HISTORY, &history_key, &of_customer, &["condition 8: ", "condition 9: ", "condition 10: "]);
    plant(
        keys::ORDER_LINE,
        &keys::order_line(PLACE, 2900, 1),
        &|row| order_line::DELIVERY_DATE.set(row, 5),
        &["condition 7: ", "condition 10: ", "condition 12: "],
    );
    plant(
        keys::ORDER_LINE,
        &keys::order_line(PLACE, 4000, 1),
        &|row| row.resize(order_line::BYTES, 0),
        &["condition 6: ", "condition 4: "],
    );
    let customer_key = keys::customer(PLACE, 5);
    plant(
        keys::CUSTOMER,
        &customer_key,
        &|row| customer::BALANCE.add(row, 1),
        &["condition 10: ", "condition 12: "],
    );
    plant(keys::CUSTOMER, &customer_key, &|row| customer::PAID.add(row, 1), &["condition 12: "]);
    plant(keys::CUSTOMER, &customer_key, &|row| customer::FIRST.get_mut(row)[0] = b'?', &["index of names"]);
    plant(keys::STOCK, &keys::stock(1, 77), &|row| stock::YEAR_TO_DATE.add(row, 1), &["the stock says"]);
    plant(keys::STOCK, &keys::stock(1, 77), removed, &["rows of stock"]);
    let number = order::CUSTOMER.get(&store.table(keys::ORDER)[&order_key(9)[..]]);
    plant(
        keys::ORDER_BY_CUSTOMER,
        &keys::order_by_customer(PLACE, number, 9),
        &|row| row.clear(),
        &["index of customers"],
    );
    plant(
        keys::CUSTOMER_BY_NAME,
        &[&district_key[..], &[b'x'; 34]].concat(),
        &|row| row.push(0),
        &["index of names"],
    );
    assert!(problems(&workload, &store).is_empty(), "all plantings were taken out");
}
