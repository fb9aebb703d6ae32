//! The times that the log tells of changes outside transactions.

use super::*;
use crate::{checkpoint::wait_before, records::LogRecord};
use std::time::Duration;
use vellum_base::primitive::thread;
use vellum_vm::SimulatedDisk;
use vellum_wal::{FollowedLog, LogOptions};

/// How exactly they are told, in nanoseconds.
const EXACTLY: u64 = 1_000_000;

/// Two threads change something long after the last change. Before each of their records the log tells the time.
fn change_together() {
    let options = LogOptions { segment_bytes: 64 << 10, buffer_bytes: 64 << 10, ..LogOptions::new([1; 16]) };
    let log = Arc::new(Log::begin(Arc::new(SimulatedDisk::new(1)), &options).unwrap());
    let changes = Arc::new(Changes::new(log.clone(), &LogSettings::default(), true).unwrap());
    let begin = log.end();
    let change = |changes: &Changes| {
        let record = [1; 40];
        let lsn = changes.reserve(record.len());
        changes.fill(lsn, &record);
    };
    change(&changes);
    thread::sleep(Duration::from_nanos(3 * EXACTLY));
    let (later, time) = (log.end(), now());
    let spawn = || {
        let changes = changes.clone();
        thread::spawn(move || change(&changes))
    };
    [spawn(), spawn()].into_iter().for_each(|thread| thread.join().unwrap());
    wait_before(&log, log.end()).unwrap();
    let (mut told, mut count) = (0, 0);
    let mut reader = FollowedLog::new(log.clone(), None).read(begin);
    let read = reader.read(log.end(), |record| {
        match LogRecord::decode(record.payload) {
            LogRecord::Time(now) => told = now.max(told),
            _ if record.lsn < later => {}
            _ => {
                assert!(told + EXACTLY > time, "{} ns too early", time - told);
                count += 1;
            }
        }
        Ok::<_, LogError>(true)
    });
    read.unwrap();
    assert_eq!(count, 2);
}

#[cfg(not(shuttle))]
#[test]
fn the_time_is_told_before_each_change() {
    (0..20).for_each(|_| change_together());
}

#[cfg(shuttle)]
#[test]
fn the_time_is_told_before_each_change_however_threads_meet() {
    shuttle::check_random(change_together, 1000);
    shuttle::check_pct(change_together, 1000, 3);
}
