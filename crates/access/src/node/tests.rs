//! What [`NodeView::validate`] must notice, and fences and separators against the plainest code for them.

use super::layout::*;
use super::*;
use std::cmp::Ordering;
use vellum_base::PageId;

/// A leaf with fences, a prefix of two bytes, keys with and without tails, ties of heads, a blob and holes.
fn leaf() -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, Some(b"ka"), Some(b"kaz"), PageId(0)).unwrap();
    for number in 0..40u8 {
        let key = [b'k', b'a', b'b', number / 10, 0, 0, number % 10, 7];
        node.insert(&key, &vec![number; number as usize], ValueKind::Inline).unwrap();
    }
    node.insert(b"kab", b"", ValueKind::Inline).unwrap();
    node.insert(b"kac", &[9; BLOB_REFERENCE_BYTES], ValueKind::Blob).unwrap();
    node.remove(20).unwrap();
    node.view().validate().unwrap();
    assert_eq!(node.view().prefix_len(), 2);
    page
}

fn inner() -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 1, None, Some(&[0xee; 9]), PageId(1000)).unwrap();
    for number in 1..60u64 {
        node.insert_separator(&number.to_be_bytes()[..], PageId(number)).unwrap();
        node.insert_separator(&[number as u8], PageId(number)).unwrap();
    }
    node.view().validate().unwrap();
    page
}

/// The fault that validation finds in a page after a change.
fn after(mut page: Vec<u8>, change: impl FnOnce(&mut [u8])) -> NodeFault {
    change(&mut page);
    NodeView::new(&page[..]).validate().unwrap_err()
}

fn get_u16(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn add_u16(page: &mut [u8], at: usize, by: i32) {
    let sum = (get_u16(page, at) as i32 + by) as u16;
    page[at..at + 2].copy_from_slice(&sum.to_le_bytes());
}

fn slot(page: &[u8], index: usize) -> Slot {
    NodeView::new(page).slot(index)
}

fn put_slot(page: &mut [u8], index: usize, slot: u64) {
    page[SLOTS_AT + 8 * index..][..8].copy_from_slice(&slot.to_le_bytes());
}

#[test]
fn unsorted_slots_are_noticed() {
    let swap = |page: &mut [u8]| {
        let (a, b) = (slot(page, 4), slot(page, 5));
        put_slot(page, 4, b.0);
        put_slot(page, 5, a.0);
    };
    assert_eq!(after(leaf(), swap), NodeFault::Order { index: 5 });
    let twice = |page: &mut [u8]| {
        // Slot 5 with the key of slot 4: only the last byte of the tail distinguishes the two.
        let (a, b) = (slot(page, 4).tail_at(), slot(page, 5).tail_at());
        page.copy_within(a..a + 2, b);
    };
    assert_eq!(after(leaf(), twice), NodeFault::Order { index: 5 });
}

#[test]
fn overlapping_records_are_noticed() {
    let overlap = |page: &mut [u8]| {
        let at = slot(page, 30).at() as u64 / 4;
        let other = slot(page, 31).0;
        put_slot(page, 31, other & !0x3ff | at);
    };
    assert_eq!(after(leaf(), overlap), NodeFault::Overlap { index: 31 });
}

#[test]
fn records_outside_the_heap_are_noticed() {
    for at in [0, 8, SLOTS_AT as u64 / 4, 1023] {
        let fault = after(leaf(), |page| {
            let other = slot(page, 31).0;
            put_slot(page, 31, other & !0x3ff | at);
        });
        assert_eq!(fault, NodeFault::Record { index: 31 });
    }
    let empty_elsewhere = |page: &mut [u8]| {
        let other = slot(page, 0).0;
        assert_eq!(slot(page, 0).record_bytes(), 0);
        put_slot(page, 0, other | 1000);
    };
    assert_eq!(after(leaf(), empty_elsewhere), NodeFault::Record { index: 0 });
}

#[test]
fn wrong_hints_are_noticed() {
    // Keys that are no longer than their heads.
    let leaf = || {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, Some(b"ka"), Some(b"kaz"), PageId(0)).unwrap();
        for number in 0..40 {
            node.insert(&[b'k', b'a', b'b', number], b"value", ValueKind::Inline).unwrap();
        }
        page
    };
    for index in 0..HINT_COUNT {
        let fault = after(leaf(), |page| page[HINTS_AT + 4 * index] ^= 1);
        assert_eq!(fault, NodeFault::Hint { index });
        let fault = after(inner(), |page| page[HINTS_AT + 4 * index + 3] ^= 0x80);
        assert_eq!(fault, NodeFault::Hint { index });
    }
}

#[test]
fn wrong_accounting_is_noticed() {
    for by in [-4, 4, -1, 1] {
        let fault = after(leaf(), |page| add_u16(page, HEAP_USED_AT, by));
        assert!(matches!(fault, NodeFault::HeapUsed { .. }), "{fault}");
    }
    let fault = after(leaf(), |page| add_u16(page, HEAP_START_AT, -2));
    assert!(matches!(fault, NodeFault::HeapStart { .. }), "{fault}");
    let lowest = |page: &mut [u8]| add_u16(page, HEAP_START_AT, 4);
    assert!(matches!(after(leaf(), lowest), NodeFault::Record { .. } | NodeFault::HeapUsed { .. }));
    let beyond = |page: &mut [u8]| page[HEAP_START_AT..][..2].copy_from_slice(&5000u16.to_le_bytes());
    assert_eq!(after(leaf(), beyond), NodeFault::HeapStart { start: 5000 });
}

#[test]
fn wrong_counts_and_levels_are_noticed() {
    let more = |page: &mut [u8]| add_u16(page, COUNT_AT, 1);
    let fault = after(leaf(), more);
    assert!(matches!(fault, NodeFault::Overlap { .. } | NodeFault::Record { .. }), "{fault}");
    assert!(matches!(after(leaf(), |page| add_u16(page, COUNT_AT, -1)), NodeFault::HeapUsed { .. }));
    let many = |page: &mut [u8]| page[COUNT_AT..][..2].copy_from_slice(&497u16.to_le_bytes());
    assert_eq!(after(leaf(), many), NodeFault::Count { count: 497 });
    after(leaf(), |page| page[LEVEL_AT] = 1);
    after(inner(), |page| page[LEVEL_AT] = 0);
    let count = NodeView::new(&inner()[..]).count();
    for at in [3, 13, 15].map(|byte| SLOTS_AT + INNER_STRIDE * count + byte) {
        assert_eq!(after(inner(), |page| page[at] = 1), NodeFault::Reserved { at });
    }
}

#[test]
fn wrong_fences_and_prefixes_are_noticed() {
    let end = NODE_BYTES;
    let above = |page: &mut [u8]| page[end - 2] = b'l';
    assert!(matches!(after(leaf(), above), NodeFault::Prefix { .. }));
    // The upper fence is "kaz": "z" stands before "ka". Lowered to "kac", it excludes nothing, to "kab" a key.
    let mut page = leaf();
    page[end - 3] = b'c';
    NodeView::new(&page[..]).validate().unwrap();
    let lowered = |page: &mut [u8]| page[end - 3] = b'b';
    assert!(matches!(after(leaf(), lowered), NodeFault::OutsideFences { .. }));
    assert!(matches!(after(leaf(), |page| page[PREFIX_WORD_AT] = 1), NodeFault::Prefix { .. }));
    after(leaf(), |page| page[PREFIX_LENGTH_AT] = 1);
    assert!(matches!(after(leaf(), |page| page[FLAGS_AT] = 1), NodeFault::Fences { .. }));
    assert!(matches!(after(leaf(), |page| page[FLAGS_AT] = 0xb), NodeFault::Fences { .. }));
    assert!(matches!(after(inner(), |page| page[FLAGS_AT] |= 16), NodeFault::Fences { .. }));
    assert!(matches!(after(inner(), |page| page[UPPER_LENGTH_AT + 1] = 0xff), NodeFault::Fences { .. }));
    assert_eq!(after(leaf(), |page| page[60] = 1), NodeFault::Reserved { at: 60 });
}

#[test]
fn malformed_slots_are_noticed() {
    // Slot 0 is the key "kab", with a rest of one byte: the head is padded with zeroes.
    let padding = |page: &mut [u8]| page[SLOTS_AT + 4] = 1;
    assert_eq!(after(leaf(), padding), NodeFault::Slot { index: 0 });
    let code = |page: &mut [u8]| {
        let other = slot(page, 7);
        let code = MAX_INLINE_VALUE_BYTES + 2;
        put_slot(page, 7, Slot::with_head(other.head(), other.rest_length(), code, other.at()).0);
    };
    assert_eq!(after(leaf(), code), NodeFault::Slot { index: 7 });
    // What is between the place and the length of an entry is zero, and so is what pads its head.
    for bit in 50..53 {
        let spare = |page: &mut [u8]| page[SLOTS_AT + 8 + bit / 8] |= 1 << (bit % 8);
        assert_eq!(after(inner(), spare), NodeFault::Slot { index: 0 });
    }
    let view_of = inner();
    let short = (0..60).find(|index| NodeView::new(&view_of[..]).item(*index).rest_length < 8).unwrap();
    let padding = |page: &mut [u8]| page[SLOTS_AT + INNER_STRIDE * short] = 1;
    assert_eq!(after(inner(), padding), NodeFault::Slot { index: short });
    let size = NodeView::new(&leaf()[..100]).validate();
    assert_eq!(size, Err(NodeFault::Size { bytes: 100 }));
}

/// A repeatable sequence of numbers.
pub(super) fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    })
}

/// All keys over `letters` of up to `length` letters, in order.
pub(super) fn all_keys(letters: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut keys = vec![Vec::new()];
    let mut start = 0;
    for _ in 0..length {
        let end = keys.len();
        for index in start..end {
            for &letter in letters {
                keys.push([&keys[index][..], &[letter]].concat());
            }
        }
        start = end;
    }
    keys.sort();
    keys
}

#[test]
fn what_a_node_covers_lies_between_its_fences() {
    // Fences and keys that end before, at and after the eight bytes that are compared first, with zeroes at their ends.
    let ends = all_keys(b"\0\x01\xff", 3);
    let mut keys = ends.clone();
    for start in [&b"abcdef"[..], b"abcdefg", b"abcdefgh", b"abcdefgh\0", &[b'a'; 40], &[0; 7]] {
        keys.extend(ends.iter().step_by(3).map(|end| [start, end].concat()));
    }
    keys.sort();
    let step = if cfg!(miri) { 41 } else { 3 };
    let mut page = vec![0; NODE_BYTES];
    for (index, lower) in keys.iter().enumerate().step_by(step) {
        let upper = keys.iter().skip(index + 1).step_by(step).map(Some).chain([None]);
        for (lower, upper) in upper.flat_map(|upper| [(Some(lower), upper), (None, upper)]) {
            let (low, high) = (lower.map(|key| &key[..]), upper.map(|key| &key[..]));
            let node = NodeMut::init(&mut page, 0, low, high, PageId(0)).unwrap();
            let view = node.view();
            for key in &keys {
                let (above, below) =
                    (lower.is_none_or(|low| low < key), upper.is_none_or(|high| key <= high));
                assert_eq!(view.covers(key), above && below, "{low:?} {key:?} {high:?}");
                assert_eq!((view.admits_at(0, key), view.admits_at(1, key)), (above && below, below));
                let after = lower.is_none_or(|low| low <= key) && upper.is_none_or(|high| key < high);
                assert_eq!(view.covers_after(key), after, "{low:?} {key:?} {high:?}");
            }
        }
    }
}

#[test]
fn heads_are_those_of_a_padded_key() {
    let key: Vec<u8> = (1..=16).collect();
    for length in 0..=key.len() {
        let key = &key[..length];
        let padded = |from: usize| {
            let mut bytes = key.get(from..).unwrap_or(&[]).to_vec();
            bytes.resize(16.max(bytes.len()), 0);
            bytes
        };
        let word = key_word(key);
        assert_eq!(word.to_be_bytes(), padded(0)[..8]);
        for prefix_length in 0..=length {
            assert_eq!(head_after(key, word, prefix_length).to_be_bytes(), padded(prefix_length)[..4]);
            assert_eq!(head_of(&key[prefix_length..]).to_be_bytes(), padded(prefix_length)[..4]);
            assert_eq!(long_head_after(key, word, prefix_length).to_be_bytes(), padded(prefix_length)[..8]);
        }
    }
}

#[test]
fn a_leaf_without_room_stays_as_it_was() {
    let mut page = leaf();
    let before = page.clone();
    let mut node = NodeMut::new(&mut page);
    let count = node.view().count();
    assert_eq!(node.insert(b"kab", b"", ValueKind::Inline), Err(NodeError::Exists));
    let outside = NodeError::Fault(NodeFault::OutsideFences { index: count });
    assert_eq!(node.insert(b"kb", b"", ValueKind::Inline), Err(outside));
    assert!(matches!(node.insert(b"ka", b"", ValueKind::Inline), Err(NodeError::Fault(_))), "exclusive");
    assert_eq!(node.replace(count, b"", ValueKind::Inline), Err(NodeFault::Index { index: count }.into()));
    assert_eq!(node.remove(count), Err(NodeFault::Index { index: count }));
    assert_eq!(page, before);
    let mut node = NodeMut::new(&mut page);
    node.insert(b"kac\x01", &[1; 1024], ValueKind::Inline).unwrap();
    let inserted = node.insert(b"kaz", &[1; 1024], ValueKind::Inline);
    assert_eq!(inserted, Ok(count + 1), "the upper fence is inclusive");
    let before = page.clone();
    let mut node = NodeMut::new(&mut page);
    assert_eq!(node.insert(b"kad", &[1; 1024], ValueKind::Inline), Err(NodeError::Full));
    assert_eq!(node.replace(3, &[1; 1024], ValueKind::Inline), Err(NodeError::Full));
    assert_eq!(page, before);
}

/// A leaf without one fence or both, of which all keys begin with "kab".
fn open_leaf(lower: Option<&[u8]>, upper: Option<&[u8]>) -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, lower, upper, PageId(0)).unwrap();
    for number in 0..20u8 {
        node.insert(&[b'k', b'a', b'b', number, 1, 2, 3], &[number; 30], ValueKind::Inline).unwrap();
    }
    node.view().validate().unwrap();
    page
}

type Fence = Option<&'static [u8]>;

const OPEN_FENCES: [(Fence, Fence); 3] = [(None, None), (Some(b"kab"), None), (None, Some(b"kabz"))];

#[test]
fn keys_share_a_prefix_without_both_fences() {
    for (lower, upper) in OPEN_FENCES {
        let mut page = open_leaf(lower, upper);
        let mut node = NodeMut::new(&mut page);
        assert_eq!(node.view().prefix_len(), 3);
        let mut fence = Vec::new();
        assert_eq!(node.view().lower_fence(&mut fence).then_some(&fence[..]), lower);
        fence.clear();
        assert_eq!(node.view().upper_fence(&mut fence).then_some(&fence[..]), upper);
        // A key without the prefix is before or after all others, and covered nevertheless.
        for (key, index) in [(&b"k"[..], 0), (b"ka", 0), (b"kaa", 0), (b"kac", 20), (b"l", 20), (b"", 0)] {
            let view = node.view();
            assert_eq!(view.find(key), Find { index, found: false });
            let above = lower.is_none_or(|lower| lower < key);
            assert_eq!(view.covers(key), above && upper.is_none_or(|upper| key <= upper), "{key:?}");
        }
        // A key in the prefix itself, then keys that share ever less of it.
        for (key, left) in [(&b"kab"[..], 3), (b"kaa", 2), (b"kac", 2), (b"l", 0), (b"", 0)] {
            if !node.view().covers(key) {
                let refused = node.insert(key, b"", ValueKind::Inline);
                assert!(matches!(refused, Err(NodeError::Fault(NodeFault::OutsideFences { .. }))));
                continue;
            }
            assert!(node.view().has_room_for(key, 5));
            let index = node.insert(key, b"value", ValueKind::Inline).unwrap();
            assert_eq!(node.view().find(key), Find { index, found: true });
            assert_eq!(node.view().prefix_len(), left);
            node.view().validate().unwrap();
        }
    }
}

/// A root has a single separator for as long as its tree has two children; its hint decides, not its tail.
#[test]
fn the_hint_of_a_single_separator_tells_keys_apart() {
    let separator = 1_800_000u64.to_be_bytes();
    let mut page = [0; NODE_BYTES];
    let mut root = NodeMut::init(&mut page, 1, None, None, PageId(1)).unwrap();
    root.insert_separator(&separator, PageId(2)).unwrap();
    let view = root.view();
    assert_eq!((view.prefix_len(), view.item(0).rest_length), (4, 4));
    view.validate().unwrap();
    let child_of = |view: NodeView<&[u8]>, key: &[u8]| view.child_at(view.child_for(key)).0;
    for (number, child) in
        [(0, 1), (1_799_999, 1), (1_800_000, 1), (1_800_001, 2), (1 << 40, 2), (u64::MAX, 2)]
    {
        assert_eq!(child_of(view, &number.to_be_bytes()), child, "{number}");
    }
    for (key, child) in [(&b""[..], 1), (&separator[..3], 1), (&separator[..7], 1), (&[0, 0, 1], 2)] {
        assert_eq!(child_of(view, key), child, "{key:?}");
    }
    // The next one has another prefix.
    let far = (7u64 << 40).to_be_bytes();
    root.insert_separator(&far, PageId(3)).unwrap();
    let view = root.view();
    view.validate().unwrap();
    assert_eq!(view.prefix_len(), 2);
    for (key, child) in [(&separator[..], 1), (&[0, 0, 1], 2), (&far[..], 2), (&[0xff][..], 3)] {
        assert_eq!(child_of(view, key), child, "{key:?}");
    }
}

/// A key with the rest of a key in the node, whose head is the greatest possible, but with another prefix.
#[test]
fn a_key_with_another_prefix_is_not_taken_for_one_with_the_same_rest() {
    for rest in [&b"\xff\xff\xff\xff\x01"[..], b"\xff\xff\xff\xff", b"\0\0\0\0\x01", b"\0"] {
        let key = |first: &[u8]| [first, rest].concat();
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
        node.insert(&key(b"b"), b"value", ValueKind::Inline).unwrap();
        // Enough others for the prefix to be worth its bytes; it stays when they have gone.
        let others = (1..16u8).map(|number| [b'b', number, 1, 1, 1]);
        others.clone().for_each(|other| assert!(node.insert(&other, b"", ValueKind::Inline).is_ok()));
        for other in others {
            let index = node.view().find(&other).index;
            node.remove(index).unwrap();
        }
        assert_eq!((node.view().prefix_len(), node.view().count()), (1, 1));
        assert!(node.view().get(&key(b"b")).is_some());
        for (absent, index) in [(key(b"a"), 0), (key(b"c"), 1), (key(b""), usize::from(rest[0] > b'b'))] {
            assert_eq!(node.view().get(&absent), None, "{absent:?}");
            assert_eq!(node.view().find(&absent), Find { index, found: false }, "{absent:?}");
        }
    }
}

#[test]
fn a_key_without_the_prefix_has_room_or_changes_nothing() {
    let (low, high) = ([b"kab", &[0; 90][..]].concat(), [b"kab", &[0; 88][..], &[0xff]].concat());
    for (lower, upper) in [(None, None), (Some(&low[..]), None), (None, Some(&high[..]))] {
        for value_bytes in 0..40 {
            let mut page = vec![0; NODE_BYTES];
            let mut node = NodeMut::init(&mut page, 0, lower, upper, PageId(0)).unwrap();
            let mut number = 0u16;
            let mut key = [b"kab", &[0; 90][..]].concat();
            let mut next = || {
                number += 1;
                key[91..93].copy_from_slice(&number.to_be_bytes());
                key.clone()
            };
            while node.insert(&next(), &vec![1; value_bytes], ValueKind::Inline).is_ok() {}
            node.view().validate().unwrap();
            assert!(node.view().count() > 70, "{}", node.view().count());
            let alien: &[u8] = if lower.is_some() { b"l" } else { b"" };
            assert!(!node.view().has_room_for(alien, 0));
            let before = node.bytes.to_vec();
            assert_eq!(node.insert(alien, b"", ValueKind::Inline), Err(NodeError::Full));
            assert_eq!(node.bytes, before);
            let split = node.view().choose_separator(Some(alien)).unwrap();
            let mut right = vec![0; NODE_BYTES];
            split_into(&mut node, &mut right, &split).unwrap();
            // All records stay together, so that the key comes into a leaf of its own.
            assert_eq!(node.view().count().min(NodeView::new(&right[..]).count()), 0);
            node.view().validate().unwrap();
            NodeView::new(&right[..]).validate().unwrap();
            let mut right = NodeMut::new(&mut right);
            let target = if node.view().covers(alien) { &mut node } else { &mut right };
            assert_eq!(target.insert(alien, b"", ValueKind::Inline), Ok(0));
            target.view().validate().unwrap();
        }
    }
}

#[test]
fn wrong_prefixes_of_open_nodes_are_noticed() {
    for (lower, upper) in OPEN_FENCES {
        let page = open_leaf(lower, upper);
        for length in [0, 1, 2, 4, 5, 900] {
            let fault = after(page.clone(), |page| {
                page[PREFIX_LENGTH_AT..][..2].copy_from_slice(&u16::to_le_bytes(length))
            });
            assert!(
                matches!(fault, NodeFault::Prefix { .. } | NodeFault::Fences { .. }),
                "{length}: {fault}"
            );
        }
        assert_eq!(
            after(page.clone(), |page| page[PREFIX_WORD_AT + 7] ^= 1),
            NodeFault::Prefix { length: 3 }
        );
        // The first byte of the prefix, wherever it is.
        let at = NodeView::new(&page[..]).lower_at();
        assert_eq!(after(page.clone(), |page| page[at] ^= 1), NodeFault::Prefix { length: 3 });
        let fault = after(page, |page| page[FLAGS_AT] ^= FLAG_UPPER);
        assert!(matches!(fault, NodeFault::Fences { .. } | NodeFault::Prefix { .. }), "{fault}");
    }
    // Bytes of a lower fence beyond the prefix, and no lower fence.
    let page = open_leaf(Some(b"kab\0"), None);
    assert!(matches!(after(page, |page| page[FLAGS_AT] = 0), NodeFault::Fences { .. }));
}

#[test]
fn ascending_and_descending_integers_are_told_apart_by_their_heads() {
    // As in roots and both spines: no key goes beyond the head, as soon as there are a few.
    for level in [0, 1] {
        for descending in [false, true] {
            for (lower, upper) in
                [(None, None), (Some(&[0; 8][..]), None), (None, Some(&[0, 0, 0, 0, 1, 0, 0, 0][..]))]
            {
                let mut page = vec![0; NODE_BYTES];
                let mut node = NodeMut::init(&mut page, level, lower, upper, PageId(0)).unwrap();
                for number in 1..=100u64 {
                    let number = if descending { 70_000 - number } else { 65_500 + number };
                    let key = number.to_be_bytes();
                    let added = if level == 0 {
                        node.insert(&key, &[1; 9], ValueKind::Inline)
                    } else {
                        node.insert_separator(&key, PageId(number))
                    };
                    assert!(added.is_ok());
                    node.view().validate().unwrap();
                    let count = node.view().count();
                    if count > 1 {
                        assert!(
                            node.view().prefix_len() >= 4,
                            "{level} {descending} {lower:?} {upper:?} {count}"
                        );
                        assert!((0..count).all(|index| node.view().item(index).tail_length() == 0));
                    }
                }
            }
        }
    }
}

#[test]
fn a_value_grows_into_holes() {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
    for key in 0..4 {
        node.insert(&[key, 0, 0, 0, 0, 0], &[key; 900], ValueKind::Inline).unwrap();
    }
    node.replace(1, &[], ValueKind::Inline).unwrap();
    node.view().validate().unwrap();
    // No gap is left, but the hole of the removed value is enough.
    node.replace(2, &[8; 1000], ValueKind::Inline).unwrap();
    node.view().validate().unwrap();
    for (index, length, byte) in [(0, 900, 0), (1, 0, 0), (2, 1000, 8), (3, 900, 3)] {
        let mut value = Vec::new();
        assert_eq!(node.view().append_value(index, &mut value), ValueKind::Inline);
        assert_eq!(value, vec![byte; length]);
        assert_eq!(node.view().compare_key(index, &[index as u8, 0, 0, 0, 0, 0]), Ordering::Equal);
    }
    // A value of the same length may change its kind.
    node.replace(0, &[5; BLOB_REFERENCE_BYTES], ValueKind::Inline).unwrap();
    node.replace(0, &[6; BLOB_REFERENCE_BYTES], ValueKind::Blob).unwrap();
    assert_eq!(node.view().value_location(0).kind, ValueKind::Blob);
    node.view().validate().unwrap();
}

#[test]
fn a_separator_sends_the_keys_beyond_it_to_the_right() {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 3, None, None, PageId(1)).unwrap();
    assert_eq!(node.insert_separator(b"m", PageId(2)), Ok(0));
    assert_eq!(node.insert_separator(b"t", PageId(3)), Ok(1));
    assert_eq!(node.insert_separator(b"f", PageId(4)), Ok(0));
    let child = |node: &NodeMut<'_>, key: &[u8]| node.view().child_at(node.view().child_for(key)).0;
    for (key, expected) in [("", 1), ("f", 1), ("f0", 4), ("m", 4), ("m0", 2), ("t", 2), ("u", 3)] {
        assert_eq!(child(&node, key.as_bytes()), expected, "{key}");
    }
    node.remove_separator(1).unwrap();
    assert_eq!(child(&node, b"p"), 4);
    assert_eq!(node.view().children().collect::<Vec<_>>(), [PageId(1), PageId(4), PageId(3)]);
    node.view().validate().unwrap();
    assert_eq!(node.view().level(), 3);
}

#[test]
fn splits_are_balanced_by_bytes_and_have_short_separators() {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
    // One large record, then many small ones.
    node.insert(b"a", &[0; 1000], ValueKind::Inline).unwrap();
    for number in 0..100u8 {
        node.insert(&[b'b', b'c', number / 10, 5, number % 10], &[0; 8], ValueKind::Inline).unwrap();
    }
    let split = node.view().choose_separator(None).unwrap();
    assert_eq!(split.separator.len(), 3, "a change of the third byte is near the middle");
    let mut right = vec![0; NODE_BYTES];
    split_into(&mut node, &mut right, &split).unwrap();
    let right = NodeView::new(&right[..]);
    right.validate().unwrap();
    node.view().validate().unwrap();
    assert!(node.view().used_bytes().abs_diff(right.used_bytes()) < 600);
    assert_eq!(right.prefix_len(), 2, "without an upper fence, what its keys share with the lower one");
    assert_eq!(node.view().count() + right.count(), 101);
}

#[test]
fn a_split_that_does_not_fit_is_refused() {
    let mut page = leaf();
    let before = page.clone();
    let count = NodeView::new(&page[..]).count();
    let mut right = vec![0; NODE_BYTES];
    for (index, separator) in [(count + 1, &b"kac"[..]), (3, b"ka"), (3, b"kaz"), (3, b"kab\0"), (3, b"x")] {
        let split = Split { index, separator: separator.to_vec() };
        let result = split_into(&mut NodeMut::new(&mut page), &mut right, &split);
        assert!(matches!(result, Err(NodeError::Fault(_))), "{split:?}");
    }
    assert_eq!(page, before);
    let empty = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
    assert_eq!(empty.view().choose_separator(Some(b"a")), Err(NodeFault::Split));
}

/// Splits a node: it becomes the left half, and `right` the right one.
fn split_into(node: &mut NodeMut<'_>, right: &mut [u8], split: &Split) -> Result<(), NodeError> {
    NodeMut::begin_right(right, node.view(), split)?;
    node.split_off(&split.separator)
}
