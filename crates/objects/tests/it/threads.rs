//! Threads that change the same objects.

use crate::support::{All, Node, Store, node};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vellum_objects::{ObjectError, Persistent, Ref};

#[derive(Persistent, Clone, Copy, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Account {
    balance: i64,
    changes: u64,
    twin: [u64; 12],
}

const ACCOUNTS: usize = 120;

/// Money is moved between accounts that lie in several pages, while others sum it up and read single accounts. The sum is always the same,
/// and no account is ever seen half changed.
fn transfers(pages: usize) {
    let store = Store::new(pages);
    let heap = store.heap();
    let account = Account { balance: 100, changes: 0, twin: [0; 12] };
    let accounts: Vec<Ref<Account>> = (0..ACCOUNTS).map(|_| heap.allocate(&account).unwrap()).collect();
    let (accounts, is_done) = (&accounts, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let movers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    for _ in 0..400 {
                        let (from, to) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
                        let amount = random.random_range(1..50);
                        let moved = heap.change(|change| {
                            for (account, amount) in [(accounts[from], -amount), (accounts[to], amount)] {
                                change.update(account, |account: &mut Account| {
                                    account.balance += amount;
                                    account.changes += 1;
                                    account.twin = [account.changes; 12];
                                })?;
                            }
                            Ok::<_, ObjectError>(())
                        });
                        moved.unwrap();
                    }
                })
            })
            .collect();
        for seed in 10..12 {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while !is_done.load(Ordering::Relaxed) {
                    let account = heap.get(accounts[random.random_range(0..ACCOUNTS)]).unwrap();
                    assert_eq!(account.twin, [account.changes; 12]);
                    if random.random_range(0..200) == 0 {
                        let sum = heap.change(|change| {
                            let mut sum = 0;
                            for account in accounts {
                                sum += change.get(*account)?.balance;
                            }
                            Ok::<_, ObjectError>(sum)
                        });
                        assert_eq!(sum.unwrap(), 100 * ACCOUNTS as i64);
                    }
                }
            });
        }
        movers.into_iter().for_each(|mover| mover.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    let changes: u64 = accounts.iter().map(|account| heap.get(*account).unwrap().changes).sum();
    assert_eq!(changes, 3 * 400 * 2);
}

#[test]
fn money_is_neither_made_nor_lost() {
    transfers(1024);
}

#[test]
fn nor_in_a_pool_of_a_few_pages() {
    transfers(32);
}

/// Threads make, grow and delete objects of their own near each other.
#[test]
fn objects_of_many_threads_lie_in_the_same_pages() {
    let store = Store::new(64);
    let heap = store.heap();
    let first = heap.allocate(&node(0, "first")).unwrap();
    let lists: Vec<Vec<(Ref<Node>, Node)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    let mut own: Vec<(Ref<Node>, Node)> = Vec::new();
                    for number in 0..500 {
                        let length = if random.random_range(0..60) == 0 { 6000 } else { 150 };
                        let new = node(number, &"n".repeat(random.random_range(0..length)));
                        match random.random_range(0..4) {
                            0 if own.len() > 20 => {
                                let (reference, _) = own.swap_remove(random.random_range(0..own.len()));
                                heap.delete(reference).unwrap();
                            }
                            1 if !own.is_empty() => {
                                let index = random.random_range(0..own.len());
                                heap.set(own[index].0, &new).unwrap();
                                own[index].1 = new;
                            }
                            _ => {
                                let near = own.last().map_or(first, |(reference, _)| *reference);
                                own.push((heap.allocate_near(near, &new).unwrap(), new));
                            }
                        }
                    }
                    own
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all = All::default();
    all.nodes.push(first);
    for (reference, node) in lists.into_iter().flatten() {
        assert_eq!(heap.get(reference).unwrap(), node);
        all.nodes.push(reference);
    }
    let root = heap.allocate(&all).unwrap();
    heap.set_root(Some(root)).unwrap();
    let report = store.verify();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.objects["Node"], all.nodes.len() as u64);
}

#[test]
fn what_is_fetched_is_in_memory() {
    let mut store = Store::new(512);
    let heap = store.heap();
    let nodes: Vec<_> = (0..3000).map(|id| heap.allocate(&node(id, &"n".repeat(100))).unwrap()).collect();
    store = store.reopen(512);
    let heap = store.heap();
    let mut fetcher = heap.fetcher(32).unwrap();
    fetcher.fetch_all(nodes.iter().copied().take(500));
    let misses = store.pool.statistics().misses;
    for (id, reference) in nodes.iter().enumerate().take(500) {
        assert_eq!(heap.get(*reference).unwrap().id, id as u32);
    }
    assert_eq!(store.pool.statistics().misses, misses);
    heap.fetch_all(nodes.iter().copied()).unwrap();
}

/// A change that takes long ends among short ones that change what it has read, again and again.
#[test]
fn a_long_change_ends_among_short_ones() {
    let store = Store::new(64);
    let heap = store.heap();
    let account = Account { balance: 100, changes: 0, twin: [0; 12] };
    let accounts: Vec<Ref<Account>> = (0..ACCOUNTS).map(|_| heap.allocate(&account).unwrap()).collect();
    let (accounts, is_done) = (&accounts, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while !is_done.load(Ordering::Relaxed) {
                    let account = accounts[random.random_range(0..ACCOUNTS)];
                    heap.update(account, |account: &mut Account| account.changes += 1).unwrap();
                }
            });
        }
        let start = Instant::now();
        let mut attempts = 0;
        for _ in 0..5 {
            let sum = heap.change(|change| {
                attempts += 1;
                let is_late = start.elapsed() > Duration::from_secs(20);
                is_done.fetch_or(is_late, Ordering::Relaxed);
                assert!(!is_late, "{attempts} attempts were in vain");
                let mut sum = 0;
                for account in accounts {
                    sum += change.get(*account)?.balance;
                }
                // The others go on meanwhile.
                std::thread::sleep(Duration::from_millis(5));
                change.update(accounts[0], |account: &mut Account| account.twin[0] += 1)?;
                Ok::<_, ObjectError>(sum)
            });
            assert_eq!(sum.unwrap(), 100 * ACCOUNTS as i64);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_change_past_the_one_under_way_is_refused_and_not_repeated_for_ever() {
    let (store, other) = (Store::new(64), Store::new(64));
    let heap = store.heap();
    let account = Account { balance: 1, changes: 0, twin: [0; 12] };
    let first = heap.allocate(&account).unwrap();
    let pages = store.pool.statistics().pages_allocated;
    let mut calls = 0;
    let outcome = heap.change(|change| {
        calls += 1;
        assert!(calls < 100, "it is repeated for ever");
        let new = change.allocate(&account)?;
        // It may read, and change another heap.
        assert_eq!(heap.root::<Account>()?, None);
        assert_eq!(heap.get(first)?, account);
        other.heap().allocate(&account)?;
        heap.allocate(&account)?;
        Ok::<_, ObjectError>(new)
    });
    assert!(matches!(outcome, Err(ObjectError::ChangeUnderWay)), "{outcome:?}");
    assert_eq!((calls, store.pool.statistics().pages_allocated), (1, pages));
    // The error of the inner change may be ignored, and the mark ends with the change, whichever way that ends.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        heap.change(|_| -> Result<(), ObjectError> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    let new = heap.change(|change| {
        assert!(matches!(heap.delete(first), Err(ObjectError::ChangeUnderWay)));
        change.allocate(&account)
    });
    assert_eq!(heap.get(new.unwrap()).unwrap(), account);
    heap.delete(first).unwrap();
    let mut count = 0;
    let counted = heap.for_each(|_: Ref<Account>| {
        count += 1;
        Ok::<_, ObjectError>(true)
    });
    assert!(counted.is_ok() && count == 1);
}

/// A change that leaves a place unset because of what another thread has changed meanwhile is repeated.
#[test]
fn a_place_that_is_left_unset_for_what_is_no_longer_so_is_no_error() {
    let store = Store::new(64);
    let heap = store.heap();
    let flag = heap.allocate(&node(0, "old")).unwrap();
    let mut attempts = 0;
    let outcome = heap.change(|change| {
        attempts += 1;
        if change.get(flag)?.id == 0 {
            change.reserve::<Node>()?;
            std::thread::scope(|scope| {
                scope.spawn(|| heap.set(flag, &node(1, "new")).unwrap());
            });
        }
        Ok::<_, ObjectError>(())
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(attempts, 2);
    let outcome = heap.change(|change| change.reserve::<Node>().map(drop));
    assert!(matches!(outcome, Err(ObjectError::NotSet { .. })), "{outcome:?}");
}

/// A change that has found no root is repeated if another thread has set one meanwhile, also the first one of the heap.
#[test]
fn a_root_that_another_thread_has_set_first_is_not_replaced() {
    for sets_root in [true, false] {
        let store = Store::new(64);
        let heap = store.heap();
        let (mut attempts, mut first) = (0, None);
        let seen = heap.change(|change| {
            let seen = change.root::<Node>()?;
            attempts += 1;
            if attempts == 1 {
                let set = || {
                    let first = heap.allocate(&node(1, "first"))?;
                    heap.set_root(Some(first))?;
                    Ok::<_, ObjectError>(first)
                };
                first = Some(std::thread::scope(|scope| scope.spawn(set).join().unwrap())?);
            }
            if seen.is_none() {
                let second = change.allocate(&node(2, "second"))?;
                if sets_root {
                    change.set_root(Some(second))?;
                }
            }
            Ok::<_, ObjectError>(seen)
        });
        assert_eq!((seen.unwrap(), attempts), (first, 2));
        assert_eq!(heap.root::<Node>().unwrap(), first);
        assert!(store.verify().problems.is_empty(), "{:?}", store.verify().problems);
    }
    // One that only reads.
    let store = Store::new(64);
    let heap = store.heap();
    assert_eq!(heap.root::<Node>().unwrap(), None);
    let mut attempts = 0;
    let seen = heap.change(|change| {
        attempts += 1;
        let seen = change.root::<Node>()?;
        if attempts == 1 {
            std::thread::scope(|scope| {
                scope.spawn(|| heap.set_root(Some(heap.allocate(&node(1, "first"))?))).join().unwrap()
            })?;
        }
        Ok::<_, ObjectError>(seen)
    });
    assert!(seen.unwrap().is_some() && attempts == 2);
}

/// Objects of a list, in pages of their own, are read before and after another thread has put the first one last: together
/// they are a circle that never was. It has roots, or sees that there are none.
#[test]
fn a_walk_through_objects_of_different_moments_ends() {
    for (returns_error, changes) in [(true, false), (true, true), (false, false), (false, true)] {
        let store = Store::new(64);
        let heap = store.heap();
        let nodes = [0, 1, 2].map(|id| heap.allocate(&node(id, &"n".repeat(3000))).unwrap());
        let link = |order: [usize; 3]| {
            let linked = heap.change(|change| {
                for (place, index) in order.iter().enumerate() {
                    let next = order.get(place + 1).map(|index| nodes[*index]);
                    change.update(nodes[*index], |node: &mut Node| node.next = next)?;
                }
                Ok::<_, ObjectError>(())
            });
            linked.unwrap();
        };
        link([0, 1, 2]);
        let (mut attempts, mut first) = (0, 0);
        let walked = heap.change(|change| {
            attempts += 1;
            let (mut next, mut walked) = (Some(nodes[first]), Vec::new());
            if change.root::<Node>()?.is_none() && changes {
                change.allocate(&node(9, "new"))?;
            }
            while let Some(reference) = next {
                assert!(walked.len() < 100_000, "it walks for ever");
                let node = match change.get(reference) {
                    Err(error) if returns_error => return Err(error),
                    Err(_) => break,
                    Ok(node) => node,
                };
                walked.push(node.id);
                next = node.next;
                if attempts == 1 && walked.len() == 1 {
                    std::thread::scope(|scope| scope.spawn(|| link([1, 2, 0])).join().unwrap());
                    first = 1;
                }
            }
            Ok(walked)
        });
        assert_eq!((walked.unwrap(), attempts), (vec![1, 2, 0], 2));
    }
}

/// A change that reads one object very often, and is not disturbed, is made at once.
#[test]
fn a_change_that_looks_for_many_objects_is_made() {
    let store = Store::new(64);
    let heap = store.heap();
    let first = heap.allocate(&node(0, "first")).unwrap();
    let mut attempts = 0;
    let sum = heap.change(|change| {
        attempts += 1;
        let mut sum = 0;
        for _ in 0..20_000 {
            change.update(first, |node: &mut Node| node.id += 1)?;
            sum += u64::from(change.get(first)?.id);
        }
        Ok::<_, ObjectError>(sum)
    });
    assert_eq!((sum.unwrap(), attempts, heap.get(first).unwrap().id), (200_010_000, 1, 20_000));
}
