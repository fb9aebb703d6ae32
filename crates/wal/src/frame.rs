//! The format of a record in the log: a header of 16 bytes, the payload, and zeroes up to a multiple of 16.
//!
//! | bytes | what |
//! |---|---|
//! | 0..3 | length of the payload |
//! | 3 | kind |
//! | 4..8 | how far behind this record the log was durable when it was made, in units of 16 bytes, rounded up; [`FAR`] if farther |
//! | 8..16 | checksum |
//!
//! The checksum covers the bytes before it and the payload. Its seed is made from the salt of the timeline and the
//! record's place, so that old contents of a recycled segment, and leftovers of an earlier timeline, are not taken for
//! a record.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Frames begin at multiples of this.
pub(crate) const ALIGNMENT: u64 = 16;
/// The size of a frame's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 16;
/// The longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The distance that stands for "farther than can be said".
const FAR: u64 = u32::MAX as u64;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A record of the layers above.
    Record = 1,
    /// Reserved and then given up: it has no meaning.
    Void = 2,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub kind: Kind,
    pub payload_bytes: usize,
    /// How far behind the record the log was durable, in units of [`ALIGNMENT`].
    distance: u64,
    checksum: u64,
}

impl FrameHeader {
    /// The header of a frame at `lsn`, with the [`seed`] of that place, made while the log was durable up to `durable`.
    pub fn new(kind: Kind, seed: u64, lsn: u64, durable: u64, payload: &[u8]) -> Self {
        let distance = lsn.saturating_sub(durable).div_ceil(ALIGNMENT).min(FAR);
        let mut header = Self { kind, payload_bytes: payload.len(), distance, checksum: 0 };
        header.checksum = header.compute(seed, payload);
        header
    }

    /// The header as two words of the log.
    pub fn encode(&self) -> [u64; 2] {
        [self.first_word(), self.checksum]
    }

    /// The header, if these words can be one.
    pub fn decode(words: [u64; 2]) -> Option<Self> {
        let payload_bytes = (words[0] & 0xff_ffff) as usize;
        let kind = match (words[0] >> 24) as u8 {
            1 => Kind::Record,
            2 => Kind::Void,
            _ => return None,
        };
        let header = Self { kind, payload_bytes, distance: words[0] >> 32, checksum: words[1] };
        (payload_bytes <= PAYLOAD_BYTES_MAX).then_some(header)
    }

    /// The header, if these bytes can be one.
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let words = u128::from_le_bytes(*bytes);
        Self::decode([words as u64, (words >> 64) as u64])
    }

    /// Whether the frame was made for the place with this [`seed`], and is complete.
    pub fn verify(&self, seed: u64, payload: &[u8]) -> bool {
        self.payload_bytes == payload.len() && self.checksum == self.compute(seed, payload)
    }

    /// Whether these bytes, which include the header, are a complete frame that was made for the place with this seed.
    pub fn is_of(&self, seed: u64, frame: &[u8]) -> bool {
        let payload = frame.get(HEADER_BYTES..HEADER_BYTES + self.payload_bytes);
        payload.is_some_and(|payload| self.verify(seed, payload))
    }

    /// The place up to which the log was durable at least when the frame at `lsn` was made.
    pub fn durable(&self, lsn: u64) -> u64 {
        if self.distance == FAR { 0 } else { lsn.saturating_sub(self.distance * ALIGNMENT) }
    }

    /// The size of the whole frame, in bytes.
    pub fn bytes(&self) -> u64 {
        frame_bytes(self.payload_bytes)
    }

    fn first_word(&self) -> u64 {
        self.payload_bytes as u64 | (self.kind as u64) << 24 | self.distance << 32
    }

    fn compute(&self, seed: u64, payload: &[u8]) -> u64 {
        xxh3_64_with_seed(payload, seed ^ self.first_word().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// The seed of the checksum of a frame at `lsn`, on the timeline with this salt.
pub(crate) fn seed(salt: u64, lsn: u64) -> u64 {
    xxh3_64_with_seed(&lsn.to_le_bytes(), salt)
}

/// The size of the frame of a payload, in bytes.
pub(crate) fn frame_bytes(payload_bytes: usize) -> u64 {
    ((HEADER_BYTES + payload_bytes) as u64).next_multiple_of(ALIGNMENT)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_says_what_was_durable() {
        for (lsn, durable, said) in [(4096, 4096, 4096), (4096, 0, 0), (4112, 4100, 4096), (1 << 50, 16, 0)] {
            let header = FrameHeader::new(Kind::Record, 7, lsn, durable, b"payload");
            assert_eq!(FrameHeader::decode(header.encode()), Some(header));
            assert_eq!((header.durable(lsn), header.bytes()), (said, 32));
            assert!(header.verify(7, b"payload"));
        }
    }

    #[test]
    fn a_frame_elsewhere_or_of_another_timeline_or_changed_is_none() {
        let header = FrameHeader::new(Kind::Record, seed(7, 64), 64, 0, b"payload");
        for (seed, payload) in [(seed(8, 64), "payload"), (seed(7, 80), "payload"), (seed(7, 64), "payloae")]
        {
            assert!(!header.verify(seed, payload.as_bytes()));
        }
        assert!(!header.verify(seed(7, 64), b"payloa"));
        for bit in 0..128 {
            let mut words = header.encode();
            words[bit / 64] ^= 1 << (bit % 64);
            assert!(
                !FrameHeader::decode(words).is_some_and(|header| header.verify(seed(7, 64), b"payload")),
                "{bit}"
            );
        }
        assert_eq!(FrameHeader::decode([0, 0]), None);
    }
}
