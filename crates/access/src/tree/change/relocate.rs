//! Moving pages from the end of the file nearer to its beginning, while other threads read and write.
//!
//! A node is copied to a new page, its parent refers to the new page, and the old one is freed. That is one atomic
//! change, so a crash leaves either state. A reader that has the old page finds that the page or its parent has
//! changed, and begins again. The root stays where it is.

use crate::blob::BlobReference;
use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Doomed, Fresh, Latched, PageChange, UnlinkedExtents, moved_blob};
use crate::node::{NodeMut, NodeView};
use crate::tree::change::{expected::Expected, merge::is_sparse, write::Mode};
use crate::tree::descend::{Approach, Place, Towards};
use crate::tree::read::record::{Large, Part, Record, StoredValue, Wanted, read, share_large, value_in};
use crate::tree::{Tree, Written};
use vellum_base::{HEADER_BYTES, PageHeader, PageId};
use vellum_pool::{Interrupt, OptimisticPage, Pager, SharedPage};

/// A node or value that [`Tree::relocate`] has reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relocation {
    /// A node that may stay.
    Seen,
    /// A node that has been moved.
    Moved,
    /// A node that cannot be moved: it is the root, or there is no free page before the limit.
    Stays,
    /// A large value that [`Tree::move_value`] is to move: its key, and how many pages it has.
    Value(Vec<u8>, u32),
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Moves the nodes at or beyond `limit` to free pages before it, and merges sparse ones. Shows each node to
    /// `go_on`, and each large value at or beyond `limit`, until `go_on` returns false.
    ///
    /// # Errors
    /// If a page cannot be read or changed, and the errors of `go_on`. Nodes that have been moved stay moved.
    pub fn relocate<E: From<AccessError>>(
        &self,
        limit: PageId,
        mut go_on: impl FnMut(Relocation) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut copy = Vec::new();
        for level in 0..=u8::MAX {
            let approach = if level == 0 { Approach::InPassing } else { Approach::Direct };
            let mut fence = None::<Vec<u8>>;
            loop {
                let towards = fence.as_deref().map_or(Towards::First, Towards::After);
                if self.copy_node(towards, level, (approach, true), &mut copy)? != Some(true) {
                    return Ok(true);
                }
                let (node, page) = (NodeView::new(&copy[..]), PageHeader::read(&copy).extent.head);
                let mut upper = Vec::new();
                let upper = node.upper_fence(&mut upper).then_some(upper);
                for (key, pages) in large_values(node, limit) {
                    if !go_on(Relocation::Value(key, pages))? {
                        return Ok(false);
                    }
                }
                let here = upper.as_deref().map_or(Towards::Last, Towards::Key);
                let relocation = match page >= limit {
                    true if page == self.root() => Relocation::Stays,
                    true => self.move_node((here, level), page, limit).map_err(AccessError::from)?,
                    false => Relocation::Seen,
                };
                if let Some(key) = upper.as_deref().filter(|_| is_sparse(node)) {
                    // Merging only saves space, and may fail; the next node can be moved all the same.
                    let _ = self.merge(key, level);
                }
                if !go_on(relocation)? {
                    return Ok(false);
                }
                if page == self.root() {
                    return Ok(true);
                }
                match upper {
                    Some(upper) => fence = Some(upper),
                    None => break,
                }
            }
        }
        Ok(true)
    }

    /// Moves the large value of `key` to a free place before `limit` if it lies at or beyond `limit`; returns whether
    /// it did. The value itself is the same, as if it had been stored again.
    ///
    /// # Errors
    /// As for [`update`](Self::update).
    pub fn move_value(&self, key: &[u8], limit: PageId) -> Result<bool, AccessError> {
        let newest = Self { view: None, ..*self };
        let moved = newest.with_large(key, |_, found| Ok(found.map(|found| found.reference)))?;
        let Some(old) = moved.filter(|old| old.head >= limit) else { return Ok(false) };
        let pages = old.extent().pages;
        if pages > self.pager.comfortable_pages() {
            return Ok(false);
        }
        let _unlinked = UnlinkedExtents::begin(self.pager);
        let copy = moved_blob(self.pager, (pages, limit), |target| {
            self.pager.run(|| newest.copy_large(key, old, target)).map_err(AccessError::from)
        })?;
        let Some(head) = copy else { return Ok(false) };
        let expected = Expected::Large(old);
        let mode = Mode::Exchange(&expected);
        Ok(self.place_blob(key, BlobReference { head, ..old }, mode)? == Written::Replaced)
    }

    /// Copies the contents of a large value; false if the value is no longer there.
    fn copy_large(&self, key: &[u8], old: BlobReference, target: &mut [u8]) -> Result<bool, Interrupt> {
        let leaf = self.leaf(key)?;
        match read(self, &leaf, Wanted::find(&leaf, key, Part::NONE), &mut Vec::new())? {
            Record::Large(large @ Large { reference, .. }) if reference == old => {
                let guard = share_large(self, &leaf, (key, large))?;
                let (to, from) = (target.get_mut(HEADER_BYTES..), guard.page().get(HEADER_BYTES..));
                if let Some((to, from)) = to.zip(from).filter(|(to, from)| to.len() == from.len()) {
                    to.copy_from_slice(from);
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn move_node(
        &self,
        (towards, level): (Towards<'_>, u8),
        page: PageId,
        limit: PageId,
    ) -> Result<Relocation, vellum_pool::PoolError> {
        self.pager.run(|| {
            // Allocated first, while nothing is latched: this may have to wait for memory.
            let _unlinked = UnlinkedExtents::begin(self.pager);
            let Some(new) = Fresh::allocate_before(self.pager, limit)? else { return Ok(Relocation::Stays) };
            let place = self.node_at(towards, level, Approach::Direct, None)?;
            let Some(Place { parent: Some((parent, _)), node }) =
                place.filter(|place| place.node.id() == page)
            else {
                // The node has been merged with another one meanwhile, or will be met in another place.
                return Ok(Relocation::Seen);
            };
            let (parent, node) = (Latched::latch(parent)?, Latched::latch(node)?);
            let mut change = self.change((parent, (new, Doomed(node))))?;
            let AtomicChange { pages: (parent, (new, Doomed(node))), recording, .. } = &mut change;
            let copy = |page: &mut [u8]| {
                NodeMut::new(page).take_over(node.page());
                Ok(())
            };
            let redirect = PageChange::Redirect { from: node.id(), to: new.id() };
            recording.format(new, copy).map_err(|error| damaged(page, error))?;
            recording.apply(parent, None, &redirect).map_err(|error| damaged(parent.id(), error))?;
            change.commit();
            Ok(Relocation::Moved)
        })
    }
}

/// The keys of the large values of a leaf that lie at or beyond `limit`, and how many pages each has.
fn large_values(node: NodeView<&[u8]>, limit: PageId) -> Vec<(Vec<u8>, u32)> {
    let count = if node.is_leaf() { node.count() } else { 0 };
    let large = (0..count).filter_map(|index| match value_in(node, index) {
        Some(StoredValue::Blob(reference)) if reference.head >= limit => {
            Some((node.key(index), reference.extent().pages))
        }
        _ => None,
    });
    large.collect()
}
