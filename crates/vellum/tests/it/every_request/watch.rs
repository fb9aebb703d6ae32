//! What may be shown by something that is under way while other steps are made.

use super::model::{Bounds, Entries, Key, bounds_text, short, within};
use std::{collections::BTreeMap, ops::Bound, rc::Rc};

/// What was seen at several moments, of which any may be shown.
pub struct Watch(Vec<Rc<Entries>>);

impl Watch {
    pub fn new(first: Rc<Entries>) -> Self {
        Self(vec![first])
    }

    pub fn add(&mut self, next: Rc<Entries>) {
        if self.0.last().is_none_or(|last| !Rc::ptr_eq(last, &next)) {
            self.0.push(next);
        }
    }

    /// Whether a record had this value at some moment.
    pub fn had(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        self.0.iter().any(|entries| entries.get(key).map(|value| &value[..]) == value)
    }

    /// The same since this moment.
    pub fn had_since(&self, since: usize, key: &[u8], value: Option<&[u8]>) -> bool {
        self.0[since..].iter().any(|entries| entries.get(key).map(|value| &value[..]) == value)
    }

    /// How many moments there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether something was so at each moment.
    pub fn is_always(&self, is_so: impl Fn(&Entries) -> bool) -> bool {
        self.0.iter().all(|entries| is_so(entries))
    }

    /// Why this cannot be what a step within bounds shows; none if it can.
    pub fn objection(
        &self,
        rest: &Bounds,
        is_forward: bool,
        shown: Option<(&[u8], Option<&[u8]>)>,
    ) -> Option<String> {
        let mut gap = rest.clone();
        if let Some((key, value)) = shown {
            if within(&BTreeMap::from([(key.to_vec(), ())]), rest).next().is_none() {
                return Some(format!("{} lies outside of {}", short(key), bounds_text(rest)));
            }
            let is_known = match value {
                Some(value) => self.had(key, Some(value)),
                None => self.0.iter().any(|entries| entries.contains_key(key)),
            };
            if !is_known {
                return Some(format!("{} has not had the value {:?}", short(key), value.map(short)));
            }
            let end = Bound::Excluded(key.to_vec());
            if is_forward { gap.1 = end } else { gap.0 = end }
        }
        let is_there_always = |key: &Key| self.0.iter().all(|entries| entries.contains_key(key));
        let first = self.0.first()?;
        let missed = within(first, &gap).map(|entry| entry.0).find(|key| is_there_always(key))?;
        Some(format!("{} was missed before {:?}", short(missed), shown.map(|shown| short(shown.0))))
    }
}
