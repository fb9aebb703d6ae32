//! Pages that refer to each other directly, in cycles, and a breadth-first search through them.
//!
//! Real dependency data (the packages of a Debian system where there is one, and the crates of this workspace's
//! `Cargo.lock`) becomes one page a package. A page holds the page ids of the packages that it depends on and
//! of those that depend on it, so most pages are referred to by many others, and a reader that follows references
//! forth and back runs in circles. All packages form a ring besides. The pool is smaller than the data, so
//! pages come and go during the search.
//!
//! Designs that swizzle pointers cannot do this. They replace a reference by the address of what is in memory,
//! and must put the page id back before that is evicted; so they have to find every reference to a page, which
//! they can only if there is exactly one, in a parent that they know: trees, and nothing else. Here a page id *is*
//! an address. Nothing is written into a page when another comes or goes, and no page needs to know which others refer to
//! it. The code below does nothing special for it: it stores page ids and follows them.
//!
//! Run it by `cargo run -p vellum --example references`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::{error::Error, fs, path::Path};
use vellum::pool::{Bytes, Extent, HEADER_BYTES, Interrupt, OptimisticGuard, PAGE_SIZE, PageId, PageKind};
use vellum::pool::{Navigation, Pool, PoolError, PoolOptions};

const PACKAGE: PageKind = PageKind(PageKind::USER.0);
/// The next package of the ring.
const RING_AT: usize = HEADER_BYTES;
/// A page with more references of the same package, or 0.
const MORE_AT: usize = HEADER_BYTES + 8;
/// How many of the page's references are dependencies; they come first.
const DEPENDENCIES_AT: usize = HEADER_BYTES + 16;
/// How many references the page has in all; the others are to packages that depend on this one.
const COUNT_AT: usize = HEADER_BYTES + 24;
const NAME_LENGTH_AT: usize = HEADER_BYTES + 32;
const REFERENCES_AT: usize = HEADER_BYTES + 40;
const NAME_AT: usize = PAGE_SIZE - 256;
const REFERENCES_MAX: usize = (NAME_AT - REFERENCES_AT) / 8;

/// What each package depends on.
type Dependencies = BTreeMap<String, Vec<String>>;

#[derive(Clone, Copy)]
enum Direction {
    Dependencies,
    Dependents,
}

/// The packages of `/var/lib/dpkg/status`; of alternatives the first counts.
fn read_debian(text: &str) -> Dependencies {
    let mut packages = Dependencies::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name));
        let Some(package) = field("Package: ") else { continue };
        let lists = [field("Depends: "), field("Pre-Depends: ")];
        let names = lists.into_iter().flatten().flat_map(|list| list.split(','));
        let first_word = |item: &str| item.trim().split([' ', ':', '|', '(']).next().unwrap_or("").to_owned();
        packages.insert(package.to_owned(), names.map(first_word).collect());
    }
    packages
}

/// The packages of a `Cargo.lock`, by name and version.
fn read_cargo(text: &str) -> Dependencies {
    let quoted = |line: &str| line.split('"').nth(1).unwrap_or("").to_owned();
    let mut packages = Dependencies::new();
    for stanza in text.split("[[package]]").skip(1) {
        let field = |name: &str| stanza.lines().find(|line| line.starts_with(name)).map(quoted);
        let name = format!("{} {}", field("name").unwrap_or_default(), field("version").unwrap_or_default());
        let list = stanza.lines().filter(|line| line.starts_with(" \"")).map(quoted);
        packages.insert(name, list.collect());
    }
    // A dependency names a version only where there are several.
    let full: Vec<String> = packages.keys().cloned().collect();
    for dependency in packages.values_mut().flatten() {
        if let Some(name) = full.iter().find(|name| name.split(' ').next() == Some(dependency)) {
            dependency.clone_from(name);
        }
    }
    packages
}

fn set(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Stores each package in a page of its own; afterwards only the first page is remembered, in a root slot.
fn store(pool: &Pool, packages: &Dependencies) -> Result<(), PoolError> {
    // All pages first, because references go in all directions.
    let mut pages = HashMap::new();
    for name in packages.keys() {
        pages.insert(name, pool.allocate(1, PACKAGE)?.keep().id());
    }
    let mut dependents: HashMap<&String, Vec<PageId>> = HashMap::new();
    for (name, dependencies) in packages {
        for dependency in dependencies {
            dependents.entry(dependency).or_default().push(pages[name]);
        }
    }
    let ring = packages.keys().cycle().skip(1);
    for ((name, dependencies), next) in packages.iter().zip(ring) {
        let mut references: Vec<(PageId, bool)> = Vec::new();
        references.extend(dependencies.iter().filter_map(|name| Some((*pages.get(name)?, true))));
        references.extend(dependents.get(name).into_iter().flatten().map(|page| (*page, false)));
        let mut guard = pool.exclusive(Extent::page(pages[name]))?;
        set(guard.page_mut(), RING_AT, pages[next].0);
        let length = name.len().min(PAGE_SIZE - NAME_AT);
        set(guard.page_mut(), NAME_LENGTH_AT, length as u64);
        guard.page_mut()[NAME_AT..NAME_AT + length].copy_from_slice(&name.as_bytes()[..length]);
        let mut parts = references.chunks(REFERENCES_MAX).peekable();
        while let Some(part) = parts.next() {
            set(
                guard.page_mut(),
                DEPENDENCIES_AT,
                part.iter().filter(|(_, forward)| *forward).count() as u64,
            );
            set(guard.page_mut(), COUNT_AT, part.len() as u64);
            for (index, (page, _)) in part.iter().enumerate() {
                set(guard.page_mut(), REFERENCES_AT + 8 * index, page.0);
            }
            if parts.peek().is_some() {
                let more = pool.allocate(1, PACKAGE)?.keep();
                set(guard.page_mut(), MORE_AT, more.id().0);
                guard = more;
            }
        }
    }
    let first = packages.keys().next().map_or(0, |name| pages[name].0);
    pool.set_root_slot(0, first)
}

/// Which packages a package refers to. Reads without latches, and retries if a page changes or is evicted.
fn neighbours(pool: &Pool, page: PageId, direction: Direction) -> Result<Vec<PageId>, PoolError> {
    pool.run(|| {
        let mut found = Vec::new();
        let mut guard = pool.root(page)?;
        loop {
            let bytes = guard.bytes();
            // Until the page is validated its numbers may be anything: keep them within bounds.
            let count = (bytes.u64_at(COUNT_AT) as usize).min(REFERENCES_MAX);
            let middle = (bytes.u64_at(DEPENDENCIES_AT) as usize).min(count);
            let range = match direction {
                Direction::Dependencies => 0..middle,
                Direction::Dependents => middle..count,
            };
            found.extend(range.map(|index| PageId(bytes.u64_at(REFERENCES_AT + 8 * index))));
            if bytes.u64_at(MORE_AT) == 0 {
                guard.validate()?;
                return Ok(found);
            }
            guard = pool.child(&guard, MORE_AT)?;
        }
    })
}

fn name_of(guard: &OptimisticGuard<'_>) -> Result<String, Interrupt> {
    let mut name = Vec::new();
    let length = guard.bytes().u64_at(NAME_LENGTH_AT) as usize;
    guard.bytes().append_to(NAME_AT, length, &mut name);
    guard.validate()?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Goes once round the ring of all packages.
fn names(pool: &Pool) -> Result<HashMap<String, PageId>, PoolError> {
    let first = PageId(pool.root_slot(0));
    let (mut found, mut page) = (HashMap::new(), first);
    loop {
        let (name, next) = pool.run(|| {
            let guard = pool.root(page)?;
            Ok((name_of(&guard)?, pool.child(&guard, RING_AT)?.id()))
        })?;
        found.insert(name, page);
        page = next;
        if page == first {
            return Ok(found);
        }
    }
}

/// How many packages can be reached from one, by the number of steps.
fn search(pool: &Pool, start: PageId, direction: Direction) -> Result<Vec<usize>, PoolError> {
    let mut distance = HashMap::from([(start, 0)]);
    let mut queue = VecDeque::from([start]);
    let mut by_distance = vec![0];
    while let Some(page) = queue.pop_front() {
        let steps: usize = distance[&page];
        by_distance.resize(by_distance.len().max(steps + 1), 0);
        by_distance[steps] += 1;
        for next in neighbours(pool, page, direction)? {
            distance.entry(next).or_insert_with(|| {
                queue.push_back(next);
                steps + 1
            });
        }
    }
    Ok(by_distance)
}

/// The same search on the data as it was read, to compare with.
fn expected(edges: &HashMap<&str, Vec<&str>>, start: &str) -> Vec<usize> {
    let mut seen = std::collections::HashSet::from([start]);
    let (mut layer, mut by_distance) = (vec![start], Vec::new());
    while !layer.is_empty() {
        by_distance.push(layer.len());
        let next = layer.iter().filter_map(|name| edges.get(name)).flatten().copied();
        layer = next.filter(|name| seen.insert(name)).collect();
    }
    by_distance
}

fn tour(source: &Path, packages: &Dependencies) -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("packages");
    let options = PoolOptions::default().pool_bytes(128 << 10).application("references");
    let pool = Pool::create(&path, &options)?;
    store(&pool, packages)?;
    pool.close()?;

    let pool = Pool::open(&path, &options)?;
    let pages = names(&pool)?;
    assert_eq!(pages.len(), packages.len(), "the ring holds all packages");
    let (mut forward, mut backward) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
    for (name, dependencies) in packages {
        for dependency in dependencies.iter().filter(|name| packages.contains_key(*name)) {
            forward.entry(name.as_str()).or_default().push(dependency.as_str());
            backward.entry(dependency.as_str()).or_default().push(name.as_str());
        }
    }
    let mut starts: Vec<&str> = backward.keys().copied().collect();
    starts.sort_by_key(|name| (std::cmp::Reverse(backward[name].len()), *name));
    starts.truncate(8);
    starts.extend(packages.keys().map(String::as_str).step_by(packages.len() / 8 + 1));
    println!("{}: {} packages, the one most depended on first", source.display(), packages.len());
    for start in starts {
        let needs = search(&pool, pages[start], Direction::Dependencies)?;
        let needed = search(&pool, pages[start], Direction::Dependents)?;
        assert_eq!(needs, expected(&forward, start), "what {start} needs");
        assert_eq!(needed, expected(&backward, start), "what needs {start}");
        let total = |layers: &[usize]| layers.iter().sum::<usize>() - 1;
        println!("  {start:<28} needs {:>4}, is needed by {:>4}", total(&needs), total(&needed));
    }
    let now = pool.statistics();
    println!("  {} pages of data, {} in memory at most", now.pages_allocated, now.pages_limit);
    println!("  {} misses, {} pages evicted", now.misses, now.pages_evicted);
    assert!(
        now.pages_allocated > now.pages_limit && now.pages_evicted > 0,
        "the pool is smaller than the data"
    );
    pool.close()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let debian = Path::new("/var/lib/dpkg/status");
    if let Ok(text) = fs::read_to_string(debian) {
        tour(debian, &read_debian(&text))?;
    }
    let cargo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    tour(&cargo, &read_cargo(&fs::read_to_string(&cargo)?))
}
