//! Damaged pages, arbitrary bytes, and bytes that change while they are read: nothing panics, nothing runs
//! forever, nothing is written to the page header; and what validates behaves.

use crate::node_tree::Tree;
use std::cell::Cell;
use std::cmp::Ordering;
use vellum_access::node::{
    BLOB_REFERENCE_BYTES, CopySize, LeafCopy, MAX_INNER_COUNT, MAX_LEAF_COUNT, NODE_BYTES, NodeError,
    NodeMut, NodeView, Split, ValueKind,
};
use vellum_base::{Bytes, PageId};

const HEADER: usize = 32;
const KEYS: [&[u8]; 9] =
    [b"", b"k", b"ka", b"kab", b"kab\x02\0\0\x05\x07", b"kab\x02\0\0\x05\x08", b"kaq", b"kaz", &[0xff; 1024]];

fn leaf() -> Vec<u8> {
    let mut page = vec![0x5a; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, Some(b"ka"), Some(b"kaz"), PageId(0)).unwrap();
    for number in 0..50u8 {
        let key = [b'k', b'a', b'b', number / 10, 0, 0, number % 10, 7];
        node.insert(&key, &vec![number; number as usize], ValueKind::Inline).unwrap();
    }
    node.insert(b"kac", &[9; BLOB_REFERENCE_BYTES], ValueKind::Blob).unwrap();
    node.remove(20).unwrap();
    page
}

/// A full leaf, whose prefix will grow when it ends, and whose last record will then go into the next one.
fn full_leaf() -> Vec<u8> {
    let mut page = vec![0x5a; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, Some(b"ka"), Some(b"kb"), PageId(0)).unwrap();
    for number in 0..66u8 {
        let key = [&b"kax\xff\xff\xff\xff\xff\xff"[..], &[number / 10, number % 10]].concat();
        node.insert(&key[..if number % 10 == 0 { 10 } else { 11 }], &[number; 45], ValueKind::Inline)
            .unwrap();
    }
    assert_eq!((node.view().free_bytes(), node.view().prefix_len()), (4, 1));
    let end = node.view().plan_end(b"kay").unwrap().unwrap();
    assert_eq!(end.separator.last(), Some(&4), "it ends before its last key");
    page
}

fn inner() -> Vec<u8> {
    let mut page = vec![0x5a; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 1, Some(b"ka"), Some(b"kaz"), PageId(1000)).unwrap();
    for number in 0..100u8 {
        let key = [b'k', b'a', b'b', number / 10, 0, 0, number % 10, 7];
        node.insert_separator(&key[..if number % 3 == 0 { 8 } else { 7 }], PageId(number as u64)).unwrap();
    }
    page
}

/// Bytes of which some reads give a different result each time.
#[derive(Clone, Copy)]
struct Changing<'a> {
    page: &'a [u8],
    state: &'a Cell<u64>,
}

impl Changing<'_> {
    fn noise(self) -> u64 {
        let mixed = (self.state.get() ^ self.state.get() >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.state.set(mixed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        if mixed >> 61 == 0 { mixed ^ mixed >> 32 } else { 0 }
    }
}

impl Bytes for Changing<'_> {
    fn size(self) -> usize {
        self.page.len()
    }
    fn u8_at(self, at: usize) -> u8 {
        self.page.u8_at(at) ^ self.noise() as u8
    }
    fn u16_at(self, at: usize) -> u16 {
        self.page.u16_at(at) ^ self.noise() as u16
    }
    fn u32_at(self, at: usize) -> u32 {
        self.page.u32_at(at) ^ self.noise() as u32
    }
    fn u64_at(self, at: usize) -> u64 {
        self.page.u64_at(at) ^ self.noise()
    }
    fn be_word_at(self, at: usize) -> u64 {
        self.page.be_word_at(at) ^ self.noise()
    }
    fn compare(self, at: usize, length: usize, other: &[u8]) -> Ordering {
        if self.noise() == 0 { self.page.compare(at, length, other) } else { Ordering::Less }
    }
    fn append_to(self, at: usize, length: usize, target: &mut Vec<u8>) {
        self.page.append_to(at, length, target);
    }
    fn copy_to(self, at: usize, target: &mut [u8]) {
        self.page.copy_to(at, target);
    }
}

/// Calls all that reads a node, and checks what holds whatever the bytes are.
fn read_all<B: Bytes>(view: NodeView<B>) {
    let mut out = Vec::new();
    let (count, level) = (view.count(), view.level());
    assert!(count <= MAX_LEAF_COUNT);
    let _ = (view.is_leaf(), level, view.free_bytes(), view.used_bytes(), view.validate());
    assert!(view.prefix_len() <= 1024);
    for key in KEYS {
        assert!(view.find(key).index <= MAX_LEAF_COUNT);
        let place = view.child_for(key);
        assert!(place.is_multiple_of(8) && place + 8 <= NODE_BYTES);
        assert!(view.child_index(place) <= MAX_INNER_COUNT);
        let _ = (view.get(key), view.covers(key), view.has_room_for(key, 100), view.child_at(place));
    }
    assert!(view.children().count() <= MAX_INNER_COUNT + 1);
    for index in [0, 1, count / 2, count, count + 1, usize::MAX / 64] {
        out.clear();
        assert!(view.value_location(index).at < NODE_BYTES);
        assert!(view.child_place(index) + 8 <= NODE_BYTES);
        view.append_key(index, &mut out);
        view.append_value(index, &mut out);
        view.lower_fence(&mut out);
        view.upper_fence(&mut out);
        assert!(out.len() <= 5 * NODE_BYTES);
        let _ = view.compare_key(index, b"kab\x02");
    }
    let mut copy = LeafCopy::default();
    for index in [0, 1, count / 2, count, usize::MAX / 64] {
        copy.begin(view);
        assert!(copy.count() <= MAX_LEAF_COUNT);
        copy.add_from(view, index, CopySize::Bytes(300));
        copy.add_before(view, index, CopySize::Bytes(300));
        // A walk from fence to fence comes to an end.
        out.clear();
        assert!(!copy.view().upper_fence(&mut out) || !copy.view().covers_after(&out));
        out.clear();
        assert!(!copy.view().lower_fence(&mut out) || !copy.view().covers(&out));
        for held in (0..copy.count()).filter(|held| copy.holds(*held)) {
            copy.view().append_key(held, &mut out);
            copy.view().append_value(held, &mut out);
        }
        copy.copy_all(view);
        assert!(copy.count() <= MAX_LEAF_COUNT && !copy.holds(copy.count()));
    }
}

/// Calls all that changes a node, each with a copy, and checks that a sound node stays sound.
fn write_all(page: &[u8]) {
    let sound = NodeView::new(page).validate().is_ok();
    let count = NodeView::new(page).count();
    let attempt = |name: &str, change: &dyn Fn(&mut NodeMut<'_>) -> bool| {
        let mut copy = page.to_vec();
        let done = change(&mut NodeMut::new(&mut copy));
        assert!(done || !sound || copy == page, "{name}: a refusal changes nothing");
        assert_eq!(copy.get(..HEADER), page.get(..HEADER), "{name}");
        let after = NodeView::new(&copy[..]).validate();
        assert!(!sound || after.is_ok(), "{name}: {after:?}");
    };
    for key in KEYS {
        attempt("insert", &|node| node.insert(key, &[1; 300], ValueKind::Inline).is_ok());
        attempt("insert_separator", &|node| node.insert_separator(key, PageId(5)).is_ok());
    }
    for index in [0, 1, count / 2, count.wrapping_sub(1), count, usize::MAX / 64] {
        attempt("remove", &|node| node.remove(index).is_ok());
        attempt("remove_separator", &|node| node.remove_separator(index).is_ok());
        attempt("value_mut", &|node| match node.value_mut(index) {
            Ok(value) => {
                value.fill(0xaa);
                true
            }
            Err(_) => false,
        });
        for length in [0, 20, 1000] {
            attempt("replace", &|node| node.replace(index, &vec![1; length], ValueKind::Inline).is_ok());
        }
    }
    attempt("split elsewhere", &|node| {
        let split = Split { index: count / 3, separator: b"kab\x02\0\0\x05\x07".to_vec() };
        split_into(node, &mut vec![0; NODE_BYTES], &split).is_ok()
    });
    attempt("end", &|node| {
        let Ok(Some(end)) = node.view().plan_end(b"kay") else { return false };
        let mut right = vec![0x77; NODE_BYTES];
        let begun = NodeMut::begin_at(&mut right, node.view(), &end);
        assert_eq!(right[..HEADER], [0x77; HEADER]);
        assert!(!sound || begun.is_ok() && NodeView::new(&right[..]).validate().is_ok());
        if begun.is_ok() {
            node.end_at(&end);
        }
        begun.is_ok()
    });
    for incoming in [None, Some(&b"kaa"[..]), Some(b"kay")] {
        split_and_merge(page, sound, incoming);
    }
}

fn split_and_merge(page: &[u8], sound: bool, incoming: Option<&[u8]>) {
    let mut left = page.to_vec();
    let mut right = vec![0x77; NODE_BYTES];
    let mut node = NodeMut::new(&mut left);
    let Ok(split) = node.view().choose_separator(incoming) else { return };
    let done = split_into(&mut node, &mut right, &split);
    assert!(!sound || done.is_ok(), "{done:?}");
    assert_eq!(right[..HEADER], [0x77; HEADER]);
    assert_eq!(left.get(..HEADER), page.get(..HEADER));
    if done.is_err() {
        assert_eq!(left, page);
        return;
    }
    let before = left.clone();
    let merged = NodeMut::new(&mut left).merge_from_right(NodeView::new(&right[..]), &split.separator);
    assert!(merged.is_ok() || left == before);
    assert_eq!(left.get(..HEADER), page.get(..HEADER));
    if sound {
        assert!(merged.is_ok(), "what was split fits together again");
        NodeView::new(&left[..]).validate().unwrap();
        let keys = |page: &[u8]| {
            let view = NodeView::new(page);
            let mut keys = Vec::new();
            (0..view.count()).for_each(|index| view.append_key(index, &mut keys));
            keys
        };
        assert_eq!(keys(&left), keys(page));
    }
}

fn survive(page: &[u8]) {
    read_all(NodeView::new(page));
    let state = Cell::new(u64::from_le_bytes(*page.first_chunk().unwrap_or(&[1; 8])) ^ page.len() as u64);
    read_all(NodeView::new(Changing { page, state: &state }));
    write_all(page);
}

#[test]
fn any_single_bit_and_any_single_byte_may_be_wrong() {
    let step = if cfg!(miri) { 997 } else { 1 };
    for page in [leaf(), full_leaf(), inner()] {
        survive(&page);
        let mut damaged = page.clone();
        // Every bit of the header and the first hints and slots, then fewer.
        for bit in (HEADER * 8..160 * 8).chain((160 * 8..NODE_BYTES * 8).step_by(19)).step_by(step) {
            damaged[bit / 8] ^= 1 << (bit % 8);
            survive(&damaged);
            damaged[bit / 8] = page[bit / 8];
        }
        for at in (HEADER..NODE_BYTES).step_by(5 * step) {
            damaged[at] = if page[at] == 0xff { 0 } else { 0xff };
            survive(&damaged);
            damaged[at] = page[at];
        }
    }
}

/// The beginning of the heap and the place of a value are both wrong, and agree with each other.
#[test]
fn a_value_in_the_page_header_is_not_given_to_be_changed() {
    const HEAP_START_AT: usize = 38;
    const SLOT_AT: usize = 128 + 8 * 5;
    for place in [0, 1, 7, 20] {
        let mut page = leaf();
        assert!(!NodeMut::new(&mut page).value_mut(5).unwrap().is_empty());
        page[HEAP_START_AT..HEAP_START_AT + 2].fill(0);
        page[SLOT_AT] = place;
        page[SLOT_AT + 1] &= !3;
        assert_eq!(NodeView::new(&page[..]).value_location(5).at, 4 * place as usize);
        assert!(NodeMut::new(&mut page).value_mut(5).is_err());
    }
}

#[test]
fn a_page_of_the_wrong_size_is_refused() {
    for size in [0, 1, 31, 32, 100, NODE_BYTES - 1, NODE_BYTES + 1, 2 * NODE_BYTES] {
        let mut page = leaf();
        page.resize(size, 0);
        survive(&page);
        assert!(NodeView::new(&page[..]).validate().is_err());
        assert!(NodeMut::new(&mut page).insert(b"kac", b"", ValueKind::Inline).is_err());
        assert!(NodeMut::init(&mut page, 0, None, None, PageId(0)).is_err());
    }
}

const ITERATIONS: usize = if cfg!(miri) { 10 } else { 2000 };

/// A sound page with some bytes replaced, most of them in the header and the slots, or only noise.
fn damaged((kind, changes, noise): &(u8, Vec<(u16, u8)>, Vec<u8>)) -> Vec<u8> {
    let mut page = match kind % 4 {
        0 => leaf(),
        1 => inner(),
        2 => full_leaf(),
        _ => noise.iter().copied().cycle().take(if noise.is_empty() { 0 } else { NODE_BYTES }).collect(),
    };
    page.resize(NODE_BYTES, 0);
    for &(at, byte) in changes {
        let at = if at % 4 == 0 { at as usize % NODE_BYTES } else { HEADER + at as usize % 300 };
        page[at] = byte;
    }
    page
}

#[test]
fn views_survive_any_bytes() {
    bolero::check!().with_iterations(ITERATIONS).with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>().for_each(
        |input| {
            let page = damaged(input);
            read_all(NodeView::new(&page[..]));
            let state = Cell::new(input.1.len() as u64 + 1);
            read_all(NodeView::new(Changing { page: &page, state: &state }));
        },
    );
}

#[test]
fn changes_survive_any_bytes() {
    bolero::check!()
        .with_iterations(ITERATIONS)
        .with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>()
        .for_each(|input| write_all(&damaged(input)));
}

#[test]
fn any_operations_agree_with_the_model() {
    bolero::check!()
        .with_iterations(ITERATIONS / 10)
        .with_max_len(4096)
        .with_type::<Vec<(u8, u8, u16, u16)>>()
        .for_each(|operations| {
            let mut tree = Tree::new();
            for &(what, shape, number, length) in operations {
                let mut key = number.to_be_bytes().to_vec();
                match shape % 5 {
                    0 => key.truncate(shape as usize / 5 % 3),
                    1 => key.splice(0..0, vec![0; shape as usize]).for_each(drop),
                    2 => key.resize(1024, shape),
                    3 => key.splice(0..0, vec![7; 1022]).for_each(drop),
                    _ => {}
                }
                match what % 8 {
                    0 => tree.remove(&key),
                    1 => tree.put(&key, &[what; BLOB_REFERENCE_BYTES], true),
                    2 => assert_eq!(tree.get(&key), tree.model.get(&key).cloned()),
                    _ => tree.put(&key, &vec![what; length as usize % 1025], false),
                }
            }
            tree.check_all();
        });
}

/// Splits a node: it becomes the left half, and `right` the right one.
fn split_into(node: &mut NodeMut<'_>, right: &mut [u8], split: &Split) -> Result<(), NodeError> {
    NodeMut::begin_right(right, node.view(), split)?;
    node.split_off(&split.separator)
}
