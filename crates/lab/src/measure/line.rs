//! How long a cache line takes from one processor to another.
//!
//! The host of a virtual machine may move its processors, so that two of them share a cache at one moment and none at the next. What
//! threads have in common then costs several times as much. Figures of two and more threads compare only if this time is the same.

use serde::{Deserialize, Serialize};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The time of a line before and after a round, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LineTimes {
    /// Before.
    pub before_ns: f64,
    /// After.
    pub after_ns: f64,
}

/// A word in lines of its own; processors fetch two at a time.
#[repr(align(128))]
struct Word(AtomicU64);

/// The word that ends the other thread.
const END: u64 = u64::MAX;

/// How long a word that one thread stores takes to another one, on the first and the last processor that this process may use, in
/// nanoseconds. None if it may use one only.
pub fn line_ns() -> Option<f64> {
    /// A batch is short, so that few are interrupted, and the median is of many.
    const ROUND_TRIPS: u64 = 200;
    const BATCHES: u64 = 40;
    /// On a machine that is busy with something else it is given up.
    const LONGEST: Duration = Duration::from_millis(200);
    let (first, last) = first_and_last_processor()?;
    let word = Word(AtomicU64::new(0));
    let begin = Instant::now();
    // A thread of its own, because the calling one stays where the system puts it.
    let mut batches = thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(last);
            let mut next = 1;
            // Acquire and Release, here and below: as what threads hand each other.
            loop {
                match word.0.load(Ordering::Acquire) {
                    END => break,
                    value if value == next => {
                        word.0.store(next + 1, Ordering::Release);
                        next += 2;
                    }
                    _ => spin_loop(),
                }
            }
        });
        let measuring = scope.spawn(|| {
            stay_on(first);
            let mut batches = Vec::new();
            let mut sent = 1;
            while batches.len() < BATCHES as usize && begin.elapsed() < LONGEST {
                let begin = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    word.0.store(sent, Ordering::Release);
                    while word.0.load(Ordering::Acquire) == sent {
                        spin_loop();
                    }
                    sent += 2;
                }
                batches.push(begin.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64);
            }
            word.0.store(END, Ordering::Release);
            batches
        });
        measuring.join().unwrap_or_default()
    });
    batches.sort_by(f64::total_cmp);
    let median = batches.get(batches.len() / 2)?;
    Some((median * 10.0).round() / 10.0)
}

/// The first and the last processor that this process may use, if it may use several.
fn first_and_last_processor() -> Option<(usize, usize)> {
    // SAFETY: a set is an array of bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is there for the length of the call, which fills as many bytes as it is told.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return None;
    }
    // SAFETY: the set has so many processors.
    let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    let first = usable.next()?;
    Some((first, usable.next_back()?))
}

/// Keeps the calling thread on a processor, if the system does that.
fn stay_on(cpu: usize) {
    // SAFETY: as in `first_and_last_processor`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is one of the set's; the call reads as many bytes as it is told.
    unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_nanoseconds_if_there_are_two_processors() {
        let Some((first, last)) = first_and_last_processor() else {
            assert_eq!(line_ns(), None);
            return;
        };
        assert!(first < last);
        // Beside other tests it may take as long as a time slice.
        let line_ns = line_ns().unwrap();
        assert!(line_ns > 1.0 && line_ns < 1e9, "{line_ns}");
    }
}
