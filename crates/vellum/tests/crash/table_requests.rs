//! What clients ask of tables as a whole and of their records: drawn at random, with what it claims and whether it makes sense.

use crate::{
    claims::{Claim, Id},
    model::{Contents, Entries, Operation, is_plain, is_shared, key, value},
};
use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;
use vellum::{Error, ErrorKind};

/// The most tables of which a client wants more.
const TABLES_MAX: usize = 5;

/// Which table has which name.
pub type Ids = BTreeMap<String, Id>;

/// A name that no table has: of a plain one or not.
fn unused(tables: &BTreeMap<&String, &Entries>, is_plain: bool, random: &mut StdRng) -> String {
    let (count, plain) = if is_plain { (3, " plain") } else { (7, "") };
    let first = random.random_range(0..count);
    let names = (0..count).map(|number| format!("made {}{plain}", (first + number) % count));
    let more = (count..).map(|number| format!("made {number}{plain}"));
    names.chain(more).find(|name| !tables.contains_key(name)).unwrap_or_default()
}

/// One or two mebibytes and more, once in a while.
fn any_value(random: &mut StdRng) -> Vec<u8> {
    if !random.random_ratio(1, 60) {
        return value(random);
    }
    let length = random.random_range(1 << 20..3 << 20);
    let first: u8 = random.random();
    (0..length).map(|at: usize| first.wrapping_add((at / 1021) as u8)).collect()
}

/// Anything that can be done to such tables; once in a while it makes no sense.
pub fn draw(contents: &Contents, random: &mut StdRng) -> Operation {
    let tables: BTreeMap<_, _> = contents.iter().filter(|(name, _)| !is_shared(name)).collect();
    let count = tables.len();
    if count == 0 || (count < TABLES_MAX && random.random_ratio(1, 8)) {
        let is_plain = random.random_ratio(1, 3);
        return Operation::Create { table: unused(&tables, is_plain, random) };
    }
    let any = |random: &mut StdRng| tables.iter().nth(random.random_range(0..count)).unwrap();
    let (name, entries) = any(random);
    let table = String::clone(name);
    let known = |random: &mut StdRng| entries.keys().nth(random.random_range(0..entries.len())).cloned();
    let new = unused(&tables, is_plain(name), random);
    match random.random_range(0..34) {
        0..2 => Operation::Drop { table },
        2..4 => Operation::Clear { table },
        4..7 => Operation::Rename { table, new },
        7..14 if entries.is_empty() => {
            let count = random.random_range(1..100);
            let entries = (0..count).map(|_| (key(&table, random), value(random))).collect();
            Operation::Load { table, entries }
        }
        14..18 if !entries.is_empty() => Operation::Remove { table, key: known(random).unwrap_or_default() },
        18..20 if !entries.is_empty() => {
            let key = known(random).unwrap_or_default();
            match entries[&key].is_empty() {
                true => Operation::Remove { table, key },
                false => Operation::Modify { table, key, by: random.random_range(1..=255) },
            }
        }
        20 => match random.random_range(0..6) {
            0 => Operation::Create { table },
            1 => Operation::Rename { new: any(random).0.to_string(), table },
            2 => Operation::Rename { new: format!("{new} again"), table: new },
            3 => Operation::Drop { table: new },
            4 => Operation::Clear { table: new },
            _ => Operation::Load { table, entries: BTreeMap::from([(vec![1], vec![2])]) },
        },
        _ => Operation::Put { key: key(&table, random), table, value: any_value(random) },
    }
}

/// An operation in short, for people.
pub fn in_short(operation: &Operation) -> String {
    let of = |key: &[u8]| format!("{:?}", &key[..key.len().min(6)]);
    match operation {
        Operation::Create { table } => format!("create {table}"),
        Operation::Drop { table } => format!("drop {table}"),
        Operation::Clear { table } => format!("clear {table}"),
        Operation::Rename { table, new } => format!("rename {table} to {new}"),
        Operation::Load { table, entries } => format!("load {table} with {} entries", entries.len()),
        Operation::Put { table, key, value } => {
            format!("put {} bytes into {table}, {}", value.len(), of(key))
        }
        Operation::Remove { table, key } => format!("remove from {table}, {}", of(key)),
        Operation::Modify { table, key, .. } => format!("modify in {table}, {}", of(key)),
        Operation::Tables { .. } | Operation::Commit { .. } => "commit".to_owned(),
    }
}

/// Whether an error says nothing of what was asked for.
pub fn is_of_disk(error: &Error) -> bool {
    use ErrorKind::{AlreadyExists, Conflict, InvalidInput, NotFound};
    !matches!(error.kind(), AlreadyExists | Conflict | InvalidInput | NotFound)
        && !matches!(error, Error::TableInUse { .. })
}

/// The error with which something is refused that makes no sense for these tables.
pub fn refusal(operation: &Operation, contents: &Contents) -> Option<ErrorKind> {
    let is_there = |name: &str| contents.contains_key(name);
    match operation {
        Operation::Create { table } => is_there(table).then_some(ErrorKind::AlreadyExists),
        Operation::Rename { table, .. } | Operation::Drop { table } | Operation::Clear { table }
            if !is_there(table) =>
        {
            Some(ErrorKind::NotFound)
        }
        Operation::Rename { new, .. } => is_there(new).then_some(ErrorKind::AlreadyExists),
        Operation::Load { table, .. } => (!contents[table].is_empty()).then_some(ErrorKind::AlreadyExists),
        _ => None,
    }
}

/// What is claimed by what is done to tables with these ids; a new one has the last.
pub fn claims(operation: &Operation, ids: &Ids, new: Id) -> Vec<Claim> {
    let all_of = |table: &String, id| vec![Claim::Name(table.clone()), Claim::Whole(id), Claim::Contents(id)];
    match operation {
        Operation::Create { table } => all_of(table, new),
        Operation::Drop { table } | Operation::Clear { table } | Operation::Load { table, .. } => {
            all_of(table, ids[table])
        }
        Operation::Rename { table, new } => vec![Claim::Name(table.clone()), Claim::Name(new.clone())],
        Operation::Put { table, key, .. }
        | Operation::Remove { table, key }
        | Operation::Modify { table, key, .. } => {
            let records = Claim::Records(ids[table]);
            // Plain ones take no notice of who changes the record.
            if is_plain(table) {
                vec![records]
            } else {
                vec![records, Claim::Record(ids[table], key.clone())]
            }
        }
        Operation::Tables { .. } | Operation::Commit { .. } => Vec::new(),
    }
}

/// Which tables there are after this.
pub fn change_ids(operation: &Operation, ids: &mut Ids, new_id: Id) {
    match operation {
        Operation::Create { table } => drop(ids.insert(table.clone(), new_id)),
        Operation::Drop { table } => drop(ids.remove(table)),
        Operation::Rename { table, new } => {
            let id = ids.remove(table);
            id.map(|id| ids.insert(new.clone(), id));
        }
        _ => {}
    }
}
