//! Locking a file by `flock`: exclusively to change a store, shared with other processes to read it.
//!
//! The kernel releases the lock of a killed process some time after the process is seen to be dead: its memory goes first.
//! So an opening waits a little for a lock, and longer while it sees that the holder is ending or gone, as that of a
//! database does (`crates/vm/src/lock.rs`). `/proc/locks`, where it exists, tells which process the holder is.

use crate::error::{PmemError, Result};
use std::{
    fs::{File, TryLockError},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// How long an opening waits for a lock.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for a lock whose holder is ending or gone: that takes as long as freeing the holder's memory.
const PATIENCE_WITH_THE_DYING: Duration = Duration::from_secs(10);
/// The least number of tries since the holder was last seen to be ending, or at all.
const TRIES_MIN: u32 = 8;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// The holder of a lock, as far as the kernel tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    ThisProcess,
    /// A process that is ending or gone.
    Dying,
    /// Another one, or none that is known.
    Other,
}

/// Locks the file, waiting for it as long as its holder may be about to end.
pub fn lock(file: &File, path: &Path, read_only: bool) -> Result<()> {
    let start = Instant::now();
    // Since when no holder is known to be ending, and how many tries there were since.
    let (mut since, mut tries) = (start, 0);
    let mut pause = Duration::from_millis(1);
    loop {
        match if read_only { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => {
                return Err(PmemError::File { path: path.to_owned(), action: "lock", source });
            }
        }
        tries += 1;
        let is_over = match holder(file) {
            Holder::ThisProcess => true,
            Holder::Dying => {
                (since, tries) = (Instant::now(), 0);
                start.elapsed() >= PATIENCE_WITH_THE_DYING
            }
            // The lock may have been released since the try, and this thread may not have run meanwhile.
            Holder::Other => since.elapsed() >= PATIENCE && tries >= TRIES_MIN,
        };
        if is_over {
            return Err(PmemError::Locked {
                path: path.to_owned(),
                hint: "one process may change a store, or several may read it; close the other one first",
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn holder(file: &File) -> Holder {
    let (Ok(locks), Ok(about)) = (std::fs::read_to_string("/proc/locks"), file.metadata()) else {
        return Holder::Other;
    };
    let device = about.dev();
    let place = format!("{:02x}:{:02x}:{}", libc::major(device), libc::minor(device), about.ino());
    let (mut is_any_alive, mut is_any_dying) = (false, false);
    for process in locks.lines().filter_map(|line| holder_in(line, &place)) {
        if process == std::process::id() {
            return Holder::ThisProcess;
        }
        let is_dying = is_dying(process);
        (is_any_alive, is_any_dying) = (is_any_alive || !is_dying, is_any_dying || is_dying);
    }
    if is_any_dying && !is_any_alive { Holder::Dying } else { Holder::Other }
}

/// The process that a line of `/proc/locks` names, if the line is about a lock on the file at `place`: `1: FLOCK
/// ADVISORY  WRITE 1234 fe:00:5513301 0 EOF`. Lines of waiting processes have an arrow.
fn holder_in(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let is_held = words.next() == Some("FLOCK");
    let process = words.nth(2)?;
    (is_held && words.next() == Some(place)).then(|| process.parse().ok())?
}

/// Whether a process is ending or gone.
fn is_dying(process: u32) -> bool {
    std::fs::read(format!("/proc/{process}/stat"))
        .map_or(true, |about| is_ending(&String::from_utf8_lossy(&about)).unwrap_or(false))
}

/// Whether a process is ending by the kernel's status line: `1234 (name) S 1 2 3 4 5 flags ...`. The name may contain
/// anything.
fn is_ending(about: &str) -> Option<bool> {
    /// `PF_EXITING` of the kernel.
    const EXITING: u64 = 4;
    /// `SIGKILL` among the signals that have not been delivered yet. Delivery waits while the process is in the kernel:
    /// in a sync for which the device takes long.
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let (_, rest) = about.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let is_zombie = words.next() == Some("Z");
    let mut has = |index, flag| words.nth(index)?.parse::<u64>().ok().map(|flags| flags & flag != 0);
    let is_exiting = has(5, EXITING).unwrap_or(false);
    let is_killed = has(21, KILLED).unwrap_or(false);
    Some(is_zombie || is_exiting || is_killed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::process::Command;

    /// The variable by which the test tells the process that it starts which file to lock.
    const FILE_VARIABLE: &str = "VELLUM_PMEM_LOCKED";

    #[test]
    fn a_lock_is_waited_for_while_its_holder_may_be_about_to_end() {
        if let Some(path) = std::env::var_os(FILE_VARIABLE) {
            let file = File::open(&path).unwrap();
            file.try_lock().unwrap();
            std::fs::write(Path::new(&path).with_extension("held"), "").unwrap();
            std::thread::sleep(Duration::from_millis(60));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let file = File::create(&path).unwrap();
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["locking::tests::a_lock_is_waited_for_while_its_holder_may_be_about_to_end", "--exact"])
            .env(FILE_VARIABLE, &path)
            .spawn()
            .unwrap();
        while !path.with_extension("held").exists() {
            std::thread::yield_now();
        }
        assert!(file.try_lock().is_err());
        lock(&file, &path, false).unwrap();
        assert!(holder.wait().unwrap().success());
        // This process would wait for itself.
        let start = Instant::now();
        let error = lock(&File::open(&path).unwrap(), &path, true).unwrap_err();
        assert!(matches!(error, PmemError::Locked { .. }) && start.elapsed() < PATIENCE, "{error}");
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let place = "fe:00:5513301";
        assert_eq!(holder_in("1: FLOCK  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF", place), Some(1234));
        assert_eq!(holder_in("1: FLOCK  ADVISORY  WRITE 1234 fe:00:551330 0 EOF", place), None);
        assert_eq!(holder_in("1: -> FLOCK  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF", place), None);
        assert_eq!(holder_in("1: POSIX  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF", place), None);
        assert!(!is_dying(std::process::id()) && is_dying(u32::MAX));
        for (state, flags, signals, is) in [
            ("D", 64, 0, false),
            ("D", 64, 256, true),
            ("R", 68, 0, true),
            ("Z", 64, 0, true),
            ("S", 64, 512, false),
        ] {
            let about = format!("9 (a) b) {state} 1 2 3 4 5 {flags}{} {signals} 0", " 256".repeat(21));
            assert_eq!(is_ending(&about), Some(is), "{about}");
        }
    }
}
