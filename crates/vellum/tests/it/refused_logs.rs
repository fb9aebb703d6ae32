//! Salvage of databases whose logs the system does not give now, and of those that have lost them.

use crate::support::options;
use std::{io, sync::Arc};
use vellum::{Database, Directory, LeftBy, Salvage};
use vellum_base::io_causes;
use vellum_vm::{File, FileOptions, SimulatedDisk, VmError};

/// A disk that does not give its log.
#[derive(Debug)]
struct WithoutLog {
    disk: SimulatedDisk,
    /// What the system reports.
    error: i32,
    /// Whether listing the files fails, and not opening them.
    at_listing: bool,
}

impl WithoutLog {
    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.error)
    }
}

impl Directory for WithoutLog {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        if !self.at_listing && name.starts_with("segment") {
            return Err(VmError::Open { path: name.into(), action: "open", source: self.error() });
        }
        self.disk.open(name, options)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        if self.at_listing { Err(self.error()) } else { self.disk.names() }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

fn crashed(has_superblocks: bool) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..300u32 {
        table.put(number.to_be_bytes(), b"value").unwrap();
    }
    database.checkpoint().unwrap();
    table.put(b"later", b"value").unwrap();
    database.sync().unwrap();
    let crashed = disk.crash();
    if !has_superblocks {
        (0..2).for_each(|page| crashed.file("data").flip_bit(page * 4096 * 8 + 3000));
    }
    crashed
}

/// Opens a crashed database without its log, which fails with this error.
fn salvage(error: i32, at_listing: bool, has_superblocks: bool) -> vellum::Result<Salvage> {
    let disk = WithoutLog { disk: crashed(has_superblocks), error, at_listing };
    Salvage::open_in(Arc::new(disk), "data", &options())
}

#[test]
fn a_log_that_the_system_does_not_give_now_is_not_damaged() {
    use libc::{EACCES, EINTR, EMFILE, ENFILE, ENOLCK, ENOMEM, ENOSPC};
    for code in [EACCES, EINTR, EMFILE, ENFILE, ENOLCK, ENOMEM, ENOSPC] {
        // Without superblocks the log is listed, and not opened.
        for (at_listing, has_superblocks) in [(false, true), (true, true), (true, false)] {
            let error = salvage(code, at_listing, has_superblocks).err();
            let error = error.unwrap_or_else(|| panic!("{code} counts as damage, listing: {at_listing}"));
            assert!(io_causes(&error).any(|cause| cause.raw_os_error() == Some(code)), "{error}");
            let advises = error.to_string().contains("ulimit -n");
            assert_eq!(advises, code == EMFILE, "{error}");
        }
    }
}

#[test]
fn what_is_missing_or_cannot_be_read_is_damage() {
    for code in [libc::EIO, libc::ENOENT, libc::ENOTDIR, libc::EUCLEAN, libc::EBADMSG] {
        for at_listing in [false, true] {
            let left = salvage(code, at_listing, true).unwrap();
            assert!(matches!(left.left_by(), LeftBy::CrashWithoutLog(_)), "{:?}", left.left_by());
            let left = salvage(code, at_listing, false).unwrap();
            assert!(matches!(left.left_by(), LeftBy::Unknown { .. }), "{:?}", left.left_by());
        }
    }
}
