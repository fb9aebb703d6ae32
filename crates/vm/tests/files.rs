//! Files on disk and in memory, by both engines, direct and buffered: what they do and how they fail.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, CreateMode, DiskFile, File, FileOptions, IoEngine, Operation, Request, VmError,
    sync_directory,
};

/// A directory, and how to open files in it.
struct Place {
    directory: TempDir,
    options: FileOptions,
}

impl Place {
    fn open(&self) -> DiskFile {
        self.try_open(|_| {}).unwrap()
    }

    fn try_open(&self, change: impl FnOnce(&mut FileOptions)) -> Result<DiskFile, VmError> {
        let mut options = self.options.clone();
        change(&mut options);
        DiskFile::open(&self.directory.path().join("file"), &options)
    }
}

/// Every combination of file system, engine and directness that works here.
fn places() -> Vec<Place> {
    let mut places = Vec::new();
    for parent in [std::env::temp_dir(), "/dev/shm".into()] {
        for engine in [IoEngine::Pread, IoEngine::IoUring] {
            for direct in [false, true] {
                let Ok(directory) = tempfile::tempdir_in(&parent) else { continue };
                let options = FileOptions {
                    engine: Some(engine),
                    direct: Some(direct),
                    create: CreateMode::OpenOrCreate,
                    queue_depth: 16,
                    ..FileOptions::default()
                };
                let place = Place { directory, options };
                match place.try_open(|_| {}) {
                    Ok(_) => places.push(place),
                    Err(VmError::DirectUnavailable { .. } | VmError::EngineUnavailable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    assert!(places.len() >= 2, "buffered reads in order work everywhere");
    places
}

/// A page whose every byte depends on both numbers.
fn pattern(page: usize, round: u8) -> Vec<u8> {
    (0..PAGE_SIZE).map(|byte| (page * 31 + byte * 7 + byte / 256) as u8 ^ round).collect()
}

fn offset(page: usize) -> u64 {
    (page * PAGE_SIZE) as u64
}

fn write(file: &dyn File, at: u64, buffer: &AlignedBuffer) -> std::io::Result<()> {
    // SAFETY: the buffer is borrowed for the length of the call.
    unsafe { file.write(at, buffer.as_ptr(), buffer.len()) }
}

fn read(file: &dyn File, at: u64, buffer: &mut AlignedBuffer) -> std::io::Result<()> {
    // SAFETY: the buffer is mutably borrowed for the length of the call.
    unsafe { file.read(at, buffer.as_mut_ptr(), buffer.len()) }
}

#[test]
fn what_is_written_is_read() {
    for place in places() {
        let file = place.open();
        let mut buffer = AlignedBuffer::new(3 * PAGE_SIZE);
        for page in 0..3 {
            buffer[page * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&pattern(page, 0));
        }
        file.grow(offset(10)).unwrap();
        write(&file, offset(4), &buffer).unwrap();
        file.sync().unwrap();
        drop(file);

        let file = place.open();
        assert_eq!(file.size().unwrap(), offset(10));
        let mut found = AlignedBuffer::new(3 * PAGE_SIZE);
        read(&file, offset(4), &mut found).unwrap();
        assert!(*found == *buffer);
        read(&file, offset(0), &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0), "what was never written reads as zeroes");
    }
}

#[test]
fn writes_into_the_cache_and_past_it_see_each_other() {
    for place in places() {
        let file = place.open();
        file.grow(offset(4)).unwrap();
        let (mut buffer, mut found) = (AlignedBuffer::new(2 * PAGE_SIZE), AlignedBuffer::new(2 * PAGE_SIZE));
        // The name is not needed any more.
        let path = place.directory.path().join("file");
        std::fs::rename(&path, place.directory.path().join("another")).unwrap();
        for round in 0..20 {
            buffer.copy_from_slice(&[pattern(1, round), pattern(2, round)].concat());
            file.write_cached_from(offset(1), &buffer).unwrap();
            file.read_to(offset(1), &mut found).unwrap();
            assert!(*found == *buffer, "round {round}: {file:?}");
            file.sync().unwrap();
            buffer.copy_from_slice(&[pattern(2, round), pattern(3, round)].concat());
            file.write_from(offset(2), &buffer).unwrap();
            file.sync().unwrap();
            file.read_to(offset(1), &mut found).unwrap();
            assert!(*found == [pattern(1, round), pattern(2, round)].concat(), "round {round}: {file:?}");
        }
        drop(file);
        std::fs::rename(place.directory.path().join("another"), &path).unwrap();
        let file = place.try_open(|options| options.read_only = true).unwrap();
        file.read_to(offset(2), &mut found).unwrap();
        assert!(*found == *buffer);
        assert_eq!(file.write_cached_from(0, &buffer).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn reads_past_the_end_are_errors() {
    for place in places() {
        let file = place.open();
        file.grow(offset(2)).unwrap();
        let mut three = AlignedBuffer::new(3 * PAGE_SIZE);
        for at in [offset(0), offset(1), offset(2), offset(1 << 30)] {
            assert_eq!(read(&file, at, &mut three).unwrap_err().kind(), ErrorKind::UnexpectedEof, "{file:?}");
        }
        let mut two = AlignedBuffer::new(2 * PAGE_SIZE);
        read(&file, 0, &mut two).unwrap();
        for at in [!4095, 1 << 63] {
            assert_eq!(read(&file, at, &mut two).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn a_file_that_ends_within_a_page_ends_before_it() {
    for place in places() {
        std::fs::write(place.directory.path().join("file"), vec![1; 2 * PAGE_SIZE + 1000]).unwrap();
        let file = place.open();
        let mut two = AlignedBuffer::new(2 * PAGE_SIZE);
        read(&file, 0, &mut two).unwrap();
        assert_eq!(read(&file, offset(1), &mut two).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let (first, second) = (AlignedBuffer::new(PAGE_SIZE), AlignedBuffer::new(PAGE_SIZE));
        let mut requests = [
            Request::read(offset(2), first.as_ptr().cast_mut(), PAGE_SIZE),
            Request::read(offset(1), second.as_ptr().cast_mut(), PAGE_SIZE),
        ];
        // SAFETY: the buffers outlive the call and are not looked at meanwhile.
        unsafe { file.run(&mut requests) };
        assert_eq!(requests[0].result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(requests[1].result.is_ok());
    }
}

/// The requests of a batch, each with a page of its own.
struct Batch {
    buffer: AlignedBuffer,
    requests: Vec<Request>,
}

impl Batch {
    fn new(count: usize) -> Self {
        Self { buffer: AlignedBuffer::new(count * PAGE_SIZE), requests: Vec::new() }
    }

    /// Adds a request for one page; a write gets the page's pattern.
    fn add(&mut self, operation: Operation, page: usize, round: u8) {
        let place = self.requests.len() * PAGE_SIZE;
        if operation == Operation::Write {
            self.buffer[place..][..PAGE_SIZE].copy_from_slice(&pattern(page, round));
        }
        let address = self.buffer.as_mut_ptr().wrapping_add(place);
        self.requests.push(match operation {
            Operation::Read => Request::read(offset(page), address, PAGE_SIZE),
            Operation::Write => Request::write(offset(page), address, PAGE_SIZE),
        });
    }

    fn run(&mut self, file: &dyn File) {
        for request in &mut self.requests {
            request.result = Err(ErrorKind::Other.into());
        }
        // SAFETY: each request has its own page of the buffer, which lives and is not used meanwhile.
        unsafe { file.run(&mut self.requests) };
    }

    fn page(&self, request: usize) -> &[u8] {
        &self.buffer[request * PAGE_SIZE..][..PAGE_SIZE]
    }
}

#[test]
fn a_thousand_mixed_requests_some_of_which_fail() {
    for place in places() {
        let file = place.open();
        file.grow(offset(1000)).unwrap();
        for round in 0..3 {
            let mut writes = Batch::new(1000);
            (0..1000).for_each(|page| writes.add(Operation::Write, page, round));
            writes.run(&file);
            assert!(writes.requests.iter().all(|request| request.result.is_ok()));

            // Reads of even pages, new contents for odd ones, and every tenth request past the end.
            let mut mixed = Batch::new(1000);
            for number in 0..1000 {
                match number {
                    _ if number % 10 == 5 => mixed.add(Operation::Read, 5000 + number, 0),
                    _ if number % 2 == 0 => mixed.add(Operation::Read, number, 0),
                    _ => mixed.add(Operation::Write, number, round + 100),
                }
            }
            mixed.run(&file);
            for (number, request) in mixed.requests.iter().enumerate() {
                match (&request.result, number % 10 == 5) {
                    (Err(error), true) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
                    (Ok(()), false) => {}
                    (other, _) => panic!("request {number}: {other:?}"),
                }
                if number % 2 == 0 {
                    assert_eq!(mixed.page(number), pattern(number, round));
                }
            }
            let mut reads = Batch::new(1000);
            (0..1000).rev().for_each(|page| reads.add(Operation::Read, page, 0));
            reads.run(&file);
            for (number, page) in (0..1000).rev().enumerate() {
                assert!(reads.requests[number].result.is_ok());
                let new = page % 2 == 1 && page % 10 != 5;
                assert_eq!(reads.page(number), pattern(page, if new { round + 100 } else { round }));
            }
        }
    }
}

#[test]
fn threads_run_batches_at_the_same_time() {
    const THREADS: usize = 8;
    for place in places() {
        let file = place.open();
        file.grow(offset(THREADS * 100)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..10 {
                        let own = thread * 100..(thread + 1) * 100;
                        let mut writes = Batch::new(100);
                        own.clone().for_each(|page| writes.add(Operation::Write, page, round));
                        writes.run(file);
                        assert!(writes.requests.iter().all(|request| request.result.is_ok()));
                        let mut reads = Batch::new(100);
                        own.clone().for_each(|page| reads.add(Operation::Read, page, 0));
                        reads.run(file);
                        for (number, page) in own.enumerate() {
                            assert!(reads.requests[number].result.is_ok());
                            assert_eq!(reads.page(number), pattern(page, round));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn batches_of_any_size_come_back() {
    for place in places() {
        let file = place.open();
        file.grow(offset(64)).unwrap();
        for count in [0, 1, 2, 15, 16, 17, 31, 32, 33, 64] {
            let mut batch = Batch::new(count);
            (0..count).for_each(|page| batch.add(Operation::Read, page, 0));
            batch.run(&file);
            assert!(batch.requests.iter().all(|request| request.result.is_ok()), "{count}");
        }
        // A request for nothing succeeds.
        let nothing = || Request::read(0, std::ptr::dangling_mut::<[u64; 512]>().cast(), 0);
        let mut requests = [nothing(), nothing(), nothing()];
        // SAFETY: no bytes are accessed.
        unsafe { file.run(&mut requests) };
        assert!(requests.iter().all(|request| request.result.is_ok()));
        // An impossible offset fails alone.
        let mut batch = Batch::new(3);
        (0..3).for_each(|page| batch.add(Operation::Read, page, 0));
        batch.requests[1].offset = !4095;
        batch.run(&file);
        assert!(batch.requests[0].result.is_ok() && batch.requests[2].result.is_ok());
        let refused = batch.requests[1].result.as_ref().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_request_may_be_large() {
    for place in places() {
        let file = place.open();
        let bytes = 32 << 20;
        file.grow(2 * bytes as u64).unwrap();
        let mut out = AlignedBuffer::new(2 * bytes);
        out.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 4099) as u8);
        let from = out.as_ptr();
        let mut requests =
            [Request::write(0, from, bytes), Request::write(bytes as u64, from.wrapping_add(bytes), bytes)];
        // SAFETY: the buffer outlives the call and is not written to meanwhile.
        unsafe { file.run(&mut requests) };
        assert!(requests.iter().all(|request| request.result.is_ok()));
        let mut back = AlignedBuffer::new(2 * bytes);
        read(&file, 0, &mut back).unwrap();
        assert!(*back == *out);
    }
}

#[test]
fn an_open_file_is_locked() {
    for place in places() {
        let file = place.open();
        for read_only in [false, true] {
            let error = place.try_open(|options| options.read_only = read_only).unwrap_err();
            assert!(matches!(error, VmError::Locked { .. }));
            assert!(error.to_string().contains("file is locked"), "{error}");
        }
        drop(file);
        let reader = place.try_open(|options| options.read_only = true).unwrap();
        let other = place.try_open(|options| options.read_only = true).unwrap();
        assert!(matches!(place.try_open(|_| {}).unwrap_err(), VmError::Locked { .. }));
        drop((reader, other));
        place.open();
    }
}

#[test]
fn a_file_opened_to_be_read_refuses_changes() {
    for place in places() {
        place.open().grow(offset(4)).unwrap();
        let file = place.try_open(|options| options.read_only = true).unwrap();
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        read(&file, 0, &mut page).unwrap();
        let refused = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        refused(write(&file, 0, &page).unwrap_err());
        refused(file.grow(offset(5)).unwrap_err());
        refused(file.truncate(0).unwrap_err());
        let mut batch = Batch::new(3);
        batch.add(Operation::Read, 0, 0);
        batch.add(Operation::Write, 1, 1);
        batch.add(Operation::Read, 2, 0);
        batch.run(&file);
        assert!(batch.requests[0].result.is_ok() && batch.requests[2].result.is_ok());
        refused(std::mem::replace(&mut batch.requests[1].result, Ok(())).unwrap_err());
        assert_eq!(file.size().unwrap(), offset(4));
    }
}

#[test]
fn files_are_created_only_as_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let open = |create, read_only| {
        DiskFile::open(&path, &FileOptions { create, read_only, ..FileOptions::default() })
    };
    let kind = |outcome: Result<DiskFile, VmError>| match outcome.unwrap_err() {
        VmError::Open { source, path: named, .. } => {
            assert_eq!(named, path);
            source.kind()
        }
        other => panic!("{other}"),
    };
    assert_eq!(kind(open(CreateMode::OpenExisting, false)), ErrorKind::NotFound);
    assert_eq!(kind(open(CreateMode::OpenOrCreate, true)), ErrorKind::NotFound);
    open(CreateMode::CreateNew, false).unwrap();
    assert_eq!(kind(open(CreateMode::CreateNew, false)), ErrorKind::AlreadyExists);
    open(CreateMode::OpenOrCreate, false).unwrap();
    open(CreateMode::OpenExisting, false).unwrap();
    open(CreateMode::OpenExisting, true).unwrap();
}

#[test]
fn what_cannot_be_opened_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileOptions { create: CreateMode::OpenOrCreate, ..FileOptions::default() };
    let missing = directory.path().join("no such directory").join("file");
    for path in [missing.as_path(), directory.path(), Path::new("/dev/null"), Path::new("/proc/version/x")] {
        let error = DiskFile::open(path, &options).unwrap_err();
        assert!(matches!(&error, VmError::Open { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    // The superuser may write anywhere, so this shows something only to others.
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o555)).unwrap();
    match DiskFile::open(&directory.path().join("file"), &options) {
        Err(VmError::Open { source, .. }) => assert_eq!(source.kind(), ErrorKind::PermissionDenied),
        // SAFETY: asks for a number.
        other => assert_eq!(unsafe { libc::geteuid() }, 0, "{other:?}"),
    }
    sync_directory(directory.path()).unwrap();
    assert!(sync_directory(&missing).is_err());
}

#[test]
fn growing_and_cutting() {
    for place in places() {
        let file = place.open();
        assert_eq!(file.size().unwrap(), 0);
        file.grow(offset(8)).unwrap();
        file.grow(offset(3)).unwrap();
        assert_eq!(file.size().unwrap(), offset(8), "growing never shrinks");
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.fill(9);
        write(&file, offset(7), &page).unwrap();
        file.truncate(offset(20)).unwrap();
        assert_eq!(file.size().unwrap(), offset(8), "cutting never grows");
        file.truncate(offset(7)).unwrap();
        assert_eq!(file.size().unwrap(), offset(7));
        file.grow(offset(8)).unwrap();
        read(&file, offset(7), &mut page).unwrap();
        assert!(page.iter().all(|byte| *byte == 0), "what was cut off does not come back");
        file.sync().unwrap();
        file.sync().unwrap();
    }
}

#[test]
fn growing_has_storage_behind_it() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    let file = DiskFile::open(&path, &options).unwrap();
    file.grow(1 << 20).unwrap();
    let blocks = std::fs::metadata(&path).unwrap().blocks();
    // Some file systems cannot allocate ahead; then the file is sparse, but as large.
    assert!(blocks == 0 || blocks * 512 >= 1 << 20, "{blocks}");
    assert_eq!(file.size().unwrap(), 1 << 20);
}

#[test]
fn a_file_on_a_full_disk_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    let Some(()) = mount_small_file_system(directory.path()) else {
        eprintln!("not shown: only the superuser can make a small file system");
        return;
    };
    for engine in [IoEngine::Pread, IoEngine::IoUring] {
        let path = directory.path().join(engine.to_string());
        let options =
            FileOptions { engine: Some(engine), create: CreateMode::CreateNew, ..FileOptions::default() };
        let Ok(file) = DiskFile::open(&path, &options) else { continue };
        file.grow(offset(100)).unwrap();
        let mut batch = Batch::new(100);
        (0..100).for_each(|page| batch.add(Operation::Write, page, 1));
        batch.run(&file);
        assert!(batch.requests.iter().all(|request| request.result.is_ok()));
        assert_eq!(file.grow(16 << 20).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(file.size().unwrap(), offset(100), "a failed growth leaves the size as it was");
        // Without growing first, so that it is the write that finds no space.
        let mut beyond = Batch::new(600);
        (0..600).for_each(|page| beyond.add(Operation::Write, 100 + page, 1));
        beyond.run(&file);
        let failed = |request: &&Request| request.result.is_err();
        let full = beyond.requests.iter().find(failed).expect("600 pages do not fit");
        assert_eq!(full.result.as_ref().unwrap_err().kind(), ErrorKind::StorageFull);
        file.sync().unwrap();
        let mut back = Batch::new(100);
        (0..100).for_each(|page| back.add(Operation::Read, page, 0));
        back.run(&file);
        (0..100).for_each(|page| assert_eq!(back.page(page), pattern(page, 1)));
        // Emptied as well as removed: a child that another test makes by `fork` keeps the file open for a moment,
        // and with it the space that the next round needs.
        std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

/// Mounts a file system of 2 MiB on a directory, for this thread alone.
fn mount_small_file_system(directory: &Path) -> Option<()> {
    let path = std::ffi::CString::new(directory.to_str()?).ok()?;
    let (kind, size) = (c"tmpfs".as_ptr(), c"size=2m".as_ptr());
    // SAFETY: all strings end in zero and live during the calls. The thread leaves the other threads' view
    // of the file systems first, and keeps its mounts to itself.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(kind, path.as_ptr(), kind, 0, size.cast()) == 0
    };
    mounted.then_some(())
}

#[test]
fn a_limit_on_file_sizes_gives_an_error_and_not_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    let file = DiskFile::open(&directory.path().join("file"), &options).unwrap();
    file.grow(offset(10)).unwrap();
    // In a child, because the limit is the whole process's.
    // SAFETY: the child makes system calls, builds an error, and leaves.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 20 * 4096, rlim_max: 20 * 4096 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            let refused = file.grow(offset(21)).is_err_and(|error| error.kind() == ErrorKind::FileTooLarge);
            let allowed = file.grow(offset(20)).is_ok();
            libc::_exit(i32::from(refused) + 2 * i32::from(allowed));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status), "killed by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 3);
    assert_eq!(file.size().unwrap(), offset(20));
}

#[test]
fn the_choice_is_visible_and_can_be_forced() {
    for place in places() {
        let file = place.open();
        let description = file.description();
        assert_eq!(Some(description.direct), place.options.direct);
        assert_eq!(Some(description.engine), place.options.engine);
        let text = description.to_string();
        assert!(text.contains(if description.direct { "direct" } else { "buffered" }), "{text}");
        assert!(text.contains(&description.engine.to_string()), "{text}");
        assert!(text.contains("file: "), "{text}");
    }
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = directory.path().join("file");
    let mut options = FileOptions { create: CreateMode::OpenOrCreate, ..FileOptions::default() };
    assert!(!DiskFile::open(&path, &options).unwrap().description().direct);
    options.direct = Some(true);
    let error = DiskFile::open(&path, &options).unwrap_err();
    assert!(matches!(error, VmError::DirectUnavailable { .. }), "{error}");
    options = FileOptions { engine: Some(IoEngine::Simulated), ..FileOptions::default() };
    let error = DiskFile::open(&path, &options).unwrap_err();
    assert!(matches!(error, VmError::EngineUnavailable { .. }), "{error}");
}

#[test]
fn a_lock_does_not_outlive_the_file_in_a_forked_child() {
    let place = &places()[0];
    let file = place.open();
    let mut gate = [0; 2];
    // SAFETY: the child only waits for the pipe to close, and leaves.
    let child = unsafe {
        assert_eq!(libc::pipe(gate.as_mut_ptr()), 0);
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::close(gate[1]);
            let mut byte = 0u8;
            libc::read(gate[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
        child
    };
    drop(file);
    let again = place.try_open(|_| {});
    // SAFETY: lets the child go and waits for it.
    unsafe {
        libc::close(gate[1]);
        libc::close(gate[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    again.unwrap();
}

#[test]
fn engines_have_names() {
    for engine in [IoEngine::IoUring, IoEngine::Pread, IoEngine::Simulated] {
        assert_eq!(engine.to_string().parse::<IoEngine>().unwrap(), engine);
    }
    assert!("aio".parse::<IoEngine>().unwrap_err().to_string().contains("io_uring, pread"));
}
