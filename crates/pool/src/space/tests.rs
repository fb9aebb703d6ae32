use super::*;
use std::collections::BTreeMap;

fn step(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

fn from_image(capacity_pages: u64, pages: u64, image: &[u8]) -> Result<SpaceMap, String> {
    let map = SpaceMap::new(capacity_pages, 0).unwrap();
    map.load_image(pages, image).map(|()| map)
}

fn never(_: u64) -> Result<(), ()> {
    Err(())
}

/// Allocates like the pool: claims, and publishes the claimed pages.
fn allocate<E>(map: &SpaceMap, pages: u32, grow: impl FnOnce(u64) -> Result<(), E>) -> Result<Extent, E> {
    let admit = |claimed: &Claimed| if claimed.has_grown { grow(claimed.end) } else { Ok(()) };
    let extent = map.allocate(pages, admit)?;
    assert!(!map.is_extent(extent), "what is claimed is not allocated yet");
    map.publish(extent);
    assert!(map.is_extent(extent));
    Ok(extent)
}

#[test]
fn extents_never_overlap_and_are_told_apart() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    let mut model: BTreeMap<u64, u32> = BTreeMap::from([(0, 1), (1, 1)]);
    let mut seed = 1;
    for _ in 0..20_000 {
        if step(&mut seed) % 5 < 3 && model.len() < 500 {
            let pages = 1 + (step(&mut seed) % 3 * (step(&mut seed) % 20)) as u32;
            let extent = allocate(&map, pages, |_| Ok::<_, ()>(())).unwrap();
            let before = model.range(..=extent.head.0).next_back().unwrap();
            assert!(before.0 + *before.1 as u64 <= extent.head.0);
            assert!(model.range(extent.head.0..extent.end().0).next().is_none());
            model.insert(extent.head.0, pages);
        } else if model.len() > 2 {
            let at = 2 + step(&mut seed) as usize % (model.len() - 2);
            let (&head, &pages) = model.iter().nth(at).unwrap();
            let extent = Extent { head: PageId(head), pages };
            assert!(map.is_extent(extent));
            assert!(!map.is_extent(Extent { pages: pages + 1, ..extent }));
            assert!(pages == 1 || !map.is_extent(Extent { pages: pages - 1, ..extent }));
            assert!(map.free(extent));
            assert!(!map.free(extent), "it is free already");
            assert!(!map.is_extent(extent));
            model.remove(&head);
        }
        assert_eq!(map.allocated_pages(), model.values().map(|pages| *pages as u64).sum::<u64>());
    }
    let mut seen = Vec::new();
    map.for_each(|extent| seen.push((extent.head.0, extent.pages)));
    assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
}

#[test]
fn the_first_place_before_a_limit_is_claimed_and_what_is_free_behind_is_forgotten() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    let (mut seed, mut extents) = (9, Vec::new());
    for _ in 0..3000 {
        let (pages, end) = (1 + (step(&mut seed) % 4) as u32, map.end());
        match step(&mut seed) % 8 {
            0..3 => extents.push(allocate(&map, pages, |_| Ok::<_, ()>(())).unwrap()),
            3 => {
                let tail = map.trim();
                assert_eq!((tail.start, tail.end), (map.end(), end));
                assert!((tail.start..end).all(|page| map.is_free(PageId(page))));
                assert!(!map.is_free(PageId(tail.start - 1)));
            }
            4..6 if !extents.is_empty() => {
                let extent = extents.swap_remove(step(&mut seed) as usize % extents.len());
                assert!(map.free(extent));
            }
            _ => {
                let limit = step(&mut seed) % (end + 5);
                let is_room = |head: &u64| {
                    (*head..head + u64::from(pages)).all(|page| page < end && map.is_free(PageId(page)))
                };
                let first = (0..limit.saturating_sub(u64::from(pages) - 1)).find(is_room);
                let claimed = map.claim_before(limit, pages, || ());
                assert_eq!(claimed.map(|extent| extent.head.0), first);
                claimed.inspect(|extent| map.publish(*extent));
                extents.extend(claimed);
            }
        }
        let allocated: u64 = extents.iter().map(|extent| u64::from(extent.pages)).sum();
        assert_eq!(map.allocated_pages(), 2 + allocated);
    }
}

#[test]
fn freed_space_is_reused_at_any_size_before_the_file_grows() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    let singles: Vec<_> = (0..100).map(|_| allocate(&map, 1, |_| Ok::<_, ()>(())).unwrap()).collect();
    for extent in singles {
        map.free(extent);
    }
    let long = allocate(&map, 60, never).unwrap();
    let rest = allocate(&map, 40, never).unwrap();
    assert_eq!(allocate(&map, 1, never), Err(()));
    assert_eq!(map.allocated_pages(), 102);
    map.free(long);
    for _ in 0..60 {
        allocate(&map, 1, never).unwrap();
    }
    assert!(map.is_extent(rest));
}

#[test]
fn a_free_tail_becomes_part_of_an_extent_that_needs_more() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    let extent = allocate(&map, 10, |_| Ok::<_, ()>(())).unwrap();
    map.free(extent);
    let mut asked = 0;
    let longer = allocate(&map, 15, |pages| {
        asked = pages;
        Ok::<_, ()>(())
    })
    .unwrap();
    assert_eq!((asked, longer.head), (17, extent.head));
}

#[test]
fn a_refused_growth_changes_nothing() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    assert_eq!(allocate(&map, 3, never), Err(()));
    assert_eq!((map.allocated_pages(), map.end()), (2, 2));
}

#[test]
fn an_image_brings_everything_back() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    let mut seed = 5;
    let mut extents = Vec::new();
    for _ in 0..300 {
        extents.push(allocate(&map, 1 + (step(&mut seed) % 40) as u32, |_| Ok::<_, ()>(())).unwrap());
    }
    for extent in extents.iter().skip(1).step_by(3) {
        map.free(*extent);
    }
    let mut image = vec![0u8; SpaceMap::image_bytes(map.end())];
    map.write_image(map.end(), &mut image);
    let again = from_image(1 << 16, map.end(), &image).unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    map.for_each(|extent| ours.push(extent));
    again.for_each(|extent| theirs.push(extent));
    assert_eq!(ours, theirs);
    assert_eq!(map.allocated_pages(), again.allocated_pages());
}

#[test]
fn a_broken_image_is_refused() {
    let map = SpaceMap::new(1 << 16, 2).unwrap();
    allocate(&map, 5, |_| Ok::<_, ()>(())).unwrap();
    let mut image = vec![0u8; SpaceMap::image_bytes(map.end())];
    map.write_image(map.end(), &mut image);
    assert!(from_image(1 << 16, map.end(), &image[..8]).is_err());
    assert!(from_image(4, map.end(), &image).is_err());
    let mut orphan = image.clone();
    orphan[8] |= 1 << 7; // a head that is not allocated
    assert!(from_image(1 << 16, map.end(), &orphan).is_err());
    let mut headless = image.clone();
    headless[8] &= !1; // page 0 is allocated but belongs to no extent
    assert!(from_image(1 << 16, map.end(), &headless).is_err());
}
