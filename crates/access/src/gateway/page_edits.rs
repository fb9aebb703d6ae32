//! Changes of bytes of one page, as data: for each its offset, its length and its bytes, one after the other.

use super::difference::difference;

/// The length of the head of each edit: the offset in the page and the number of bytes, in two bytes each.
const HEAD_BYTES: usize = 4;

/// The differences between two states of a page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageEdits(Vec<u8>);

impl PageEdits {
    /// The edits that turn `before` into `after`, two states of a page, from byte `from` on.
    ///
    /// ```
    /// use vellum_access::PageEdits;
    ///
    /// let (before, mut after) = ([7; 4096], [7; 4096]);
    /// after[100..104].fill(1);
    /// let edits = PageEdits::between(&before, &after, 32);
    /// assert_eq!(edits.iter().collect::<Vec<_>>(), [(100, &[1, 1, 1, 1][..])]);
    /// ```
    pub fn between(before: &[u8], after: &[u8], from: usize) -> Self {
        /// The unit in which pages are compared.
        const WORD: usize = 8;
        let (mut edits, mut begun) = (Vec::new(), None);
        let from = from.next_multiple_of(WORD);
        let old = before.get(from..).unwrap_or_default().chunks(WORD);
        let new = after.get(from..).unwrap_or_default().chunks(WORD);
        for (index, (old, new)) in old.zip(new).enumerate() {
            let at = from + WORD * index;
            match (old == new, begun) {
                (false, None) => begun = Some(at),
                (true, Some(begin)) => {
                    push(&mut edits, before, after, begin..at);
                    begun = None;
                }
                _ => {}
            }
        }
        if let Some(begin) = begun {
            push(&mut edits, before, after, begin..after.len());
        }
        Self(edits)
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The edits, as they are in a record.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The offset and the bytes of each edit.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        Self::each(&self.0).flatten()
    }

    /// The edits that are encoded in these bytes; `None` for bytes that are no edit, after which it ends.
    pub(super) fn each(mut rest: &[u8]) -> impl Iterator<Item = Option<(usize, &[u8])>> {
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let edit = take(&mut rest);
            if edit.is_none() {
                rest = &[];
            }
            Some(edit)
        })
    }
}

/// Takes one edit off the bytes.
fn take<'a>(rest: &mut &'a [u8]) -> Option<(usize, &'a [u8])> {
    let head: &[u8; HEAD_BYTES] = rest.split_off(..HEAD_BYTES)?.first_chunk()?;
    let [at_low, at_high, length_low, length_high] = *head;
    let length = u16::from_le_bytes([length_low, length_high]).into();
    Some((u16::from_le_bytes([at_low, at_high]).into(), rest.split_off(..length)?))
}

/// Appends an edit of the words `range`, without the equal bytes at its ends.
fn push(edits: &mut Vec<u8>, before: &[u8], after: &[u8], range: std::ops::Range<usize>) {
    let (old, new) =
        (before.get(range.clone()).unwrap_or_default(), after.get(range.clone()).unwrap_or_default());
    let differing = difference(old, new);
    let at = range.start + differing.start;
    let bytes = new.get(differing).unwrap_or_default();
    edits.extend_from_slice(&(at as u16).to_le_bytes());
    edits.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    edits.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn edits_make_one_page_of_the_other() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..2000 {
            let before: Vec<u8> = (0..4096).map(|_| random.random_range(0..3)).collect();
            let mut after = before.clone();
            for _ in 0..random.random_range(0..5) {
                let at = random.random_range(32..4096);
                let end = (at + random.random_range(1..100)).min(4096);
                after[at..end].iter_mut().for_each(|byte| *byte = random.random_range(0..3));
            }
            let edits = PageEdits::between(&before, &after, 32);
            assert_eq!(edits.is_empty(), before == after);
            let mut made = before.clone();
            for (at, bytes) in edits.iter() {
                assert_ne!(made[at], bytes[0]);
                made[at..at + bytes.len()].copy_from_slice(bytes);
            }
            assert_eq!(made, after);
            let most: usize = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            assert!(edits.as_bytes().len() <= 30 * most, "{} bytes for {most}", edits.as_bytes().len());
        }
    }

    #[test]
    fn what_is_cut_off_is_noticed() {
        let mut after = [0; 4096];
        after[40..60].fill(1);
        let edits = PageEdits::between(&[0; 4096], &after, 32);
        for length in 1..edits.as_bytes().len() {
            assert!(PageEdits::each(&edits.as_bytes()[..length]).any(|edit| edit.is_none()));
        }
    }
}
