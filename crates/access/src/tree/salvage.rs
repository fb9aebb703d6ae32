//! Taking out of a tree what can still be read.

use crate::{
    error::AccessError,
    node::NodeView,
    tree::{
        Tree,
        descend::NOT_ITS_FENCES,
        read::record::{StoredValue, value_in},
    },
};
use vellum_base::PageId;
use vellum_pool::{Pager, PoolError};

/// Something of a tree, as [`Tree::salvage`] finds it.
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
    /// A node that cannot be read: what it held is lost.
    Lost {
        /// The keys that it held are greater than this one.
        after: Option<&'s [u8]>,
        /// And not greater than this one.
        upto: Option<&'s [u8]>,
        /// What is wrong.
        error: AccessError,
    },
}

/// A node, with what follows from its parent.
struct Expected {
    page: PageId,
    level: Option<u8>,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

impl<P: Pager> Tree<'_, P> {
    /// Shows all records that can be read, in the order of their keys, and between them where something is lost. The tree must
    /// not change meanwhile.
    ///
    /// # Errors
    /// Those of `visit`, which end it.
    pub fn salvage<E>(&self, mut visit: impl FnMut(Salvaged<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut todo = vec![Expected { page: self.root, level: None, lower: None, upper: None }];
        while let Some(expected) = todo.pop() {
            match self.salvaged_node(&expected) {
                Ok(bytes) => {
                    let node = NodeView::new(&bytes[..]);
                    if node.is_leaf() {
                        salvage_leaf(node, &mut visit)?;
                    } else {
                        push_children(node, expected, &mut todo);
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

    fn salvaged_node(&self, expected: &Expected) -> Result<Vec<u8>, PoolError> {
        let bytes = self.sound_node(expected.page, expected.level)?;
        let (lower, upper) = NodeView::new(&bytes[..]).fences();
        // It may be a sound node of another place.
        if lower != expected.lower || upper != expected.upper {
            return Err(PoolError::contents(expected.page, NOT_ITS_FENCES));
        }
        Ok(bytes)
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
            // One whose reference is damaged is found out when it is read.
            Some(StoredValue::Blob(_)) | None => None,
        };
        visit(Salvaged::Entry { key: &key, value })?;
    }
    Ok(())
}

/// The first child is looked at next.
fn push_children(node: NodeView<&[u8]>, parent: Expected, todo: &mut Vec<Expected>) {
    let (level, begin) = (node.level().checked_sub(1), todo.len());
    let mut lower = parent.lower;
    for (index, page) in node.children().enumerate() {
        let separator = if index < node.count() { Some(node.key(index)) } else { parent.upper.clone() };
        let lower = std::mem::replace(&mut lower, separator.clone());
        todo.push(Expected { page, level, lower, upper: separator });
    }
    if let Some(children) = todo.get_mut(begin..) {
        children.reverse();
    }
}
