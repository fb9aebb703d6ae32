//! Buffers that a client keeps from one update to the next.

/// The values before and after a change.
#[derive(Debug, Default)]
pub struct Scratch {
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

impl Scratch {
    /// Frees the memory that a large value needed.
    pub fn shrink(&mut self) {
        const KEPT_BYTES: usize = 1 << 16;
        for buffer in [&mut self.old, &mut self.new] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}
