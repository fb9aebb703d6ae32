//! Which extents are in memory, how many may be, and which leave: the clock chooses, and the evictor evicts.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod evictor;
pub(crate) mod prefault_window;
pub(crate) mod resident_pages;
pub(crate) mod resident_set;
pub(crate) mod strays;
pub(crate) mod write_back;
