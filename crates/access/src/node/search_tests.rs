//! Searches against the plainest code for them, in bytes that are compared one by one and many at once.

use super::entry_tests::with_short_heads;
use super::layout::*;
use super::probe::TIES_FETCHED;
use super::tests::{all_keys, numbers};
use super::view::child_place;
use super::*;
use std::cmp::Ordering;
use vellum_base::{Bytes, PageId};

/// Bytes that compare many numbers at once, as some processors do.
#[derive(Clone, Copy, Debug)]
struct ManyAtOnce<'b>(&'b [u8]);

impl Bytes for ManyAtOnce<'_> {
    fn size(self) -> usize {
        self.0.size()
    }

    fn u8_at(self, at: usize) -> u8 {
        self.0.u8_at(at)
    }

    fn u16_at(self, at: usize) -> u16 {
        self.0.u16_at(at)
    }

    fn u32_at(self, at: usize) -> u32 {
        self.0.u32_at(at)
    }

    fn u64_at(self, at: usize) -> u64 {
        self.0.u64_at(at)
    }

    fn be_word_at(self, at: usize) -> u64 {
        self.0.be_word_at(at)
    }

    fn search_16(self, guide_at: usize, table_at: usize, shift: u32, bound: u64) -> Option<usize> {
        let from = table_at + 16 * (self.less_of_16(guide_at, (bound >> 32) as u32) << shift);
        // No more than sixteen are looked at, and none of a range that is known.
        let most = if shift == 0 { 0 } else { 16 };
        let less = (0..most).take_while(|number| self.u64_at(from + 16 * number) < bound);
        Some(from + 16 * less.count())
    }

    fn search_32(self, at: usize, bound: u64) -> Option<usize> {
        let first = |at: &usize| self.u64_at(*at) >= bound;
        Some((at..at + 256).step_by(8).find(first).unwrap_or(at + 256))
    }

    fn compare(self, at: usize, length: usize, other: &[u8]) -> Ordering {
        self.0.compare(at, length, other)
    }

    fn append_to(self, at: usize, length: usize, target: &mut Vec<u8>) {
        self.0.append_to(at, length, target);
    }

    fn copy_to(self, at: usize, target: &mut [u8]) {
        self.0.copy_to(at, target);
    }
}

/// Where the tails of the separators lie that have the same head as `key`, if the key goes beyond its head.
fn ties(view: NodeView<&[u8]>, key: &[u8]) -> impl Iterator<Item = usize> {
    let prefix_length = view.word().prefix_length();
    let head = long_head_after(key, key_word(key), prefix_length);
    let goes_on = key.len() > prefix_length + INNER_HEAD_BYTES;
    let items = (0..view.count()).map(move |index| view.item(index));
    items.filter(move |item| goes_on && item.head == head).map(|item| item.at)
}

#[test]
fn searches_agree_with_a_plain_search() {
    // Keys that tie in their heads wherever the prefix ends, in nodes of all counts.
    let all = all_keys(b"\0\x01\xff", 5);
    let longer: Vec<Vec<u8>> = all.iter().map(|key| [b"pre", &key[..], &key[..]].concat()).collect();
    // All tie in the first bytes behind the prefix, and some in the eight that inner nodes compare first.
    let alike: Vec<Vec<u8>> = all.iter().map(|key| [b"pre\x01four", &key[..], &key[..]].concat()).collect();
    // Of the keys that tie, and of which a guess says with what they are compared.
    let mut guesses = (0, 0);
    let closed = Some((b"pra", b"pre\xff\xff\xff"));
    for (fences, keys) in [(None, &all), (closed, &longer), (closed, &alike), (None, &alike)] {
        let (lower, upper) = fences.map_or((None, None), |(a, b)| (Some(&a[..]), Some(&b[..])));
        let steps = if cfg!(miri) { 3 } else { 300 };
        for (step, mut random) in (0..steps).map(|step| (step, numbers(step as u64))) {
            let level = (step % 2) as u8;
            let mut page = vec![0; NODE_BYTES];
            let mut node = NodeMut::init(&mut page, level, lower, upper, PageId(7)).unwrap();
            let mut kept: Vec<&Vec<u8>> = Vec::new();
            for _ in 0..step {
                let key = &keys[random.next().unwrap() as usize % keys.len()];
                let done = if level == 0 {
                    node.insert(key, &key[..key.len() / 2], ValueKind::Inline)
                } else {
                    node.insert_separator(key, PageId(9))
                };
                match done {
                    Ok(index) => kept.insert(index, key),
                    Err(NodeError::Exists) => assert!(kept.contains(&key)),
                    // "pre" followed by 0xff goes beyond the upper fence.
                    Err(NodeError::Fault(NodeFault::OutsideFences { .. })) => {
                        assert!(**key > *upper.unwrap())
                    }
                    Err(NodeError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            node.view().validate().unwrap();
            let view = node.view();
            let at_once = NodeView::new(ManyAtOnce(view.bytes()));
            let earlier = with_short_heads(view.bytes());
            for key in keys.iter().chain(&all[..20]) {
                let index = kept.partition_point(|kept| *kept < key);
                let found = kept.get(index) == Some(&key);
                assert_eq!(view.find(key), Find { index, found });
                assert_eq!(at_once.find(key), Find { index, found });
                if let Some(earlier) = &earlier {
                    let view = NodeView::new(&earlier[..]);
                    assert_eq!(
                        (view.find(key), view.child_for(key)),
                        (Find { index, found }, child_place(index))
                    );
                }
                if level > 0 {
                    let (mut one_by_one, mut compared) = (Vec::new(), Vec::new());
                    view.compared_at(key, |at| one_by_one.push(at));
                    at_once.compared_at(key, |at| compared.push(at));
                    for guess in [&one_by_one, &compared] {
                        assert!(guess.len() <= TIES_FETCHED);
                        assert!(guess.iter().all(|at| ties(view, key).any(|tie| tie == *at)));
                    }
                    guesses.0 += usize::from(ties(view, key).next().is_some() && view.covers(key));
                    guesses.1 += usize::from(!compared.is_empty());
                    assert_eq!(view.child_for(key), view.child_place(index));
                    assert_eq!(at_once.child_for(key), view.child_place(index));
                } else if view.covers(key) {
                    assert_eq!(view.find_covered(key), Find { index, found });
                    assert_eq!(at_once.find_covered(key), Find { index, found });
                    let value = found.then(|| view.value_location(index));
                    assert_eq!((view.get(key), at_once.get(key)), (value, value));
                }
            }
        }
    }
    assert!(cfg!(miri) || guesses.0 > 1000 && guesses.1 > guesses.0 / 4, "{guesses:?}");
}
