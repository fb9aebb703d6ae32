//! Scans with read-ahead: what they show, what they read, and what they leave in memory.

use crate::support::{create_tree, open_tree, options, sealed, unseal};
use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::Duration,
};
use vellum_access::{AccessError, Cursor, Tree, TreeHints};
use vellum_pool::{Pool, PoolError};
use vellum_vm::{Faults, FileOperation, SimulatedFile};

const UNBOUNDED: Bound<&[u8]> = Bound::Unbounded;

fn big_endian(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A closed file with a tree of so many sealed values of 100 bytes.
fn filled(file: &SimulatedFile, count: u64) {
    let mut pool = Pool::create_on(Arc::new(file.clone()), &options(1024)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for number in 0..count {
        tree.insert(&big_endian(number), &sealed(number, 1, 100)).unwrap();
    }
    pool.checkpoint().unwrap();
}

fn number(entry: &vellum_access::Entry<'_, '_, Pool>) -> u64 {
    let number = u64::from_be_bytes(entry.key().try_into().unwrap());
    assert_eq!(unseal(number, entry.inline_value().unwrap()), 1);
    number
}

/// How many of the entries from `next` on the cursor shows, forward or backward, until its range ends.
fn walk(cursor: &mut Cursor<'_, Pool>, mut next: u64, forward: bool) -> Result<u64, AccessError> {
    let mut count = 0;
    while let Some(entry) = if forward { cursor.next()? } else { cursor.previous()? } {
        assert_eq!(number(&entry), next);
        count += 1;
        next = if forward { next + 1 } else { next.wrapping_sub(1) };
    }
    Ok(count)
}

/// Shows so many entries from `next` on where they lie, or those up to the end of the range; how many that were.
fn show(cursor: &mut Cursor<'_, Pool>, mut next: u64, count: u64) -> u64 {
    let (first, end) = (next, next + count);
    let scanned = cursor.scan(|entry| {
        assert_eq!(number(&entry), next);
        next += 1;
        if next == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let _ = scanned.unwrap();
    next - first
}

/// What was read ahead is not pushed out by the leaves that the scan has passed.
#[test]
fn a_scan_of_eight_times_the_pool_reads_each_leaf_once() {
    const COUNT: u64 = 80_000;
    let file = SimulatedFile::new(18);
    filled(&file, COUNT);
    for (background, in_place) in [(true, false), (false, false), (true, true), (false, true)] {
        let options = options(256).background_eviction(background);
        let pool = Pool::open_on(Arc::new(file.clone()), &options).unwrap();
        let mut cursor = open_tree(&pool).range(UNBOUNDED, UNBOUNDED).unwrap();
        let shown = if in_place { show(&mut cursor, 0, COUNT) } else { walk(&mut cursor, 0, true).unwrap() };
        assert_eq!(shown, COUNT);
        let (read, pages) = (pool.statistics().pages_read, pool.statistics().pages_in_file);
        assert!(read <= pages + pages / 50, "{read} of {pages} pages, {background}, in place: {in_place}");
    }
}

/// Scans both ways, and turns round in between, on a device that reorders, delays and shortens reads.
#[test]
fn a_scan_of_eight_times_the_pool_shows_everything_in_both_directions() {
    const COUNT: u64 = 20_000;
    let file = SimulatedFile::new(1);
    filled(&file, COUNT);
    let faults = Faults { short: 0.1, delay_max: Duration::from_micros(3), ..Faults::default() };
    file.set_faults(faults);
    for background in [true, false] {
        let options = options(64).background_eviction(background);
        let pool = Pool::open_on(Arc::new(file.clone()), &options).unwrap();
        let tree = open_tree(&pool);
        assert!(pool.statistics().pages_in_file > 8 * 64);
        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
        assert_eq!(walk(&mut cursor, 0, true).unwrap(), COUNT);
        assert_eq!(walk(&mut cursor, COUNT - 1, false).unwrap(), COUNT);
        // Back and forth.
        let mut at = 0;
        for step in 0..40u64 {
            let forward = step % 3 != 2;
            for _ in 0..step * 23 {
                let entry = if forward { cursor.next() } else { cursor.previous() }.unwrap();
                let Some(entry) = entry else { break };
                let expected = if forward { at } else { at - 1 };
                assert_eq!(number(&entry), expected);
                at = if forward { at + 1 } else { at - 1 };
            }
        }
    }
}

#[test]
fn neighbours_are_read_together() {
    let file = SimulatedFile::new(2);
    filled(&file, 20_000);
    for forward in [true, false] {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(512)).unwrap();
        let before = file.counts().of(FileOperation::Read);
        let tree = open_tree(&pool);
        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
        if !forward {
            cursor.seek_to_end();
        }
        let first = if forward { 0 } else { 19_999 };
        assert_eq!(walk(&mut cursor, first, forward).unwrap(), 20_000);
        let (requests, pages) =
            (file.counts().of(FileOperation::Read) - before, pool.statistics().pages_read);
        assert!(pages > 500, "{pages}");
        assert!(requests * 10 < pages, "{requests} requests for {pages} pages");
    }
}

#[test]
fn short_ranges_and_single_leaves_read_nothing_ahead() {
    let file = SimulatedFile::new(3);
    filled(&file, 20_000);
    let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
    let tree = open_tree(&pool);
    tree.get(&big_endian(0)).unwrap();
    for first in (1000..19_000).step_by(1000) {
        let before = pool.statistics().pages_read;
        let (lower, upper) = (big_endian(first), big_endian(first + 30));
        let mut cursor = tree.range(Bound::Included(&lower), Bound::Excluded(&upper)).unwrap();
        assert_eq!(walk(&mut cursor, first, true).unwrap(), 30);
        let read = pool.statistics().pages_read - before;
        assert!(read <= 4, "{read} pages for a range of two leaves");
    }
    // A longer scan does not read beyond its end either, in both directions.
    let leaves = |entries: u64| entries / 25 + 6;
    for forward in [true, false] {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
        let tree = open_tree(&pool);
        let (lower, upper) = (big_endian(5000), big_endian(9000));
        let mut cursor = tree.range(Bound::Included(&lower), Bound::Excluded(&upper)).unwrap();
        if !forward {
            cursor.seek_to_end();
        }
        assert_eq!(walk(&mut cursor, if forward { 5000 } else { 8999 }, forward).unwrap(), 4000);
        assert!(pool.statistics().pages_read <= leaves(4000), "{}", pool.statistics().pages_read);
    }
}

/// The pages and the requests of a cursor that shows so many entries from `first` on, of which it knows the number or not.
fn reads_of(
    file: &SimulatedFile,
    (first, entries, forward): (u64, usize, bool),
    is_known: bool,
) -> (u64, u64) {
    let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
    let tree = open_tree(&pool);
    // The way down is in memory, and a leaf that tells how many entries leaves have.
    tree.get(&big_endian(first + 1000)).unwrap();
    let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
    if is_known {
        cursor.expect(entries);
    }
    let before = pool.statistics().pages_read;
    cursor.seek(&big_endian(first)).unwrap();
    assert_eq!(pool.statistics().pages_read, before, "a cursor reads when it is asked for an entry");
    reads_of_range((file, &pool), &mut cursor, (first, entries as u64, forward))
}

#[test]
fn what_is_expected_is_read_together_and_nothing_beyond() {
    let file = SimulatedFile::new(11);
    filled(&file, 20_000);
    for forward in [true, false] {
        let (mut known, mut unknown) = (0, 0);
        for first in (4000..16_000).step_by(1001) {
            // A leaf has some 25.
            for entries in [20_u64, 60, 120] {
                let range = (first, entries as usize, forward);
                let (pages, requests) = reads_of(&file, range, true);
                assert!(pages <= entries / 20 + 3, "{pages} pages for {entries} entries");
                assert!(requests <= 4, "{requests} requests for {pages} pages");
                known += requests;
                unknown += reads_of(&file, range, false).1;
            }
        }
        assert!(known * 3 < unknown * 2, "{known} requests, and {unknown} of cursors that know nothing");
    }
}

/// Pages and requests of a range that a cursor shows, which is new to the pool.
fn reads_of_range(
    (file, pool): (&SimulatedFile, &Pool),
    cursor: &mut Cursor<'_, Pool>,
    (first, entries, forward): (u64, u64, bool),
) -> (u64, u64) {
    let (pages, requests) = (pool.statistics().pages_read, file.counts().of(FileOperation::Read));
    for step in 0..entries {
        let entry = if forward { cursor.next() } else { cursor.previous() };
        let expected = if forward { first + step } else { first - 1 - step };
        assert_eq!(number(&entry.unwrap().unwrap()), expected);
    }
    (pool.statistics().pages_read - pages, file.counts().of(FileOperation::Read) - requests)
}

/// The leaves of a short range are as many as those that were read before let expect. What is needed now and then is read when it
/// is needed.
#[test]
fn short_ranges_read_hardly_more_leaves_than_they_need() {
    const RANGES: u64 = 60;
    let file = SimulatedFile::new(13);
    filled(&file, 20_000);
    for forward in [true, false] {
        // A leaf has some 27, so a range of 5 comes to a second one in one case of seven, and one of 20 in two of three.
        for (entries, pages_most, requests_most) in [(5, 80, 80), (20, 130, 72)] {
            let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
            let hints = TreeHints::default();
            let tree = open_tree(&pool).with_hints(&hints);
            tree.get(&big_endian(0)).unwrap();
            let (mut pages, mut requests) = (0, 0);
            for range in 0..RANGES {
                let first = 500 + range * 311;
                let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
                cursor.seek(&big_endian(first)).unwrap();
                cursor.expect(entries);
                let range = (first, entries as u64, forward);
                let reads = reads_of_range((&file, &pool), &mut cursor, range);
                (pages, requests) = (pages + reads.0, requests + reads.1);
            }
            assert!(pages <= pages_most, "{pages} pages for {RANGES} ranges of {entries}, {forward}");
            assert!(requests <= requests_most, "{requests} requests for {RANGES} ranges of {entries}");
        }
    }
}

/// Leaves of three large records each. Nobody knows that before the first is read; then handles of the tree do.
#[test]
fn what_leaves_hold_is_learnt_from_those_that_were_read() {
    let file = SimulatedFile::new(14);
    {
        let mut pool = Pool::create_on(Arc::new(file.clone()), &options(1024)).unwrap();
        let tree = create_tree(&pool).unwrap();
        (0..2000).for_each(|number| {
            tree.insert(&big_endian(number), &sealed(number, 1, 1000)).unwrap();
        });
        pool.checkpoint().unwrap();
    }
    let requests = |hints: Option<&TreeHints>| {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
        let tree = match hints {
            Some(hints) => open_tree(&pool).with_hints(hints),
            None => open_tree(&pool),
        };
        tree.get(&big_endian(0)).unwrap();
        let mut all = Vec::new();
        for first in (100..1900).step_by(300) {
            let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
            cursor.expect(20);
            cursor.seek(&big_endian(first)).unwrap();
            all.push(reads_of_range((&file, &pool), &mut cursor, (first, 20, true)).1);
        }
        all
    };
    let (known, unknown) = (requests(Some(&TreeHints::default())), requests(None));
    let of_later = |all: &[u64]| all.iter().skip(1).sum::<u64>();
    assert!(of_later(&known) * 2 < of_later(&unknown), "{known:?}, and where nothing is kept {unknown:?}");
}

/// Nobody says how many entries are wanted, but the parent tells that the range ends nearby.
#[test]
fn a_range_that_ends_nearby_is_read_together_and_nothing_beyond() {
    let file = SimulatedFile::new(15);
    filled(&file, 20_000);
    for forward in [true, false] {
        let (mut together, mut leaves) = (0, 0);
        for first in (4000..16_000).step_by(1001) {
            for entries in [30, 60, 400] {
                let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
                let tree = open_tree(&pool);
                tree.get(&big_endian(0)).unwrap();
                let (lower, upper) = (big_endian(first), big_endian(first + entries));
                let mut cursor = tree.range(Bound::Included(&lower), Bound::Excluded(&upper)).unwrap();
                if !forward {
                    cursor.seek_to_end();
                }
                let (pages, requests) = (pool.statistics().pages_read, file.counts().of(FileOperation::Read));
                let next = if forward { first } else { first + entries - 1 };
                assert_eq!(walk(&mut cursor, next, forward).unwrap(), entries);
                let pages = pool.statistics().pages_read - pages;
                assert!(pages <= entries / 20 + 3, "{pages} pages for {entries} entries");
                if entries < 100 {
                    (together, leaves) =
                        (together + file.counts().of(FileOperation::Read) - requests, leaves + pages);
                }
            }
        }
        assert!(together * 3 < leaves * 2, "{together} requests for {leaves} leaves");
    }
}

/// The n-th read fails, for every n, of ranges whose leaves are read together.
#[test]
fn each_read_of_short_ranges_that_fails_is_survived() {
    let file = SimulatedFile::new(16);
    filled(&file, 4000);
    let mut reported = 0;
    for n in 1.. {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(64).read_only(true)).unwrap();
        let tree = open_tree(&pool);
        let before = file.counts().scheduled_failures;
        file.fail_nth_of(FileOperation::Read, n);
        for range in 0..20_u64 {
            let (first, forward) = (200 + range * 1733 % 3500, range % 2 == 0);
            let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
            cursor.expect(100);
            cursor.seek(&big_endian(first)).unwrap();
            let mut shown = 0;
            while shown < 100 {
                match if forward { cursor.next() } else { cursor.previous() } {
                    Ok(entry) => {
                        let expected = if forward { first + shown } else { first - 1 - shown };
                        assert_eq!(number(&entry.unwrap()), expected);
                        shown += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, AccessError::Pool(PoolError::Read { .. })), "{error}");
                        reported += 1;
                    }
                }
            }
        }
        file.heal();
        if file.counts().scheduled_failures == before {
            break;
        }
    }
    assert!(reported > 0);
}

/// Threads with short ranges in a pool that has room for hardly more than the way to a leaf each.
#[test]
fn short_ranges_leave_room_in_a_pool_of_few_pages() {
    let file = SimulatedFile::new(17);
    filled(&file, 20_000);
    file.set_faults(Faults { short: 0.1, delay_max: Duration::from_micros(3), ..Faults::default() });
    for pages in [16, 64, 256] {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(pages)).unwrap();
        let tree = open_tree(&pool);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let tree = &tree;
                scope.spawn(move || {
                    for range in 0..150_u64 {
                        let first = (thread * 7919 + range * 1733) % 19_000 + 500;
                        let entries = [5, 20, 100, 400][range as usize % 4];
                        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
                        cursor.expect(entries);
                        cursor.seek(&big_endian(first)).unwrap();
                        // Some are dropped half way.
                        let shown = if range % 3 == 0 { entries / 2 } else { entries } as u64;
                        for step in 0..shown {
                            assert_eq!(number(&cursor.next().unwrap().unwrap()), first + step);
                        }
                    }
                });
            }
        });
        // No page is left latched.
        for key in 0..20_000 {
            assert!(tree.get(&big_endian(key)).unwrap().is_some());
        }
    }
}

#[test]
fn what_goes_beyond_what_was_expected_is_shown_all_the_same() {
    const COUNT: u64 = 5000;
    let file = SimulatedFile::new(12);
    filled(&file, COUNT);
    let faults = Faults { short: 0.1, delay_max: Duration::from_micros(3), ..Faults::default() };
    file.set_faults(faults);
    let pool = Pool::open_on(Arc::new(file.clone()), &options(64)).unwrap();
    let tree = open_tree(&pool);
    let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
    let mut at = 0;
    for step in 0..400_u64 {
        let seed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        cursor.expect([0, 1, 2, 30, 300, 1024, 1025, usize::MAX][(seed >> 61) as usize]);
        if step % 7 == 3 {
            at = (seed >> 20) % COUNT;
            cursor.seek(&big_endian(at)).unwrap();
        }
        let forward = seed >> 40 & 1 == 0;
        for _ in 0..(seed >> 8) % 400 {
            let entry = if forward { cursor.next() } else { cursor.previous() }.unwrap();
            assert_eq!(entry.is_none(), at == if forward { COUNT } else { 0 });
            let Some(entry) = entry else { break };
            assert_eq!(number(&entry), if forward { at } else { at - 1 });
            at = if forward { at + 1 } else { at - 1 };
        }
    }
}

#[test]
fn nothing_more_is_read_once_the_cursor_is_gone() {
    let file = SimulatedFile::new(4);
    filled(&file, 20_000);
    let pool = Pool::open_on(Arc::new(file.clone()), &options(1024)).unwrap();
    let tree = open_tree(&pool);
    for entries in [1, 100, 400, 3000] {
        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
        for expected in 0..entries {
            assert_eq!(number(&cursor.next().unwrap().unwrap()), expected);
        }
        drop(cursor);
        let read = file.counts().of(FileOperation::Read);
        let pages = pool.statistics().pages_read;
        assert!(pages <= 4 * (entries / 30) + 30, "{pages} pages for {entries} entries");
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(file.counts().of(FileOperation::Read), read);
        // No page is left latched.
        for key in 0..entries {
            assert!(tree.get(&big_endian(key)).unwrap().is_some());
        }
    }
}

/// A small table that is used all the time stays in memory while one of eight times the pool is scanned.
#[test]
fn a_scan_does_not_push_out_what_others_use() {
    const HOT: u64 = 3000;
    const COLD: u64 = 80_000;
    let file = SimulatedFile::new(5);
    let roots = {
        let mut pool = Pool::create_on(Arc::new(file.clone()), &options(4096)).unwrap();
        let trees = [Tree::create(&pool).unwrap(), Tree::create(&pool).unwrap()];
        for (tree, count) in trees.iter().zip([HOT, COLD]) {
            for number in 0..count {
                tree.insert(&big_endian(number), &sealed(number, 1, 100)).unwrap();
            }
        }
        let roots = trees.map(|tree| tree.root());
        pool.checkpoint().unwrap();
        roots
    };
    for (background, in_place) in [(true, false), (false, false), (true, true), (false, true)] {
        let options = options(256).background_eviction(background);
        let pool = Pool::open_on(Arc::new(file.clone()), &options).unwrap();
        let [hot, cold] = roots.map(|root| Tree::open(&pool, root));
        let touch =
            || (0..HOT).step_by(10).for_each(|key| assert!(hot.get(&big_endian(key)).unwrap().is_some()));
        touch();
        let mut cursor = cold.range(UNBOUNDED, UNBOUNDED).unwrap();
        let mut hot_misses = 0;
        for thousand in 0..COLD / 1000 {
            if in_place {
                assert_eq!(show(&mut cursor, thousand * 1000, 1000), 1000);
            } else {
                (0..1000).for_each(|more| {
                    assert_eq!(number(&cursor.next().unwrap().unwrap()), thousand * 1000 + more);
                });
            }
            let before = pool.statistics().misses;
            touch();
            hot_misses += pool.statistics().misses - before;
        }
        assert!(pool.statistics().pages_read > 8 * 256, "{}", pool.statistics().pages_read);
        // Of about 90 hot pages, each read 80 times.
        assert!(hot_misses <= 5, "{hot_misses} misses of hot pages, {background}, in place: {in_place}");
    }
}

/// A page on the way is damaged: the scan shows the entries before it, names the page, and stays where it was.
#[test]
fn a_damaged_page_stops_a_scan_where_it_is_reached() {
    let file = SimulatedFile::new(6);
    filled(&file, 5000);
    for page in [50, 90, 130] {
        file.flip_bit(page * 4096 * 8 + 9999);
        let pool = Pool::open_on(Arc::new(file.clone()), &options(512).read_only(true)).unwrap();
        let tree = open_tree(&pool);
        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
        let mut shown = 0;
        let error = loop {
            match cursor.next() {
                Ok(Some(entry)) => {
                    assert_eq!(number(&entry), shown);
                    shown += 1;
                }
                Ok(None) => panic!("the damage went unnoticed"),
                Err(error) => break error,
            }
        };
        let named = |error: &AccessError| matches!(error, AccessError::Pool(PoolError::Corruption { extent, .. }) if extent.head.0 == page);
        assert!(named(&error), "{error}");
        assert!(tree.get(&big_endian(shown)).is_err(), "exactly what cannot be read is missing");
        assert!(named(&cursor.next().err().unwrap()));
        assert_eq!(number(&cursor.previous().unwrap().unwrap()), shown - 1);
        file.flip_bit(page * 4096 * 8 + 9999);
    }
}

/// The n-th read fails, for every n: the scan says so and can go on, or never needed that read.
#[test]
fn each_read_of_a_scan_that_fails_is_survived() {
    let file = SimulatedFile::new(7);
    filled(&file, 4000);
    let mut reported = 0;
    for n in 1.. {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(64).read_only(true)).unwrap();
        let tree = open_tree(&pool);
        let before = file.counts().scheduled_failures;
        file.fail_nth_of(FileOperation::Read, n);
        let mut cursor = tree.range(UNBOUNDED, UNBOUNDED).unwrap();
        let mut expected = 0;
        loop {
            match cursor.next() {
                Ok(Some(entry)) => {
                    assert_eq!(number(&entry), expected);
                    expected += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(matches!(error, AccessError::Pool(PoolError::Read { .. })), "{error}");
                    reported += 1;
                }
            }
        }
        assert_eq!(expected, 4000);
        file.heal();
        if file.counts().scheduled_failures == before {
            break;
        }
    }
    assert!(reported > 0);
}
