//! A heap of objects of Vellum, and tables in the same file as indices.

use super::plan::{COMPLEX, FANOUT, Plan};
use super::{Assembly, Children, Composite, Graph, Part};
use crate::Result;
use std::path::Path;
use vellum::objects::{Array, Fetcher, Heap, Persistent, Ref, Text};
use vellum::{Database, Durability, Options, Table, TableName, TableOptions};

/// An assembly.
#[derive(Persistent)]
pub struct AssemblyObject {
    date: u32,
    children: ChildObjects,
}

#[derive(Persistent)]
enum ChildObjects {
    Assemblies([Ref<AssemblyObject>; FANOUT]),
    Parts([Ref<CompositeObject>; FANOUT]),
}

/// A composite part.
#[derive(Persistent)]
pub struct CompositeObject {
    date: u32,
    users: u32,
    root: Ref<PartObject>,
    document: Ref<DocumentObject>,
    /// What only those need that look for all parts.
    lists: Ref<ListObject>,
}

#[derive(Persistent)]
struct ListObject {
    parts: Array<Ref<PartObject>>,
}

/// An atomic part.
#[derive(Persistent)]
pub struct PartObject {
    // What a traversal reads comes first: fields lie in this order, and so it touches fewer lines of the processor's cache.
    number: u32,
    x: i32,
    document: u32,
    date: u32,
    to: [Ref<ConnectionObject>; FANOUT],
    y: i32,
    kind: [u8; 12],
    of: Ref<CompositeObject>,
}

/// A connection.
#[derive(Persistent)]
pub struct ConnectionObject {
    to: Ref<PartObject>,
    from: Ref<PartObject>,
    length: u32,
    kind: [u8; 12],
}

#[derive(Persistent)]
struct DocumentObject {
    title: Text,
    text: Text,
    of: Ref<CompositeObject>,
}

/// A heap with an OO7 database, and its indices.
pub struct HeapGraph {
    root: Ref<AssemblyObject>,
    ahead: Option<Ahead>,
    numbers: Table<u32, u64>,
    dates: Table<(u32, u32), u64>,
    titles: Table<str, u64>,
    database: Database,
    heap: &'static Heap,
}

/// What fetches the parts of composite parts that will be visited soon.
struct Ahead {
    fetcher: Fetcher<'static>,
    /// Those whose own objects are on their way.
    next: Vec<Ref<CompositeObject>>,
    /// What is fetched at once.
    wanted: Vec<Ref<()>>,
}

const NUMBERS: TableName<u32, u64> = TableName::new("numbers");
const DATES: TableName<(u32, u32), u64> = TableName::new("dates");
const TITLES: TableName<str, u64> = TableName::new("titles");

/// The reference that an index has.
fn reference<T>(bits: Option<u64>) -> Result<Ref<T>> {
    bits.and_then(Ref::from_bits).ok_or_else(|| "an index has no such object".into())
}

impl HeapGraph {
    /// Builds a database in a file.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn create(plan: &Plan, path: &Path) -> Result<()> {
        /// The least pool while it is built, and for each atomic part, so that indices are in memory.
        const POOL_BYTES: u64 = 128 << 20;
        const PART_BYTES: u64 = 100;
        let pool = POOL_BYTES.max(u64::from(plan.part_count()) * PART_BYTES);
        let database = Database::create(path, &options().pool_bytes(pool))?;
        fill(&database, plan)?;
        Ok(database.close()?)
    }

    /// Opens a database with a pool of so many bytes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(path: &Path, pool: u64, is_ahead: bool) -> Result<Self> {
        let database = Database::open(path, &options().pool_bytes(pool))?;
        // A process measures a few graphs, and ends: what fetches ahead borrows the heap.
        let heap: &'static Heap = Box::leak(Box::new(database.heap("design")?));
        let ahead = match is_ahead {
            true => Some(Ahead { fetcher: heap.fetcher()?, next: Vec::new(), wanted: Vec::new() }),
            false => None,
        };
        Ok(Self {
            root: heap.root()?.ok_or("the heap has no root")?,
            ahead,
            numbers: database.table(NUMBERS)?,
            dates: database.table(DATES)?,
            titles: database.table(TITLES)?,
            database,
            heap,
        })
    }
}

fn options() -> Options {
    Options::default().durability(Durability::Deferred)
}

fn fill(database: &Database, plan: &Plan) -> Result<()> {
    let heap = database.create_heap("design")?;
    let plain = || TableOptions::default().versions(false);
    let numbers = database.create_table_with(NUMBERS, plain())?;
    let dates = database.create_table_with(DATES, plain())?;
    let titles = database.create_table_with(TITLES, plain())?;
    let users = plan.users();
    let mut composites = Vec::new();
    for composite in 0..plan.composites() {
        let number = composite as usize;
        let first = composite * plan.parts;
        let (own, parts) = heap.change(|change| {
            // What is visited together lies together, in the order in which it is made, as in the files of the other contestants: the
            // composite part with the list that says what to fetch for it, then each atomic part with its connections. The list is as long
            // as it will be from the beginning, so that it stays where it is.
            let root = change.reserve::<PartObject>()?;
            let mut parts = vec![root; plan.parts as usize];
            let lists = change.allocate_near(root, &ListObject { parts: parts.clone().into() })?;
            let own = change.reserve_near::<CompositeObject, _>(lists)?;
            let mut connections: Vec<[Ref<ConnectionObject>; FANOUT]> = Vec::new();
            for (number, part) in parts.iter_mut().enumerate() {
                if number > 0 {
                    *part = change.reserve()?;
                }
                let mut connect = || change.reserve_near(*part);
                connections.push([connect()?, connect()?, connect()?]);
            }
            change.set(lists, &ListObject { parts: parts.clone().into() })?;
            for ((part, place), own_connections) in (first..).zip(&parts).zip(&connections) {
                for (connection, to) in own_connections.iter().zip(plan.connections[part as usize]) {
                    let to = parts[(to - first) as usize];
                    let object = ConnectionObject { kind: [0; 12], length: part, from: *place, to };
                    change.set(*connection, &object)?;
                }
                let object = PartObject {
                    number: part,
                    date: plan.part_dates[part as usize],
                    x: part.cast_signed(),
                    y: (part / 2).cast_signed(),
                    document: plan.part_documents[part as usize],
                    kind: [0; 12],
                    of: own,
                    to: *own_connections,
                };
                change.set(*place, &object)?;
            }
            let (title, text) = (Plan::title(composite).into(), plan.text(composite).into());
            let document = change.allocate(&DocumentObject { title, text, of: own })?;
            let (date, users) = (plan.composite_dates[number], users[number].len() as u32);
            change.set(own, &CompositeObject { date, users, root: parts[0], document, lists })?;
            Ok((own, parts))
        })?;
        composites.push(own);
        titles.put(&*Plan::title(composite), own.to_bits())?;
        for (part, place) in (first..).zip(parts) {
            numbers.put(part, place.to_bits())?;
            dates.put((plan.part_dates[part as usize], part), place.to_bits())?;
        }
    }
    let root = assembly(&heap, plan, &composites, 0)?;
    Ok(heap.set_root(Some(root))?)
}

/// Makes an assembly and all below it.
fn assembly(
    heap: &Heap,
    plan: &Plan,
    composites: &[Ref<CompositeObject>],
    number: u32,
) -> Result<Ref<AssemblyObject>> {
    let children = match number.checked_sub(COMPLEX) {
        Some(base) => {
            ChildObjects::Parts(plan.base_parts[base as usize].map(|part| composites[part as usize]))
        }
        None => {
            let [a, b, c] = Plan::children(number);
            let below = |child| assembly(heap, plan, composites, child);
            ChildObjects::Assemblies([below(a)?, below(b)?, below(c)?])
        }
    };
    Ok(heap.allocate(&AssemblyObject { date: plan.assembly_dates[number as usize], children })?)
}

#[inline(always)]
fn shown(heap: &Heap, part: Ref<PartObject>) -> Result<Part<Ref<ConnectionObject>>> {
    let fields = (PartObject::NUMBER, PartObject::X, PartObject::DOCUMENT, PartObject::TO);
    let (number, x, document, to) = heap.fields(part, fields)?;
    Ok(Part { number, x, document, to })
}

impl Graph for HeapGraph {
    type Assembly = Ref<AssemblyObject>;
    type Composite = Ref<CompositeObject>;
    type Part = Ref<PartObject>;
    type Connection = Ref<ConnectionObject>;

    fn root(&mut self) -> Result<Self::Assembly> {
        Ok(self.root)
    }

    fn assembly(&mut self, id: Self::Assembly) -> Result<Assembly<Self::Assembly, Self::Composite>> {
        let AssemblyObject { date, children } = self.heap.get(id)?;
        let children = match children {
            ChildObjects::Assemblies(assemblies) => Children::Assemblies(assemblies),
            ChildObjects::Parts(parts) => Children::Parts(parts),
        };
        Ok(Assembly { date, children })
    }

    #[inline]
    fn composite(&mut self, id: Self::Composite) -> Result<Composite<Self::Part>> {
        let (date, root) = self.heap.fields(id, (CompositeObject::DATE, CompositeObject::ROOT))?;
        Ok(Composite { date, root })
    }

    #[inline(always)]
    fn part(&mut self, id: Self::Part) -> Result<Part<Self::Connection>> {
        shown(self.heap, id)
    }

    #[inline(always)]
    fn connection(&mut self, id: Self::Connection) -> Result<Self::Part> {
        Ok(self.heap.fields(id, ConnectionObject::TO)?)
    }

    fn ahead(&mut self, composites: &[Self::Composite]) -> Result<()> {
        let Some(Ahead { fetcher, next, wanted }) = &mut self.ahead else { return Ok(()) };
        wanted.clear();
        // The lists of these were begun the last time, and are there by now. What is begun here comes while others are visited, and none
        // of it is waited for before it is read.
        for composite in next.drain(..) {
            let list = self.heap.fields(composite, CompositeObject::LISTS)?;
            wanted.extend(self.heap.get(list)?.parts.iter().map(|part| part.any().typed()));
        }
        wanted.extend(composites.iter().map(|composite| composite.any().typed()));
        fetcher.begin(wanted.iter().copied());
        next.extend(composites);
        Ok(())
    }

    fn swap(&mut self, part: Self::Part) -> Result<()> {
        Ok(self.heap.update(part, |part: &mut PartObject| std::mem::swap(&mut part.x, &mut part.y))?)
    }

    fn toggle_date(&mut self, id: Self::Part) -> Result<()> {
        let (number, before) = self.heap.update(id, |part: &mut PartObject| {
            let before = part.date;
            part.date ^= 1;
            (part.number, before)
        })?;
        self.dates.remove((before, number))?;
        self.dates.put((before ^ 1, number), id.to_bits())?;
        Ok(())
    }

    fn part_numbered(&mut self, number: u32) -> Result<Self::Part> {
        reference(self.numbers.get(number)?)
    }

    fn parts_since(&mut self, date: u32, show: &mut dyn FnMut(Part<Self::Connection>)) -> Result<()> {
        for entry in self.dates.range((date, 0)..)? {
            show(shown(self.heap, reference(Some(entry?.1))?)?);
        }
        Ok(())
    }

    fn all_parts(&mut self, show: &mut dyn FnMut(Part<Self::Connection>)) -> Result<()> {
        for entry in self.numbers.range(..)? {
            show(shown(self.heap, reference(Some(entry?.1))?)?);
        }
        Ok(())
    }

    fn composite_numbered(&mut self, number: u32) -> Result<Self::Composite> {
        reference(self.titles.get(&*Plan::title(number))?)
    }

    fn users_of_document(&mut self, title: &str) -> Result<u64> {
        let composite: Ref<CompositeObject> = reference(self.titles.get(title)?)?;
        Ok(self.heap.get(composite)?.users.into())
    }

    fn has_document(&mut self, number: u32) -> Result<bool> {
        Ok(self.titles.get(&*Plan::title(number))?.is_some())
    }

    fn commit(&mut self) -> Result<()> {
        Ok(self.database.sync()?)
    }

    fn remarks(&self) -> Vec<(&'static str, u64)> {
        let statistics = self.database.statistics();
        vec![("pages_read", statistics.pages_read), ("pages_written", statistics.pages_written)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Oo7Size;
    use std::collections::BTreeSet;

    #[test]
    fn the_list_of_a_composite_part_names_the_pages_that_a_visit_needs() {
        let plan = Plan::new(Oo7Size::Medium, 10, 1);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("heap");
        HeapGraph::create(&plan, &file).unwrap();
        let mut graph = HeapGraph::open(&file, 16 << 20, false).unwrap();
        let (mut needed, mut unnamed) = (0, 0);
        for number in 0..plan.composites() {
            let own = graph.composite_numbered(number).unwrap();
            let list = graph.heap.fields(own, CompositeObject::LISTS).unwrap();
            assert_eq!(
                list.any().page(),
                own.any().page(),
                "what names the pages is read with the composite part"
            );
            let parts = graph.heap.get(list).unwrap().parts;
            let named: BTreeSet<_> = parts.iter().map(|part| part.any().page()).collect();
            let mut pages = BTreeSet::new();
            for part in &parts {
                let connections = graph.part(*part).unwrap().to;
                pages.extend(connections.iter().map(|connection| connection.any().page()));
            }
            needed += pages.len();
            unnamed += pages.difference(&named).count();
        }
        // The connections of the last part may lie in a page without parts.
        assert!(needed > 90 && unnamed * 20 < needed, "{unnamed} of {needed} pages");
    }
}
