//! The object with the roots: the objects that a program finds without a reference, one for each type.

use crate::{Array, Persistent, Text, reference::AnyRef};

/// The roots of a heap.
#[derive(Persistent, Default)]
#[persistent(crate = "crate", name = "vellum::Roots")]
pub(crate) struct Roots {
    entries: Array<Root>,
}

#[derive(Persistent)]
#[persistent(crate = "crate", name = "vellum::Root")]
struct Root {
    type_name: Text,
    bits: u64,
}

impl Roots {
    pub fn get(&self, type_name: &str) -> Option<AnyRef> {
        let root = self.entries.iter().find(|root| root.type_name == type_name);
        root.and_then(|root| AnyRef::from_bits(root.bits))
    }

    pub fn set(&mut self, type_name: &str, root: Option<AnyRef>) {
        self.entries.retain(|root| root.type_name != type_name);
        self.entries.extend(root.map(|root| Root { type_name: type_name.into(), bits: root.to_bits() }));
    }

    /// Each root, with the name of its type.
    pub fn iter(&self) -> impl Iterator<Item = (&str, AnyRef)> {
        self.entries.iter().filter_map(|root| Some((root.type_name.as_str(), AnyRef::from_bits(root.bits)?)))
    }
}
