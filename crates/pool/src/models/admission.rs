//! Models of the admission of changes, and of the outages and failures that suspend them.

use super::{check, note};
use crate::{
    error::PoolError,
    file::{
        storage::Storage,
        superblock::{SUPERBLOCKS, State, Superblock},
    },
    space::SpaceMap,
};
use loom::thread;
use std::{io, sync::Arc};
use vellum_base::{Extent, PageId, primitive::Instant};
use vellum_vm::{FileOperation, SimulatedFile};

/// The place of the map of a file that was closed.
const MAP: Extent = Extent { head: PageId(SUPERBLOCKS), pages: 1 };

/// A file that was closed.
fn closed() -> (Arc<SimulatedFile>, Arc<Storage>) {
    let (file, space) = (Arc::new(SimulatedFile::new(1)), SpaceMap::new(1 << 10, SUPERBLOCKS).unwrap());
    assert_eq!(space.allocate(MAP.pages, |_| Ok::<_, ()>(())), Ok(MAP));
    space.publish(MAP);
    let superblock = Superblock { state: State::Closed, space_map: Some(MAP), ..Superblock::default() };
    let storage = Storage::new(file.clone(), space, superblock, 1 << 10, false, false, None).unwrap();
    (file, Arc::new(storage))
}

/// A file that is in use, and for which the next change must ask.
fn suspended() -> (Arc<SimulatedFile>, Arc<Storage>) {
    let (file, storage) = closed();
    storage.mark_in_use().unwrap();
    (file, storage)
}

/// What a thread does whose writes have failed.
fn fail(storage: &Storage, page: u64) {
    let source = io::Error::from_raw_os_error(28);
    storage.outage.begins(Extent::page(PageId(page)), &source, Instant::now());
    storage.suspend_changes();
}

/// One thread finds a reason against changes, the second suspends them because of one that passes, as when the log is
/// short, and the third admits them, unless it sees the first one's reason.
fn suspended_by(find_reason: impl FnOnce(&Storage) + 'static, storage: Arc<Storage>) {
    let first = {
        let storage = storage.clone();
        thread::spawn(move || find_reason(&storage))
    };
    let third = {
        let storage = storage.clone();
        thread::spawn(move || note(storage.admit_changes().is_ok().into()))
    };
    storage.suspend_changes();
    first.join().unwrap();
    third.join().unwrap();
    assert!(!storage.admits_changes(), "changes are admitted although there is a reason against them");
    assert!(storage.admit_changes().is_err());
}

model!(
    changes_are_suspended_while_an_outage_lasts,
    [LookBeforeAdmission, SuspensionByStore, RelaxedAdmission, RelaxedSuspension],
    [0, 1],
    || suspended_by(|storage| fail(storage, 1), suspended().1)
);

// That a sync has failed is noted in a cell of the standard library, which loom takes for one that all see at once.
model!(changes_are_suspended_once_a_sync_has_failed, [LookBeforeAdmission], [0, 1], || {
    let (file, storage) = suspended();
    file.fail_nth_of(FileOperation::Sync, 1);
    suspended_by(|storage| assert!(storage.sync().is_err()), storage);
});

model!(
    a_thread_that_sees_changes_admitted_finds_the_file_in_use,
    [MarkedTwice, RelaxedAdmission, RelaxedLookAtAdmission],
    [0, 1],
    || {
        let (file, storage) = closed();
        let other = {
            let storage = storage.clone();
            thread::spawn(move || storage.admit_changes().unwrap())
        };
        let next = {
            let storage = storage.clone();
            thread::spawn(move || {
                let admits = storage.admits_changes();
                assert!(!admits || storage.is_in_use(), "a change before the mark");
                assert!(!admits || storage.space.is_free(MAP.head), "the place of the old map is not free");
                note(admits.into());
            })
        };
        storage.admit_changes().unwrap();
        other.join().unwrap();
        next.join().unwrap();
        assert_eq!(file.counts().of(FileOperation::Write), SUPERBLOCKS, "each superblock is written once");
    }
);

model!(a_thread_that_sees_an_outage_finds_its_error, [OutageBeforeItsError], [0, 1, 2], || {
    let (_, storage) = suspended();
    let writer = {
        let storage = storage.clone();
        thread::spawn(move || fail(&storage, 1))
    };
    let changer = {
        let storage = storage.clone();
        thread::spawn(move || {
            if storage.outage.lasts() {
                let error = storage.outage.error();
                let Some(PoolError::Write { extent, .. }) = error else {
                    panic!("no error of a write: {error:?}")
                };
                note(extent.head.0);
            } else {
                note(0);
            }
        })
    };
    fail(&storage, 2);
    writer.join().unwrap();
    changer.join().unwrap();
});
