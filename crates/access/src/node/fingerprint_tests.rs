//! Leaves with fingerprints: they keep them through all changes, search by them, and notice wrong ones.

use super::layout::*;
use super::tests::numbers;
use super::*;
use std::collections::BTreeMap;
use vellum_base::PageId;

/// Keys that tie in their heads, and in much more.
fn key(number: u64) -> Vec<u8> {
    format!("usr/share/{}/a-long-part-that-is-the-same/{}", number % 5, number % 600).into_bytes()
}

fn empty() -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    NodeMut::init(&mut page, 0, Some(b"usr"), Some(b"usr/sharf"), PageId(0)).unwrap();
    page
}

/// A leaf of so many records.
fn leaf(count: usize) -> Vec<u8> {
    let mut page = empty();
    let mut node = NodeMut::new(&mut page);
    (0..count as u64)
        .for_each(|number| assert!(node.insert(&key(number), b"value", ValueKind::Inline).is_ok()));
    page
}

fn has_fingerprints(page: &[u8]) -> bool {
    NodeView::new(page).word().has_fingerprints()
}

/// Checks the leaf, and that it finds what it holds, and nothing else.
fn check(page: &[u8], model: &BTreeMap<Vec<u8>, Vec<u8>>, absent: &[u8]) {
    let view = NodeView::new(page);
    view.validate().unwrap();
    assert_eq!(view.count(), model.len());
    for (index, (key, value)) in model.iter().enumerate() {
        assert_eq!(view.find_covered(key), Find { index, found: true });
        let at = view.get(key).unwrap();
        let mut compared = None;
        view.compared_at(key, |at| assert!(compared.replace(at).is_none()));
        let is_first = view.candidates(view.word(), key).next().is_some_and(|(first, _)| first == index);
        assert_eq!(compared == Some(view.slot(index).tail_at()), is_first && has_fingerprints(page));
        assert_eq!(page[at.at..at.at + at.length], value[..]);
    }
    if !model.contains_key(absent) {
        assert_eq!(view.get(absent), None);
        assert!(!view.find_covered(absent).found);
    }
}

#[test]
fn fingerprints_follow_the_records_through_all_changes() {
    let (mut with, mut without, mut splits) = (0, 0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 40 } {
        let (mut page, mut model, mut random) = (empty(), BTreeMap::new(), numbers(seed));
        // Values so long that leaves are full with fewer than 64 records, or with more.
        let longest = [10, 40, 200, 800][seed as usize % 4];
        for _ in 0..if cfg!(miri) { 60 } else { 400 } {
            let [choice, number, length] = [(); 3].map(|()| random.next().unwrap());
            let (key, value) = (key(number), vec![number as u8; length as usize % longest]);
            let mut node = NodeMut::new(&mut page);
            let Find { index, found } = node.view().find(&key);
            let done = match (choice % 4, found) {
                (0, true) => node.remove(index).map_err(NodeError::from).map(|()| drop(model.remove(&key))),
                (_, true) => node.replace(index, &value, ValueKind::Inline).map(|()| {
                    model.insert(key.clone(), value);
                }),
                (_, false) => node.insert(&key, &value, ValueKind::Inline).map(|_| {
                    model.insert(key.clone(), value);
                }),
            };
            if done == Err(NodeError::Full) {
                // Split, and merged again every other time.
                let before = page.clone();
                let split = NodeView::new(&before[..]).choose_separator(Some(&key)).unwrap();
                let mut right = vec![0; NODE_BYTES];
                NodeMut::begin_right(&mut right, NodeView::new(&before[..]), &split).unwrap();
                NodeMut::new(&mut page).split_off(&split.separator).unwrap();
                let beyond = model.split_off(&[&split.separator[..], b"\0"].concat());
                check(&page, &model, &split.separator);
                check(&right, &beyond, &[&split.separator[..], b"\0"].concat());
                if seed % 2 == 0 {
                    let absorbed =
                        NodeMut::new(&mut page).merge_from_right(NodeView::new(&right[..]), &split.separator);
                    assert!(absorbed.is_ok());
                    model.extend(beyond);
                    check(&page, &model, b"usr/share/x");
                }
                (page, model) = (empty(), BTreeMap::new());
                splits += 1;
                continue;
            }
            done.unwrap();
            check(&page, &model, b"usr/share/x");
            if has_fingerprints(&page) { with += 1 } else { without += 1 }
        }
    }
    assert!(cfg!(miri) || with > 5000 && without > 500 && splits > 100, "{with} {without} {splits}");
}

#[test]
fn a_leaf_gets_fingerprints_with_its_first_key_and_hints_with_its_65th_record() {
    for count in 1..=70 {
        let page = leaf(count);
        assert_eq!(has_fingerprints(&page), count <= FINGERPRINT_COUNT, "{count}");
        NodeView::new(&page[..]).validate().unwrap();
    }
    // Keys that are no longer than their heads need none.
    let mut page = empty();
    NodeMut::new(&mut page).insert(b"usr/sh", b"", ValueKind::Inline).unwrap();
    assert!(!has_fingerprints(&page));
    // A leaf that is built anew of a few records of a larger one has some again.
    let mut page = leaf(70);
    let split = NodeView::new(&page[..]).choose_separator(None).unwrap();
    NodeMut::new(&mut page).split_off(&split.separator).unwrap();
    assert!(has_fingerprints(&page));
    NodeView::new(&page[..]).validate().unwrap();
}

#[test]
fn leaves_of_earlier_files_have_hints_and_are_read_and_changed() {
    let mut page = leaf(20);
    let mut node = NodeMut::new(&mut page);
    let flags = node.view().word().flags();
    node.put(FLAGS_AT, &[flags & !FLAG_FINGERPRINTS]);
    node.write_hints(0);
    let model: BTreeMap<_, _> = (0..20).map(|number| (key(number), b"value".to_vec())).collect();
    check(&page, &model, &key(21));
    let mut node = NodeMut::new(&mut page);
    node.insert(&key(20), b"value", ValueKind::Inline).unwrap();
    node.remove(node.view().find(&key(20)).index).unwrap();
    assert!(!has_fingerprints(&page));
    check(&page, &model, &key(20));
}

#[test]
fn wrong_fingerprints_are_noticed() {
    let fault = |mut page: Vec<u8>, change: &dyn Fn(&mut [u8])| {
        change(&mut page);
        NodeView::new(&page[..]).validate().unwrap_err()
    };
    for index in 0..FINGERPRINT_COUNT {
        assert_eq!(fault(leaf(20), &|page| page[HINTS_AT + index] ^= 1), NodeFault::Hint { index });
    }
    // Only leaves of few records have any.
    assert_eq!(fault(leaf(70), &|page| page[FLAGS_AT] |= FLAG_FINGERPRINTS), NodeFault::Count { count: 70 });
    let mut inner = vec![0; NODE_BYTES];
    NodeMut::init(&mut inner, 1, None, None, PageId(1))
        .unwrap()
        .insert_separator(b"separator", PageId(2))
        .unwrap();
    let in_an_inner_node = fault(inner, &|page| page[FLAGS_AT] |= FLAG_FINGERPRINTS);
    assert!(matches!(in_an_inner_node, NodeFault::Fences { flags: 12, .. }), "{in_an_inner_node}");
}
