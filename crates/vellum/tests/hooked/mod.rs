//! A simulated disk that calls a function before each write and each sync.

use std::{fmt, io, sync::Arc};
use vellum::Directory;
use vellum_vm::{File, FileDescription, FileOptions, Queue, Request, SimulatedDisk, VmError};

type Hook = Arc<dyn Fn() + Send + Sync>;

/// The disk.
pub struct Hooked {
    disk: SimulatedDisk,
    hook: Hook,
}

impl Hooked {
    /// Calls `hook` from now on.
    pub fn new(disk: SimulatedDisk, hook: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { disk, hook: Arc::new(hook) })
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(formatter)
    }
}

impl Directory for Hooked {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        Ok(Arc::new(HookedFile { file: self.disk.open(name, options)?, hook: self.hook.clone() }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
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

struct HookedFile {
    file: Arc<dyn File>,
    hook: Hook,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(formatter)
    }
}

impl File for HookedFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: as for the caller.
        unsafe { self.file.read(offset, address, bytes) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        (self.hook)();
        // SAFETY: as for the caller.
        unsafe { self.file.write(offset, address, bytes) }
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        // SAFETY: as for the caller.
        unsafe { self.file.run(requests) }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        self.file.queue(depth)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)();
        self.file.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        self.file.grow(to)
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        self.file.truncate(to)
    }

    fn description(&self) -> FileDescription {
        self.file.description()
    }
}
