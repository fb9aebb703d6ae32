//! Models of the buffer: every interleaving of a few threads, and every result that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vellum-wal --release --lib --target-dir target/loom
//! ```
//!
//! Each model is also run with planted bugs, and must then fail.

use crate::{
    frame::{ALIGNMENT, FrameHeader, Kind, frame_bytes, seed},
    primitive::{RingBug, plant},
    ring::Ring,
};
use loom::{sync::Arc, thread};
use std::process::Command;

/// The variable that tells the process that a model starts which bug to plant.
const BUG_VARIABLE: &str = "VELLUM_MODEL_BUG";
/// The size of a frame with one word, and of a ring that holds two of them.
const FRAME: u64 = 2 * ALIGNMENT;

fn check(name: &str, bugs: &[RingBug], model: fn()) {
    let planted = std::env::var(BUG_VARIABLE).ok();
    plant(bugs.iter().copied().find(|bug| planted.as_ref() == Some(&format!("{bug:?}"))));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
    if planted.is_some() {
        return;
    }
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
    for lsn in (from..end).step_by(FRAME as usize) {
        let mut word = [0; 8];
        ring.copy_to(lsn + ALIGNMENT, &mut word);
        assert_eq!(u64::from_le_bytes(word), lsn, "a frame was found before its bytes");
    }
    end
}

#[test]
fn a_frame_is_found_with_its_bytes_and_in_order() {
    check("models::a_frame_is_found_with_its_bytes_and_in_order", &[RingBug::RelaxedEnd], || {
        assert_eq!(frame_bytes(8), FRAME);
        let ring = Arc::new(Ring::new(4 * FRAME, FRAME).unwrap());
        let threads = [(); 2].map(|()| {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, ring.reserve(FRAME)))
        });
        let seen = read(&ring, FRAME);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(read(&ring, seen), 3 * FRAME);
    });
}

#[test]
fn bytes_are_overwritten_only_after_they_have_been_read() {
    check("models::bytes_are_overwritten_only_after_they_have_been_read", &[RingBug::NoLookAtRoom], || {
        // The ring has room for one frame.
        let ring = Arc::new(Ring::new(FRAME, FRAME).unwrap());
        fill(&ring, ring.reserve(FRAME));
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let lsn = ring.reserve(FRAME);
                while !ring.has_room(lsn + FRAME) {
                    thread::yield_now();
                }
                fill(&ring, lsn);
            })
        };
        assert_eq!(read(&ring, FRAME), 2 * FRAME);
        ring.release(2 * FRAME);
        writer.join().unwrap();
        assert_eq!(read(&ring, 2 * FRAME), 3 * FRAME);
    });
}

#[test]
fn a_slow_thread_passes_no_frame_that_is_not_filled() {
    check("models::a_slow_thread_passes_no_frame_that_is_not_filled", &[RingBug::NoLookAtLap], || {
        let ring = Arc::new(Ring::new(2 * FRAME, 2 * FRAME).unwrap());
        let (first, second) = (ring.reserve(FRAME), ring.reserve(FRAME));
        let slow = {
            let ring = ring.clone();
            thread::spawn(move || assert!(ring.advance() <= second, "the second frame is not filled"))
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
    });
}
