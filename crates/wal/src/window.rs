//! A part of the log in memory, which moves on as the log is read. What is read next follows directly on what is left
//! of the part before, so that a record is one slice, and only what is left is copied.

use crate::frame::{HEADER_BYTES, PAYLOAD_BYTES_MAX};
use vellum_base::PAGE_SIZE;
use vellum_vm::AlignedBuffer;

/// Room for what is left: less than a frame, whose rest is wanted.
const LEFT_BYTES_MAX: usize = (PAYLOAD_BYTES_MAX + HEADER_BYTES).next_multiple_of(PAGE_SIZE);

/// Bytes of the log.
pub(crate) struct Window {
    /// First the room for what was left, then the room for what was read.
    buffer: AlignedBuffer,
    from: usize,
    to: usize,
    /// The place of the bytes in the log.
    at: u64,
    chunk_bytes: usize,
    spare: Option<AlignedBuffer>,
}

/// Room for what is left, of so many bytes, and for what is read next.
pub(crate) struct Room(AlignedBuffer, usize);

impl Room {
    /// Where to read `bytes` to.
    pub fn chunk(&mut self, bytes: usize) -> &mut [u8] {
        let Self(buffer, begin) = self;
        buffer.get_mut(*begin..*begin + bytes).unwrap_or_default()
    }
}

impl Window {
    /// An empty window; at most `chunk_bytes` are read at once, a multiple of [`PAGE_SIZE`].
    pub fn new(chunk_bytes: usize) -> Self {
        Self { buffer: AlignedBuffer::new(0), from: 0, to: 0, at: 0, chunk_bytes, spare: None }
    }

    /// Whether anything has been read yet.
    pub fn has_read(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The most bytes that are read at once.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// All bytes from `at` on that are here.
    #[inline]
    pub fn from(&self, at: u64) -> &[u8] {
        let passed = at.checked_sub(self.at);
        passed.and_then(|passed| self.bytes().get(passed as usize..)).unwrap_or_default()
    }

    /// The `bytes` from `at` on, if they are here.
    #[inline]
    pub fn get(&self, at: u64, bytes: usize) -> Option<&[u8]> {
        self.from(at).get(..bytes)
    }

    /// Where the bytes end in the log.
    pub fn end(&self) -> u64 {
        self.at + self.bytes().len() as u64
    }

    /// Drops everything before `at`; what follows is kept, if it is here.
    pub fn move_to(&mut self, at: u64) {
        let passed = at.checked_sub(self.at).filter(|_| at <= self.end());
        self.from = passed.map_or(self.to, |passed| self.from + passed as usize);
        self.at = at;
    }

    /// Room for what is read next, whatever is left by then.
    pub fn room(&mut self) -> Room {
        let room = self.room_of(LEFT_BYTES_MAX + self.chunk_bytes);
        Room(room, LEFT_BYTES_MAX)
    }

    /// Room for `bytes` that are read while nothing else happens here. It is no larger than needed: often a feed reads a
    /// page, and all of the room must be cleared first.
    pub fn room_for(&mut self, bytes: usize) -> Room {
        let left = self.bytes().len().next_multiple_of(PAGE_SIZE);
        // A power of two, so that the next ones fit as well.
        let most = LEFT_BYTES_MAX + self.chunk_bytes;
        let room = self.room_of((left + bytes).next_power_of_two().min(most));
        Room(room, left)
    }

    fn room_of(&mut self, bytes: usize) -> AlignedBuffer {
        let spare = self.spare.take().filter(|spare| spare.len() >= bytes);
        spare.unwrap_or_else(|| AlignedBuffer::new(bytes))
    }

    /// Adds `bytes` that were read: the first `passed_over` are skipped, the others follow on those that are here.
    pub fn follow(&mut self, Room(mut buffer, begin): Room, bytes: usize, passed_over: usize) {
        let left = self.bytes();
        debug_assert!(left.len() <= begin && passed_over <= bytes);
        let follows = begin + passed_over;
        let from = follows.saturating_sub(left.len());
        if let Some(target) = buffer.get_mut(from..follows).filter(|target| target.len() == left.len()) {
            target.copy_from_slice(left);
        }
        self.from = from;
        self.to = begin + bytes;
        let buffer = std::mem::replace(&mut self.buffer, buffer);
        self.spare = Some(buffer).filter(|buffer| !buffer.is_empty());
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.buffer.get(self.from..self.to).unwrap_or_default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn what_is_read_follows_on_what_is_left() {
        let byte = |at: u64| (at % 251) as u8;
        let mut random = StdRng::seed_from_u64(5);
        let mut window = Window::new(4 * PAGE_SIZE);
        let mut at = 7777;
        window.move_to(at);
        for _ in 0..2000 {
            let most = if random.random_ratio(1, 50) { 100_000 } else { 9000 };
            let wanted = random.random_range(1..most);
            while window.get(at, wanted).is_none() {
                let (end, over) = (window.end(), random.random_range(0..PAGE_SIZE));
                assert!((at..at + wanted as u64).contains(&end));
                let bytes = random.random_range(1..=4) * PAGE_SIZE;
                let mut room = if random.random_bool(0.5) { window.room() } else { window.room_for(bytes) };
                let chunk = room.chunk(bytes).iter_mut();
                chunk.zip(end - over as u64..).for_each(|(target, at)| *target = byte(at));
                window.follow(room, bytes, over);
                assert_eq!(window.end(), end + (bytes - over) as u64);
            }
            let got = window.get(at, wanted).unwrap();
            assert!(got.iter().zip(at..).all(|(got, at)| *got == byte(at)), "{wanted} at {at}");
            at += random.random_range(0..wanted as u64 * 2);
            window.move_to(at);
            assert!(window.end() >= at);
        }
    }
    #[test]
    fn what_is_read_at_once_takes_little_room_if_it_is_little() {
        let mut window = Window::new(1 << 20);
        window.move_to(5000);
        let mut room = window.room_for(2 * PAGE_SIZE);
        room.chunk(2 * PAGE_SIZE).fill(7);
        window.follow(room, 2 * PAGE_SIZE, 904);
        assert_eq!((window.from(5000).len(), window.buffer.len()), (2 * PAGE_SIZE - 904, 2 * PAGE_SIZE));
        // All of it is left.
        let mut room = window.room_for(1 << 20);
        room.chunk(1 << 20).fill(8);
        window.follow(room, 1 << 20, 0);
        assert_eq!(window.from(5000).len(), 2 * PAGE_SIZE - 904 + (1 << 20));
        assert!(window.from(5000).iter().position(|byte| *byte == 8) == Some(2 * PAGE_SIZE - 904));
        assert!(window.buffer.len() <= LEFT_BYTES_MAX + (1 << 20));
    }
}
