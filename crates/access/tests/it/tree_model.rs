//! The tree does what a `BTreeMap` does, with a pool of 64 pages, so that each operation evicts.

use crate::support::model::{self, compare};
use vellum_access::Tree;
use vellum_pool::{Pool, PoolOptions};

fn verify(pool: &Pool, tree: &Tree<'_, Pool>) {
    let mut allocated = Vec::new();
    pool.for_each_extent(|extent| allocated.push(extent));
    model::verify(tree, pool.own_extents().into_iter().collect(), &allocated);
}

#[test]
fn it_does_what_a_btreemap_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 32);
    let pool = Pool::create(&path, &options).unwrap();
    let tree = Tree::create(&pool).unwrap();
    pool.set_root_slot(0, tree.root().0).unwrap();
    let model = model::run(&tree, 1, || verify(&pool, &tree));
    pool.close().unwrap();

    let pool = Pool::open(&path, &options).unwrap();
    let tree = Tree::open(&pool, vellum_base::PageId(pool.root_slot(0)));
    verify(&pool, &tree);
    compare(&tree, &model);
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
    }
    verify(&pool, &tree);
    assert_eq!(tree.shape().unwrap().entries, 0);
    assert!(pool.statistics().pages_allocated < 8, "an empty tree keeps {:?}", pool.statistics());
}
