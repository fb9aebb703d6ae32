//! Redo and undo of recorded changes, and the comparison with the actual pages and entries.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use vellum_access::{
    ChangeRecord, NodeImage, PageChange, PageRedo, RecordKind, SpaceEvent, ValueImage,
    node::{NodeView, ValueKind},
    redo,
};
use vellum_base::{Bytes, Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind};

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
    /// Where checkpoints were.
    pub checkpoints: Vec<Lsn>,
    /// How often the place of a record was given up.
    pub cancelled: u64,
    /// The nodes of bulk loads, each with the log's end when it was written.
    pub nodes: Vec<(PageId, Lsn, Vec<u8>)>,
    /// The extents of large values that were made durable, each with the log's end then.
    pub persisted: Vec<(Extent, Lsn)>,
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
    /// The records that count: those of groups only if the last one is there.
    fn counted(&self) -> impl Iterator<Item = (Lsn, ChangeRecord<'_>)> {
        let decode = |(lsn, bytes): &'_ (Lsn, Vec<u8>)| (*lsn, ChangeRecord::decode(bytes).unwrap().kind);
        let complete = self.records.iter().map(decode).filter_map(|(_, kind)| match kind {
            RecordKind::Last(group) | RecordKind::Loaded { group, .. } => Some(group),
            _ => None,
        });
        let complete: HashSet<_> = complete.collect();
        self.all().filter(move |(_, record)| match record.kind {
            RecordKind::Member(group) => complete.contains(&group),
            _ => true,
        })
    }

    fn all(&self) -> impl Iterator<Item = (Lsn, ChangeRecord<'_>)> {
        self.records.iter().map(|(lsn, bytes)| (*lsn, ChangeRecord::decode(bytes).unwrap()))
    }

    /// How many groups have no last record.
    pub fn incomplete_groups(&self) -> usize {
        let counted: HashSet<_> = self.counted().map(|(lsn, _)| lsn).collect();
        let lost =
            self.all().filter(|(lsn, _)| !counted.contains(lsn)).map(|(_, record)| match record.kind {
                RecordKind::Member(group) => group,
                _ => 0,
            });
        lost.collect::<HashSet<_>>().len()
    }

    /// How many groups have several records and a last one.
    pub fn complete_groups(&self) -> usize {
        self.all()
            .filter(|(_, record)| matches!(record.kind, RecordKind::Last(_) | RecordKind::Loaded { .. }))
            .count()
    }

    /// Every change, with its number, the root of its tree, and its page.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (Lsn, PageId, PageId, PageChange<'_>)> {
        let mut all = Vec::new();
        for (lsn, record) in self.counted() {
            for change in record.changes() {
                let (page, change) = change.unwrap();
                all.push((lsn, record.tree, page, change));
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

    /// Redoes all changes in every way, and compares the extents of which the records tell with the actual ones.
    pub fn check<'h>(&'h self, seed: u64, alter: Alter<'h>) -> Result<(), String> {
        self.redo(seed, alter)?;
        self.compare_space(self.counted())?;
        let checkpoints = self.checkpoints.iter().step_by(self.checkpoints.len() / 6 + 1);
        checkpoints.into_iter().try_for_each(|checkpoint| self.recover(*checkpoint, alter))
    }

    /// Redoes all changes without images, page by page and the pages in an order that `seed` gives, from the pages of the
    /// beginning and from those of some moments; then each change once more. Compares the result with the actual pages.
    pub fn redo<'h>(&'h self, seed: u64, alter: Alter<'h>) -> Result<(), String> {
        let by_page = self.by_page(Lsn(0)..Lsn(u64::MAX), alter);
        let mut pages: Vec<_> = self.pages(&by_page).into_iter().collect();
        pages.shuffle(&mut StdRng::seed_from_u64(seed));
        let mut lives = HashMap::new();
        for page in pages {
            let changes = by_page.get(&page).map_or(&[][..], Vec::as_slice);
            lives.insert(page, self.redo_page(page, self.life_at_start(page), changes)?);
        }
        // A page of which no record tells yet has no LSN that says where its redo begins.
        for (page, image) in self.seen.iter().filter(|(_, image)| PageHeader::read(image).lsn > Lsn(0)) {
            let changes = by_page.get(page).map_or(&[][..], Vec::as_slice);
            let life = self.redo_page(*page, Life::Node(image.clone()), changes)?;
            if !same(&life, lives.get(page).unwrap_or(&Life::Free)) {
                return Err(format!("{page:?} is another one if its redo begins in the middle"));
            }
        }
        self.compare(&lives, |image, is| (HEADER_BYTES..PAGE_SIZE).find(|at| image[*at] != is[*at]))
    }

    /// The changes of each page but images, of records in this range.
    fn by_page<'h>(
        &'h self,
        range: std::ops::Range<Lsn>,
        alter: Alter<'h>,
    ) -> HashMap<PageId, Vec<(Lsn, PageChange<'h>)>> {
        let mut by_page: HashMap<_, Vec<_>> = HashMap::new();
        for (lsn, _, page, change) in self.changes().filter(|(lsn, ..)| range.contains(lsn)) {
            if !matches!(change, PageChange::Image { .. })
                && let Some(change) = alter(change)
            {
                // Of a run each page is written.
                let count = if let PageChange::Nodes { count } = change { count } else { 1 };
                for page in (page.0..).map(PageId).take(count as usize) {
                    by_page.entry(page).or_default().push((lsn, change));
                }
            }
        }
        by_page
    }

    fn pages<T>(&self, by_page: &HashMap<PageId, T>) -> BTreeSet<PageId> {
        self.start.keys().map(|extent| extent.head).chain(by_page.keys().copied()).collect()
    }

    /// What a database does that was killed, from this checkpoint: all changes before it are in the pages; all pages that are
    /// changed after it are torn.
    fn recover<'h>(&'h self, checkpoint: Lsn, alter: Alter<'h>) -> Result<(), String> {
        let before = self.by_page(Lsn(0)..checkpoint, alter);
        let mut lives = HashMap::new();
        for page in self.pages(&before) {
            let changes = before.get(&page).map_or(&[][..], Vec::as_slice);
            lives.insert(page, self.redo_page(page, self.life_at_start(page), changes)?);
        }
        let mut random = StdRng::seed_from_u64(checkpoint.0);
        let mut torn = HashSet::new();
        for (lsn, record) in self.counted().filter(|(lsn, _)| *lsn >= checkpoint) {
            self.recover_space(&mut lives, &mut torn, (lsn, record), alter)?;
            for change in record.page_changes() {
                let change = change.unwrap();
                assert_eq!(PageRedo::decode(&mut { change.bytes }), Ok(change));
                let Some(Life::Node(image)) = lives.get_mut(&change.page) else {
                    return Err(format!("{:?} is no node at {lsn:?}", change.page));
                };
                if torn.insert(change.page) {
                    image.iter_mut().for_each(|byte| *byte = random.random());
                }
                let mut fresh = change.fresh;
                // Without its image, the other change of the page is to be redone.
                let others = record.changes().map(Result::unwrap);
                let mut others =
                    others.filter(|(page, other)| *page == change.page && *other != change.change);
                let altered = alter(change.change).or_else(|| {
                    fresh = false;
                    others.next().map(|(_, other)| other)
                });
                let Some(altered) = altered else { continue };
                if fresh {
                    *image = vec![0; PAGE_SIZE];
                }
                redo(image, change.page, lsn, &altered)
                    .map_err(|error| format!("{:?} {lsn:?} {}: {error}", change.page, kind(&altered)))?;
            }
        }
        self.compare(&lives, |image, is| {
            let (one, other) = (NodeImage::of(image), NodeImage::of(is));
            (one != other).then_some(HEADER_BYTES)
        })
    }

    /// What a record says of extents. Pages that are written past the log are not torn: they were durable before.
    fn recover_space<'h>(
        &'h self,
        lives: &mut HashMap<PageId, Life>,
        torn: &mut HashSet<PageId>,
        (lsn, record): (Lsn, ChangeRecord<'h>),
        alter: Alter<'h>,
    ) -> Result<(), String> {
        for (page, change) in record.changes().map(Result::unwrap) {
            match alter(change) {
                Some(PageChange::Nodes { count }) => {
                    for page in (page.0..).map(PageId).take(count as usize) {
                        torn.remove(&page);
                        lives.insert(page, Life::Node(self.written(page, lsn).ok_or("was not written")?));
                    }
                }
                Some(PageChange::Write { pages, .. }) => drop(lives.insert(page, Life::Blob(pages))),
                Some(PageChange::Format { .. }) => drop(lives.insert(page, Life::Node(vec![0; PAGE_SIZE]))),
                Some(PageChange::Free { .. }) => drop(lives.insert(page, Life::Free)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The extents of which these records tell are those that are allocated.
    fn compare_space<'h>(
        &'h self,
        records: impl Iterator<Item = (Lsn, ChangeRecord<'h>)>,
    ) -> Result<(), String> {
        let mut allocated: HashSet<Extent> = self.start.keys().copied().collect();
        for (lsn, record) in records {
            for event in record.space_events() {
                let (extent, event) = event.unwrap();
                let changed = match event {
                    SpaceEvent::Allocated => allocated.insert(extent),
                    SpaceEvent::Freed => allocated.remove(&extent),
                };
                if !changed {
                    return Err(format!("{extent} is {event:?} twice, at {lsn:?}"));
                }
            }
        }
        let actual = self.end.keys().copied().collect();
        if allocated == actual {
            return Ok(());
        }
        Err(format!("other extents are allocated: {:?}", allocated.symmetric_difference(&actual)))
    }

    /// The same with all records, those of incomplete groups too: a bug.
    pub fn compare_space_of_all(&self) -> Result<(), String> {
        self.compare_space(self.all())
    }

    /// A node of a bulk load, as it was written before the record at `lsn` told of it.
    fn written(&self, page: PageId, lsn: Lsn) -> Option<Vec<u8>> {
        let before = |(other, end, _): &&(PageId, Lsn, Vec<u8>)| *other == page && *end <= lsn;
        let written = self.nodes.iter().filter(before).max_by_key(|(_, end, _)| *end);
        written.map(|(.., image)| image.clone())
    }

    /// A record that refers to a large value also says that it is allocated, and it was durable before.
    pub fn large_values_precede_their_references(&self) -> Result<usize, String> {
        let mut count = 0;
        for (lsn, record) in self.all() {
            let changes = || record.changes().map(Result::unwrap);
            let value = changes().find_map(|(_, change)| match change {
                PageChange::Insert { value, .. } | PageChange::Replace { value, .. } => Some(value),
                _ => None,
            });
            let Some(value) = value.filter(|value| value.kind == ValueKind::Blob) else { continue };
            let (head, digest) = (PageId(value.bytes.u64_at(0)), value.bytes.u64_at(16));
            let written = changes().find_map(|(page, change)| match change {
                PageChange::Write { pages, digest: of, .. } if page == head && of == digest => Some(pages),
                _ => None,
            });
            let extent = written.map(|pages| Extent { head, pages });
            if !self.persisted.iter().any(|(other, end)| Some(*other) == extent && *end <= lsn) {
                return Err(format!("the value at {head:?} is referred to at {lsn:?} before it is there"));
            }
            count += 1;
        }
        Ok(count)
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
                (PageChange::Nodes { .. }, Life::Free) => {
                    Life::Node(self.written(page, *lsn).ok_or_else(|| failed("was not written"))?)
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

    /// Compares the result of the redo with the actual extents. `differ` says where a node is another one.
    fn compare(
        &self,
        lives: &HashMap<PageId, Life>,
        differ: impl Fn(&[u8], &[u8]) -> Option<usize>,
    ) -> Result<(), String> {
        let mut left = self.end.clone();
        for (page, life) in lives {
            match life {
                Life::Free => {}
                Life::Node(image) => {
                    let is = left.remove(&Extent::page(*page)).ok_or(format!("{page:?} is not allocated"))?;
                    if let Some(at) = differ(image, &is) {
                        return Err(format!("byte {at} of {page:?} is {}, not {}", is[at], image[at]));
                    }
                    // A root is recorded when it is referred to, and has no LSN before it is changed.
                    let has_lsn = PageHeader::read(&is).lsn > Lsn(0);
                    let header = (8..16).chain(24..HEADER_BYTES).chain(16..if has_lsn { 24 } else { 16 });
                    if let Some(at) = { header }.find(|at| image[*at] != is[*at]) {
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
