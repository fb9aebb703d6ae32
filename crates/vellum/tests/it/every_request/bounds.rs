//! Bounds of ranges, and keys as text.

use super::model::{Bounds, Key};
use std::{collections::BTreeMap, ops::Bound};

/// The entries of a map in bounds, which may be inverted.
pub fn within<'m, V>(
    map: &'m BTreeMap<Key, V>,
    bounds: &'m Bounds,
) -> impl DoubleEndedIterator<Item = (&'m Key, &'m V)> {
    let is_inverted = match bounds {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Excluded(upper) | Bound::Included(upper),
        ) => lower >= upper,
        _ => false,
    };
    (!is_inverted).then(|| map.range::<Key, _>((bounds.0.as_ref(), bounds.1.as_ref()))).into_iter().flatten()
}

/// A key or value, as text.
pub fn short(bytes: &[u8]) -> String {
    let head: String = bytes.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tail: String =
        bytes.iter().skip(12.max(bytes.len().saturating_sub(4))).map(|byte| format!("{byte:02x}")).collect();
    format!("{head}..{tail}[{}]", bytes.len())
}

pub fn bounds_text(bounds: &Bounds) -> String {
    format!("{:?}..{:?}", bounds.0.as_ref().map(|key| short(key)), bounds.1.as_ref().map(|key| short(key)))
}
