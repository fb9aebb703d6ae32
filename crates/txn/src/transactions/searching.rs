//! When undo buffers are searched, and when the table of versions is used instead.

/// From when on undo buffers are searched again. When they no longer are, one thread enters what is in them, and others
/// wait for it. So the more often that happens, the longer the table is used instead.
#[derive(Default)]
pub(super) struct Searching {
    /// The first transaction, by its number in the log, whose buffer is searched.
    pub from: u64,
    /// How many transactions the last pause lasted for.
    pause: u64,
}

impl Searching {
    /// Begins a pause at the transaction of this number, or prolongs it.
    pub fn pause(&mut self, number: u64) {
        const SHORTEST: u64 = if cfg!(test) { 1 } else { 8 };
        const LONGEST: u64 = if cfg!(test) { 4 } else { 4096 };
        if let Some(searched) = number.checked_sub(self.from) {
            let pause = if searched < 4 * self.pause { 2 * self.pause } else { self.pause / 2 };
            self.pause = pause.clamp(SHORTEST, LONGEST);
        }
        self.from = number + self.pause;
    }
}
