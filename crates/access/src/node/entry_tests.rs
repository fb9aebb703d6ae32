//! Inner nodes of earlier files, whose heads have four bytes, and children beside heads of eight.

use super::layout::*;
use super::tests::numbers;
use super::view::child_place;
use super::*;
use vellum_base::PageId;

/// An inner node as earlier versions wrote it; none of a leaf, or if the longer tails have no room.
pub(super) fn with_short_heads(page: &[u8]) -> Option<Vec<u8>> {
    let view = NodeView::new(page);
    if view.is_leaf() {
        return None;
    }
    let mut earlier = vec![0; NODE_BYTES];
    let fences = NODE_BYTES - view.fence_bytes();
    for range in [WORD_AT..HINTS_AT, fences..NODE_BYTES] {
        earlier[range.clone()].copy_from_slice(&page[range]);
    }
    let mut node = NodeMut::new(&mut earlier);
    node.put(FLAGS_AT, &[view.word().flags() & !FLAG_LONG_HEADS]);
    let mut heap_start = fences;
    for index in 0..view.count() {
        let key = view.key(index);
        let rest = &key[view.prefix_len()..];
        let tail = rest.get(HEAD_BYTES..).unwrap_or_default();
        heap_start -= align(tail.len());
        if heap_start < view.word().slots_end() {
            return None;
        }
        let at = if tail.is_empty() { 0 } else { heap_start };
        node.put(at.max(SLOTS_AT), tail);
        node.put_u64(SLOTS_AT + INNER_STRIDE * index, Slot::new(rest, 0, at).0);
    }
    for index in 0..=view.count() {
        node.put_u64(child_place(index), view.child_at(child_place(index)).0);
    }
    node.put_u16(HEAP_START_AT, heap_start);
    node.put_u16(HEAP_USED_AT, NODE_BYTES - heap_start);
    node.write_hints(0);
    node.view().validate().unwrap();
    Some(earlier)
}

/// Separators with rests of all lengths up to 20, and the greatest child there is.
fn inner() -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    let mut node = NodeMut::init(&mut page, 1, Some(b"ka"), Some(b"kaz"), PageId((1 << 40) - 1)).unwrap();
    for (index, number) in numbers(7).take(60).enumerate() {
        let separator = [&b"kab"[..], &[number as u8; 20][..index % 21]].concat();
        match node.insert_separator(&separator, PageId((1 << 40) - 2 - index as u64)) {
            Ok(_) | Err(NodeError::Exists) => {}
            Err(error) => panic!("{error}"),
        }
    }
    node.view().validate().unwrap();
    page
}

fn contents(page: &[u8]) -> (Vec<Vec<u8>>, Vec<PageId>) {
    let view = NodeView::new(page);
    ((0..view.count()).map(|index| view.key(index)).collect(), view.children().collect())
}

#[test]
fn nodes_of_earlier_files_are_read_and_get_long_heads_when_they_change() {
    let page = inner();
    let earlier = with_short_heads(&page).unwrap();
    let (separators, children) = contents(&page);
    assert!(separators.len() > 40);
    assert_eq!(contents(&earlier), (separators.clone(), children.clone()));
    let has_long_heads = |page: &[u8]| NodeView::new(page).word().has_long_heads();
    assert!(has_long_heads(&page) && !has_long_heads(&earlier));
    let changed = |change: &dyn Fn(&mut NodeMut<'_>)| {
        let [mut page, mut earlier] = [page.clone(), earlier.clone()];
        change(&mut NodeMut::new(&mut page));
        change(&mut NodeMut::new(&mut earlier));
        NodeView::new(&earlier[..]).validate().unwrap();
        assert_eq!(contents(&page), contents(&earlier));
        earlier
    };
    assert!(has_long_heads(&changed(&|node| {
        assert!(node.view().has_room_for(b"kab new", 0));
        node.insert_separator(b"kab new", PageId(5)).unwrap();
    })));
    assert!(has_long_heads(&changed(&|node| node.remove_separator(20).unwrap())));
    assert!(has_long_heads(&changed(&|node| {
        let split = node.view().choose_separator(None).unwrap();
        let mut right = vec![0; NODE_BYTES];
        NodeMut::begin_right(&mut right, node.view(), &split).unwrap();
        NodeView::new(&right[..]).validate().unwrap();
        node.split_off(&split.separator).unwrap();
        node.merge_from_right(NodeView::new(&right[..]), &split.separator).unwrap();
    })));
    // This one changes a child only.
    let moved = changed(&|node| node.redirect(children[3], PageId(9)).unwrap());
    assert!(!has_long_heads(&moved));
    assert_eq!(contents(&moved).1[3], PageId(9));
}

#[test]
fn what_stands_beside_the_child_of_an_earlier_node_is_noticed() {
    let earlier = with_short_heads(&inner()).unwrap();
    let count = NodeView::new(&earlier[..]).count();
    for (index, byte) in [(0, 5), (3, 7), (count, 5), (count, 7)] {
        let mut page = earlier.clone();
        let at = child_place(index) + byte;
        page[at] = 1;
        let due = if index < count { NodeFault::Slot { index } } else { NodeFault::Reserved { at } };
        assert_eq!(NodeView::new(&page[..]).validate(), Err(due));
    }
    // A slot of an inner node has no value.
    let mut page = earlier;
    page[SLOTS_AT + 1] |= 4;
    assert_eq!(NodeView::new(&page[..]).validate(), Err(NodeFault::Slot { index: 0 }));
}
