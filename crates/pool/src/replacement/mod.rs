//! Which extents are in memory, how many may be, and which go when memory is short: the clock decides, the evictor does.

pub(crate) mod budget;
#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(not(loom))]
pub(crate) mod evictor;
#[cfg(not(loom))]
pub(crate) mod prefault_window;
#[cfg(not(loom))]
pub(crate) mod resident_pages;
pub(crate) mod resident_set;
#[cfg(not(loom))]
pub(crate) mod strays;
#[cfg(not(loom))]
pub(crate) mod write_back;
