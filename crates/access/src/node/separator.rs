//! Suffix truncation: the shortest key that separates two others.

use super::layout::{HEAD_BYTES, MAX_KEY_BYTES, common_length};

/// A shortest key `s` with `left <= s < right`, for `left < right`. Never longer than `left` or one byte
/// more than what the two have in common, whichever is longer.
///
/// Bayer and Unterauer, *Prefix B-trees*, TODS 1977, section 3.
///
/// ```
/// use vellum_access::node::shortest_separator;
/// assert_eq!(shortest_separator(b"tuple 1999", b"tuple 2000"), b"tuple 2");
/// assert_eq!(shortest_separator(b"a", b"ab"), b"a");
/// ```
pub fn shortest_separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let (from_right, length) = choose(left, right);
    if from_right {
        return right.iter().take(length).copied().collect();
    }
    let mut separator: Vec<u8> = left.iter().take(length).copied().collect();
    // The bytes cut off made `left` greater. The last byte makes up for it; `choose` made sure that it can.
    if length < left.len()
        && let Some(last) = separator.last_mut()
    {
        *last = last.saturating_add(1);
    }
    separator
}

/// A separator `s` with `left <= s < right`, for `left < right`, which unlike a shortest one keeps the byte in which
/// `left` differs from `right`. The keys of a run that goes on from `left` share that byte with this upper fence, and so
/// it is in the prefix.
///
/// The separator ends with 0xff, which leaves room for the keys of the run to come. `None`, if nothing or too many
/// bytes of 0xff follow that byte in `left`.
pub(super) fn separator_after_run(left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let (start, follows) = left.split_at_checked(common_length(left, right) + 1)?;
    let filled = follows.iter().take_while(|byte| **byte == 0xff).count();
    if follows.is_empty() || filled >= HEAD_BYTES || start.len() + filled >= MAX_KEY_BYTES {
        return None;
    }
    let mut separator = start.to_vec();
    separator.resize(start.len() + filled + 1, 0xff);
    Some(separator)
}

/// The length of [`shortest_separator`].
pub(super) fn separator_length(left: &[u8], right: &[u8]) -> usize {
    choose(left, right).1
}

/// Whether the separator is the beginning of `right` (else it is made from `left`), and how long it is.
fn choose(left: &[u8], right: &[u8]) -> (bool, usize) {
    let common = common_length(left, right);
    let (Some(&low), Some(&high)) = (left.get(common), right.get(common)) else {
        return (false, left.len());
    };
    if left.len() == common + 1 {
        return (false, left.len());
    }
    if right.len() > common + 1 {
        return (true, common + 1);
    }
    if low.checked_add(1).is_some_and(|next| next < high) {
        return (false, common + 1);
    }
    // `right` ends here and its last byte follows that of `left`: a later byte of `left` must grow.
    let room = left.iter().skip(common + 1).position(|&byte| byte < 0xff);
    (false, room.map_or(left.len(), |skipped| common + 1 + skipped + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::all_keys;

    #[test]
    fn separators_are_the_shortest_there_are() {
        let keys = all_keys(&[0, 1, 2, 0xfe, 0xff], 3);
        for (index, left) in keys.iter().enumerate() {
            let separates = |right: &Vec<u8>| {
                let separator = shortest_separator(left, right);
                assert!(*left <= separator && separator < *right, "{left:?} {separator:?} {right:?}");
                let best =
                    keys.iter().skip(index).take_while(|key| *key < right).map(Vec::len).min().unwrap();
                assert!(separator.len() <= best, "{left:?} {separator:?} {right:?}");
                assert_eq!(separator_length(left, right), separator.len());
            };
            keys.iter().skip(index + 1).step_by(if cfg!(miri) { 50 } else { 1 }).for_each(separates);
        }
    }

    #[test]
    fn separators_after_runs_keep_what_distinguishes_them() {
        let keys = all_keys(&[0, 1, 0xfe, 0xff], 4);
        let mut found = 0;
        for (index, left) in keys.iter().enumerate() {
            let separates = |right: &Vec<u8>| {
                let common = common_length(left, right);
                let Some(separator) = separator_after_run(left, right) else {
                    assert!(left.len() <= common + 1, "{left:?} {right:?}");
                    return;
                };
                assert!(*left <= separator && separator < *right, "{left:?} {separator:?} {right:?}");
                assert_eq!(common_length(left, &separator).min(common + 1), common + 1);
                // The keys of the run that follow go on with yet another byte of 0xff.
                let next = keys.iter().skip(index + 1).find(|key| **key > separator);
                assert!(next.is_none_or(|next| next.get(separator.len() - 1) == Some(&0xff)
                    || !next.starts_with(&left[..common + 1])));
                found += 1;
            };
            keys.iter().skip(index + 1).step_by(if cfg!(miri) { 50 } else { 1 }).for_each(separates);
        }
        assert!(found > 0);
        let long = [vec![7; 1000], vec![0xff; 24]].concat();
        assert_eq!(separator_after_run(&long, &[8]), Some(vec![7, 0xff]));
        assert_eq!(separator_after_run(&long, &[&long[..999], &[8]].concat()), None, "too many of 0xff");
    }
}
