//! Checking a whole value, piece by piece.

use super::{BlobReference, CHUNK_BYTES, trailer_at};
use vellum_base::{
    ChecksumStream, HEADER_BYTES, HeaderFault, PAGE_FORMAT_VERSION, PageHeader, PageKind, checksum,
};
use vellum_pool::{Fault, PoolError};

/// Takes the bytes of an extent from its beginning to its end, and then decides whether they are the value for which
/// the reference was made.
pub(crate) struct BlobCheck {
    reference: BlobReference,
    position: u64,
    header: Vec<u8>,
    /// The checksum of all bytes after the checksum in the header.
    whole: ChecksumStream,
    chunk: ChecksumStream,
    /// The checksums of the chunks, as computed and as stored.
    computed: Vec<u8>,
    stored: Vec<u8>,
}

impl BlobCheck {
    pub(crate) fn new(reference: BlobReference) -> Self {
        Self {
            reference,
            position: 0,
            header: Vec::with_capacity(HEADER_BYTES),
            whole: ChecksumStream::default(),
            chunk: ChecksumStream::default(),
            computed: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let value = HEADER_BYTES as u64..HEADER_BYTES as u64 + self.reference.length;
        let trailer = trailer_at(self.reference.length);
        self.header.extend(self.part(bytes, 0..value.start));
        self.whole.update(self.part(bytes, 8..u64::MAX));
        let sums = self.part(bytes, trailer..trailer + 8 * super::chunks(self.reference.length));
        self.stored.extend(sums);
        let mut at = self.position.max(value.start);
        let end = value.end.min(self.position + bytes.len() as u64);
        while at < end {
            let chunk_end = (at - value.start + 1).next_multiple_of(CHUNK_BYTES) + value.start;
            let stop = chunk_end.min(end);
            self.chunk.update(self.part(bytes, at..stop));
            if stop == chunk_end || stop == value.end {
                let sum = std::mem::take(&mut self.chunk).finish();
                self.computed.extend(sum.to_le_bytes());
            }
            at = stop;
        }
        self.position += bytes.len() as u64;
    }

    /// The part of `bytes`, the next bytes of the extent, that lies in a range of the extent.
    fn part<'b>(&self, bytes: &'b [u8], range: std::ops::Range<u64>) -> &'b [u8] {
        let relative = |at: u64| at.saturating_sub(self.position).min(bytes.len() as u64) as usize;
        bytes.get(relative(range.start)..relative(range.end)).unwrap_or_default()
    }

    /// Checks that the bytes are the value. `whole` tells whether the checksum in the extent's header counts: an extent
    /// that has been changed in memory gets its checksum only when it is written.
    ///
    /// # Errors
    /// The first fault found.
    pub(crate) fn finish(self, whole: bool) -> Result<(), PoolError> {
        let Self { reference, header, stored, computed, .. } = self;
        let extent = reference.extent();
        let contents = |what: String| PoolError::Corruption { extent, fault: Fault::Contents(what) };
        let fault = |fault| PoolError::Corruption { extent, fault: Fault::Header(fault) };
        if header.len() < HEADER_BYTES || PageHeader::read(&header).kind != PageKind::BLOB {
            return Err(contents("a large value should be here".into()));
        }
        if checksum(&stored) != reference.digest {
            return Err(contents("the checksums of its parts are not those of its reference".into()));
        }
        let damaged = stored.chunks(8).zip(computed.chunks(8)).position(|(stored, sum)| stored != sum);
        if let Some(index) = damaged {
            let start = index as u64 * CHUNK_BYTES;
            let length = CHUNK_BYTES.min(reference.length - start);
            return Err(contents(format!("the {length} bytes from {start} of its value are damaged")));
        }
        let found = PageHeader::read(&header).extent;
        if found.head != extent.head {
            return Err(fault(HeaderFault::PageId { found: found.head.0 }));
        }
        if found.pages != extent.pages {
            return Err(fault(HeaderFault::Length { found: found.pages }));
        }
        let version = header.get(29).copied().unwrap_or(0);
        if version != PAGE_FORMAT_VERSION {
            return Err(fault(HeaderFault::Format { kind: PageKind::BLOB.0, version }));
        }
        let sum = self.whole.finish();
        match header.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) {
            Some(stored) if whole && stored != sum => {
                Err(fault(HeaderFault::Checksum { stored, computed: sum }))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_base::{Extent, Lsn, PageId, stamp_checksum};

    /// An extent as it is written, and its reference.
    fn sample(length: u64) -> (Vec<u8>, BlobReference) {
        let mut reference = BlobReference { head: PageId(9), length, digest: 0 };
        let mut bytes = vec![0; reference.extent().bytes()];
        PageHeader { extent: reference.extent(), lsn: Lsn(0), kind: PageKind::BLOB }.write(&mut bytes);
        let (body, trailer) = bytes.split_at_mut(trailer_at(length) as usize);
        let value = &mut body[HEADER_BYTES..][..length as usize];
        value.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        let mut sums = Vec::new();
        value.chunks(CHUNK_BYTES as usize).for_each(|chunk| sums.extend(checksum(chunk).to_le_bytes()));
        trailer[..sums.len()].copy_from_slice(&sums);
        reference.digest = checksum(&sums);
        stamp_checksum(&mut bytes);
        (bytes, reference)
    }

    fn check(bytes: &[u8], reference: BlobReference, piece: usize) -> Result<(), PoolError> {
        let mut check = BlobCheck::new(reference);
        bytes.chunks(piece).for_each(|piece| check.update(piece));
        check.finish(true)
    }

    #[test]
    fn pieces_of_any_size_give_the_same_and_every_damage_is_found() {
        for length in [0, 1, 4064, 65_535, 65_536, 65_537, 200_000] {
            let (mut bytes, reference) = sample(length);
            for piece in [4096, 8192, 1 << 20] {
                check(&bytes, reference, piece).unwrap();
            }
            for at in (0..bytes.len()).step_by(997).chain(0..40).chain([bytes.len() - 1]) {
                bytes[at] ^= 4;
                // The reserved bytes of the header are covered by the checksum alone.
                assert!(check(&bytes, reference, 4096).is_err(), "byte {at} of {length}");
                bytes[at] ^= 4;
            }
        }
    }

    #[test]
    fn another_value_and_another_place_are_found() {
        let (bytes, reference) = sample(70_000);
        assert!(check(&bytes, BlobReference { digest: 1, ..reference }, 4096).is_err());
        assert!(check(&bytes, BlobReference { head: PageId(10), ..reference }, 4096).is_err());
        assert!(reference.leads_to(&bytes));
        assert!(!BlobReference { digest: 1, ..reference }.leads_to(&bytes));
        assert!(!BlobReference { length: 69_000, ..reference }.leads_to(&bytes));
        assert_eq!(reference.extent(), Extent { head: PageId(9), pages: 18 });
    }
}
