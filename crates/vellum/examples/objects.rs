//! A graph of objects: cities and the roads between them, in circles. It is built, changed, closed, and searched again with a pool that is
//! much smaller than it is.

use std::collections::{BTreeMap, VecDeque};
use vellum::objects::{Array, Heap, Persistent, Ref, Text};
use vellum::{Database, Durability, Options};

#[derive(Persistent)]
struct City {
    name: Text,
    inhabitants: u32,
    roads: Array<Road>,
    notes: [u64; 16],
}

/// A road lies within its city.
#[derive(Persistent)]
struct Road {
    to: Ref<City>,
    minutes: u16,
    surface: Surface,
}

#[derive(Persistent, PartialEq)]
enum Surface {
    Paved,
    Gravel { since: u16 },
}

const CITIES: usize = 40_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("map.vellum");
    let options = Options::default().pool_bytes(2 << 20).durability(Durability::Deferred);

    let database = Database::create(&path, &options)?;
    build(&database.create_heap("map")?)?;
    database.close()?;

    let database = Database::open(&path, &options)?;
    let map = database.heap("map")?;
    let start = map.root::<City>()?.ok_or("the map has no first city")?;
    let reached = search(&map, start)?;
    println!("{reached} of {CITIES} cities can be reached from {}", map.get(start)?.name);
    println!(
        "{} pages were read, with a pool of {}",
        database.statistics().pages_read,
        database.statistics().pages_limit
    );

    // Both ends of a road, or none.
    let to = map.get(start)?.roads[0].to;
    map.change(|change| {
        change.update(start, |city: &mut City| city.roads[0].surface = Surface::Paved)?;
        change.update(to, |city: &mut City| city.inhabitants += 1)
    })?;
    assert!(map.get(start)?.roads[0].surface == Surface::Paved);
    assert_eq!(reached, CITIES);
    assert!(database.verify(|_| {}).is_clean());
    Ok(())
}

/// Builds a map in which each city has roads to the next one and to some far away. Many objects are made by each change.
fn build(map: &Heap) -> vellum::Result<()> {
    let mut cities: Vec<Ref<City>> = Vec::new();
    while cities.len() < CITIES {
        let begin = cities.len();
        let new = map.change(|change| {
            let mut new = Vec::new();
            for number in begin..begin + 100 {
                let name = Text::from(format!("City {number}"));
                let city = City { name, inhabitants: number as u32, roads: Array::default(), notes: [0; 16] };
                // Near the one before: what is visited together lies together.
                new.push(match new.last() {
                    Some(before) => change.allocate_near(*before, &city)?,
                    None => change.allocate(&city)?,
                });
            }
            Ok(new)
        })?;
        cities.extend(new);
    }
    for (number, city) in cities.iter().enumerate() {
        let far = (number * 7919 + 13) % CITIES;
        let ends = [(number + 1) % CITIES, far].map(|to| cities[to]);
        let road = |to| Road { to, minutes: 10, surface: Surface::Gravel { since: 1900 } };
        map.update(*city, |city: &mut City| city.roads = ends.map(road).into_iter().collect())?;
    }
    map.set_root(cities.first().copied())
}

/// How many cities can be reached. Those that come next are fetched side by side.
fn search(map: &Heap, start: Ref<City>) -> vellum::Result<usize> {
    let mut fetcher = map.fetcher()?;
    let mut minutes = BTreeMap::from([(start, 0u64)]);
    let mut next = VecDeque::from([start]);
    while !next.is_empty() {
        let some: Vec<_> = next.drain(..next.len().min(64)).collect();
        fetcher.fetch_all(some.iter().copied());
        for city in some {
            let until = minutes[&city];
            for road in &map.get(city)?.roads {
                minutes.entry(road.to).or_insert_with(|| {
                    next.push_back(road.to);
                    until + u64::from(road.minutes)
                });
            }
        }
    }
    Ok(minutes.len())
}
