//! A key of bytes, in place.

/// The size of the largest key, in bytes.
pub const TEXT_BYTES_MAX: usize = 200;

/// A key, in place.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Default for Text {
    #[inline]
    fn default() -> Self {
        Self { bytes: [0; TEXT_BYTES_MAX], length: 0 }
    }
}

impl AsRef<[u8]> for Text {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Text {
    /// Appends bytes, for which there is room.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Appends a number in so many digits, zeroes before it.
    pub fn push_digits(&mut self, mut number: u64, digits: usize) {
        let place = &mut self.bytes[self.length..self.length + digits];
        for digit in place.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.length += digits;
    }
}

/// A number in so many letters, the most significant first.
#[inline]
pub fn letters<const N: usize>(mut number: u64) -> [u8; N] {
    let mut letters = [0; N];
    for letter in letters.iter_mut().rev() {
        *letter = b'a' + (number % 26) as u8;
        number /= 26;
    }
    letters
}
