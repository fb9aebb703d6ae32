//! The background thread: it makes room, fetches memory for new pages, and makes huge pages.

pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod huge_pages;
pub(crate) mod prefault;
