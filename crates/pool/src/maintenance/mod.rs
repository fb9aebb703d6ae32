//! What the background thread does when it does not have to make room: huge pages, and memory for new pages.

pub(crate) mod huge_pages;
pub(crate) mod prefault;
