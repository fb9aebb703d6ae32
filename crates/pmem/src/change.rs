//! Puts and deletes, and the placement of a client's records.

use crate::{
    core::{Core, ONE, Put, Writer},
    error::Result,
    format::{Format, Next, Record, large},
    layout::Place,
    medium::{Medium, Site},
    space::{Partial, Purpose},
};
use std::sync::{PoisonError, atomic::Ordering};

impl<L: Format, M: Medium> Core<L, M> {
    /// Takes back a writer, with its block.
    pub fn end_writer(&self, writer: &mut Writer<L>) {
        // If this fails, the store accepts no more changes, and the next opening determines which records are the later
        // ones.
        let _ = self.settle_owed(writer);
        self.give_back(writer);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.fetch_max(writer.clock, Ordering::Relaxed);
        clients.give_back(writer.id);
    }

    /// Gives back the block of a writer.
    pub fn give_back(&self, writer: &mut Writer<L>) {
        // If this fails, the store accepts no more changes.
        let _ = self.settle_page(writer);
        let Some(cursor) = writer.cursor.take() else { return };
        let block = L::block(&cursor);
        match L::suspend(&cursor) {
            Some(spare) => self.space.give_back_partial(Partial { block, spare }, writer.id),
            None => self.space.close_by(block, writer.id),
        }
    }

    /// Writes a record to which nothing leads; flushed, not fenced.
    pub fn append(
        &self,
        writer: &mut Writer<L>,
        site: Site,
        (sequence, sums): (u64, u64),
        key: &[u8],
        value: &[u8],
    ) -> Result<(Place, Record)> {
        let (place, record, behind) = self.watch(self.reserve(writer, key.len(), value.len()))?;
        self.write_record(writer, site, &record, behind, (sequence, sums), (key, value));
        Ok((place, record))
    }

    fn write_record(
        &self,
        writer: &mut Writer<L>,
        site: Site,
        record: &Record,
        behind: usize,
        head: (u64, u64),
        contents: (&[u8], &[u8]),
    ) {
        let word = if self.is_evident(record) { L::word_before(record) } else { None };
        writer.owed.is_unfenced = true;
        record.write(&self.medium, &mut writer.lane, site, (word, behind), head, contents);
    }

    fn reserve(
        &self,
        writer: &mut Writer<L>,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<(Place, Record, usize)> {
        let (medium, geometry) = (&self.medium, self.geometry);
        loop {
            if writer.cursor.is_none() {
                writer.cursor = Some(self.open_block(writer)?);
            }
            let Some(cursor) = &mut writer.cursor else { continue };
            let block = L::block(cursor);
            // This comes first, because `next` may write to the block.
            if !self.space.block(block).reserve(writer.id) {
                writer.cursor = None;
                // Must happen before the block can become this writer's again.
                writer.owed.full.retain(|full| full.is_pinned);
                continue;
            }
            let next = L::next(medium, geometry, &mut writer.lane, cursor, key_bytes, value_bytes);
            if !matches!(next, Ok(Next::At(..))) {
                self.space.retracted(block, 0);
            }
            match next? {
                Next::At(place, record, behind) => {
                    if self.superblock.checksums {
                        let word = L::take_full(geometry, cursor);
                        self.note_full(writer, block, word, false);
                    }
                    return Ok((place, record, behind));
                }
                Next::BlockFull => {
                    if self.superblock.checksums {
                        let word = L::begun(geometry, cursor);
                        self.note_full(writer, block, word, false);
                        self.pin_full(writer);
                    }
                    self.space.close_by(block, writer.id);
                    writer.cursor = None;
                }
                Next::Large(blocks) => {
                    let (first, _) = self.space.take_run(medium, &mut writer.lane, blocks, writer.purpose)?;
                    let lengths = (key_bytes, value_bytes);
                    let (place, record) =
                        large::begin(medium, geometry, &mut writer.lane, first, blocks, lengths)?;
                    (first..first + blocks)
                        .for_each(|block| self.space.block(block).set(crate::blocks::State::Large, 1, 0));
                    return Ok((place, record, 0));
                }
            }
        }
    }

    fn open_block(&self, writer: &mut Writer<L>) -> Result<L::Cursor> {
        let unfinished = if writer.purpose == Purpose::Write { self.space.take_partial() } else { None };
        if let Some(partial) = unfinished {
            self.space.block(partial.block).open(writer.id);
            return Ok(L::resume(self.geometry, partial.block, &partial.spare));
        }
        let (block, is_fresh) = self.space.take_run(&self.medium, &mut writer.lane, 1, writer.purpose)?;
        L::format(&self.medium, self.geometry, &mut writer.lane, block, is_fresh, self.superblock.checksums)?;
        self.space.block(block).open(writer.id);
        // Clients begin in different pages, so that they are spread over the memory modules.
        let page = (u64::from(writer.id) + block) % u64::from(self.geometry.pages);
        Ok(L::begin(self.geometry, block, page as u32))
    }

    /// Writes a new record of a key, with a sequence number above that of its present record; flushed, not fenced.
    ///
    /// The record is written first, with the writer's next number, and goes to the memory while the index is searched.
    /// Where that number is too low, because the present record is another client's that has drawn more, the record is
    /// written again before the fence. A crash before that leaves at most a record that was never acknowledged, and is
    /// older than the present one.
    pub fn append_new(
        &self,
        writer: &mut Writer<L>,
        site: Site,
        hash: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Place, Record, u64)> {
        let sequence = Self::draw(writer, 0)?;
        let sums = self.sums(sequence, key, value);
        let (place, record) = self.append(writer, site, (sequence, sums), key, value)?;
        let present = self.read(hash, key, |present| present.sequence(&self.medium));
        let renumbered = present.and_then(|present| match present {
            Some(above) if above > sequence => Self::draw(writer, above),
            _ => Ok(sequence),
        });
        match renumbered {
            Ok(number) if number == sequence => {}
            Ok(number) => {
                let head = (number, self.sums(number, key, value));
                self.write_record(writer, Site::Renumber, &record, 0, head, (key, value));
            }
            Err(_) => self.take_back(writer, site, place, &record)?,
        }
        Ok((place, record, renumbered?))
    }

    /// Retracts a record that was just written, and to which nothing leads.
    fn take_back(&self, writer: &mut Writer<L>, site: Site, place: Place, record: &Record) -> Result<()> {
        // First what was written past the caches.
        self.fence(writer, site)?;
        self.retract(writer, Site::Retract, place, record);
        self.fence(writer, Site::Retract)?;
        self.freed(writer, place, record)
    }

    /// Stores a value.
    pub fn put(&self, writer: &mut Writer<L>, key: &[u8], value: &[u8]) -> Result<Put> {
        self.check_writable()?;
        self.check_lengths(key, value)?;
        let hash = self.hash(key);
        self.index.prefetch_for_change(hash);
        let (place, record, sequence) = self.append_new(writer, ONE.record, hash, key, value)?;
        self.publish(writer, ONE, std::iter::once((place, &record)))?;
        self.settle(writer, hash, key, (place, record, sequence))
    }

    /// Makes the index lead to a new record that is valid and durable, and retracts the one it replaces.
    pub fn settle(
        &self,
        writer: &mut Writer<L>,
        hash: u64,
        key: &[u8],
        (place, record, sequence): (Place, Record, u64),
    ) -> Result<Put> {
        let held = self.stripes.lock(hash);
        let Some((old, old_record)) = self.find_locked(hash, key) else {
            self.index.insert(hash, place.0);
            return Ok(Put::Inserted);
        };
        // Another thread may have put a later record since this put drew its number: then this record was replaced at
        // once.
        let (gone, gone_record) = if old_record.sequence(&self.medium) > sequence {
            (place, record)
        } else {
            self.index.replace(hash, old.0, place.0);
            (old, old_record)
        };
        self.retract_replaced(writer, hash, (gone, gone_record), held)?;
        Ok(Put::Replaced)
    }

    /// Removes a key; returns whether it was there.
    pub fn delete(&self, writer: &mut Writer<L>, key: &[u8]) -> Result<bool> {
        self.check_writable()?;
        let hash = self.hash(key);
        // Before the lock, an exchange, at which a processor waits with what it would read after it.
        self.index.prefetch_for_change(hash);
        let held = self.stripes.lock(hash);
        let Some((place, record)) = self.find_locked(hash, key) else { return Ok(false) };
        self.settle_stripes(writer, std::iter::once(hash))?;
        self.retract(writer, Site::Delete, place, &record);
        self.fence(writer, Site::Delete)?;
        self.index.remove(hash, place.0);
        drop(held);
        self.freed(writer, place, &record)?;
        Ok(true)
    }
}
