//! Where a feed continues: a place in the log, and the history of the database to which it belongs.

use crate::Lsn;
use std::{fmt, str::FromStr};

/// Where a feed of changes continues: [`Commit::position`](crate::Commit::position) and
/// [`Changes::position`](crate::Changes::position).
///
/// It names a place in the log, and which opening of the database has logged what is before it. If the database is lost and
/// restored as it was earlier, its log reaches the same places again with other contents. So a position that only the lost one
/// has told is refused, with [`Error::NoSuchPosition`](crate::Error::NoSuchPosition), and so is one of another database.
///
/// A database remembers up to 238 openings in which it was changed, and longest those of which a backup was made. A position of one
/// that is forgotten is checked by its place alone.
///
/// As long as nothing has been logged since the database was opened, the position is that of where the log ended before.
///
/// Programs store it as [16 bytes](Self::to_bytes), or as text: it implements [`Display`](fmt::Display) and [`FromStr`].
///
/// ```
/// use vellum::{ChangesFrom, ChangesPosition, Database, Options};
/// # let directory = tempfile::tempdir()?;
/// let database = Database::create(directory.path().join("fruit"), &Options::default())?;
/// let position = database.changes(ChangesFrom::Now)?.position();
/// assert_eq!(ChangesPosition::from_bytes(position.to_bytes()), position);
/// assert_eq!(position.to_string().parse::<ChangesPosition>()?, position);
/// let changes = database.changes(position)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChangesPosition {
    lsn: Lsn,
    life: u64,
}

impl ChangesPosition {
    pub(super) fn new(lsn: Lsn, life: u64) -> Self {
        Self { lsn, life }
    }

    /// The place in the log: everything that was committed before it has been told.
    pub fn lsn(self) -> Lsn {
        self.lsn
    }

    /// The number of the opening that has logged what ends at this place; zero if it is unknown.
    pub(super) fn life(self) -> u64 {
        self.life
    }

    /// As bytes, to be stored. The order of the bytes of two positions means nothing.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.life) << 64 | u128::from(self.lsn.0)).to_le_bytes()
    }

    /// From what [`to_bytes`](Self::to_bytes) has returned. Bytes of another origin give a position that is refused,
    /// unless they happen to name an opening of the database, or none.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { lsn: Lsn(both as u64), life: (both >> 64) as u64 }
    }
}

/// The LSN, and the number of the opening in hexadecimal digits: `123120.9f86d081884c7d65`.
impl fmt::Display for ChangesPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.lsn.0, self.life)
    }
}

/// Text that is not that of a [`ChangesPosition`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is not a position of a feed of changes, which is a number, a dot, and up to 16 hexadecimal digits"
)]
pub struct ParsePositionError {
    text: String,
}

impl FromStr for ChangesPosition {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let both = text.split_once('.').and_then(|(lsn, life)| {
            let is_hexadecimal = life.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_decimal = lsn.bytes().all(|byte| byte.is_ascii_digit());
            let life = u64::from_str_radix(life, 16).ok().filter(|_| is_hexadecimal && is_decimal)?;
            Some(Self { lsn: Lsn(lsn.parse().ok()?), life })
        });
        both.ok_or_else(|| ParsePositionError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_from_bytes_and_text() {
        for (lsn, life) in [(0, 0), (1, u64::MAX), (u64::MAX, 1), (123_120, 0x9f86_d081)] {
            let position = ChangesPosition::new(Lsn(lsn), life);
            assert_eq!(ChangesPosition::from_bytes(position.to_bytes()), position);
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        assert_eq!(ChangesPosition::new(Lsn(123_120), 0x9f).to_string(), "123120.9f");
        for text in [
            "",
            "7",
            ".",
            "7.",
            ".7",
            "+7.7",
            "7.+7",
            "-1.7",
            "7.12345678123456781",
            "7.g",
            "7.7 ",
            "18446744073709551616.7",
        ] {
            let error = text.parse::<ChangesPosition>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is not a position")), "{error}");
        }
    }
}
