//! Suffix truncation: the shortest key that separates two others.

use super::layout::common_length;

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
    // What was cut off made `left` greater: make up for it in the last byte, which `choose` left room in.
    if length < left.len()
        && let Some(last) = separator.last_mut()
    {
        *last = last.saturating_add(1);
    }
    separator
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
