//! A limit for the memory of child processes: a memory cgroup, and a file to which the kernel swaps what is beyond.
//!
//! Both are of the machine, and not of a process, so they are taken back in every way in which a run may end: when the limit is dropped,
//! also by a panic; by a handler when a signal ends the process; and by the next run if the process was killed. The handler makes
//! system calls only.
//!
//! This is the memory cgroup of version 1, and needs root. What the kernel counts as swapped it counts for the whole machine.

use crate::Result;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;
use vellum_base::PAGE_SIZE;

/// Where memory cgroups of version 1 are.
const GROUPS: &str = "/sys/fs/cgroup/memory";
/// How the names of those of this program begin, and of its files to swap to; the number of the process follows.
const GROUP_PREFIX: &str = "vellum-lab-";
const SWAP_PREFIX: &str = "vellum-lab-swap-";

/// A memory cgroup with a limit, and swap.
pub struct MemoryLimit {
    cleaner: *mut Cleaner,
}

/// What is to be taken back.
struct Cleaner {
    swap: CString,
    group: CString,
    /// The process in the group; zero if there is none.
    child: AtomicI32,
}

/// What a signal takes back.
static CLEANER: AtomicPtr<Cleaner> = AtomicPtr::new(ptr::null_mut());

/// The signals that end a process and can be handled.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

impl MemoryLimit {
    /// Makes a cgroup with so many bytes of memory, and so many bytes of swap in a file in a folder.
    ///
    /// # Errors
    /// If the system has no such cgroups, or the process may not use them or swap: with what to do.
    pub fn new(folder: &Path, bytes: u64, swap_bytes: u64) -> Result<Self> {
        if !Path::new(GROUPS).join("memory.limit_in_bytes").exists() {
            let what = format!(
                "--memory-limit needs the memory cgroup of version 1 at {GROUPS}: mount it with `mount -t cgroup -o memory cgroup {GROUPS}`"
            );
            return Err(what.into());
        }
        sweep();
        let process = std::process::id();
        let group = Path::new(GROUPS).join(format!("{GROUP_PREFIX}{process}"));
        let swap = folder.canonicalize()?.join(format!("{SWAP_PREFIX}{process}"));
        let cleaner = Box::new(Cleaner {
            swap: CString::new(swap.as_os_str().as_bytes())?,
            group: CString::new(group.as_os_str().as_bytes())?,
            child: AtomicI32::new(0),
        });
        let cleaner = Box::into_raw(cleaner);
        // Release: for the handler.
        if CLEANER.compare_exchange(ptr::null_mut(), cleaner, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: made by `Box::into_raw`, and known here only.
            drop(unsafe { Box::from_raw(cleaner) });
            return Err("there is a memory limit already".into());
        }
        // From here on dropping it takes back what there is of it.
        let limit = Self { cleaner };
        for signal in SIGNALS {
            // SAFETY: the handler makes system calls only.
            unsafe { libc::signal(signal, clean_at_signal as *const () as libc::sighandler_t) };
        }
        let root = |error: io::Error, what: &str| format!("{what}: {error}; --memory-limit needs root");
        fs::create_dir(&group).map_err(|error| root(error, &group.display().to_string()))?;
        fs::write(group.join("memory.limit_in_bytes"), bytes.to_string())
            .map_err(|error| root(error, "the limit of a memory cgroup"))?;
        make_swap(&swap, swap_bytes)?;
        // SAFETY: a path that is there for the call.
        if unsafe { libc::swapon(limit.cleaner().swap.as_ptr(), 0) } != 0 {
            return Err(root(io::Error::last_os_error(), "swapon").into());
        }
        Ok(limit)
    }

    fn cleaner(&self) -> &Cleaner {
        // SAFETY: made by `Box::into_raw`, and lives as long as `self`.
        unsafe { &*self.cleaner }
    }

    /// The folder of the cgroup.
    pub fn group(&self) -> PathBuf {
        Path::new(std::ffi::OsStr::from_bytes(self.cleaner().group.to_bytes())).to_owned()
    }

    /// Names the process that will be in the group: a signal kills it.
    pub fn set_child(&self, process: u32) {
        // Relaxed: for a handler on this thread.
        self.cleaner().child.store(process.cast_signed(), Ordering::Relaxed);
    }

    /// Waits for that process to end, and throws out what it has left in the group.
    ///
    /// # Errors
    /// Those of the system.
    pub fn wait(&self, child: &mut Child) -> Result<ExitStatus> {
        let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the call fills the structure. The process keeps its number until it is waited for below, when no handler knows it.
        unsafe {
            libc::waitid(libc::P_PID, child.id(), information.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT);
        }
        self.set_child(0);
        let status = child.wait()?;
        fs::write(self.group().join("memory.force_empty"), "0")?;
        fs::write(self.group().join("memory.max_usage_in_bytes"), "0")?;
        Ok(status)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = CLEANER.compare_exchange(self.cleaner, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`, and the handler does not find it any more.
        let cleaner = unsafe { Box::from_raw(self.cleaner) };
        // A group is busy for a moment after its last process.
        for _ in 0..100 {
            if cleaner.clean() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Cleaner {
    /// Ends the child, and takes back the swap and the group; says whether both are gone. System calls only.
    fn clean(&self) -> bool {
        let child = self.child.load(Ordering::Relaxed);
        // SAFETY: the child was not waited for if it is named here, so that the number is its own; the paths are there for the calls.
        unsafe {
            if child > 0 {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, ptr::null_mut(), 0);
            }
            libc::swapoff(self.swap.as_ptr());
            libc::unlink(self.swap.as_ptr());
            libc::rmdir(self.group.as_ptr());
        }
        !exists(&self.swap) && !exists(&self.group)
    }
}

fn exists(path: &CStr) -> bool {
    // SAFETY: a path that is there for the call.
    unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
}

extern "C" fn clean_at_signal(signal: libc::c_int) {
    // Acquire: see `new`.
    let cleaner = CLEANER.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: it is not freed while it is named there, unless by this thread, which is here. All calls may be made in a handler.
    unsafe {
        if !cleaner.is_null() {
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            for _ in 0..100 {
                if (*cleaner).clean() {
                    break;
                }
                (*cleaner).child.store(0, Ordering::Relaxed);
                libc::nanosleep(&raw const pause, ptr::null_mut());
            }
        }
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Writes a file to swap to.
fn make_swap(path: &Path, bytes: u64) -> Result<()> {
    let pages = bytes.div_ceil(PAGE_SIZE as u64);
    let mut file = File::create(path)?;
    // SAFETY: a file of this function's. Swap may have no holes.
    let failure = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, (pages * PAGE_SIZE as u64) as i64) };
    if failure != 0 {
        let error = io::Error::from_raw_os_error(failure);
        return Err(format!("{}: {error}", path.display()).into());
    }
    // The header: version, last page and no bad pages at 1024, and what it is at the end.
    let mut header = [0u8; PAGE_SIZE];
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&u32::try_from(pages - 1)?.to_ne_bytes());
    header[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    file.write_all(&header)?;
    Ok(file.sync_all()?)
}

/// Takes back what processes have left that were killed.
fn sweep() {
    let is_left = |name: &str, prefix: &str| {
        let process = name.strip_prefix(prefix).filter(|number| number.parse::<u32>().is_ok());
        process.is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for path in swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        if let (true, Ok(path)) = (is_left(&name, SWAP_PREFIX), CString::new(path)) {
            // SAFETY: a path that is there for the calls.
            unsafe {
                libc::swapoff(path.as_ptr());
                libc::unlink(path.as_ptr());
            }
        }
    }
    for group in fs::read_dir(GROUPS).into_iter().flatten().flatten() {
        if is_left(&group.file_name().to_string_lossy(), GROUP_PREFIX) {
            let _ = fs::remove_dir(group.path());
        }
    }
}

/// Has this process killed when the one that started it ends.
pub fn end_with_parent() {
    // SAFETY: a system call without pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Enters a cgroup, which counts what the process allocates from now on. Memory that it has freed goes back to the system first.
///
/// # Errors
/// If the system refuses it.
pub fn enter(group: &Path) -> Result<()> {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator may do so at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    Ok(fs::write(group.join("cgroup.procs"), std::process::id().to_string())?)
}

/// What the kernel has counted: pages that were read from swap and written there, of the whole machine, and faults of this process that had
/// to wait for the device.
pub fn counted() -> [(&'static str, u64); 3] {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    // SAFETY: all zero is a valid one, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    [
        ("pages_swapped_in", of("pswpin")),
        ("pages_swapped_out", of("pswpout")),
        ("major_faults", usage.ru_majflt.cast_unsigned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_to_swap_to_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap");
        make_swap(&path, 1 << 20).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 1 << 20);
        assert_eq!(bytes[1024..1036], [1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[PAGE_SIZE - 10..PAGE_SIZE], b"SWAPSPACE2");
    }

    #[test]
    fn what_is_made_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let limit = match MemoryLimit::new(folder.path(), 8 << 20, 16 << 20) {
            Ok(limit) => limit,
            // Not everybody may.
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("--memory-limit needs"), "{text}");
                assert!(!Path::new(GROUPS).join(format!("{GROUP_PREFIX}{}", std::process::id())).exists());
                return;
            }
        };
        let (group, swaps) = (limit.group(), || fs::read_to_string("/proc/swaps").unwrap());
        let swap = format!("{SWAP_PREFIX}{}", std::process::id());
        assert!(swaps().contains(&swap));
        assert_eq!(
            fs::read_to_string(group.join("memory.limit_in_bytes")).unwrap().trim(),
            (8 << 20).to_string()
        );
        // A second one is refused, and takes nothing back.
        let second = MemoryLimit::new(folder.path(), 8 << 20, 16 << 20);
        assert!(second.is_err() && group.exists() && swaps().contains(&swap));
        drop(limit);
        assert!(!group.exists() && !swaps().contains(&swap));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
