//! Models of the admission of changes, and of the outages that suspend them.

use super::{check, note};
use crate::{
    error::PoolError,
    file::{admission::Admission, outage::Outage},
};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use std::io;
use vellum_base::{Extent, PageId, primitive::Instant};

/// A storage as far as changes are admitted to it.
struct Storage {
    /// Whether the superblocks say "in use". Relaxed: the flag under test is to show it.
    marked: AtomicBool,
    admission: Admission,
    outage: Outage,
}

impl Storage {
    fn new() -> Arc<Self> {
        let (marked, admission) = (AtomicBool::new(false), Admission::new(false));
        Arc::new(Self { marked, admission, outage: Outage::default() })
    }

    /// What a thread does whose writes have failed.
    fn fail(&self, page: u64) {
        let source = io::Error::from_raw_os_error(28);
        self.outage.begins(Extent::page(PageId(page)), &source, Instant::now());
        self.admission.suspend();
    }

    /// What a thread does before its first change: whether it may change something.
    fn admit(&self) -> bool {
        self.marked.store(true, Ordering::Relaxed);
        self.admission.give(|| self.outage.error().map_or(Ok(()), Err)).is_ok()
    }
}

// The second thread suspends changes for a passing reason: the log runs out of room.
model!(
    changes_are_suspended_while_an_outage_lasts,
    [LookBeforeAdmission, SuspensionByStore, RelaxedAdmission, RelaxedSuspension],
    [0, 1],
    || {
        let storage = Storage::new();
        let writer = {
            let storage = storage.clone();
            thread::spawn(move || storage.fail(1))
        };
        let changer = {
            let storage = storage.clone();
            thread::spawn(move || note(storage.admit().into()))
        };
        storage.admission.suspend();
        writer.join().unwrap();
        changer.join().unwrap();
        assert!(!storage.admission.is_given(), "changes are admitted, and their pages cannot be written");
    }
);

model!(
    a_thread_that_sees_changes_admitted_sees_the_file_marked,
    [RelaxedAdmission, RelaxedLookAtAdmission],
    [0, 1],
    || {
        let storage = Storage::new();
        let first = {
            let storage = storage.clone();
            thread::spawn(move || assert!(storage.admit()))
        };
        let next = {
            let storage = storage.clone();
            thread::spawn(move || {
                let is_given = storage.admission.is_given();
                assert!(!is_given || storage.marked.load(Ordering::Relaxed), "a change before the mark");
                note(is_given.into());
            })
        };
        storage.admission.suspend();
        first.join().unwrap();
        next.join().unwrap();
    }
);

model!(a_thread_that_sees_an_outage_finds_its_error, [OutageBeforeItsError], [0, 1, 2], || {
    let storage = Storage::new();
    let writer = {
        let storage = storage.clone();
        thread::spawn(move || storage.fail(1))
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
    storage.fail(2);
    writer.join().unwrap();
    changer.join().unwrap();
});
