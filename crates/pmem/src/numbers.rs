//! The numbers of clients.

use std::collections::BTreeSet;

/// Which numbers are taken.
#[derive(Debug, Default)]
pub struct Numbers {
    /// From here on none is.
    end: u32,
    /// Those before that are not taken.
    free: BTreeSet<u16>,
}

impl Numbers {
    /// Takes the lowest number that is free; `None` if all 65,536 are taken.
    pub fn take(&mut self) -> Option<u16> {
        if let Some(number) = self.free.pop_first() {
            return Some(number);
        }
        let number = u16::try_from(self.end).ok()?;
        self.end += 1;
        Some(number)
    }

    /// Gives back a number that was taken.
    pub fn give_back(&mut self, number: u16) {
        self.free.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_is_taken_and_there_are_so_many() {
        let mut numbers = Numbers::default();
        assert!((0..=u16::MAX).all(|number| numbers.take() == Some(number)));
        assert_eq!(numbers.take(), None);
        [7, 40_000, 3].into_iter().for_each(|number| numbers.give_back(number));
        assert_eq!([(); 4].map(|()| numbers.take()), [Some(3), Some(7), Some(40_000), None]);
    }
}
