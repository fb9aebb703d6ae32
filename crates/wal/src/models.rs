//! Models of the buffer: every interleaving of a few threads, and every result that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vellum-wal --release --lib --target-dir target/loom
//! ```
//!
//! Each model is also run with planted bugs, and must then fail.
//!
//! Loom remembers only the last access of a word. So a thread that loads a word and then changes it hides what another
//! thread loaded before, and loom does not try that change before that load. Threads that only read such a word are
//! therefore started last. Models [`note`] what their threads met, and [`check`] demands that they met all that they can
//! meet.

use crate::{
    frame::{ALIGNMENT, FrameHeader, Kind, frame_bytes, seed},
    prepared::Prepared,
    primitive::{RingBug, plant},
    ring::Ring,
};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use std::{cell::RefCell, collections::BTreeSet, process::Command};

/// The variable that tells the process that a model starts which bug to plant.
const BUG_VARIABLE: &str = "VELLUM_MODEL_BUG";
/// The size of a frame with one word, and of a ring that holds two of them.
const FRAME: u64 = 2 * ALIGNMENT;

std::thread_local! {
    /// What was noted over all runs of a model, whose threads all run on one thread of the system.
    static NOTED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes what a thread met.
fn note(what: u64) {
    NOTED.with_borrow_mut(|noted| noted.insert(what));
}

/// Runs a model without bugs, when its threads must note just these numbers in all, and then once with each of these bugs
/// planted, when it must fail.
fn check(name: &str, bugs: &[RingBug], noted: &[u64], model: fn()) {
    let planted = std::env::var(BUG_VARIABLE).ok();
    plant(bugs.iter().copied().find(|bug| planted.as_ref() == Some(&format!("{bug:?}"))));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
    if planted.is_some() {
        return;
    }
    let met = NOTED.take();
    assert!(met.iter().eq(noted), "the threads did not meet all that they can meet, or more: {met:?}");
    for bug in bugs {
        let outcome = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1"])
            .env(BUG_VARIABLE, format!("{bug:?}"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&outcome.stdout);
        assert!(said.contains("running 1 test"), "{name} is not the name of this model: {said}");
        assert!(!outcome.status.success(), "the model does not notice {bug:?}");
    }
}

/// Writes a frame with one word.
fn fill(ring: &Ring, lsn: u64) {
    let payload = lsn.to_le_bytes();
    ring.fill(lsn, &FrameHeader::new(Kind::Record, seed(0, lsn), lsn, lsn, &payload), &payload);
}

/// Checks all published frames from `from` on, and returns where they end.
fn read(ring: &Ring, from: u64) -> u64 {
    let end = ring.filled(from);
    check_frames(ring, from, end);
    end
}

fn check_frames(ring: &Ring, from: u64, end: u64) {
    for lsn in (from..end).step_by(FRAME as usize) {
        let mut word = [0; 8];
        ring.copy_to(lsn + ALIGNMENT, &mut word);
        assert_eq!(u64::from_le_bytes(word), lsn, "a frame was found before its bytes");
    }
}

#[test]
fn a_frame_is_found_with_its_bytes_and_in_order() {
    let bugs = [RingBug::RelaxedEnd, RingBug::RelaxedLook];
    let ends = [FRAME, 2 * FRAME, 3 * FRAME];
    check("models::a_frame_is_found_with_its_bytes_and_in_order", &bugs, &ends, || {
        assert_eq!(frame_bytes(8), FRAME);
        let ring = Arc::new(Ring::new(4 * FRAME, FRAME).unwrap());
        let threads = [(); 2].map(|()| {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, ring.reserve(FRAME)))
        });
        let seen = read(&ring, FRAME);
        note(seen);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(read(&ring, seen), 3 * FRAME);
    });
}

#[test]
fn what_lies_before_the_frontier_can_be_read() {
    let bugs = [RingBug::RelaxedEnd, RingBug::RelaxedLook, RingBug::RelaxedAdvance, RingBug::RelaxedFrontier];
    let ends = [FRAME, 2 * FRAME, 3 * FRAME];
    check("models::what_lies_before_the_frontier_can_be_read", &bugs, &ends, || {
        let ring = Arc::new(Ring::new(2 * FRAME, FRAME).unwrap());
        let (first, second) = (ring.reserve(FRAME), ring.reserve(FRAME));
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                fill(&ring, second);
                ring.advance();
            })
        };
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || {
                let end = ring.frontier();
                check_frames(&ring, FRAME, end);
                note(end);
            })
        };
        fill(&ring, first);
        ring.advance();
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!((ring.advance(), ring.frontier()), (3 * FRAME, 3 * FRAME));
    });
}

#[test]
fn bytes_are_overwritten_only_after_they_have_been_read() {
    let bugs = [RingBug::NoLookAtRoom, RingBug::RelaxedRelease, RingBug::RelaxedRoom];
    check("models::bytes_are_overwritten_only_after_they_have_been_read", &bugs, &[], || {
        // The ring has room for one frame.
        let ring = Arc::new(Ring::new(FRAME, FRAME).unwrap());
        fill(&ring, ring.reserve(FRAME));
        // Loom does not let a load see a store that comes after it, as processors may. So this tells what came first.
        let has_read = Arc::new(AtomicU64::new(0));
        let writer = {
            let (ring, has_read) = (ring.clone(), has_read.clone());
            thread::spawn(move || {
                let lsn = ring.reserve(FRAME);
                while !ring.has_room(lsn + FRAME) {
                    thread::yield_now();
                }
                assert_eq!(has_read.load(Ordering::Relaxed), 1, "overwritten before it was read");
                fill(&ring, lsn);
            })
        };
        assert_eq!(read(&ring, FRAME), 2 * FRAME);
        has_read.store(1, Ordering::Relaxed);
        ring.release(2 * FRAME);
        writer.join().unwrap();
        assert_eq!(read(&ring, 2 * FRAME), 3 * FRAME);
    });
}

#[test]
fn a_slow_thread_passes_no_frame_that_is_not_filled() {
    let places = [2 * FRAME, 3 * FRAME];
    check(
        "models::a_slow_thread_passes_no_frame_that_is_not_filled",
        &[RingBug::NoLookAtLap],
        &places,
        || {
            let ring = Arc::new(Ring::new(2 * FRAME, 2 * FRAME).unwrap());
            let (first, second) = (ring.reserve(FRAME), ring.reserve(FRAME));
            let slow = {
                let ring = ring.clone();
                thread::spawn(move || {
                    let end = ring.advance();
                    assert!(end <= second, "the second frame is not filled");
                    note(end);
                })
            };
            fill(&ring, first);
            assert_eq!(ring.advance(), second);
            // The first frame has been written, so a third one has room in its place.
            ring.release(second);
            fill(&ring, ring.reserve(FRAME));
            assert_eq!(ring.advance(), second);
            slow.join().unwrap();
            fill(&ring, second);
            assert_eq!((ring.advance(), ring.frontier()), (5 * FRAME, 5 * FRAME));
        },
    );
}

#[test]
fn nothing_is_ready_once_the_log_has_ended() {
    check("models::nothing_is_ready_once_the_log_has_ended", &[RingBug::NoLookAtEnd], &[0, 5, 9], || {
        let prepared = Arc::new(Prepared::new(5));
        let maker = {
            let prepared = prepared.clone();
            thread::spawn(move || {
                note(prepared.end());
                prepared.note(9);
                note(prepared.end());
            })
        };
        prepared.end_for_good();
        maker.join().unwrap();
        assert_eq!(prepared.end(), 0);
    });
}
