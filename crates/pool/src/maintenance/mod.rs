//! What the background thread does: room, memory for new pages, and huge pages.

pub(crate) mod background;
pub(crate) mod huge_pages;
pub(crate) mod prefault;
