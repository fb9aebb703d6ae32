//! Salvaging the records of a tree that can still be read.

use crate::{
    error::AccessError,
    node::NodeView,
    tree::{
        Tree,
        read::record::{StoredValue, value_in},
        sound::Expected,
    },
};
use vellum_pool::Pager;

/// A part of a tree, as [`Tree::salvage`] finds it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Salvaged<'s> {
    /// A record that can be read.
    Entry {
        /// Its key.
        key: &'s [u8],
        /// Its value; `None` if it is a large one, which has pages of its own.
        value: Option<&'s [u8]>,
    },
    /// A node that cannot be read: its contents are lost.
    Lost {
        /// The lost keys are greater than this one.
        after: Option<&'s [u8]>,
        /// The lost keys are not greater than this one.
        upto: Option<&'s [u8]>,
        /// What is wrong.
        error: AccessError,
    },
}

impl<P: Pager> Tree<'_, P> {
    /// Shows all records that can be read, in the order of their keys, and between them the places where something is
    /// lost. The tree must not change meanwhile.
    ///
    /// # Errors
    /// The errors of `visit`, which end the walk.
    pub fn salvage<E>(&self, mut visit: impl FnMut(Salvaged<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut todo = vec![Expected::root(self.root())];
        while let Some(expected) = todo.pop() {
            match self.expected_node(&expected) {
                Ok(bytes) => {
                    let node = NodeView::new(&bytes[..]);
                    if node.is_leaf() {
                        salvage_leaf(node, &mut visit)?;
                    } else {
                        let children: Vec<_> = expected.children(node).collect();
                        // The first child is visited next.
                        todo.extend(children.into_iter().rev());
                    }
                }
                Err(error) => {
                    let (after, upto) = (expected.lower.as_deref(), expected.upper.as_deref());
                    visit(Salvaged::Lost { after, upto, error: error.into() })?;
                }
            }
        }
        Ok(())
    }
}

fn salvage_leaf<E>(
    leaf: NodeView<&[u8]>,
    visit: &mut impl FnMut(Salvaged<'_>) -> Result<(), E>,
) -> Result<(), E> {
    for index in 0..leaf.count() {
        let key = leaf.key(index);
        let value = match value_in(leaf, index) {
            Some(StoredValue::Inline(value)) => Some(value),
            // A damaged reference is noticed when the value is read.
            Some(StoredValue::Blob(_)) | None => None,
        };
        visit(Salvaged::Entry { key: &key, value })?;
    }
    Ok(())
}
