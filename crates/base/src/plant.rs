//! Hooks for tests of whole databases: the tests plant bugs, to show that they would find them, and divide records that
//! would be too long only in a large database. Without the feature `plant`, which only such tests enable, the hooks do
//! nothing and cost nothing.

#[cfg(feature = "plant")]
mod planted {
    use std::{fmt::Debug, sync::OnceLock};

    static BUG: OnceLock<String> = OnceLock::new();
    static RECORD_BYTES_MAX: OnceLock<usize> = OnceLock::new();

    /// Plants a bug in this process, for good: its layer, and its name there, such as `pool::NoQuarantine`.
    ///
    /// # Errors
    /// The name, if a bug is already planted.
    pub fn plant(bug: String) -> Result<(), String> {
        BUG.set(bug)
    }

    /// Whether this bug of a layer is planted.
    #[inline]
    pub fn is_planted(layer: &str, bug: impl Debug) -> bool {
        BUG.get().is_some_and(|planted| *planted == format!("{layer}::{bug:?}"))
    }

    /// Makes this process divide records that are longer than this, where possible.
    pub fn divide_records(bytes: usize) {
        RECORD_BYTES_MAX.get_or_init(|| bytes);
    }

    /// The number of bytes beyond which a record is divided where possible; `None` for the usual number.
    #[inline]
    pub fn record_bytes_max() -> Option<usize> {
        RECORD_BYTES_MAX.get().copied()
    }
}

#[cfg(not(feature = "plant"))]
mod planted {
    /// No bug is planted.
    #[inline(always)]
    pub fn is_planted<T>(_: &str, _: T) -> bool {
        false
    }

    /// The usual number.
    #[inline(always)]
    pub const fn record_bytes_max() -> Option<usize> {
        None
    }
}

pub use planted::*;
