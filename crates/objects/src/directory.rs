//! The directory of a heap: a tree that records its pages and the types of its objects.
//!
//! | key | value |
//! |---|---|
//! | `a` | the reference to the object with the roots, in 8 bytes; its page is one of the heap |
//! | `f`, page | nothing: the page has room for more objects. A hint, which may be out of date |
//! | `n`, name of a type | the fingerprint of that type, in 4 bytes |
//! | `p`, page | nothing: the page is one of the heap |
//! | `t`, fingerprint | the description of the type |
//!
//! Pages have 8 bytes and fingerprints 4, big-endian in keys and little-endian in values. A record `p` and its page are
//! created, and freed, by one atomic change.

use crate::{
    Object, Shape,
    error::ObjectError,
    page::{Flags, PageMut},
    reference::{AnyRef, PAGE_LIMIT},
    shape::DEPTH_MAX,
};
use std::ops::Bound;
use vellum_access::{RecordGroup, Tree};
use vellum_base::{Extent, PageHeader, PageId};
use vellum_pool::{Pager, PoolError};

const ANCHOR: &[u8] = b"a";
const FREE: u8 = b'f';
const NAME: u8 = b'n';
const PAGE: u8 = b'p';
const TYPE: u8 = b't';

/// The tree that is the directory of a heap.
pub(crate) struct Directory<'p, P: Pager>(pub Tree<'p, P>);

impl<P: Pager> Clone for Directory<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Pager> Copy for Directory<'_, P> {}

impl<'p, P: Pager> Directory<'p, P> {
    /// The object with the roots, if the heap has one yet.
    pub fn anchor(self) -> Result<Option<AnyRef>, ObjectError> {
        let Some(value) = self.0.get(ANCHOR)? else { return Ok(None) };
        let anchor =
            <[u8; 8]>::try_from(&value[..]).ok().and_then(|bits| AnyRef::from_bits(u64::from_le_bytes(bits)));
        anchor.map(Some).ok_or_else(|| self.damaged("the reference to the roots"))
    }

    /// Makes the object with the roots, of this type and with these bytes, and its page. Nothing happens if another
    /// thread has made it first.
    pub fn make_anchor(
        self,
        pager: &'p P,
        generation: u16,
        (fingerprint, body): (u32, &[u8]),
    ) -> Result<(), ObjectError> {
        let mut group = RecordGroup::begin(pager);
        let mut anchor = None;
        group.make_objects(self.0.root(), |bytes| {
            let page = PageHeader::read(bytes).extent.head;
            init(bytes, self.0.root(), generation);
            anchor = bytes
                .first_chunk_mut()
                .and_then(|bytes| PageMut(bytes).insert(page, fingerprint, Flags::default(), body));
        })?;
        let anchor = anchor.ok_or(ObjectError::TooFarBehind)?;
        self.0.insert_last(group, ANCHOR, &anchor.to_bits().to_le_bytes())?;
        Ok(())
    }

    /// Makes an empty page of objects.
    pub fn make_page(self, pager: &'p P, generation: u16) -> Result<PageId, ObjectError> {
        let mut group = RecordGroup::begin(pager);
        let page = group.make_objects(self.0.root(), |bytes| init(bytes, self.0.root(), generation))?;
        if page.0 >= PAGE_LIMIT {
            return Err(ObjectError::TooFarBehind);
        }
        if self.0.insert_last(group, &key(PAGE, page), &[])? {
            Ok(page)
        } else {
            Err(self.damaged(&format!("page {}, which was free,", page.0)))
        }
    }

    /// Frees a page.
    pub fn free_page(self, pager: &'p P, page: PageId) -> Result<(), ObjectError> {
        let mut group = RecordGroup::begin(pager);
        group.free_objects(self.0.root(), Extent::page(page))?;
        let is_anchor = self.anchor()?.is_some_and(|anchor| anchor.page() == page);
        let key = if is_anchor { ANCHOR.to_vec() } else { key(PAGE, page) };
        self.0.remove_last(group, &key)?;
        Ok(())
    }

    /// Calls `show` with the pages of the heap, until `show` returns false. They are in order, except that the page of
    /// the roots comes first. Pages that are made meanwhile at the end are not shown.
    pub fn pages(self, mut show: impl FnMut(PageId) -> Result<bool, ObjectError>) -> Result<(), ObjectError> {
        if let Some(anchor) = self.anchor()?
            && !show(anchor.page())?
        {
            return Ok(());
        }
        let mut cursor = self.0.range(Bound::Included(&[PAGE]), Bound::Excluded(&[PAGE + 1]))?;
        cursor.seek_to_end();
        let Some(last) = cursor.previous()?.map(|entry| entry.key().to_vec()) else { return Ok(()) };
        // If `show` makes pages, it would otherwise be shown more and more of them.
        let mut cursor = self.0.range(Bound::Included(&[PAGE]), Bound::Included(&last))?;
        while let Some(entry) = cursor.next()? {
            let page = page_of(entry.key()).ok_or_else(|| self.damaged("the record of a page"))?;
            if !show(page)? {
                break;
            }
        }
        Ok(())
    }

    /// Notes that a page has room.
    pub fn note_room(self, page: PageId) -> Result<(), ObjectError> {
        self.0.insert(&key(FREE, page), &[])?;
        Ok(())
    }

    /// Removes the note.
    pub fn forget_room(self, page: PageId) -> Result<(), ObjectError> {
        self.0.remove(&key(FREE, page))?;
        Ok(())
    }

    /// Up to `most` pages that have room, the next ones after `after`.
    pub fn rooms(self, after: PageId, most: usize) -> Result<Vec<PageId>, ObjectError> {
        let (lower, upper) = (key(FREE, after), [FREE + 1]);
        let mut cursor = self.0.range(Bound::Excluded(&lower), Bound::Excluded(&upper))?;
        let mut pages = Vec::new();
        while pages.len() < most
            && let Some(entry) = cursor.next()?
        {
            pages.extend(page_of(entry.key()));
        }
        Ok(pages)
    }

    /// The fingerprint of the type that has this name.
    pub fn fingerprint(self, name: &str) -> Result<Option<u32>, ObjectError> {
        let value = self.0.get(&name_key(name))?;
        Ok(value.and_then(|value| value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))))
    }

    /// Makes the type with this fingerprint the one of this name.
    pub fn set_fingerprint(self, name: &str, fingerprint: u32) -> Result<(), ObjectError> {
        self.0.upsert(&name_key(name), &fingerprint.to_le_bytes())?;
        Ok(())
    }

    /// [`set_fingerprint`](Self::set_fingerprint), if there is no type of this name yet.
    pub fn add_fingerprint(self, name: &str, fingerprint: u32) -> Result<(), ObjectError> {
        self.0.insert(&name_key(name), &fingerprint.to_le_bytes())?;
        Ok(())
    }

    /// The description of a type.
    pub fn shape(self, fingerprint: u32) -> Result<Option<Shape>, ObjectError> {
        let Some(value) = self.0.get(&type_key(fingerprint))? else { return Ok(None) };
        Shape::decode(&value).map(Some).ok_or_else(|| self.damaged("the description of a type"))
    }

    /// Adds the description of type `T`.
    pub fn add_shape<T: Object>(self, shape: &Shape) -> Result<(), ObjectError> {
        let depth = shape.depth();
        if depth > DEPTH_MAX {
            // It could not be read again.
            return Err(ObjectError::TooDeep { name: T::NAME, depth, limit: DEPTH_MAX });
        }
        let mut value = Vec::new();
        shape.encode(&mut value);
        self.0.insert(&type_key(T::FINGERPRINT), &value)?;
        Ok(())
    }

    pub fn remove_shape(self, fingerprint: u32) -> Result<(), ObjectError> {
        self.0.remove(&type_key(fingerprint))?;
        Ok(())
    }

    /// Removes all records that are not pages.
    pub fn clear(self) -> Result<(), ObjectError> {
        loop {
            let mut cursor = self.0.range(Bound::Unbounded, Bound::Unbounded)?;
            let Some(key) = cursor.next()?.map(|entry| entry.key().to_vec()) else { return Ok(()) };
            drop(cursor);
            self.0.remove(&key)?;
        }
    }

    fn damaged(self, what: &str) -> ObjectError {
        let what = format!("{what} is damaged in the directory of a heap of objects");
        PoolError::contents(self.0.root(), what).into()
    }
}

/// Makes a new page an empty page of objects.
fn init(bytes: &mut [u8], owner: PageId, generation: u16) {
    if let Some(bytes) = bytes.first_chunk_mut() {
        PageMut(bytes).init(owner, generation);
    }
}

fn key(kind: u8, page: PageId) -> Vec<u8> {
    [&[kind], &page.0.to_be_bytes()[..]].concat()
}

fn page_of(key: &[u8]) -> Option<PageId> {
    let (_, page) = key.split_first()?;
    <[u8; 8]>::try_from(page)
        .ok()
        .map(|page| PageId(u64::from_be_bytes(page)))
        .filter(|page| page.0 < PAGE_LIMIT)
}

fn name_key(name: &str) -> Vec<u8> {
    [&[NAME], name.as_bytes()].concat()
}

fn type_key(fingerprint: u32) -> Vec<u8> {
    [&[TYPE], &fingerprint.to_be_bytes()[..]].concat()
}
