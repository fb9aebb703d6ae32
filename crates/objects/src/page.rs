//! The layout of objects in a page.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | the page header, of the kind of objects |
//! | 32..34 | how many granules are free |
//! | 34..36 | the granule after the last object |
//! | 36..38 | the generation of the next object: incremented with each object that is deleted |
//! | 38..40 | zero |
//! | 40..48 | the root of the heap's directory, which identifies the heap |
//! | 48..112 | one bit a granule: whether an object begins there |
//! | 112..4096 | objects |
//!
//! An object begins with its *head*, a word of 8 bytes, followed by its bytes:
//!
//! | bits | field |
//! |---|---|
//! | 0..32 | the fingerprint of its type |
//! | 32..48 | its generation |
//! | 48..57 | its length in granules, the head included |
//! | 62 | it was moved here: only the forwarding reference leads here |
//! | 63 | it is large: its bytes are a reference to an extent |
//!
//! An object stays where it is as long as it lives. If it grows and has no room there any more, it leaves a *forward*
//! behind: an object with a special fingerprint, whose bytes are the reference to the new place. There is never more
//! than one such step.

use crate::persistent::Object;
use crate::plant::{Plant, planted};
use crate::reference::{AnyRef, GRANULE_BYTES, GRANULES};
use vellum_base::{Bytes, HEADER_BYTES, PAGE_SIZE, PageHeader, PageId, PageKind};

const FREE_AT: usize = 32;
const END_AT: usize = 34;
const GENERATION_AT: usize = 36;
const OWNER_AT: usize = 40;
const STARTS_AT: usize = 48;
/// The first granule in which an object can lie.
const FIRST: usize = (STARTS_AT + GRANULES / 8) / GRANULE_BYTES;

/// How many granules of a page are available for objects.
pub(crate) const ROOM: usize = GRANULES - FIRST;
/// The minimum number of granules of an object: that of a forward.
const GRANULES_MIN: usize = 2;
/// The maximum length of an object that lies in a page, in bytes. A longer one has its own extent.
pub const OBJECT_BYTES_INLINE_MAX: usize = (ROOM - 1) * GRANULE_BYTES;

/// The fingerprint of a forward.
const FORWARD: u32 = 1;

/// A page of objects in memory, or a copy of one.
pub(crate) type PageBytes = [u8; PAGE_SIZE];

/// The first word of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head(pub u64);

const MOVED: u64 = 1 << 62;
const LARGE: u64 = 1 << 63;

impl Head {
    #[inline(always)]
    fn new(fingerprint: u32, generation: u16, granules: usize, flags: u64) -> Self {
        Self(u64::from(fingerprint) | u64::from(generation) << 32 | (granules as u64) << 48 | flags)
    }

    /// [`is_of`](Self::is_of) for a type whose objects all have the same length; also checks the length.
    #[inline(always)]
    pub fn is_of_fixed<T: Object>(self, reference: AnyRef) -> bool {
        let expected = Self::new(T::FINGERPRINT, 0, granules_of(T::BYTES), 0);
        // Only the generation remains.
        self.0.wrapping_sub(expected.0).rotate_right(32) == u64::from(reference.generation())
    }

    pub fn fingerprint(self) -> u32 {
        self.0 as u32
    }

    pub fn generation(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    pub fn granules(self) -> usize {
        (self.0 >> 48) as usize % GRANULES
    }

    /// How many bytes follow the head.
    #[inline(always)]
    pub fn body_bytes(self) -> usize {
        (self.granules() * GRANULE_BYTES).saturating_sub(GRANULE_BYTES)
    }

    pub fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    pub fn is_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    pub fn is_forward(self) -> bool {
        self.fingerprint() == FORWARD
    }

    /// Whether it is the head of an object of this type that lies in its page, and to which this reference leads.
    #[inline(always)]
    pub fn is_of<T: Object>(self, reference: AnyRef) -> bool {
        let expected = u64::from(T::FINGERPRINT) | u64::from(reference.generation()) << 32;
        // Everything but the length; the flags must be zero.
        (self.0 ^ expected) & (LARGE | MOVED | ((1 << 48) - 1)) == 0
    }
}

/// How many granules an object of `body_bytes` bytes takes.
#[inline(always)]
pub(crate) fn granules_of(body_bytes: usize) -> usize {
    (1 + body_bytes.div_ceil(GRANULE_BYTES)).max(GRANULES_MIN)
}

/// The contents of a page.
#[derive(Clone, Copy)]
pub(crate) struct PageView<'a>(pub &'a PageBytes);

impl<'a> PageView<'a> {
    /// Whether it is a page of objects of the heap whose directory has this root.
    pub fn is_of(self, owner: PageId) -> bool {
        PageHeader::read(&self.0[..]).kind == PageKind::OBJECTS && (&self.0[..]).u64_at(OWNER_AT) == owner.0
    }

    /// Whether it was [wiped](PageMut::wipe), and not freed since.
    pub fn is_wiped(self) -> bool {
        let mut contents = self.0.iter().skip(HEADER_BYTES);
        PageHeader::read(&self.0[..]).kind == PageKind::OBJECTS && contents.all(|byte| *byte == 0)
    }

    pub fn free(self) -> usize {
        (&self.0[..]).u16_at(FREE_AT).into()
    }

    fn end(self) -> usize {
        usize::from((&self.0[..]).u16_at(END_AT)).clamp(FIRST, GRANULES)
    }

    /// The head of the object that begins at a granule, if one does.
    pub fn head(self, granule: usize) -> Option<Head> {
        let bit = self.0.get(STARTS_AT + granule / 8).is_some_and(|byte| byte >> (granule % 8) & 1 != 0);
        (bit && granule >= FIRST).then(|| Head((&self.0[..]).u64_at(GRANULE_BYTES * granule)))
    }

    /// The head of the object to which a reference leads, if the object still exists.
    pub fn find(self, reference: AnyRef) -> Option<Head> {
        self.head(reference.granule()).filter(|head| head.generation() == reference.generation())
    }

    /// The bytes of the object that begins at a granule.
    pub fn body(self, granule: usize, head: Head) -> &'a [u8] {
        self.0
            .get(GRANULE_BYTES * (granule + 1)..)
            .and_then(|rest| rest.get(..head.body_bytes()))
            .unwrap_or_default()
    }

    /// Where a forward leads.
    pub fn target(self, granule: usize, head: Head) -> Option<AnyRef> {
        AnyRef::from_bits(self.body(granule, head).u64_at(0))
    }

    /// The objects: the granule at which each begins, and its head.
    pub fn objects(self) -> impl Iterator<Item = (usize, Head)> + 'a {
        (FIRST..GRANULES).filter_map(move |granule| Some((granule, self.head(granule)?)))
    }

    /// Checks the invariants of the page.
    pub fn check(self) -> Result<(), String> {
        let (mut end, mut used) = (FIRST, 0);
        let stray = (0..FIRST).any(|granule| {
            self.0.get(STARTS_AT + granule / 8).is_some_and(|byte| byte >> (granule % 8) & 1 != 0)
        });
        if stray {
            return Err("an object begins where none can".to_owned());
        }
        for (granule, head) in self.objects() {
            if granule < end {
                return Err(format!("the objects at bytes {} and before overlap", granule * GRANULE_BYTES));
            }
            if head.granules() < GRANULES_MIN || granule + head.granules() > GRANULES {
                return Err(format!(
                    "the object at byte {} has an impossible length",
                    granule * GRANULE_BYTES
                ));
            }
            end = granule + head.granules();
            used += head.granules();
        }
        let said = (&self.0[..]).u16_at(END_AT);
        if end > self.end() || usize::from(said) != self.end() {
            return Err(format!("its objects end at granule {end}, and it says {said}"));
        }
        if self.free() != ROOM - used {
            return Err(format!("{} granules are free, and it says {}", ROOM - used, self.free()));
        }
        Ok(())
    }

    /// A place for an object of `granules` granules, if there is one.
    pub fn place(self, granules: usize) -> Option<usize> {
        if granules > self.free() {
            return None;
        }
        let end = self.end();
        if granules <= GRANULES - end {
            return Some(end);
        }
        let mut gap = FIRST;
        for (granule, head) in self.objects() {
            if granule.saturating_sub(gap) >= granules {
                return Some(gap);
            }
            gap = granule + head.granules();
        }
        (GRANULES.saturating_sub(gap) >= granules).then_some(gap)
    }
}

/// Changes of a page.
pub(crate) struct PageMut<'a>(pub &'a mut PageBytes);

impl PageMut<'_> {
    /// Makes a page that is zero after its header an empty page of the heap with this directory. Its generations begin
    /// at `generation`.
    pub fn init(&mut self, owner: PageId, generation: u16) {
        self.put(OWNER_AT, &owner.0.to_le_bytes());
        self.put(FREE_AT, &(ROOM as u16).to_le_bytes());
        self.put(END_AT, &(FIRST as u16).to_le_bytes());
        self.put(GENERATION_AT, &generation.to_le_bytes());
    }

    /// Makes it a page that belongs to no heap.
    pub fn wipe(&mut self) {
        self.0.get_mut(HEADER_BYTES..).unwrap_or_default().fill(0);
    }

    pub fn view(&self) -> PageView<'_> {
        PageView(self.0)
    }

    /// Puts a new object into the page, if it has room.
    pub fn insert(&mut self, page: PageId, fingerprint: u32, flags: Flags, body: &[u8]) -> Option<AnyRef> {
        let granules = granules_of(body.len());
        let granule = self.view().place(granules)?;
        let generation = (&self.0[..]).u16_at(GENERATION_AT);
        let reference = AnyRef::new(page, granule, generation)?;
        self.set_start(granule, true);
        self.write(granule, Head::new(fingerprint, generation, granules, flags.bits()), body);
        self.set_free(self.view().free() - granules);
        self.set_end(self.view().end().max(granule + granules));
        Some(reference)
    }

    /// Replaces the bytes of an object, if the new ones have room; it may become longer or shorter.
    pub fn replace(&mut self, granule: usize, fingerprint: u32, flags: Flags, body: &[u8]) -> bool {
        let Some(head) = self.view().head(granule) else { return false };
        let (old, new) = (head.granules(), granules_of(body.len()));
        if new > old && !self.has_room_behind(granule, old, new) {
            return false;
        }
        self.write(granule, Head::new(fingerprint, head.generation(), new, flags.bits()), body);
        self.clear(granule + new, granule + old);
        let end = self.view().end();
        self.set_free((self.view().free() + old).saturating_sub(new));
        // There may be a gap between the last object and the recorded end.
        self.set_end(if granule + old >= end { granule + new } else { end.max(granule + new) });
        true
    }

    /// Makes an object a forward.
    pub fn forward(&mut self, granule: usize, to: AnyRef) -> bool {
        self.replace(granule, FORWARD, Flags::default(), &to.to_bits().to_le_bytes())
    }

    /// Removes an object.
    pub fn remove(&mut self, granule: usize) {
        let Some(head) = self.view().head(granule) else { return };
        self.set_start(granule, false);
        self.clear(granule, granule + head.granules());
        self.set_free(self.view().free() + head.granules());
        let end = self.view().end();
        if granule + head.granules() >= end {
            self.set_end(granule);
        }
        let step = u16::from(!planted(Plant::GenerationStays));
        let generation = (&self.0[..]).u16_at(GENERATION_AT).wrapping_add(step);
        self.put(GENERATION_AT, &generation.to_le_bytes());
    }

    fn has_room_behind(&self, granule: usize, old: usize, new: usize) -> bool {
        let next = (granule + old..GRANULES).find(|next| self.view().head(*next).is_some());
        granule + new <= next.unwrap_or(GRANULES)
    }

    fn write(&mut self, granule: usize, head: Head, body: &[u8]) {
        let at = GRANULE_BYTES * granule;
        self.put(at, &head.0.to_le_bytes());
        self.put(at + GRANULE_BYTES, body);
        let padding = head.body_bytes().saturating_sub(body.len());
        let rest = at + GRANULE_BYTES + body.len();
        self.0.get_mut(rest..rest + padding).unwrap_or_default().fill(0);
    }

    fn clear(&mut self, from: usize, to: usize) {
        self.0.get_mut(GRANULE_BYTES * from..GRANULE_BYTES * to).unwrap_or_default().fill(0);
    }

    fn set_start(&mut self, granule: usize, is_start: bool) {
        if let Some(byte) = self.0.get_mut(STARTS_AT + granule / 8) {
            let bit = 1 << (granule % 8);
            if is_start { *byte |= bit } else { *byte &= !bit }
        }
    }

    fn set_free(&mut self, free: usize) {
        self.put(FREE_AT, &(free as u16).to_le_bytes());
    }

    fn set_end(&mut self, end: usize) {
        self.put(END_AT, &(end as u16).to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(target) = self.0.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }
}

/// Properties of an object apart from its type.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    pub is_large: bool,
    pub is_moved: bool,
}

impl Flags {
    fn bits(self) -> u64 {
        let of = |is: bool, bit: u64| if is { bit } else { 0 };
        of(self.is_large, LARGE) | of(self.is_moved, MOVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    /// Objects are inserted, removed and changed at random, in parallel with a map of them.
    #[test]
    fn a_page_holds_what_a_map_holds() {
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..30 {
            let mut bytes = [0; PAGE_SIZE];
            let mut page = PageMut(&mut bytes);
            page.init(PageId(5), random.random());
            let mut model: BTreeMap<AnyRef, (u32, Vec<u8>)> = BTreeMap::new();
            let mut gone = Vec::new();
            for _ in 0..600 {
                let most = if random.random_range(0..20) == 0 { 2000 } else { 120 };
                let length = random.random_range(0..most);
                let body: Vec<u8> = (0..length).map(|_| random.random()).collect();
                let fingerprint = random.random_range(16..20);
                let chosen = model.keys().nth(random.random_range(0..model.len().max(1))).copied();
                match (random.random_range(0..4), chosen) {
                    (0 | 1, _) => match page.insert(PageId(9), fingerprint, Flags::default(), &body) {
                        Some(reference) => {
                            assert!(!gone.contains(&reference), "a generation comes back");
                            assert!(model.insert(reference, (fingerprint, body)).is_none());
                        }
                        None => assert!(page.view().free() < ROOM && !model.is_empty()),
                    },
                    (2, Some(reference))
                        if page.replace(reference.granule(), fingerprint, Flags::default(), &body) =>
                    {
                        model.insert(reference, (fingerprint, body));
                    }
                    (3, Some(reference)) => {
                        page.remove(reference.granule());
                        model.remove(&reference);
                        gone.push(reference);
                    }
                    _ => {}
                }
                page.view().check().unwrap();
                assert_eq!(page.view().objects().count(), model.len());
                for (reference, (fingerprint, body)) in &model {
                    let head = page.view().find(*reference).unwrap();
                    assert_eq!(head.fingerprint(), *fingerprint);
                    assert!(page.view().body(reference.granule(), head).starts_with(body));
                }
                assert!(gone.iter().all(|reference| page.view().find(*reference).is_none()));
            }
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        bolero::check!().with_type::<(Vec<u8>, u16, Vec<u8>)>().for_each(|(some, granule, body)| {
            let mut bytes = [0; PAGE_SIZE];
            bytes.iter_mut().zip(some.iter().cycle()).for_each(|(byte, some)| *byte = *some);
            let granule = usize::from(*granule) % GRANULES;
            let mut page = PageMut(&mut bytes);
            let is_sound = page.view().check().is_ok();
            page.insert(PageId(1), 20, Flags::default(), body);
            page.replace(granule, 21, Flags::default(), body);
            page.remove(granule);
            assert!(!is_sound || page.view().check().is_ok());
        });
    }
}
