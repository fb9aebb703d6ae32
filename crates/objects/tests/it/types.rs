//! Types as they are stored, and as a program has them.

use crate::support::{All, Kind, Leaf, Node, Part, Store, node, options};
use std::sync::Arc;
use vellum_access::Tree;
use vellum_objects::{Array, Change, Heap, HeapState, ObjectError, Persistent, Ref, Shape, Text};
use vellum_pool::Pool;
use vellum_vm::SimulatedFile;

mod older {
    use super::*;

    #[derive(Persistent, Clone, PartialEq, Debug)]
    #[persistent(crate = "vellum_objects")]
    pub struct Person {
        pub name: Text,
        pub friends: Array<Ref<Person>>,
    }
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Person {
    first_name: Text,
    last_name: Text,
    notes: Text,
    friends: Array<Ref<Person>>,
}

fn converted(old: older::Person) -> Person {
    let (first, last) = old.name.split_once(' ').unwrap();
    Person {
        first_name: first.into(),
        last_name: last.into(),
        notes: "n".repeat(first.len() * 40).into(),
        friends: old.friends.iter().map(|friend| friend.any().typed()).collect(),
    }
}

#[test]
fn a_change_does_not_follow_references_of_another_heap() {
    let store = Store::new(64);
    let heap = store.heap();
    let object = heap.allocate(&node(1, "one")).unwrap();
    let (root, state) = (Tree::create(&store.pool).unwrap().root(), HeapState::default());
    let other = Heap::open(&store.pool, root, &state);
    other.allocate(&node(2, "two")).unwrap();
    let outcomes = [
        other.change(|change| change.get(object)).map(drop),
        other.set(object, &node(3, "three")),
        other.delete(object),
    ];
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Err(ObjectError::Dangling { .. }))),
        "{outcomes:?}"
    );
    assert_eq!(heap.get(object).unwrap(), node(1, "one"));
}

#[test]
fn the_shape_of_a_type_has_its_layout() {
    fn check<T: Persistent>() {
        assert_eq!(T::shape().layout(), (T::ALIGN, T::BYTES), "{}", T::shape());
        assert_eq!(T::BYTES % T::ALIGN, 0);
    }
    check::<Node>();
    check::<Kind>();
    check::<Leaf>();
    check::<Part>();
    check::<Option<Part>>();
    check::<Option<Ref<Part>>>();
    check::<[Option<Kind>; 7]>();
}

#[test]
fn a_shape_says_what_a_type_is() {
    let shape = Node::shape().to_string();
    assert_eq!(
        shape,
        "Node { id: u32, name: Text, edges: Array<Ref<Node>>, next: Option<Ref<Node>>, kind: Kind = Plain | Weighted { 0: i64, 1: bool } \
         | Named { label: Text, at: Option<Ref<Leaf>>, of: Option<u8> }, weight: f64, tail: [u16; 3] }"
    );
    assert!(matches!(Node::shape(), Shape::Struct { .. }));
}

#[test]
fn a_type_that_has_changed_is_refused_until_its_objects_are_converted() {
    let mut store = Store::new(128);
    let heap = store.heap();
    let mut people: Vec<Ref<older::Person>> = Vec::new();
    for number in 0..300 {
        let friends = people.iter().rev().take(3).copied().collect();
        let name = format!("{} Doe{number}", "J".repeat(1 + number % 90));
        let person = heap.allocate(&older::Person { name: name.into(), friends }).unwrap();
        people.push(person);
    }
    heap.set_root(people.last().copied()).unwrap();
    store = store.reopen(128);
    let heap = store.heap();
    let new: Vec<Ref<Person>> = people.iter().map(|person| person.any().typed()).collect();
    let error = heap.get(new[0]).unwrap_err();
    assert!(matches!(error, ObjectError::TypeChanged { name: "Person", .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("Person { name: Text") && message.contains("last_name: Text"), "{message}");
    assert!(matches!(heap.root::<Person>(), Err(ObjectError::TypeChanged { .. })));
    let someone = converted(older::Person { name: "A B".into(), friends: Array::default() });
    assert!(matches!(heap.allocate(&someone), Err(ObjectError::TypeChanged { .. })));
    // Another type altogether.
    assert!(matches!(heap.get(new[0].any().typed::<Leaf>()), Err(ObjectError::OtherType { .. })));
    assert!(matches!(heap.convert(|leaf: Leaf| leaf), Err(ObjectError::NothingToConvert { .. })));

    // It is interrupted, and goes on when it is done again.
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut count = 0;
        heap.convert(|old: older::Person| {
            count += 1;
            assert!(count < 100, "as a crash would");
            converted(old)
        })
    }));
    assert!(panics.is_err());
    let rest = heap.convert(converted).unwrap();
    assert_eq!(rest.objects, 300 - 99);
    assert_eq!(heap.convert(converted).unwrap().objects, 0);
    for (number, person) in new.iter().enumerate() {
        let person = heap.get(*person).unwrap();
        assert_eq!(person.last_name, format!("Doe{number}").as_str());
        assert_eq!(person.friends.len(), number.min(3));
    }
    assert_eq!(heap.root::<Person>().unwrap(), new.last().copied());
    let report = store.verify();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.objects["Person"], 300);
}

#[test]
fn a_place_that_is_reserved_must_be_set() {
    let store = Store::new(64);
    let heap = store.heap();
    let forgotten = heap.change(|change| change.reserve::<Node>());
    assert!(matches!(forgotten, Err(ObjectError::NotSet { .. })));
    let kept = heap.change(|change| {
        let place = change.reserve::<Node>()?;
        change.set(place, &node(5, &"long".repeat(3000)))?;
        Ok::<_, ObjectError>(place)
    });
    assert_eq!(heap.get(kept.unwrap()).unwrap().id, 5);
}

#[test]
fn a_place_that_is_reserved_is_not_read_until_it_is_set() {
    let store = Store::new(64);
    let heap = store.heap();
    let (place, other, pair) = heap
        .change(|change| {
            let (place, pair) = (change.reserve::<Node>()?, change.reserve::<Pair>()?);
            let other = change.allocate(&Node { next: Some(place), ..node(2, "other") })?;
            let outcomes = [
                change.update(place, |node: &mut Node| node.id = 1),
                change.get(place).map(drop),
                change.update(pair, |pair: &mut Pair| pair.first = 1),
                change.get(pair).map(drop),
            ];
            for (number, outcome) in outcomes.iter().enumerate() {
                let wanted = [place.any(), pair.any()][number / 2];
                assert!(
                    matches!(outcome, Err(ObjectError::NotSet { reference }) if *reference == wanted),
                    "{number}: {outcome:?}"
                );
            }
            let wrong = change.get(place.any().typed::<Pair>());
            assert!(matches!(wrong, Err(ObjectError::OtherType { .. })), "{wrong:?}");
            change.set(place, &Node { next: Some(other), ..node(1, "place") })?;
            assert_eq!(change.get(place)?.name, "place");
            change.update(place, |node: &mut Node| node.name.push_str(", changed"))?;
            change.set(pair, &Pair { first: 7, other: None, second: 8 })?;
            assert_eq!(change.get(pair)?.second, 8);
            Ok::<_, ObjectError>((place, other, pair))
        })
        .unwrap();
    assert_eq!(heap.get(place).unwrap(), Node { next: Some(other), ..node(1, "place, changed") });
    assert_eq!(heap.get(pair).unwrap().first, 7);
}

#[test]
fn a_change_of_too_many_pages_is_refused_and_has_not_happened() {
    let store = Store::new(64);
    let heap = store.heap();
    let nodes: Vec<_> = (0..40).map(|id| heap.allocate(&node(id, &"n".repeat(3000))).unwrap()).collect();
    let refused = heap.change(|change| {
        for node in &nodes {
            change.update(*node, |node: &mut Node| node.id = 1000)?;
        }
        Ok::<_, ObjectError>(())
    });
    assert!(matches!(refused, Err(ObjectError::ChangeTooLarge { limit: 8 })), "{refused:?}");
    assert!(nodes.iter().enumerate().all(|(id, node)| heap.get(*node).unwrap().id == id as u32));
}

/// A large object, one that was moved, and eight others. No two of them lie in the same page.
struct Crowd {
    large: Ref<Node>,
    moved: Ref<Node>,
    others: Vec<Ref<Node>>,
}

impl Crowd {
    fn new(store: &Store) -> Self {
        let heap = store.heap();
        let add = |id, length| heap.allocate(&node(id, &"n".repeat(length))).unwrap();
        let (large, mut fillers) = (add(100, 9000), vec![add(200, 3000)]);
        let moved = add(101, 1000);
        fillers.push(add(201, 2700));
        heap.update(moved, |node: &mut Node| node.name.push_str(&"m".repeat(500))).unwrap();
        fillers.push(add(202, 2000));
        let others: Vec<_> = (0..8).map(|id| add(id, 3000)).collect();
        let nodes = fillers.into_iter().chain(others.iter().copied()).chain([large, moved]).collect();
        let root = heap.allocate(&All { nodes, ..All::default() }).unwrap();
        heap.set_root(Some(root)).unwrap();
        Self { large, moved, others }
    }

    /// Checks that nothing has happened to the first two objects, and that of the others so many were changed.
    fn check(&self, store: &Store, changed: usize) {
        let heap = store.heap();
        assert_eq!(heap.get(self.large).unwrap(), node(100, &"n".repeat(9000)));
        assert_eq!(heap.get(self.moved).unwrap(), node(101, &("n".repeat(1000) + &"m".repeat(500))));
        for (id, other) in self.others.iter().enumerate() {
            let expected = if id < changed { 1000 } else { id as u32 };
            assert_eq!(heap.get(*other).unwrap().id, expected);
        }
        let report = store.verify();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.objects["Node"], 13);
    }
}

#[test]
fn a_large_object_survives_a_change_that_goes_on_after_it_could_not_be_set() {
    let store = Store::new(64);
    let (heap, crowd) = (store.heap(), Crowd::new(&store));
    let outcome = heap.change(|change| {
        for other in &crowd.others {
            change.update(*other, |node: &mut Node| node.id = 1000)?;
        }
        if change.set(crowd.large, &node(100, "small")).is_err() {
            // It goes on.
        }
        Ok::<_, ObjectError>(())
    });
    outcome.unwrap();
    crowd.check(&store, 8);
}

#[test]
fn a_step_that_fails_has_not_happened_although_the_change_goes_on() {
    type Step = fn(&mut Change<'_, Pool>, &Crowd) -> Result<(), ObjectError>;
    // What cannot be done once so many other pages are written, of eight.
    let steps: [(usize, &str, Step); 9] = [
        (8, "large: small", |change, crowd| change.set(crowd.large, &node(1, "small"))),
        (8, "large: other", |change, crowd| change.set(crowd.large, &node(1, &"x".repeat(20_000)))),
        (7, "large: elsewhere", |change, crowd| change.set(crowd.large, &node(1, &"x".repeat(3000)))),
        (8, "large: deleted", |change, crowd| change.delete(crowd.large)),
        (8, "new and large", |change, crowd| {
            change.allocate_near(crowd.large, &node(1, &"x".repeat(9000))).map(drop)
        }),
        (8, "moved: large", |change, crowd| change.set(crowd.moved, &node(1, &"x".repeat(9000)))),
        (7, "moved: its forward", |change, crowd| change.set(crowd.moved, &node(1, &"x".repeat(3000)))),
        (6, "moved: elsewhere", |change, crowd| change.set(crowd.moved, &node(1, &"x".repeat(3000)))),
        (7, "moved: deleted", |change, crowd| change.delete(crowd.moved)),
    ];
    for (count, what, step) in steps {
        println!("{what}");
        let mut store = Store::new(64);
        let crowd = Crowd::new(&store);
        let heap = store.heap();
        let outcome = heap.change(|change| {
            for other in &crowd.others[..count] {
                change.update(*other, |node: &mut Node| node.id = 1000)?;
            }
            let refused = step(change, &crowd);
            assert!(matches!(refused, Err(ObjectError::ChangeTooLarge { limit: 8 })), "{refused:?}");
            assert_eq!(change.get(crowd.large)?.name.len(), 9000);
            assert_eq!(change.get(crowd.moved)?.name.len(), 1500);
            Ok::<_, ObjectError>(())
        });
        outcome.unwrap();
        crowd.check(&store, count);
        store = store.reopen(64);
        crowd.check(&store, count);
    }
}

#[test]
fn an_object_for_which_the_file_cannot_grow_keeps_its_value_although_the_change_goes_on() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(64).capacity_bytes(1 << 20)).unwrap();
    pool.set_root_slot(0, Tree::create(&pool).unwrap().root().0).unwrap();
    let store = Store { pool, state: HeapState::default(), file };
    let (heap, crowd) = (store.heap(), Crowd::new(&store));
    let outcome = heap.change(|change| {
        change.update(crowd.others[0], |node: &mut Node| node.id = 1000)?;
        for object in [crowd.large, crowd.moved] {
            let refused = change.update(object, |node: &mut Node| node.name = "x".repeat(2 << 20).into());
            assert!(matches!(refused, Err(ObjectError::Pool(_))), "{refused:?}");
        }
        Ok::<_, ObjectError>(())
    });
    outcome.unwrap();
    crowd.check(&store, 1);
}

#[test]
fn fields_are_read_by_themselves_in_any_order() {
    let store = Store::new(64);
    let heap = store.heap();
    for length in [3, 9000] {
        let person = Person {
            first_name: "Ada".into(),
            last_name: "Lovelace".into(),
            notes: "n".repeat(length).into(),
            friends: Array::default(),
        };
        let person = heap.allocate(&person).unwrap();
        let (notes, first, last) =
            heap.fields(person, (Person::NOTES, Person::FIRST_NAME, Person::LAST_NAME)).unwrap();
        assert_eq!((notes.len(), &first[..], &last[..]), (length, "Ada", "Lovelace"));
        heap.update(person, |person: &mut Person| person.friends.push(Ref::from_bits(77).unwrap())).unwrap();
        assert_eq!(heap.fields(person, Person::FRIENDS).unwrap()[0].to_bits(), 77);
        heap.delete(person).unwrap();
        assert!(matches!(heap.fields(person, Person::NOTES), Err(ObjectError::Dangling { .. })));
    }
}

#[derive(Persistent, Clone, Copy, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Pair {
    first: u32,
    other: Option<Ref<Pair>>,
    second: u64,
}

#[test]
fn a_heap_is_read_in_any_order_with_a_pool_of_a_few_pages() {
    let mut store = Store::new(256);
    let pair = |first| Pair { first, other: None, second: u64::from(first) * 3 };
    let heap = store.heap();
    let pairs: Vec<Ref<Pair>> = (0..20_000).map(|first| heap.allocate(&pair(first)).unwrap()).collect();
    for pages in [16, 64, 128] {
        store = store.reopen(pages);
        let heap = store.heap();
        let scattered = (0..pairs.len()).map(|number| number * 7919 % pairs.len());
        for number in (0..pairs.len()).chain((0..pairs.len()).rev()).chain(scattered) {
            assert_eq!(heap.fields(pairs[number], Pair::SECOND).unwrap(), 3 * number as u64);
        }
        let statistics = store.pool.statistics();
        assert!(statistics.pages_resident <= pages as u64, "{statistics:?}");
    }
}

#[test]
fn an_object_that_grows_passes_over_pages_whose_room_is_in_pieces() {
    // A change writes four pages in so small a pool.
    let store = Store::new(32);
    let heap = store.heap();
    let nodes: Vec<Ref<Node>> =
        (0..300).map(|id| heap.allocate(&node(id, &"n".repeat(40))).unwrap()).collect();
    for reference in nodes.iter().enumerate().filter(|(number, _)| number % 3 != 0).map(|(_, node)| *node) {
        heap.delete(reference).unwrap();
    }
    for reference in nodes.iter().step_by(3) {
        heap.update(*reference, |node: &mut Node| node.name.push_str(&"m".repeat(1500))).unwrap();
        assert_eq!(heap.get(*reference).unwrap().name.len(), 1540);
    }
}

type Four<T> = Option<Option<Option<Option<T>>>>;
type Sixteen<T> = Four<Four<Four<Four<T>>>>;

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Deep {
    value: Sixteen<Sixteen<Sixteen<u8>>>,
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct TooDeep {
    value: Sixteen<Sixteen<Sixteen<Sixteen<u8>>>>,
}

#[test]
fn a_type_that_is_too_deep_to_be_described_is_refused() {
    let store = Store::new(64);
    let heap = store.heap();
    let error = heap.allocate(&TooDeep { value: None }).unwrap_err();
    assert!(matches!(error, ObjectError::TooDeep { name: "TooDeep", depth: 66, limit: 64 }), "{error}");
    let deep = heap.allocate(&Deep { value: None }).unwrap();
    heap.set_root(Some(deep)).unwrap();
    assert!(store.verify().problems.is_empty());
}
