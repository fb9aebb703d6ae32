//! Which extents are in memory, how many may be, and which go when memory is short: the clock decides, the evictor does.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod evictor;
pub(crate) mod prefault_window;
pub(crate) mod resident_pages;
pub(crate) mod resident_set;
pub(crate) mod strays;
pub(crate) mod write_back;
