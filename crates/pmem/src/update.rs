//! Changing values: in place where the change is one word, by a copy otherwise.
//!
//! A word is changed with one fence. The head of a record holds two checksums and a word. First the checksums of the
//! value before and after the change, and the new word, are made durable there; then the word itself is stored, where
//! threads read it, and is left to the client's next fence. After a crash
//!
//! - the value has the second checksum: the change is complete; or it has the first, and
//! - with the word of the head in some place it has the second: the change was perhaps acknowledged, and is completed;
//!   or
//! - it does not: the head is torn, so the change was not acknowledged, and did not happen. The next change of the record
//!   begins by taking the second checksum out of the head.
//!
//! The head may be overwritten once the word is durable: the stripe of the key remembers the word until then
//! (`stripes.rs`). A reader that sees the word sees a durable change, so it needs no lock. Values of more than a page,
//! and stores without checksums, use the lock of the page and, with checksums, two fences.
//!
//! Either way the stripe of the key counts the change, so that a reader that copies some words before it and some after it
//! reads again.

use crate::{
    core::{Core, ONE, Writer},
    error::{Damage, PmemError, Result},
    format::{Format, Record},
    layout::{ONE_FENCE_BYTES_MAX, Place, record_sum},
    lock,
    medium::{Medium, Site},
    memory::WORD,
    owed::Left,
    scratch::Scratch,
};
use std::sync::atomic::Ordering;

impl<L: Format, M: Medium> Core<L, M> {
    /// Changes the value of a key by a function; returns whether the key was there.
    pub fn update(
        &self,
        writer: &mut Writer<L>,
        key: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool> {
        let mut scratch = std::mem::take(&mut writer.scratch);
        let outcome = self.update_with(writer, key, change, &mut scratch);
        scratch.shrink();
        writer.scratch = scratch;
        outcome
    }

    fn update_with(
        &self,
        writer: &mut Writer<L>,
        key: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
        scratch: &mut Scratch,
    ) -> Result<bool> {
        self.check_writable()?;
        let hash = self.hash(key);
        // Before the lock, an exchange, at which a processor waits with what it would read after it.
        self.index.prefetch(hash);
        self.stripes.prefetch_to_change(hash);
        let held = self.stripes.lock(hash);
        let Some((place, record)) = self.find_locked(hash, key) else { return Ok(false) };
        let Scratch { old, new } = &mut *scratch;
        record.load_value(&self.medium, old);
        // A damaged value must not get matching checksums.
        let mut old_sum = 0;
        if self.superblock.checksums {
            let sound = record.sound_sum(&self.medium, key, old);
            old_sum = sound.ok_or(PmemError::Damaged(Damage::Record { at: record.at }))?;
        }
        new.clone_from(old);
        change(new);
        self.check_lengths(key, new)?;
        match difference(old, new) {
            Difference::None => Ok(true),
            Difference::Word(word) => {
                if self.superblock.checksums && new.len() <= ONE_FENCE_BYTES_MAX {
                    self.update_evident(writer, hash, &record, key, (old_sum, new), word)?;
                } else {
                    self.update_word(writer, hash, (place, &record), key, (old_sum, new), word)?;
                }
                drop(held);
                Ok(true)
            }
            Difference::Many => {
                let sequence = Self::draw(writer, record.sequence(&self.medium))?;
                let sums = self.sums(sequence, key, new);
                let (moved, copy) = self.append(writer, ONE.record, (sequence, sums), key, new)?;
                self.publish(writer, ONE, std::iter::once((moved, &copy)))?;
                self.index.replace(hash, place.0, moved.0);
                self.retract_replaced(writer, hash, (place, record), held)?;
                Ok(true)
            }
        }
    }

    /// Changes one word of a value in place. Before that, the checksums of both values are made durable, so that the
    /// record is right whether or not the word reaches the memory. The caller holds the stripe of the key.
    fn update_word(
        &self,
        writer: &mut Writer<L>,
        hash: u64,
        (place, record): (Place, &Record),
        key: &[u8],
        (old_sum, new): (u32, &[u8]),
        word: usize,
    ) -> Result<()> {
        let memory = self.medium.memory();
        let head_at = self.geometry.page_at_of(place);
        // Held until the change is durable: no thread reads what might be lost.
        let held = lock::lock(memory.word(head_at));
        self.medium.touched(head_at, 8);
        if self.superblock.checksums {
            let sequence = record.sequence(&self.medium);
            let sums = u64::from(old_sum) | u64::from(record_sum(sequence, key, new)) << 32;
            self.medium.write(
                &mut writer.lane,
                Site::UpdateSums,
                record.sums_at(),
                &[&sums.to_le_bytes()],
                0,
            );
            self.fence_alone(writer, Site::UpdateSums)?;
        }
        let at = record.value_at() + (word * WORD) as u64;
        let bytes = new.chunks(WORD).nth(word).unwrap_or_default();
        // Counted before it is durable: until then the lock of the page keeps readers away. So it does not matter that the
        // store of the word, which passes the caches, may also pass those of the counter.
        let change = self.stripes.begin_change(hash);
        self.medium.write(&mut writer.lane, Site::UpdateValue, at, &[bytes], 0);
        drop(change);
        self.fence_alone(writer, Site::UpdateValue)?;
        drop(held);
        self.medium.touched(head_at, 8);
        Ok(())
    }

    /// Changes one word of a value, with one fence: see above. The caller holds the stripe of the key.
    fn update_evident(
        &self,
        writer: &mut Writer<L>,
        hash: u64,
        record: &Record,
        key: &[u8],
        (old_sum, new): (u32, &[u8]),
        number: usize,
    ) -> Result<()> {
        let memory = self.medium.memory();
        let is_in_record = |at: u64| (record.at..record.at + record.bytes() as u64).contains(&at);
        if self.stripes.unsettled(hash).is_some_and(is_in_record) {
            self.settle_stripes(writer, std::iter::once(hash))?;
        }
        let new_sum = record_sum(record.sequence(&self.medium), key, new);
        let mut word = [0; WORD];
        let chunk = new.chunks(WORD).nth(number).unwrap_or_default();
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        let word = u64::from_le_bytes(word);
        // A crash has left a head that names a change that did not happen. With the word of this change it might name
        // that again, if another crash tears this head, too.
        if memory.word(record.sums_at()).load(Ordering::Relaxed) >> 32 != u64::from(old_sum) {
            let sums = u64::from(old_sum) | u64::from(old_sum) << 32;
            memory.word(record.sums_at()).store(sums, Ordering::Relaxed);
            self.medium.touched(record.sums_at(), WORD);
            self.medium.flush(&mut writer.lane, Site::UpdateHead, record.sums_at(), WORD);
            self.fence_alone(writer, Site::UpdateHead)?;
        }
        // Through the caches: the lines were just read.
        let sums = u64::from(old_sum) | u64::from(new_sum) << 32;
        memory.word(record.sums_at()).store(sums, Ordering::Relaxed);
        memory.word(record.changed_word_at()).store(word, Ordering::Relaxed);
        self.medium.touched(record.sums_at(), 2 * WORD);
        self.medium.flush(&mut writer.lane, Site::UpdateHead, record.sums_at(), 2 * WORD);
        self.fence(writer, Site::UpdateHead)?;
        let at = record.value_at() + (number * WORD) as u64;
        let change = self.stripes.begin_change(hash);
        // Release: a thread that sees the word sees a durable change.
        memory.word(at).store(word, Ordering::Release);
        drop(change);
        self.medium.touched(at, WORD);
        if !self.leave(writer, hash, at, Left::Word) {
            self.medium.flush(&mut writer.lane, Site::UpdateWord, at, WORD);
            self.fence(writer, Site::UpdateWord)?;
        }
        Ok(())
    }
}

/// How two values differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Difference {
    /// Not at all.
    None,
    /// In one word.
    Word(usize),
    /// In their lengths, or in more than one word.
    Many,
}

fn difference(old: &[u8], new: &[u8]) -> Difference {
    if old.len() != new.len() {
        return Difference::Many;
    }
    // By whole words, whose comparison takes one instruction; what is left over is less than one.
    let ((old, old_rest), (new, new_rest)) = (old.as_chunks::<WORD>(), new.as_chunks::<WORD>());
    let mut differing = (0..).zip(old.iter().zip(new)).filter(|(_, (old, new))| old != new);
    match (differing.next(), differing.next(), old_rest == new_rest) {
        (None, _, true) => Difference::None,
        (Some((word, _)), None, true) => Difference::Word(word),
        (None, _, false) => Difference::Word(old.len()),
        _ => Difference::Many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_found() {
        let old: Vec<u8> = (0..20).collect();
        let with = |changes: &[usize]| {
            let mut new = old.clone();
            changes.iter().for_each(|at| new[*at] ^= 1);
            difference(&old, &new)
        };
        assert_eq!(with(&[]), Difference::None);
        assert_eq!(with(&[0, 7]), Difference::Word(0));
        assert_eq!(with(&[19]), Difference::Word(2));
        assert_eq!(with(&[7, 8]), Difference::Many);
        assert_eq!(difference(&old, &old[..19]), Difference::Many);
    }
}
