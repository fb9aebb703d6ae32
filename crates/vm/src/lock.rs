//! Opening a file for exclusive use: `flock`, exclusive for writers and shared for readers.
//!
//! The kernel releases the lock of a killed process some time after the process is seen to be dead: its memory goes
//! first, and a ring of io_uring keeps its file open, as it must while a write is under way, until a kernel thread has
//! torn the ring down. So an opening waits a little for a lock, and longer while it sees that the holder is ending or
//! gone. `/proc/locks`, where it exists, tells which process the holder is.
//!
//! The lock belongs to the open file and not to its name. If the name leads to another file once the lock is taken, a
//! former holder has removed or replaced the file, so the opening starts again.

use crate::file::{CreateMode, FileOptions};
use crate::{LockHolder, VmError};
use std::ffi::CString;
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an opening waits for a lock.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for a lock whose holder is ending or gone: that takes as long as freeing the holder's memory, and
/// as long as a busy machine keeps the kernel from tearing its rings down.
const PATIENCE_WITH_THE_DYING: Duration = Duration::from_secs(10);
/// The least number of tries since the holder was last seen to be ending, or at all.
const TRIES_MIN: u32 = 8;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// How often an opening starts again because the file was replaced meanwhile.
const OPENINGS_MAX: u32 = 100;

/// Opens, and possibly creates, the file at `path` and locks it; returns whether it was created.
pub(crate) fn open_locked(path: &Path, options: &FileOptions) -> Result<(File, bool), VmError> {
    let failed = |source| VmError::Open { path: path.to_owned(), action: action(options), source };
    for _ in 0..OPENINGS_MAX {
        let (file, created) = open_or_create(path, options).map_err(failed)?;
        lock(&file, path, options.read_only)?;
        if leads_to(path, &file) {
            return Ok((file, created));
        }
    }
    Err(failed(io::Error::other("it was replaced by another file again and again")))
}

/// The name of the action of opening a file with these options, for errors.
fn action(options: &FileOptions) -> &'static str {
    match (options.create, options.read_only) {
        (CreateMode::CreateNew, _) => "create",
        (CreateMode::OpenOrCreate, false) => "open or create",
        (_, true) => "open for reading",
        _ => "open for reading and writing",
    }
}

fn open_or_create(path: &Path, options: &FileOptions) -> io::Result<(File, bool)> {
    let check = |about: Metadata| {
        let not_regular = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        about.is_file().then_some(()).ok_or_else(not_regular)
    };
    let existing = || -> io::Result<(File, bool)> {
        // Before it is opened: opening a pipe for reading waits until another process opens it for writing.
        check(std::fs::metadata(path)?)?;
        let file = File::options().read(true).write(!options.read_only).open(path)?;
        check(file.metadata()?)?;
        Ok((file, false))
    };
    let new = || Ok((create_locked(path)?, true));
    let outcome = match options.create {
        _ if options.read_only => existing(),
        CreateMode::OpenExisting => existing(),
        CreateMode::CreateNew => new(),
        CreateMode::OpenOrCreate => match existing() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match new() {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => existing(),
                other => other,
            },
            other => other,
        },
    };
    outcome.map_err(|error| explain_link(path, error))
}

/// Creates a file that is locked before it has its name. Otherwise another one could lock it first, and take it for an
/// empty file that was there before. Where the system has no files without a name, it is locked later.
fn create_locked(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut nameless = File::options();
    nameless.read(true).write(true).custom_flags(libc::O_TMPFILE);
    if let Ok(file) = nameless.open(directory.unwrap_or(Path::new(".")))
        && file.try_lock().is_ok()
    {
        match give_name(&file, path) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
    }
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Gives a file without a name this one, unless something has it.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let source = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let target = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both strings end with a zero, and live until the call returns.
    if unsafe { libc::linkat(here, source.as_ptr(), here, target.as_ptr(), follow) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Explains the error if the path is a link to a file that does not exist: the kernel reports that as existing, or not.
fn explain_link(path: &Path, error: io::Error) -> io::Error {
    let misleading = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists);
    match std::fs::read_link(path) {
        Ok(target) if misleading && !path.exists() => io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "it is a symbolic link to {}, which does not exist; name that file itself, or remove the link",
                vellum_base::shown(&target)
            ),
        ),
        _ => error,
    }
}

fn leads_to(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(here)) => (there.dev(), there.ino()) == (here.dev(), here.ino()),
        // A missing name means that the file was removed; a name that cannot be examined means nothing.
        (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
        _ => true,
    }
}

/// Takes the lock of an open file, shared if it is for reading only; waits for it as long as its holder may be about to end.
/// `path` is for errors.
///
/// # Errors
/// [`VmError::Locked`] if another process, or another opening of this one, keeps it; [`VmError::Open`] if the system refuses.
pub fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), VmError> {
    let mut patience = Patience::new(Instant::now());
    let mut pause = Duration::from_millis(1);
    loop {
        match if read_only { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => {
                return Err(VmError::Open { path: path.to_owned(), action: "lock", source });
            }
        }
        let (holder, is_dying) = holder(file);
        if patience.is_over(&holder, is_dying, Instant::now()) {
            return Err(VmError::Locked { path: path.to_owned(), holder, to_write: !read_only });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// How long to wait for a lock.
struct Patience {
    start: Instant,
    /// Since when no holder is known to be ending, and how many tries there were since.
    since: Instant,
    tries: u32,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { start: now, since: now, tries: 0 }
    }

    /// Whether the wait is over, after a try that found this holder.
    fn is_over(&mut self, holder: &LockHolder, is_dying: bool, now: Instant) -> bool {
        self.tries += 1;
        match holder {
            LockHolder::ThisProcess => true,
            _ if is_dying => {
                (self.since, self.tries) = (now, 0);
                now.duration_since(self.start) >= PATIENCE_WITH_THE_DYING
            }
            // The lock may have been released since the try, and this thread may not have run meanwhile.
            _ => now.duration_since(self.since) >= PATIENCE && self.tries >= TRIES_MIN,
        }
    }
}

/// The holder of a lock on the file, as far as the kernel tells, and whether that process is ending or gone.
fn holder(file: &File) -> (LockHolder, bool) {
    /// The kernel tells the locks in pieces, by their numbers in the list: one is passed over if others are released between two pieces.
    const READS: usize = 8;
    let read = |_| Some(listed_holder(file)).filter(|found| *found != (LockHolder::Unknown, false));
    (0..READS).find_map(read).unwrap_or((LockHolder::Unknown, false))
}

/// The same after one look at the list of locks.
fn listed_holder(file: &File) -> (LockHolder, bool) {
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return (LockHolder::Unknown, false) };
    let Ok(about) = file.metadata() else { return (LockHolder::Unknown, false) };
    let device = about.dev();
    let place = format!("{:02x}:{:02x}:{}", libc::major(device), libc::minor(device), about.ino());
    let mut found = (LockHolder::Unknown, false);
    for process in locks.lines().filter_map(|line| holder_in(line, &place)) {
        if process == std::process::id() {
            return (LockHolder::ThisProcess, false);
        }
        match describe(process) {
            Some((name, is_dying)) => found = (LockHolder::Process { process, name }, is_dying),
            // It has left the lock to the kernel, or to a child, of which nothing is known.
            None if found.0 == LockHolder::Unknown => found.1 = true,
            None => {}
        }
    }
    found
}

/// The process that a line of `/proc/locks` names, if the line is about a lock on the file at `place`: `1: FLOCK
/// ADVISORY  WRITE 1234 fe:00:5513301 0 EOF`. Lines of waiting processes have an arrow.
fn holder_in(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let is_held = words.next() == Some("FLOCK");
    let process = words.nth(2)?;
    (is_held && words.next() == Some(place)).then(|| process.parse().ok())?
}

/// The name of a process, and whether it is ending; `None` if there is no process with that number.
fn describe(process: u32) -> Option<(String, bool)> {
    match std::fs::read(format!("/proc/{process}/stat")) {
        Ok(about) => describe_status(&String::from_utf8_lossy(&about)),
        // Where processes are hidden (`hidepid`), it may be there all the same.
        Err(_) => describe_hidden(process).map(|about| (about.to_owned(), false)),
    }
}

/// What can be said of a process that `/proc` does not show; `None` if there is no process with that number.
fn describe_hidden(process: u32) -> Option<&'static str> {
    // Zero would stand for all processes of this one's group.
    let process = libc::pid_t::try_from(process).ok().filter(|process| *process > 0)?;
    // SAFETY: signal 0 is not sent; it is only checked whether it could be.
    if unsafe { libc::kill(process, 0) } == 0 {
        // It has capabilities that this one lacks, or does not let itself be traced.
        return Some("hidden in /proc");
    }
    let is_refused = io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    is_refused.then_some("of another user")
}

/// The same from the kernel's status line: `1234 (name) S 1 2 3 4 5 flags ...`. The name may contain anything.
fn describe_status(about: &str) -> Option<(String, bool)> {
    /// `PF_EXITING` of the kernel.
    const EXITING: u64 = 4;
    /// `SIGKILL` among the signals that have not been delivered yet. Delivery waits while the process is in the kernel:
    /// in a write or a sync for which the device takes long.
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let (name, rest) = about.split_once('(')?.1.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let is_zombie = words.next() == Some("Z");
    let mut has = |index, flag| words.nth(index)?.parse::<u64>().ok().map(|flags| flags & flag != 0);
    let is_exiting = has(5, EXITING).unwrap_or(false);
    let is_killed = has(21, KILLED).unwrap_or(false);
    Some((name.escape_debug().to_string(), is_zombie || is_exiting || is_killed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refuse::refuse;

    #[test]
    fn a_lock_is_tried_again_after_its_holder_has_gone() {
        let (start, unknown) = (Instant::now(), LockHolder::Unknown);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut patience = Patience::new(start);
        // For half a second the holder is ending; then no holder is found, because the lock was released a moment ago.
        assert!((0..50).all(|number| !patience.is_over(&unknown, true, at(number * 10))));
        assert!((1..TRIES_MIN).all(|_| !patience.is_over(&unknown, false, at(900))));
        assert!(patience.is_over(&unknown, false, at(900)));
        // A thread that did not run for a while does not give up either.
        let mut patience = Patience::new(start);
        assert!(!patience.is_over(&unknown, false, at(300)));
        assert!(patience.is_over(&LockHolder::ThisProcess, false, at(300)));
        let mut patience = Patience::new(start);
        assert!((0..100).all(|number| !patience.is_over(&unknown, false, at(number))));
        assert!(patience.is_over(&unknown, false, at(200)));
        assert!(Patience::new(start).is_over(&unknown, true, at(10_000)));
    }

    /// While other locks come and go.
    #[test]
    fn the_holder_is_found_among_many() {
        let place = tempfile::tempdir().unwrap();
        let create = |name: usize| File::create(place.path().join(name.to_string())).unwrap();
        let files: Vec<_> = (0..400).map(create).collect();
        let held = create(1000);
        files.iter().chain([&held]).for_each(|file| file.lock().unwrap());
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    files.iter().for_each(|file| file.unlock().unwrap());
                    files.iter().for_each(|file| file.lock().unwrap());
                }
            });
            let found = (0..300).filter(|_| holder(&held) == (LockHolder::ThisProcess, false)).count();
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(found, 300);
        });
    }

    #[test]
    fn a_process_that_is_hidden_is_not_taken_for_one_that_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let alone = std::thread::spawn(move || {
            let (here, hidden) = (std::process::id(), |about: &str| Some((about.to_owned(), false)));
            refuse(libc::SYS_openat, libc::ENOENT);
            assert_eq!(describe(here), hidden("hidden in /proc"));
            assert_eq!([child.id(), 0, u32::MAX].map(describe), [None, None, None]);
            refuse(libc::SYS_kill, libc::EPERM);
            assert_eq!(describe(here), hidden("of another user"));
        });
        alone.join().unwrap();
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let place = "fe:00:5513301";
        let held = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF";
        assert_eq!(holder_in(held, place), Some(1234));
        assert_eq!(holder_in("12: FLOCK  ADVISORY  READ 9 fe:00:5513301 0 EOF", place), Some(9));
        assert_eq!(holder_in(held, "fe:00:551330"), None);
        assert_eq!(holder_in("1: -> FLOCK  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF", place), None);
        assert_eq!(holder_in("1: POSIX  ADVISORY  WRITE 1234 fe:00:5513301 0 EOF", place), None);
        assert_eq!(holder_in("1: FLOCK  ADVISORY  WRITE -1 fe:00:5513301 0 EOF", place), None);
        assert_eq!(holder_in("", place), None);
        let (_, is_dying) = describe(std::process::id()).unwrap();
        assert!(!is_dying);
        assert_eq!(describe(u32::MAX), None);
        for (state, flags, signals, is_ending) in [
            ("D", 64, 0, false),
            ("D", 64, 256, true),
            ("R", 68, 0, true),
            ("Z", 64, 0, true),
            ("S", 64, 512, false),
        ] {
            let about = format!("9 (a) b) {state} 1 2 3 4 5 {flags}{} {signals} 0", " 256".repeat(21));
            assert_eq!(describe_status(&about), Some(("a) b".into(), is_ending)), "{about}");
        }
    }
}
