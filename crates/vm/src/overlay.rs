//! Files that are changed only in memory: writes stay in the process, and the files stay as they are.
//!
//! This lets recovery run on a database that must not be changed. Memory is taken for written data, but not for zeroes.

use crate::{
    AlignedBuffer, Completion, CreateMode, Directory, File, FileDescription, FileOptions, Queue, Request,
    VmError, Wait, request::Operation,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
};
use vellum_base::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// A file, and the data written over it in memory. Handles share both.
#[derive(Clone)]
pub struct OverlayFile {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` if there is no file below.
    base: Option<Arc<dyn File>>,
    state: Arc<Mutex<State>>,
}

struct State {
    size: u64,
    /// How many bytes of the file below are still visible.
    base_bytes: u64,
    /// The written pages; `None` for zeroes.
    written: HashMap<u64, Option<Box<[u8; PAGE_SIZE]>>>,
}

impl OverlayFile {
    /// An overlay over a file, which is only read.
    ///
    /// # Errors
    /// If the file does not report its size.
    pub fn over(base: Arc<dyn File>) -> io::Result<Self> {
        let size = base.size()?;
        Ok(Self::with(Some(base), State::over(size)))
    }

    fn with(base: Option<Arc<dyn File>>, state: Arc<Mutex<State>>) -> Self {
        Self { shared: Arc::new(Shared { base, state }) }
    }

    /// What is known of it once it is closed, under this name below.
    fn known(&self, below: Option<&str>) -> Known {
        let (below, state) = (below.map(str::to_owned), self.shared.state.clone());
        Known { below, state, open: Arc::downgrade(&self.shared) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// The state of a file of `size` bytes over which nothing has been written.
    fn over(size: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { size, base_bytes: size, written: HashMap::new() }))
    }
}

impl File for OverlayFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        let state = self.lock();
        let end = offset + bytes as u64;
        // SAFETY: the caller vouches for the memory.
        unsafe { address.write_bytes(0, bytes) };
        let below = state.base_bytes.saturating_sub(offset).min(bytes as u64) as usize;
        if let Some(base) = self.shared.base.as_ref().filter(|_| below > 0) {
            // Direct I/O reads whole pages, and a file that was cut may end within one.
            let (part, whole) = (below % PAGE_SIZE, below - below % PAGE_SIZE);
            if whole > 0 {
                // SAFETY: as above, and this is a part of that memory.
                unsafe { base.read(offset, address, whole)? };
            }
            if part > 0 {
                let page = last_page(&**base, offset + whole as u64)?;
                // SAFETY: as above, and the rest of that memory is not shorter than the part of the page.
                unsafe { address.wrapping_add(whole).copy_from(page.as_ptr(), part) };
            }
        }
        for (index, page) in (offset / PAGE..end.div_ceil(PAGE)).enumerate() {
            let target = address.wrapping_add(index * PAGE_SIZE);
            match state.written.get(&page) {
                // SAFETY: as above: offsets and lengths are whole pages.
                Some(Some(written)) => unsafe { target.copy_from(written.as_ptr(), PAGE_SIZE) },
                // SAFETY: as above.
                Some(None) => unsafe { target.write_bytes(0, PAGE_SIZE) },
                None => {}
            }
        }
        if end > state.size { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        let mut state = self.lock();
        // SAFETY: the caller vouches for the memory, and that nothing changes it.
        let source = unsafe { std::slice::from_raw_parts(address, bytes) };
        for (page, part) in (offset / PAGE..).zip(source.as_chunks::<PAGE_SIZE>().0) {
            let contents = part.iter().any(|byte| *byte != 0).then(|| Box::new(*part));
            state.written.insert(page, contents);
        }
        state.size = state.size.max(offset + bytes as u64);
        Ok(())
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        for request in requests {
            let Request { operation, offset, address, bytes, .. } = *request;
            // SAFETY: passed on from the caller.
            request.result = unsafe {
                match operation {
                    Operation::Read => self.read(offset, address, bytes),
                    Operation::Write => self.write(offset, address, bytes),
                }
            };
        }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(OverlayQueue { file: self.clone(), depth: depth as usize, done: Vec::new() }))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.lock().size)
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.size = state.size.max(to);
        Ok(())
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.size = state.size.min(to);
        state.base_bytes = state.base_bytes.min(to);
        state.written.retain(|page, _| page * PAGE < to);
        Ok(())
    }

    fn description(&self) -> FileDescription {
        let nothing = FileDescription { direct: false, engine: crate::IoEngine::Pread, path: None };
        self.shared.base.as_ref().map_or(nothing, |base| base.description())
    }
}

/// The page of a file in which it ends, or did when it was opened.
fn last_page(file: &dyn File, offset: u64) -> io::Result<AlignedBuffer> {
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    match file.read_to(offset, &mut page) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(page),
    }
}

impl fmt::Debug for OverlayFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OverlayFile over {:?}", self.shared.base)
    }
}

/// Runs each request when it is submitted.
#[derive(Debug)]
struct OverlayQueue {
    file: OverlayFile,
    depth: usize,
    done: Vec<Completion>,
}

impl Queue for OverlayQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn under_way(&self) -> usize {
        self.done.len()
    }

    unsafe fn submit(&mut self, request: Request, tag: u64) {
        let mut requests = [request];
        // SAFETY: passed on from the caller.
        unsafe { self.file.run(&mut requests) };
        let [request] = requests;
        self.done.push(Completion { tag, result: request.result });
    }

    fn flush(&mut self) {}

    fn reap(&mut self, _: Wait, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }
}

/// A directory whose files are only read: writes, new files, new names and removals exist for this process only. What is
/// written stays until this is dropped; a file below is open only as long as a handle is.
#[derive(Debug)]
pub struct OverlayDirectory {
    base: Arc<dyn Directory>,
    /// Files that were opened or renamed; `None` for files that were removed.
    files: Mutex<Files>,
}

type Files = BTreeMap<String, Option<Known>>;

/// A file that was opened before.
struct Known {
    /// Its name below; `None` if it exists only here.
    below: Option<String>,
    state: Arc<Mutex<State>>,
    /// The file as it is open now, if it is.
    open: Weak<Shared>,
}

impl Known {
    /// The file, opened again if it is not open.
    fn open(&mut self, base: &dyn Directory, options: &FileOptions) -> Result<OverlayFile, VmError> {
        if let Some(shared) = self.open.upgrade() {
            return Ok(OverlayFile { shared });
        }
        let below = self.below.as_ref().map(|name| open_below(base, name, options)).transpose()?;
        let file = OverlayFile::with(below, self.state.clone());
        self.open = Arc::downgrade(&file.shared);
        Ok(file)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OverlayFile over {:?}", self.below)
    }
}

fn open_below(base: &dyn Directory, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
    let options = FileOptions { read_only: true, create: CreateMode::OpenExisting, ..options.clone() };
    base.open(name, &options)
}

impl OverlayDirectory {
    /// An overlay over a directory. A missing directory counts as empty.
    pub fn over(base: Arc<dyn Directory>) -> Self {
        Self { base, files: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The file of this name, if there is one.
    fn find(&self, files: &mut Files, name: &str, options: &FileOptions) -> Result<OverlayFile, VmError> {
        let failed = |source| VmError::Open { path: PathBuf::from(name), action: "open", source };
        match files.get_mut(name) {
            Some(Some(known)) => known.open(&*self.base, options),
            Some(None) => Err(failed(io::ErrorKind::NotFound.into())),
            None => {
                let file = OverlayFile::over(open_below(&*self.base, name, options)?).map_err(failed)?;
                files.insert(name.to_owned(), Some(file.known(Some(name))));
                Ok(file)
            }
        }
    }

    /// Takes the file of this name out of the directory.
    fn take(&self, files: &mut Files, name: &str) -> io::Result<Option<Known>> {
        if !matches!(files.get(name), Some(Some(_))) {
            self.find(files, name, &FileOptions::default()).map_err(as_io)?;
        }
        Ok(files.insert(name.to_owned(), None).flatten())
    }
}

impl Directory for OverlayDirectory {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        let mut files = self.lock();
        match self.find(&mut files, name, options) {
            Ok(_) if options.create == CreateMode::CreateNew => {
                let source = io::ErrorKind::AlreadyExists.into();
                Err(VmError::Open { path: PathBuf::from(name), action: "create", source })
            }
            Err(VmError::Open { source, .. })
                if source.kind() == io::ErrorKind::NotFound
                    && options.create != CreateMode::OpenExisting
                    && !matches!(files.get(name), Some(Some(_))) =>
            {
                let file = OverlayFile::with(None, State::over(0));
                files.insert(name.to_owned(), Some(file.known(None)));
                Ok(Arc::new(file))
            }
            found => Ok(Arc::new(found?)),
        }
    }

    fn path(&self) -> Option<&Path> {
        self.base.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let below = match self.base.names() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            below => below?,
        };
        let files = self.lock();
        let mut names: Vec<String> = below.into_iter().filter(|name| !files.contains_key(name)).collect();
        names.extend(files.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name.clone()));
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut files = self.lock();
        self.take(&mut files, name).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.lock();
        let file = self.take(&mut files, from)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn as_io(error: VmError) -> io::Error {
    match error {
        VmError::Open { source, .. } => source,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimulatedDisk;

    /// A file over which direct I/O reads whole pages only, and which ends within its second page.
    fn cut_within_a_page(disk: &SimulatedDisk) -> Arc<dyn File> {
        let make = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let file = disk.open("cut", &make).unwrap();
        let mut buffer = AlignedBuffer::new(2 * PAGE_SIZE);
        buffer.fill(7);
        file.write_from(0, &buffer).unwrap();
        file.truncate(PAGE + 1001).unwrap();
        file
    }

    #[test]
    fn a_file_that_ends_within_a_page_is_followed_by_zeroes() {
        let disk = SimulatedDisk::new(1);
        let file = OverlayFile::over(cut_within_a_page(&disk)).unwrap();
        file.grow(4 * PAGE).unwrap();
        let above = OverlayFile::over(Arc::new(file.clone())).unwrap();
        for file in [&file, &above] {
            let mut all = AlignedBuffer::new(4 * PAGE_SIZE);
            all.fill(1);
            file.read_to(0, &mut all).unwrap();
            let end = PAGE_SIZE + 1001;
            assert!(all[..end].iter().all(|byte| *byte == 7) && all[end..].iter().all(|byte| *byte == 0));
            let mut page = AlignedBuffer::new(PAGE_SIZE);
            file.read_to(PAGE, &mut page).unwrap();
            assert_eq!(page[..], all[PAGE_SIZE..2 * PAGE_SIZE]);
        }
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.fill(3);
        file.write_from(PAGE, &page).unwrap();
        above.read_to(PAGE, &mut page).unwrap();
        assert!(page.iter().all(|byte| *byte == 3));
    }

    #[test]
    fn reading_beyond_the_end_fails_and_what_is_before_it_is_read() {
        let disk = SimulatedDisk::new(1);
        let file = OverlayFile::over(cut_within_a_page(&disk)).unwrap();
        let above = OverlayFile::over(Arc::new(file.clone())).unwrap();
        above.grow(2 * PAGE).unwrap();
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        let error = file.read_to(PAGE, &mut page).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        above.read_to(PAGE, &mut page).unwrap();
        assert!(page[..1001].iter().all(|byte| *byte == 7) && page[1001..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_file_is_open_below_only_while_a_handle_is() {
        let disk = SimulatedDisk::new(1);
        let make = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        for name in ["a", "b"] {
            page.fill(7);
            let file = disk.open(name, &make).unwrap();
            file.write_from(0, &page).unwrap();
            file.write_from(PAGE, &page).unwrap();
        }
        let overlay = OverlayDirectory::over(Arc::new(disk.clone()));
        let open = |name| overlay.open(name, &FileOptions::default()).unwrap();
        let is_open = |name| disk.open(name, &FileOptions::default()).is_err();
        page.fill(3);
        let (file, again) = (open("a"), open("a"));
        file.write_from(0, &page).unwrap();
        drop(file);
        assert!(is_open("a") && !is_open("b"));
        drop(again);
        overlay.rename("a", "c").unwrap();
        overlay.remove("b").unwrap();
        assert!(!is_open("a") && !is_open("b"));
        // What was written, and what is below, are there when it is opened again.
        let file = open("c");
        assert!(is_open("a"));
        let mut all = AlignedBuffer::new(2 * PAGE_SIZE);
        file.read_to(0, &mut all).unwrap();
        assert_eq!((all[0], all[PAGE_SIZE]), (3, 7));
        file.truncate(PAGE).unwrap();
        drop(file);
        disk.remove("a").unwrap();
        let error = overlay.open("c", &FileOptions::default()).unwrap_err();
        assert!(matches!(error, VmError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
        let or_make = FileOptions { create: CreateMode::OpenOrCreate, ..FileOptions::default() };
        assert!(overlay.open("c", &or_make).is_err(), "it does not take the place of what was written");
        let made = overlay.open("d", &make).unwrap();
        made.write_from(0, &page).unwrap();
        drop(made);
        open("d").read_to(0, &mut page).unwrap();
        assert_eq!(page[0], 3);
    }

    #[test]
    fn what_is_written_shows_and_the_files_stay_as_they_are() {
        let disk = SimulatedDisk::new(1);
        let make = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let mut buffer = AlignedBuffer::new(2 * PAGE_SIZE);
        buffer.fill(7);
        disk.open("a", &make).unwrap().write_from(0, &buffer).unwrap();
        let overlay = OverlayDirectory::over(Arc::new(disk.clone()));
        assert!(overlay.open("a", &make).is_err());
        let file = overlay.open("a", &FileOptions::default()).unwrap();
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        file.write_from(4096, &page).unwrap();
        page.fill(3);
        file.write_from(3 * 4096, &page).unwrap();
        let mut all = AlignedBuffer::new(4 * PAGE_SIZE);
        file.read_to(0, &mut all).unwrap();
        let bytes: Vec<u8> = all.chunks(PAGE_SIZE).map(|page| page[100]).collect();
        assert_eq!(bytes, [7, 0, 0, 3]);
        assert!(file.read_to(4 * 4096, &mut page).is_err());
        file.truncate(4096).unwrap();
        file.grow(2 * 4096).unwrap();
        file.read_to(4096, &mut page).unwrap();
        assert!(page.iter().all(|byte| *byte == 0), "what was cut off does not come back");
        overlay.rename("a", "b").unwrap();
        overlay.open("c", &make).unwrap();
        assert_eq!(overlay.names().unwrap(), ["b", "c"]);
        overlay.remove("b").unwrap();
        assert_eq!(overlay.remove("b").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(overlay.names().unwrap(), ["c"]);
        drop((file, overlay));
        assert_eq!(disk.names().unwrap(), ["a"]);
        disk.open("a", &FileOptions::default()).unwrap().read_to(0, &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}
