//! The kinds of log records other than changes: the ends of transactions, the time, and what was written past the log.

use vellum_base::{Lsn, PageId, primitive::wall_time};

/// The kinds of records that the trees do not write. All are at least this.
pub(crate) const COMMITTED: u8 = 16;
pub(crate) const ROLLED_BACK: u8 = 17;
pub(crate) const TIME: u8 = 18;
pub(crate) const CONTENTS: u8 = 19;

/// The length of a time record.
pub(crate) const TIME_BYTES: usize = 1 + 8;

/// What a record says.
pub(crate) enum LogRecord<'r> {
    /// A change of pages.
    Change,
    /// The end of a transaction.
    End(End),
    /// The time of day in nanoseconds since 1970, for the changes that follow and are not part of transactions.
    Time(u64),
    /// The contents of pages that were written past the log, from this page on.
    Contents(PageId, &'r [u8]),
    /// It is truncated, or of an unknown kind.
    Unknown,
}

/// The end of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// The transaction's number in the log.
    pub number: u64,
    pub is_committed: bool,
    /// The number of the commit, and the time of day in nanoseconds since 1970.
    pub commit: u64,
    pub time: u64,
    /// A place that is not after its first record; `None` in records of earlier versions.
    pub first: Option<Lsn>,
}

impl<'r> LogRecord<'r> {
    pub fn decode(record: &'r [u8]) -> Self {
        let Some((kind, fields)) = record.split_first() else { return Self::Unknown };
        let word = |index: usize| {
            let bytes = fields.get(index * 8..).and_then(|rest| rest.first_chunk());
            bytes.map(|bytes| u64::from_le_bytes(*bytes))
        };
        let decoded = match *kind {
            ..COMMITTED => Some(Self::Change),
            COMMITTED | ROLLED_BACK => word(0).map(|number| {
                Self::End(End {
                    number,
                    is_committed: *kind == COMMITTED,
                    commit: word(1).unwrap_or(0),
                    time: word(2).unwrap_or(0),
                    first: word(3).map(Lsn),
                })
            }),
            TIME => word(0).map(Self::Time),
            CONTENTS => word(0).map(|page| Self::Contents(PageId(page), fields.get(8..).unwrap_or_default())),
            _ => None,
        };
        decoded.unwrap_or(Self::Unknown)
    }
}

/// Whether a record is a change of pages. One that cannot be read counts as one, so that it is noticed.
pub(crate) fn is_change(record: &[u8]) -> bool {
    matches!(LogRecord::decode(record), LogRecord::Change | LogRecord::Unknown)
}

/// The length of a record that ends a transaction.
pub(crate) const END_BYTES: usize = 1 + 4 * 8;

/// The record that ends a transaction: its kind, the transaction's number, the number of the commit, the time of day in
/// nanoseconds since 1970, and the place before the first record; each of the four is in 8 bytes.
pub(crate) fn end_record(kind: u8, number: u64, time: u64, first: Lsn) -> [u8; END_BYTES] {
    let mut record = [kind; END_BYTES];
    let (_, places) = record.as_rchunks_mut();
    for (place, field) in places.iter_mut().zip([number, time, now(), first.0]) {
        *place = field.to_le_bytes();
    }
    record
}

/// A time record.
pub(crate) fn time_record(time: u64) -> [u8; TIME_BYTES] {
    let mut record = [TIME; TIME_BYTES];
    if let Some(place) = record.last_chunk_mut() {
        *place = time.to_le_bytes();
    }
    record
}

/// A record of the contents of pages.
pub(crate) fn contents_record(first: PageId, pages: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(1 + 8 + pages.len());
    record.push(CONTENTS);
    record.extend_from_slice(&first.0.to_le_bytes());
    record.extend_from_slice(pages);
    record
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    wall_time().as_nanos() as u64
}
