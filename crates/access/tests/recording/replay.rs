//! Redo and undo of recorded changes, and the comparison with the actual pages and entries.

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::{BTreeMap, HashMap, HashSet};
use vellum_access::{
    ChangeRecord, PageChange, ValueImage,
    node::{NodeView, ValueKind},
    redo,
};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, checksum};

/// Alters a change before it is redone or undone, or leaves it out: for planted bugs.
pub type Alter<'h> = &'h dyn Fn(PageChange<'h>) -> Option<PageChange<'h>>;

/// Leaves a change as it is: no bug.
pub fn as_it_is(change: PageChange<'_>) -> Option<PageChange<'_>> {
    Some(change)
}

/// What happened to the pages of a pool.
pub struct History {
    /// The extents at the beginning.
    pub start: HashMap<Extent, Vec<u8>>,
    /// The records, in the order of their numbers.
    pub records: Vec<(Lsn, Vec<u8>)>,
    /// The nodes that were written past the log.
    pub written: HashMap<(PageId, Lsn), Vec<u8>>,
    /// Pages as they were at some moments.
    pub seen: Vec<(PageId, Vec<u8>)>,
    /// The extents at the end.
    pub end: HashMap<Extent, Vec<u8>>,
}

/// The state of a page.
#[derive(Clone, PartialEq)]
enum Life {
    Free,
    Node(Vec<u8>),
    /// The head of a large value of so many pages.
    Blob(u32),
}

/// The records of a tree by key, as a leaf holds them.
type Records = BTreeMap<Vec<u8>, (ValueKind, Vec<u8>)>;

impl History {
    /// Every change, with its number, the root of its tree, and its page.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (Lsn, PageId, PageId, PageChange<'_>)> {
        let mut all = Vec::new();
        for (lsn, bytes) in &self.records {
            let record = ChangeRecord::decode(bytes).unwrap();
            for change in record.changes() {
                let (page, change) = change.unwrap();
                all.push((*lsn, record.tree, page, change));
            }
        }
        all.into_iter()
    }

    /// How often each kind of change happened.
    pub fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        self.changes().for_each(|(.., change)| *kinds.entry(kind(&change)).or_default() += 1);
        kinds
    }

    /// Redoes all changes, page by page and the pages in an order that `seed` gives, from the pages of the beginning and
    /// from those of some moments; then each change once more. Compares the result with the actual pages.
    pub fn redo<'h>(&'h self, seed: u64, alter: Alter<'h>) -> Result<(), String> {
        let mut by_page: HashMap<PageId, Vec<(Lsn, PageChange<'h>)>> = HashMap::new();
        let mut pages: HashSet<PageId> = self.start.keys().map(|extent| extent.head).collect();
        for (lsn, _, page, change) in self.changes() {
            pages.insert(page);
            if let Some(change) = alter(change) {
                by_page.entry(page).or_default().push((lsn, change));
            }
        }
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort();
        pages.shuffle(&mut StdRng::seed_from_u64(seed));
        let mut lives = HashMap::new();
        for page in pages {
            let changes = by_page.get(&page).map_or(&[][..], Vec::as_slice);
            lives.insert(page, self.redo_page(page, self.life_at_start(page), changes)?);
        }
        for (page, image) in &self.seen {
            let changes = by_page.get(page).map_or(&[][..], Vec::as_slice);
            let life = self.redo_page(*page, Life::Node(image.clone()), changes)?;
            if !same(&life, lives.get(page).unwrap_or(&Life::Free)) {
                return Err(format!("{page:?} is another one if its redo begins in the middle"));
            }
        }
        self.compare(&lives)
    }

    fn life_at_start(&self, page: PageId) -> Life {
        if let Some(image) = self.start.get(&Extent::page(page))
            && PageHeader::read(image).kind == PageKind::TREE_NODE
        {
            return Life::Node(image.clone());
        }
        let blob = self.start.keys().find(|extent| extent.head == page);
        blob.map_or(Life::Free, |extent| Life::Blob(extent.pages))
    }

    /// Redoes the changes of one page, knowing nothing of others.
    fn redo_page(
        &self,
        page: PageId,
        start: Life,
        changes: &[(Lsn, PageChange<'_>)],
    ) -> Result<Life, String> {
        let mut life = start;
        // What an earlier use of the page left there.
        let mut remains = vec![0; PAGE_SIZE];
        let begun = if let Life::Node(image) = &life { PageHeader::read(image).lsn } else { Lsn(0) };
        for (lsn, change) in changes.iter().filter(|(lsn, _)| *lsn > begun) {
            let failed = |what: &str| format!("{page:?} {lsn:?} {}: {what}", kind(change));
            life = match (change, life) {
                (PageChange::Free { pages: 1 }, Life::Node(image)) => {
                    remains = image;
                    Life::Free
                }
                (PageChange::Free { pages }, Life::Blob(length)) if *pages == length => Life::Free,
                (PageChange::Write { kind: PageKind::BLOB, pages, .. }, Life::Free) => Life::Blob(*pages),
                (PageChange::Write { kind: PageKind::TREE_NODE, digest, .. }, Life::Free) => {
                    let Some(image) = self.written.get(&(page, *lsn)) else {
                        return Err(failed("was not written"));
                    };
                    if checksum(&image[HEADER_BYTES..]) != *digest {
                        return Err(failed("not what was written"));
                    }
                    Life::Node(image.clone())
                }
                (PageChange::Format { .. }, Life::Free) => {
                    let mut image = std::mem::take(&mut remains);
                    image.resize(PAGE_SIZE, 0);
                    twice(&mut image, page, *lsn, change).map_err(|error| failed(&error))?;
                    Life::Node(image)
                }
                (_, Life::Node(mut image)) => {
                    twice(&mut image, page, *lsn, change).map_err(|error| failed(&error))?;
                    Life::Node(image)
                }
                _ => return Err(failed("the page is no node")),
            };
        }
        Ok(life)
    }

    /// Compares the result of the redo with the actual extents, all bytes but the checksums.
    fn compare(&self, lives: &HashMap<PageId, Life>) -> Result<(), String> {
        let mut left = self.end.clone();
        for (page, life) in lives {
            match life {
                Life::Free => {}
                Life::Node(image) => {
                    let is = left.remove(&Extent::page(*page)).ok_or(format!("{page:?} is not allocated"))?;
                    if let Some(at) = (8..PAGE_SIZE).find(|at| image[*at] != is[*at]) {
                        return Err(format!("byte {at} of {page:?} is {}, not {}", is[at], image[at]));
                    }
                }
                Life::Blob(pages) => {
                    let extent = Extent { head: *page, pages: *pages };
                    left.remove(&extent).ok_or(format!("{extent} is not allocated"))?;
                }
            }
        }
        if left.is_empty() { Ok(()) } else { Err(format!("nothing allocated {:?}", left.keys())) }
    }

    /// Undoes all changes of records of a tree by key, the last one first, and compares the records that are left with
    /// those of the beginning.
    pub fn undo<'h>(&'h self, tree: PageId, alter: Alter<'h>) -> Result<(), String> {
        let mut records = records(&self.end, tree);
        for (lsn, _, _, change) in self.changes().rev().filter(|(_, root, ..)| *root == tree) {
            let Some(inverse) = alter(change).and_then(|change| change.inverse()) else { continue };
            undo(&mut records, inverse)
                .ok_or_else(|| format!("{lsn:?} {} cannot be undone", kind(&change)))?;
        }
        let start = self::records(&self.start, tree);
        if records == start { Ok(()) } else { Err("undo does not give the records of the beginning".into()) }
    }
}

fn kind(change: &PageChange<'_>) -> String {
    format!("{change:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// Whether two pages are the same but for the checksums, which depend on when the pages were written.
fn same(one: &Life, other: &Life) -> bool {
    match (one, other) {
        (Life::Node(one), Life::Node(other)) => one[8..] == other[8..],
        (one, other) => one == other,
    }
}

/// Redoes a change, and once more, which must do nothing.
fn twice(image: &mut [u8], page: PageId, lsn: Lsn, change: &PageChange<'_>) -> Result<(), String> {
    let first = redo(image, page, lsn, change).map_err(|error| error.to_string())?;
    let once = image.to_vec();
    let second = redo(image, page, lsn, change).map_err(|error| error.to_string())?;
    if first && !second && once == image { Ok(()) } else { Err("redone twice".into()) }
}

/// The records in the leaves of a tree.
fn records(extents: &HashMap<Extent, Vec<u8>>, tree: PageId) -> Records {
    let (mut records, mut todo) = (Records::new(), vec![tree]);
    while let Some(page) = todo.pop() {
        let view = NodeView::new(&extents[&Extent::page(page)][..]);
        todo.extend(view.children());
        for index in 0..if view.is_leaf() { view.count() } else { 0 } {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            view.append_key(index, &mut key);
            let kind = view.append_value(index, &mut value);
            records.insert(key, (kind, value));
        }
    }
    records
}

/// Applies the inverse of a change to the records; `None` if they are not as that change left them.
fn undo(records: &mut Records, inverse: PageChange<'_>) -> Option<()> {
    let owned = |value: ValueImage<'_>| (value.kind, value.bytes.to_vec());
    match inverse {
        PageChange::Insert { key, value } => {
            records.insert(key.to_vec(), owned(value)).is_none().then_some(())
        }
        PageChange::Remove { key, before } => (records.remove(key)? == owned(before)).then_some(()),
        PageChange::Replace { key, value, before } => {
            (records.insert(key.to_vec(), owned(value))? == owned(before)).then_some(())
        }
        PageChange::Patch { key, offset, bytes, before } => {
            let (_, value) = records.get_mut(key)?;
            let part = value.get_mut(offset as usize..)?.get_mut(..before.len())?;
            if part != before {
                return None;
            }
            part.copy_from_slice(bytes);
            Some(())
        }
        _ => None,
    }
}
