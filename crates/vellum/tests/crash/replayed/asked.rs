//! The same steps in a database.

use super::world::{NAMES, Seen, Step, Value, Way, bytes, flag, key, modified, refused, value};
use std::ops::ControlFlow;
#[cfg(not(shuttle))]
use std::sync::Arc;
use vellum::{Error, ErrorKind, Put, Result, Table, Transaction};

pub fn ask(
    transaction: &Transaction,
    tables: &mut [Option<Table>; NAMES.len()],
    name: usize,
    step: &Step,
) -> Result<Seen> {
    let done = |done: Result<()>| match done {
        Err(Error::NoSuchTable { .. } | Error::TableExists { .. }) => Ok(refused()),
        done => done.map(|()| flag(true)),
    };
    match step {
        Step::Create(_) => {
            *tables = Default::default();
            return done(transaction.create_table(NAMES[name]).map(drop));
        }
        Step::Drop => {
            *tables = Default::default();
            return done(transaction.drop_table(NAMES[name]));
        }
        Step::Rename(to) => {
            *tables = Default::default();
            return done(transaction.rename_table(NAMES[name], NAMES[*to]));
        }
        Step::Clear => return done(transaction.clear_table(NAMES[name])),
        _ => {}
    }
    let table = match tables[name].take() {
        Some(table) => table,
        None => match transaction.table(NAMES[name]) {
            Err(Error::NoSuchTable { .. }) => return Ok(refused()),
            table => table?,
        },
    };
    let seen = ask_table(transaction, &table, step);
    tables[name] = Some(table);
    seen
}

fn found(number: u8, bytes: Option<Vec<u8>>) -> (u8, Option<Value>) {
    (number, bytes.map(|bytes| value(&bytes)))
}

/// The values of several keys, in the same order.
fn all_found(numbers: &[u8], values: impl IntoIterator<Item = Result<Option<Vec<u8>>>>) -> Result<Seen> {
    numbers.iter().zip(values).map(|(number, value)| Ok(found(*number, value?))).collect()
}

fn ask_table(transaction: &Transaction, table: &Table, step: &Step) -> Result<Seen> {
    let entry = |(key, bytes): (Vec<u8>, Vec<u8>)| (key[0], Some(value(&bytes)));
    Ok(match step {
        Step::Get(number) => vec![found(*number, transaction.get(table, key(*number))?)],
        Step::ForUpdate(number) => vec![found(*number, transaction.get_for_update(table, key(*number))?)],
        Step::MultiGet(numbers) => {
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let values = transaction.multi_get(table, &keys)?;
            all_found(numbers, values)?
        }
        Step::Lookups(numbers) => {
            let lookups = transaction.lookups(table, numbers.iter().map(|number| key(*number)))?;
            lookups.map(|(key, value)| Ok(found(key[0], value?))).collect::<Result<_>>()?
        }
        Step::Range { low, high, way, take } => {
            let range = key(*low)..=key(*high);
            let entries = || transaction.range(table, range.clone());
            let shown = |one: Result<(Vec<u8>, Vec<u8>)>| one.map(entry);
            match way {
                Way::Forward => entries()?.take(*take).map(shown).collect::<Result<_>>()?,
                Way::Backward => entries()?.rev().take(*take).map(shown).collect::<Result<_>>()?,
                Way::Limited => entries()?.limit(*take).map(shown).collect::<Result<_>>()?,
                Way::LimitedBackward => entries()?.limit(*take).rev().map(shown).collect::<Result<_>>()?,
                Way::Both(bits) => {
                    let mut all = entries()?;
                    let next = |at| if bits >> (at % 32) & 1 == 0 { all.next() } else { all.next_back() };
                    (0..*take).map_while(next).map(shown).collect::<Result<_>>()?
                }
                Way::Scan => {
                    let mut seen = Vec::new();
                    let mut cursor = transaction.cursor(table, range)?;
                    let mut large = Vec::new();
                    if *take > 0 {
                        let _ = cursor.scan(|one| {
                            let number = one.key()[0];
                            match one.inline_value() {
                                Some(bytes) => seen.push((number, Some(value(bytes)))),
                                None => {
                                    large.push(seen.len());
                                    seen.push((number, None));
                                }
                            }
                            if seen.len() == *take {
                                ControlFlow::Break(())
                            } else {
                                ControlFlow::Continue(())
                            }
                        })?;
                    }
                    drop(cursor);
                    for place in large {
                        seen[place] = found(seen[place].0, transaction.get(table, key(seen[place].0))?);
                    }
                    seen
                }
            }
        }
        Step::End { is_first } => {
            let end = if *is_first { transaction.first(table)? } else { transaction.last(table)? };
            end.map(entry).into_iter().collect()
        }
        Step::Count { low, high } => vec![(transaction.count(table, key(*low)..=key(*high))? as u8, None)],
        Step::Put(number, value) => {
            flag(transaction.put(table, key(*number), bytes(*value))? == Put::Replaced)
        }
        Step::Insert(number, value) => flag(transaction.insert(table, key(*number), bytes(*value))?),
        Step::Update(number, value) => flag(transaction.update(table, key(*number), bytes(*value))?),
        Step::Remove(number) => flag(transaction.remove(table, key(*number))?),
        Step::Exchange(number, new) => {
            let mut old = None;
            transaction.update_with(table, key(*number), |present: Option<Vec<u8>>| {
                old = present.map(|bytes| value(&bytes));
                new.map(bytes)
            })?;
            vec![(*number, old)]
        }
        Step::Compare(number, old, new) => {
            flag(transaction.compare_and_swap(table, key(*number), bytes(*old), bytes(*new))?)
        }
        Step::Modify(number) => {
            let change = |bytes_now: &mut [u8]| bytes_now.copy_from_slice(&bytes(modified(value(bytes_now))));
            flag(transaction.modify(table, key(*number), change)?.is_some())
        }
        Step::RemoveRange { low, high } => {
            vec![(transaction.remove_range(table, key(*low)..=key(*high))? as u8, None)]
        }
        Step::Pop { is_first } => {
            let popped =
                if *is_first { transaction.pop_first(table)? } else { transaction.pop_last(table)? };
            popped.map(entry).into_iter().collect()
        }
        Step::MultiPut(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(number, value)| (key(*number), bytes(*value))).collect();
            let puts = transaction.multi_put(table, &pairs)?;
            puts.into_iter().map(|put| (u8::from(put == Put::Replaced), None)).collect()
        }
        Step::MultiModify(numbers) => {
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let change = |_: usize, now: &mut [u8]| now.copy_from_slice(&bytes(modified(value(now))));
            let done = transaction.multi_modify(table, &keys, change)?;
            done.into_iter().map(|is_there| (u8::from(is_there), None)).collect()
        }
        Step::Load(pairs) => {
            let pairs = pairs.iter().map(|(number, value)| (key(*number), bytes(*value)));
            match transaction.bulk_load(table, pairs) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => refused(),
                done => done.map(|_| flag(true))?,
            }
        }
        Step::Clear | Step::Create(_) | Step::Drop | Step::Rename(_) | Step::Save | Step::Back(_) => {
            unreachable!()
        }
    })
}

#[cfg(not(shuttle))]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        std::thread::park();
    }
}

#[cfg(shuttle)]
fn block_on<T>(_: impl Future<Output = T>) -> T {
    unreachable!()
}

pub fn ask_alone(table: &Table, step: &Step, is_async: bool) -> Result<Seen> {
    let entry = |(key, bytes): (Vec<u8>, Vec<u8>)| (key[0], Some(value(&bytes)));
    let is_async = is_async && !cfg!(shuttle);
    Ok(match step {
        Step::Get(number) if is_async => vec![found(*number, block_on(table.get_async(key(*number)))?)],
        Step::Get(number) => vec![found(*number, table.get(key(*number))?)],
        Step::MultiGet(numbers) => {
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let values = table.multi_get(&keys);
            all_found(numbers, values)?
        }
        Step::Lookups(numbers) => {
            let lookups = table.lookups(numbers.iter().map(|number| key(*number)));
            lookups.map(|(key, value)| Ok(found(key[0], value?))).collect::<Result<_>>()?
        }
        Step::Range { low, high, way, take } => {
            let range = key(*low)..=key(*high);
            let shown = |one: Result<(Vec<u8>, Vec<u8>)>| one.map(entry);
            let entries = || table.range(range.clone());
            if is_async {
                let mut all = table.range_async(range)?;
                let next = |_| match way {
                    Way::Backward | Way::LimitedBackward => block_on(all.next_back()),
                    _ => block_on(all.next()),
                };
                return (0..*take).map_while(next).map(shown).collect();
            }
            match way {
                Way::Forward | Way::Scan => entries()?.take(*take).map(shown).collect::<Result<_>>()?,
                Way::Backward => entries()?.rev().take(*take).map(shown).collect::<Result<_>>()?,
                Way::Limited => entries()?.limit(*take).map(shown).collect::<Result<_>>()?,
                Way::LimitedBackward => entries()?.limit(*take).rev().map(shown).collect::<Result<_>>()?,
                Way::Both(bits) => {
                    let mut all = entries()?;
                    let next = |at| if bits >> (at % 32) & 1 == 0 { all.next() } else { all.next_back() };
                    (0..*take).map_while(next).map(shown).collect::<Result<_>>()?
                }
            }
        }
        Step::End { is_first } => {
            let end = if *is_first { table.first()? } else { table.last()? };
            end.map(entry).into_iter().collect()
        }
        Step::Put(number, value) if is_async => {
            flag(block_on(table.put_async(key(*number), bytes(*value)))? == Put::Replaced)
        }
        Step::Put(number, value) if value.0.is_multiple_of(4) => {
            let bytes = bytes(*value);
            flag(table.put_from(key(*number), bytes.len() as u64, &mut &bytes[..])? == Put::Replaced)
        }
        Step::Put(number, value) => flag(table.put(key(*number), bytes(*value))? == Put::Replaced),
        Step::Insert(number, value) if is_async => {
            flag(block_on(table.insert_async(key(*number), bytes(*value)))?)
        }
        Step::Insert(number, value) => flag(table.insert(key(*number), bytes(*value))?),
        Step::Update(number, value) if is_async => {
            flag(block_on(table.update_async(key(*number), bytes(*value)))?)
        }
        Step::Update(number, value) => flag(table.update(key(*number), bytes(*value))?),
        Step::Remove(number) if is_async => flag(block_on(table.remove_async(key(*number)))?),
        Step::Remove(number) => flag(table.remove(key(*number))?),
        Step::Exchange(number, new) => {
            let mut old = None;
            table.update_with(key(*number), |present: Option<Vec<u8>>| {
                old = present.map(|bytes| value(&bytes));
                new.map(bytes)
            })?;
            vec![(*number, old)]
        }
        Step::Compare(number, old, new) => {
            flag(table.compare_and_swap(key(*number), bytes(*old), bytes(*new))?)
        }
        Step::Modify(number) => {
            let change = |bytes_now: &mut [u8]| bytes_now.copy_from_slice(&bytes(modified(value(bytes_now))));
            flag(table.modify(key(*number), change)?.is_some())
        }
        Step::RemoveRange { low, high } => vec![(table.remove_range(key(*low)..=key(*high))? as u8, None)],
        Step::Pop { is_first } => {
            let popped = if *is_first { table.pop_first()? } else { table.pop_last()? };
            popped.map(entry).into_iter().collect()
        }
        Step::MultiPut(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(number, value)| (key(*number), bytes(*value))).collect();
            let puts =
                table.multi_put(&pairs).into_iter().map(|put| Ok((u8::from(put? == Put::Replaced), None)));
            puts.collect::<Result<_>>()?
        }
        Step::MultiModify(numbers) => {
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let change = |_: usize, now: &mut [u8]| now.copy_from_slice(&bytes(modified(value(now))));
            let done = table.multi_modify(&keys, change).into_iter();
            done.map(|is_there| Ok((u8::from(is_there?), None))).collect::<Result<_>>()?
        }
        _ => unreachable!(),
    })
}
