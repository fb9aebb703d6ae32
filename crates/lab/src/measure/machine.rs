//! What the machine is and what a process used: the manifest of a run, resident sizes, bytes read and
//! written. Everything comes from `/proc` and `/sys`; what cannot be read is left out, never guessed.

use crate::measure::line;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The facts without which a figure means nothing. The first line of every run with `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    kind: &'static str,
    lab_version: &'static str,
    /// Whether the lab was built with optimisation; figures from a debug build are worthless.
    optimised: bool,
    /// The commit of the working folder's repository, `-dirty` if it has changes.
    commit: Option<String>,
    /// The start of the run, in UTC.
    date: String,
    command: Vec<String>,
    cpu_model: Option<String>,
    cpu_count: usize,
    memory_bytes: Option<u64>,
    kernel: Option<String>,
    directory: String,
    file_system: Option<String>,
    file_system_options: Option<String>,
    device: Option<String>,
    transparent_huge_pages: Option<String>,
    transparent_huge_pages_defrag: Option<String>,
    swappiness: Option<u64>,
    lmdb_version: &'static str,
    /// How long a cache line takes from one processor to another at the start of the run.
    line_ns: Option<f64>,
}

impl Manifest {
    /// Collects the facts; `directory` is where the files of the run will lie.
    pub fn collect(directory: &Path) -> Self {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let mount =
            fs::read_to_string("/proc/self/mountinfo").ok().and_then(|table| Mount::of(&table, &directory));
        let (file_system, file_system_options, device) = match mount {
            Some(mount) => (Some(mount.file_system), Some(mount.options), Some(mount.device)),
            None => (None, None, None),
        };
        Self {
            kind: "manifest",
            lab_version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            commit: commit(),
            date: utc(SystemTime::now()),
            command: std::env::args().collect(),
            cpu_model: field("/proc/cpuinfo", "model name"),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes("/proc/meminfo", "MemTotal"),
            kernel: line("/proc/sys/kernel/osrelease"),
            directory: directory.display().to_string(),
            file_system,
            file_system_options,
            device,
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            transparent_huge_pages_defrag: line("/sys/kernel/mm/transparent_hugepage/defrag"),
            swappiness: line("/proc/sys/vm/swappiness").and_then(|text| text.parse().ok()),
            lmdb_version: heed::lmdb_version().string,
            line_ns: line::line_ns(),
        }
    }
}

/// Bytes that a process has caused to be read from and written to storage, as the kernel counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StorageBytes {
    /// Read from the device, by system calls, io_uring or page faults.
    pub read: u64,
    /// Made dirty or written directly.
    pub written: u64,
}

impl StorageBytes {
    /// What this process has used so far; zeroes where the kernel does not say.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let number = |name: &str| lookup(&text, name).and_then(|value| value.parse().ok()).unwrap_or(0);
        Self { read: number("read_bytes"), written: number("write_bytes") }
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            read: self.read.saturating_sub(earlier.read),
            written: self.written.saturating_sub(earlier.written),
        }
    }
}

/// The largest resident size that this process has had since it started or since
/// [`reset_resident_bytes_max`], in bytes, as the kernel tracks it (`VmHWM`). It counts every resident page:
/// anonymous ones and pages of mapped files alike.
pub fn resident_bytes_max() -> u64 {
    kibibytes("/proc/self/status", "VmHWM").unwrap_or(0)
}

/// Makes [`resident_bytes_max`] start again from the present size. Where the kernel refuses, the maximum
/// since the start of the process stays, which is larger.
pub fn reset_resident_bytes_max() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// How much room the files take that this process has open and that have no name any more, in bytes.
pub fn unnamed_files_bytes() -> u64 {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let is_unnamed = target.starts_with("/") && target.to_string_lossy().ends_with(" (deleted)");
        is_unnamed.then(|| fs::metadata(entry.path()).ok()).flatten().map(|file| file.blocks() * 512)
    };
    open.filter_map(size).sum()
}

/// The time that all processors have spent for this process.
pub fn processor_time() -> Duration {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there for the length of the call, which fills it.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return Duration::ZERO;
    }
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Lets the files below a folder leave the system's cache, after what is to be written has been.
///
/// # Errors
/// If one of them cannot be opened or written.
pub fn forget_files(folder: &Path) -> crate::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget_files(&entry.path())?;
            continue;
        }
        let file = fs::File::open(entry.path())?;
        file.sync_all()?;
        // SAFETY: the descriptor is open for the length of the call, which touches no memory.
        if unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } != 0 {
            return Err(format!("{}: the system keeps it in its cache", entry.path().display()).into());
        }
    }
    Ok(())
}

/// Memory that the kernel could give to new work without swapping, in bytes.
pub fn available_bytes() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemAvailable")
}

/// One mounted file system.
struct Mount {
    file_system: String,
    options: String,
    device: String,
}

impl Mount {
    /// The mount that holds `path`, from a table in the form of `/proc/self/mountinfo`.
    fn of(table: &str, path: &Path) -> Option<Self> {
        let mut best: Option<(usize, Self)> = None;
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(point) = left.split(' ').nth(4) else { continue };
            let mut fields = right.split(' ');
            let (Some(file_system), Some(device)) = (fields.next(), fields.next()) else { continue };
            // A later mount on the same point hides the earlier one, hence `>=`.
            if path.starts_with(point) && best.as_ref().is_none_or(|(length, _)| point.len() >= *length) {
                let mount = Self {
                    file_system: file_system.to_owned(),
                    options: left.split(' ').nth(5).unwrap_or_default().to_owned(),
                    device: device.to_owned(),
                };
                best = Some((point.len(), mount));
            }
        }
        best.map(|(_, mount)| mount)
    }
}

/// The commit that the working folder is at, if it is a repository and `git` is there.
fn commit() -> Option<String> {
    let output =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=40"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The trimmed contents of a file of one line.
fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The first value of `name` in a file of lines `name: value`.
fn field(path: &str, name: &str) -> Option<String> {
    lookup(&fs::read_to_string(path).ok()?, name).map(str::to_owned)
}

/// A field that is given in kB, in bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = field(path, name)?;
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn lookup<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

/// A moment as `2026-01-31T23:59:59Z`.
fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!(
        "{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        month + 1,
        days + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn dates() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn the_innermost_mount_is_found() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                     30 22 0:26 / /data rw,noatime - xfs /dev/vdb rw\n\
                     31 22 0:27 / /database rw - tmpfs tmpfs rw\n";
        let name = |path: &str| Mount::of(table, Path::new(path)).map(|mount| mount.file_system);
        assert_eq!(name("/data/x").as_deref(), Some("xfs"));
        assert_eq!(name("/database").as_deref(), Some("tmpfs"));
        assert_eq!(name("/home").as_deref(), Some("ext4"));
    }

    #[test]
    fn the_resident_maximum_follows_memory_that_is_touched() {
        let follows = || {
            reset_resident_bytes_max();
            let before = resident_bytes_max();
            let memory = vec![1u8; 32 << 20];
            std::hint::black_box(&memory);
            resident_bytes_max() >= before + (24 << 20)
        };
        // Other tests of this process may give up as much memory in the same moment.
        assert!((0..50).any(|_| follows()));
    }

    #[test]
    fn files_without_a_name_are_found() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        assert!(unnamed_files_bytes() >= 1 << 20);
    }

    #[test]
    fn a_manifest_names_the_machine() {
        let text = serde_json::to_value(Manifest::collect(Path::new("."))).unwrap();
        assert_eq!(text["kind"], "manifest");
        assert!(text["cpu_count"].as_u64().unwrap() >= 1);
        assert!(text["memory_bytes"].as_u64().unwrap() > 0);
        assert!(text["kernel"].is_string() && text["file_system"].is_string());
    }
}
