//! The contents of a simulated file at one moment.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use vellum_base::PAGE_SIZE;

/// The contents of a simulated file. Cloning copies no page, so a test may keep an image for every crash point.
///
/// # Examples
/// ```
/// use vellum_vm::{Image, SimulatedFile};
/// let image = Image::from_bytes(b"not a database");
/// let file = SimulatedFile::from_image(1, image);
/// assert_eq!(file.snapshot().to_vec(), b"not a database");
/// ```
#[derive(Clone, Default)]
pub struct Image {
    size: u64,
    /// Only pages that were ever written; all others hold zeroes.
    pages: BTreeMap<u64, Arc<[u8; PAGE_SIZE]>>,
}

impl Image {
    /// An image of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::default();
        image.write(0, bytes);
        image
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All bytes. For small files.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(usize::MAX)];
        self.read(0, &mut bytes);
        bytes
    }

    /// Copies the bytes at `offset` to `target`, and returns how many there were before the end.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> usize {
        // SAFETY: the slice is borrowed mutably.
        unsafe { self.read_to(offset, target.as_mut_ptr(), target.len()) }
    }

    /// Replaces the bytes at `offset`, beyond the end if necessary.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let (page, within) = place(offset + done as u64);
            let part = &rest[..rest.len().min(PAGE_SIZE - within)];
            let contents = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_SIZE]));
            Arc::make_mut(contents)[within..within + part.len()].copy_from_slice(part);
            done += part.len();
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Cuts the image, or extends it with zeroes.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let (page, within) = place(size);
            self.pages.split_off(&size.div_ceil(PAGE_SIZE as u64));
            if let Some(last) = self.pages.get_mut(&page).filter(|_| within > 0) {
                Arc::make_mut(last)[within..].fill(0);
            }
        }
        self.size = size;
    }

    /// Inverts one bit, counted from the beginning of the file. Beyond the end it does nothing.
    pub fn flip_bit(&mut self, bit: u64) {
        let mut byte = [0];
        if self.read(bit / 8, &mut byte) == 1 {
            self.write(bit / 8, &[byte[0] ^ (1 << (bit % 8))]);
        }
    }

    /// Like [`read`](Self::read), to raw memory.
    ///
    /// # Safety
    /// `address` is valid for writes of `bytes` bytes.
    pub(super) unsafe fn read_to(&self, offset: u64, address: *mut u8, bytes: usize) -> usize {
        let there = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes);
        let mut done = 0;
        while done < there {
            let (page, within) = place(offset + done as u64);
            let length = (there - done).min(PAGE_SIZE - within);
            // SAFETY: `done + length` is within `bytes`, and `within + length` within a page.
            unsafe {
                match self.pages.get(&page) {
                    Some(contents) => {
                        ptr::copy_nonoverlapping(contents.as_ptr().add(within), address.add(done), length);
                    }
                    None => ptr::write_bytes(address.add(done), 0, length),
                }
            }
            done += length;
        }
        there
    }
}

impl PartialEq for Image {
    /// Whether both hold the same bytes.
    fn eq(&self, other: &Self) -> bool {
        const ZEROES: &[u8; PAGE_SIZE] = &[0; PAGE_SIZE];
        let covers = |one: &Self, other: &Self| {
            one.pages.iter().all(|(page, contents)| {
                other.pages.get(page).map_or(ZEROES, |found| found) == contents.as_ref()
            })
        };
        self.size == other.size && covers(self, other) && covers(other, self)
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes, {} pages written)", self.size, self.pages.len())
    }
}

/// The page in which a byte lies, and its place there.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE_SIZE as u64, (offset % PAGE_SIZE as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    #[test]
    fn an_image_is_a_vector_of_bytes() {
        let mut random = Random::new(5);
        let (mut image, mut model) = (Image::default(), Vec::<u8>::new());
        for step in 0..2000u64 {
            let at = random.below(40_000);
            let length = random.below(10_000) as usize;
            match random.below(4) {
                0 | 1 => {
                    let bytes = vec![step as u8; length];
                    image.write(at, &bytes);
                    let end = at as usize + length;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                2 => {
                    image.resize(at);
                    model.resize(at as usize, 0);
                }
                _ => {
                    let mut found = vec![0xee; length];
                    let there = image.read(at, &mut found);
                    let expected = model.get(at as usize..).unwrap_or(&[]);
                    assert_eq!(there, expected.len().min(length));
                    assert_eq!(found[..there], expected[..there]);
                    assert!(found[there..].iter().all(|byte| *byte == 0xee), "untouched past the end");
                }
            }
            assert_eq!(image.size(), model.len() as u64);
        }
        assert_eq!(image.to_vec(), model);
        assert_eq!(image, Image::from_bytes(&model));
    }

    #[test]
    fn copies_are_independent_and_equal_until_changed() {
        let one = Image::from_bytes(&[3; 10_000]);
        let mut two = one.clone();
        assert_eq!(one, two);
        two.flip_bit(8 * 5000 + 1);
        assert_ne!(one, two);
        assert_eq!(two.to_vec()[5000], 1);
        two.flip_bit(8 * 5000 + 1);
        assert_eq!(one, two);
        two.flip_bit(8 * 10_000);
        assert_eq!(one, two, "there is no such bit");
        two.resize(9_999);
        assert_ne!(one, two);
        let mut sparse = Image::default();
        sparse.resize(10_000);
        assert_eq!(sparse, Image::from_bytes(&[0; 10_000]));
    }
}
