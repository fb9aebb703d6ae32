//! Each kind of fault that a bug could leave behind, planted by hand in pages whose checksums are right: `verify`
//! finds it.

use crate::support::{create_tree, options, problems, sealed};
use vellum_access::{
    Tree,
    node::{NodeMut, NodeView, ValueKind},
};
use vellum_base::{Extent, PageId, PageKind};
use vellum_pool::Pool;

/// A tree of two levels with a large value.
fn with_tree(test: impl FnOnce(&Pool, &Tree<'_, Pool>)) {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for key in 0..100u64 {
        assert!(tree.insert(&key.to_be_bytes(), &sealed(key, 0, 300)).unwrap());
    }
    assert!(tree.insert(&55_555u64.to_be_bytes(), &sealed(55_555, 0, 100_000)).unwrap());
    crate::support::verify(&pool, &tree);
    test(&pool, &tree);
}

/// Changes a page in any way, and leaves its checksum to the pool.
fn edit(pool: &Pool, page: PageId, change: impl FnOnce(&mut [u8])) {
    change(pool.exclusive(Extent::page(page)).unwrap().page_mut());
}

fn set_child(page: &mut [u8], index: usize, child: PageId) {
    let place = NodeView::new(&*page).child_place(index);
    // The lower 40 bits of a word.
    page[place..place + 5].copy_from_slice(&child.0.to_le_bytes()[..5]);
}

fn child(pool: &Pool, tree: &Tree<'_, Pool>, index: usize) -> PageId {
    let root = pool.shared(Extent::page(tree.root())).unwrap();
    NodeView::new(root.page()).children().nth(index).unwrap()
}

fn assert_found(pool: &Pool, tree: &Tree<'_, Pool>, expected: &str) {
    let found = problems(pool, tree).0;
    assert!(found.iter().any(|problem| problem.contains(expected)), "{expected:?} is not in {found:#?}");
}

#[test]
fn a_leaked_page() {
    with_tree(|pool, tree| {
        let leaked = pool.allocate(3, PageKind::TREE_NODE).unwrap().keep().extent();
        assert_found(pool, tree, &format!("{leaked} belongs to nothing"));
    });
}

#[test]
fn a_page_used_twice() {
    with_tree(|pool, tree| {
        let twice = child(pool, tree, 1);
        edit(pool, tree.root(), |page| set_child(page, 2, twice));
        assert_found(pool, tree, &format!("{twice} belongs to two things"));
    });
}

#[test]
fn a_large_value_used_twice() {
    with_tree(|pool, tree| {
        let key = 55_555u64.to_be_bytes();
        let last = NodeView::new(pool.shared(Extent::page(tree.root())).unwrap().page()).count();
        let leaf = child(pool, tree, last);
        edit(pool, leaf, |page| {
            let at = NodeView::new(&*page).get(&key).unwrap();
            let reference = page[at.at..at.at + at.length].to_vec();
            let other = 55_554u64.to_be_bytes();
            NodeMut::new(page).insert(&other, &reference, ValueKind::Blob).unwrap();
        });
        assert_found(pool, tree, "belongs to two things");
        // Removing one of them frees the extent to which the other refers.
        assert!(tree.remove(&key).unwrap());
        assert!(tree.remove(&55_554u64.to_be_bytes()).is_err());
        assert!(tree.value(&55_554u64.to_be_bytes()).is_err());
        assert!(tree.upsert(&55_554u64.to_be_bytes(), &[0; 5000]).is_err());
    });
}

#[test]
fn swapped_children() {
    with_tree(|pool, tree| {
        let (first, second) = (child(pool, tree, 1), child(pool, tree, 2));
        edit(pool, tree.root(), |page| {
            set_child(page, 1, second);
            set_child(page, 2, first);
        });
        assert_found(pool, tree, "its fences are not the separators of its parent");
    });
}

#[test]
fn a_wrong_fence() {
    with_tree(|pool, tree| {
        // The first leaf is made anew with all its records, but a fence that is one too far.
        edit(pool, child(pool, tree, 0), |page| {
            let old = page.to_vec();
            let old = NodeView::new(&old[..]);
            let mut fence = Vec::new();
            assert!(old.upper_fence(&mut fence));
            fence.push(0);
            let mut new = NodeMut::init(page, 0, None, Some(&fence), PageId(0)).unwrap();
            for index in 0..old.count() {
                let (mut key, mut value) = (Vec::new(), Vec::new());
                old.append_key(index, &mut key);
                let kind = old.append_value(index, &mut value);
                new.insert(&key, &value, kind).unwrap();
            }
        });
        assert_found(pool, tree, "its fences are not the separators of its parent");
    });
}

#[test]
fn a_key_in_the_wrong_leaf() {
    with_tree(|pool, tree| {
        edit(pool, child(pool, tree, 1), |page| {
            // The head of the first key becomes that of a key far beyond the upper fence.
            page[128 + 7] = 0xff;
        });
        let found = problems(pool, tree).0;
        assert!(
            found.iter().any(|problem| problem.contains("slot") || problem.contains("hint")),
            "{found:?}"
        );
    });
}

#[test]
fn a_node_of_the_wrong_level() {
    with_tree(|pool, tree| {
        edit(pool, child(pool, tree, 1), |page| {
            let old = page.to_vec();
            let (mut lower, mut upper) = (Vec::new(), Vec::new());
            NodeView::new(&old[..]).lower_fence(&mut lower);
            NodeView::new(&old[..]).upper_fence(&mut upper);
            NodeMut::init(page, 1, Some(&lower), Some(&upper), PageId(7)).unwrap();
        });
        assert_found(pool, tree, "level 1");
    });
}

#[test]
fn a_page_freed_too_early() {
    with_tree(|pool, tree| {
        let freed = child(pool, tree, 2);
        pool.exclusive(Extent::page(freed)).unwrap().free();
        assert_found(pool, tree, "is not allocated");
    });
}

#[test]
fn a_large_value_changed_in_memory() {
    with_tree(|pool, tree| {
        let mut blob = None;
        pool.for_each_extent(|extent| {
            if extent.pages > 20 {
                blob = Some(extent);
            }
        });
        let blob = blob.unwrap();
        pool.exclusive(blob).unwrap().page_mut()[70_000] ^= 1;
        assert_found(pool, tree, "are damaged");
    });
}
