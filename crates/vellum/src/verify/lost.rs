//! Pages that are allocated, and to which nothing refers: see the parent module.

use super::walk::{Seen, Walk};
use super::{Progress, VerifyReport};
use crate::shared::Inner;
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use vellum_base::Extent;
use vellum_pool::{Allocation, SpaceWatch};
use vellum_txn::Earlier;

/// How long operations and transactions are waited for, each.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// When a walk began.
pub(super) struct Moment {
    /// The end of the log, if nothing was under way, and nothing was left to be freed.
    place: Option<u64>,
    /// The operations that had begun before.
    operations: u64,
    /// Whether they had all ended.
    is_settled: bool,
}

impl Moment {
    pub fn now(inner: &Inner, watch: &SpaceWatch<'_>) -> Self {
        let operations = watch.operations_by_now();
        let is_settled = watch.are_finished(operations);
        let is_idle = is_settled && inner.durable.is_at_rest();
        Self { place: inner.durable.place_in_log().filter(|_| is_idle), operations, is_settled }
    }
}

/// What a verification has found to be lost.
#[derive(Default)]
pub(super) struct Found {
    pub lost: Vec<Extent>,
    /// How many pages there are of which that is unknown.
    pub undecided: u64,
}

/// Finds what is lost. `seen` is what a walk has found that began after the watch, at this moment.
pub(super) fn find(inner: &Arc<Inner>, (watch, begun): (&SpaceWatch<'_>, &Moment), seen: Seen<'_>) -> Found {
    let pool = inner.pool();
    let is_old = |extent: &Extent| !pool.has_changed_hands(*extent);
    let mut lost = Vec::new();
    pool.for_each_extent(|extent| {
        if !seen.is_seen(extent.head.0) {
            lost.push(extent);
        }
    });
    drop(seen);
    lost.retain(is_old);
    let kept = inner.not_undone_extents();
    lost.retain(|extent| !kept.contains(extent));
    if lost.is_empty() {
        return Found::default();
    }
    let now = Moment::now(inner, watch);
    if begun.place.is_some() && begun.place == now.place {
        // Nothing has happened meanwhile, but perhaps a checkpoint, which frees the place of the former map just now.
        lost.retain(is_old);
        return Found { lost, undecided: 0 };
    }
    let mut is_known = begun.is_settled || wait(|| watch.are_finished(begun.operations));
    let (mut report, mut ignored) = (VerifyReport::default(), |_: Progress| {});
    let mut walk = Walk::new(Seen::none(pool, &mut ignored), &mut report);
    walk.everything(inner);
    is_known &= !walk.has_changed();
    let seen = walk.end();
    lost.retain(|extent| !seen.is_seen(extent.head.0));
    drop(seen);
    if !lost.is_empty() {
        let (mut earlier, operations) = (Earlier::than_now(&inner.durable), watch.operations_by_now());
        is_known &= wait(|| earlier.are_over(&inner.durable) && watch.are_finished(operations));
    }
    let mut left = Vec::new();
    pool.for_each_extent(|extent| left.push(extent));
    let kept = inner.not_undone_extents();
    lost.retain(|extent| {
        is_old(extent)
            && left.binary_search_by_key(&extent.head, |left| left.head).is_ok()
            && !kept.contains(extent)
    });
    if is_known {
        return Found { lost, undecided: 0 };
    }
    Found { lost: Vec::new(), undecided: lost.iter().map(|extent| u64::from(extent.pages)).sum() }
}

/// Waits for something, for a while; returns whether it has come.
fn wait(mut until: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !until() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}
