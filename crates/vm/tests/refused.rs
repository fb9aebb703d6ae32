//! Kernels and sandboxes that refuse what Vellum would like best.

#[path = "common/refuse.rs"]
mod refuse;

use refuse::refuse;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, CreateMode, DiskFile, File, FileOptions, IoEngine, Mapping, PageRange, ReleaseMethod,
    Releaser, Request, VmError, Wait,
};

/// Runs a test in a thread of its own, of which the kernel may then be made to refuse things.
fn alone(test: impl FnOnce() + Send + 'static) {
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

fn options(engine: Option<IoEngine>) -> FileOptions {
    FileOptions { engine, create: CreateMode::OpenOrCreate, queue_depth: 8, ..FileOptions::default() }
}

/// Writes and reads 100 pages in batches and looks at them.
fn use_file(file: &DiskFile) {
    file.grow(100 * PAGE_SIZE as u64).unwrap();
    let mut written = AlignedBuffer::new(100 * PAGE_SIZE);
    written.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 1000) as u8);
    let mut read = AlignedBuffer::new(100 * PAGE_SIZE);
    let (from, to) = (written.as_ptr(), read.as_mut_ptr());
    let place = |page: usize| (page * PAGE_SIZE) as u64;
    let mut requests: Vec<_> = (0..100)
        .map(|page| Request::write(place(page), from.wrapping_add(page * PAGE_SIZE), PAGE_SIZE))
        .collect();
    // SAFETY: each request has its own page of a buffer that outlives it.
    unsafe { file.run(&mut requests) };
    requests.iter().for_each(|request| assert!(request.result.is_ok(), "{request:?}"));
    let mut requests: Vec<_> = (0..100)
        .map(|page| Request::read(place(page), to.wrapping_add(page * PAGE_SIZE), PAGE_SIZE))
        .collect();
    // SAFETY: as above.
    unsafe { file.run(&mut requests) };
    requests.iter().for_each(|request| assert!(request.result.is_ok(), "{request:?}"));
    assert!(*written == *read);
}

fn open(directory: &Path, engine: Option<IoEngine>) -> Result<DiskFile, VmError> {
    DiskFile::open(&directory.join("file"), &options(engine))
}

#[test]
fn without_io_uring_files_work_and_insisting_on_it_is_an_error() {
    for error in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        alone(move || {
            refuse(libc::SYS_io_uring_setup, error);
            let directory = tempfile::tempdir().unwrap();
            let file = open(directory.path(), None).unwrap();
            assert_eq!(file.description().engine, IoEngine::Pread);
            use_file(&file);
            drop(file);
            let refused = open(directory.path(), Some(IoEngine::IoUring)).unwrap_err();
            assert!(matches!(&refused, VmError::EngineUnavailable { engine: IoEngine::IoUring, source, .. }
                if source.raw_os_error() == Some(error)));
            assert!(refused.to_string().contains("io_uring_disabled"), "{refused}");
        });
    }
}

#[test]
fn a_ring_that_may_be_made_but_not_used_is_not_used() {
    alone(|| {
        refuse(libc::SYS_io_uring_enter, libc::EPERM);
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), None).unwrap();
        assert_eq!(file.description().engine, IoEngine::Pread);
        use_file(&file);
    });
}

#[test]
fn io_uring_refused_later_is_done_without() {
    for (call, error) in [
        (libc::SYS_io_uring_enter, libc::EPERM),
        (libc::SYS_io_uring_enter, libc::EAGAIN),
        (libc::SYS_io_uring_setup, libc::ENOMEM),
    ] {
        alone(move || {
            let directory = tempfile::tempdir().unwrap();
            // Where io_uring is not available at all there is nothing to take away.
            let Ok(file) = open(directory.path(), Some(IoEngine::IoUring)) else { return };
            refuse(call, error);
            use_file(&file);
            use_file(&file);
            // Further rings cannot be made either.
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let mut page = AlignedBuffer::new(2 * PAGE_SIZE);
                        let (one, two) = (page.as_mut_ptr(), page.as_mut_ptr().wrapping_add(PAGE_SIZE));
                        for _ in 0..50 {
                            let mut requests =
                                [Request::read(0, one, PAGE_SIZE), Request::read(4096, two, PAGE_SIZE)];
                            // SAFETY: each request has its own page of a buffer that outlives it.
                            unsafe { file.run(&mut requests) };
                            requests.iter().for_each(|request| assert!(request.result.is_ok()));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_queue_needs_no_descriptor_of_its_own() {
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), None).unwrap();
        use_file(&file);
        refuse(libc::SYS_io_uring_setup, libc::EMFILE);
        refuse(libc::SYS_fcntl, libc::EMFILE);
        let mut queue = file.queue(8).unwrap();
        let (mut page, mut done) = (AlignedBuffer::new(PAGE_SIZE), Vec::new());
        // SAFETY: the page outlives the request, which is reaped below.
        unsafe { queue.submit(Request::read(0, page.as_mut_ptr(), PAGE_SIZE), 7) };
        queue.reap(Wait::ForAll, &mut done);
        assert!(done.len() == 1 && done[0].result.is_ok(), "{done:?}");
        assert_eq!((page[0], page[2000]), (0, 2));
    });
}

#[test]
fn a_write_beyond_the_limit_on_file_sizes_is_an_error_and_not_a_signal() {
    for engine in [IoEngine::Pread, IoEngine::IoUring] {
        let directory = tempfile::tempdir().unwrap();
        let Ok(file) = open(directory.path(), Some(engine)) else { continue };
        // Another process, which has no such limit, may have made it so long.
        file.grow(10 * PAGE_SIZE as u64).unwrap();
        let page = AlignedBuffer::new(PAGE_SIZE);
        let place = |page: u64| page * PAGE_SIZE as u64;
        let is_refused = |result: &std::io::Result<()>| matches!(result, Err(error) if error.kind() == ErrorKind::FileTooLarge);
        // In a child, because the limit is the whole process's.
        // SAFETY: the child makes system calls, builds errors, and leaves; the page outlives all requests.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let limit = libc::rlimit { rlim_cur: place(5), rlim_max: place(5) };
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                let write = |at| Request::write(place(at), page.as_ptr(), PAGE_SIZE);
                let alone = [4, 5].map(|at| file.write(place(at), page.as_ptr(), PAGE_SIZE));
                let mut batch = [write(4), write(5)];
                file.run(&mut batch);
                let batch = batch.map(|request| request.result);
                let mut queue = file.queue(2).unwrap();
                queue.submit(write(5), 0);
                let mut queued = Vec::new();
                queue.reap(Wait::ForAll, &mut queued);
                let cached = file.write_cached_from(place(5), &page);
                let refused = [&alone[1], &batch[1], &queued[0].result, &cached];
                let are_refused = refused.into_iter().all(is_refused);
                let is_allowed = alone[0].is_ok() && batch[0].is_ok();
                libc::_exit(i32::from(are_refused) + 2 * i32::from(is_allowed));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status), "{engine}: killed by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 3, "{engine}");
    }
}

#[test]
fn without_process_madvise_madvise_is_used_and_insisting_is_an_error() {
    for call in [libc::SYS_process_madvise, libc::SYS_pidfd_open] {
        alone(move || {
            refuse(call, libc::EPERM);
            assert_eq!(Releaser::new(None).unwrap().method(), ReleaseMethod::Madvise);
            let refused = Releaser::new(Some(ReleaseMethod::ProcessMadvise)).unwrap_err();
            assert!(matches!(refused, VmError::ReleaseUnavailable { .. }));
            assert!(refused.to_string().contains("process_madvise"), "{refused}");
        });
    }
}

#[test]
fn process_madvise_refused_later_is_done_without() {
    alone(|| {
        // Where it is not available at all there is nothing to take away.
        let Ok(releaser) = Releaser::new(Some(ReleaseMethod::ProcessMadvise)) else { return };
        refuse(libc::SYS_process_madvise, libc::EPERM);
        let mapping = Mapping::reserve(2000 * PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
        // SAFETY: the mapping is the test's alone.
        unsafe { std::ptr::write_bytes(mapping.base().as_ptr(), 1, mapping.len()) };
        let page = |number: usize| mapping.base().as_ptr().wrapping_add(number * PAGE_SIZE);
        let ranges: Vec<_> = (0..2000)
            .step_by(2)
            .map(|number| PageRange { address: page(number), bytes: PAGE_SIZE })
            .collect();
        // SAFETY: as above.
        unsafe { releaser.release(&ranges).unwrap() };
        assert_eq!(releaser.fallback_count(), 2, "two calls of 512 ranges at most");
        for number in 0..2000 {
            // SAFETY: as above.
            assert_eq!(unsafe { page(number).read() }, (number % 2) as u8);
        }
    });
}

#[test]
fn a_failed_sync_is_final_for_everybody() {
    let directory = tempfile::tempdir().unwrap();
    let file = open(directory.path(), None).unwrap();
    use_file(&file);
    file.sync().unwrap();
    use_file(&file);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse(libc::SYS_fdatasync, libc::EIO);
            assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(libc::EIO));
        });
    });
    // The kernel would let this thread sync, but what it failed to write is gone.
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(file);
    open(directory.path(), None).unwrap().sync().unwrap();
}

#[test]
fn a_changed_size_is_synced_with_everything_else() {
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), None).unwrap();
        refuse(libc::SYS_fdatasync, libc::ENOSPC);
        file.grow(8192).unwrap();
        file.sync().unwrap();
        file.truncate(4096).unwrap();
        file.sync().unwrap();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    });
}

#[test]
fn a_buffered_write_that_cannot_leave_the_page_cache_fails() {
    for batch in [1, 3] {
        alone(move || {
            let directory = tempfile::tempdir().unwrap();
            let buffered = FileOptions { direct: Some(false), ..options(None) };
            let file = DiskFile::open(&directory.path().join("file"), &buffered).unwrap();
            file.grow(16 * PAGE_SIZE as u64).unwrap();
            refuse(libc::SYS_sync_file_range, libc::EIO);
            let page = AlignedBuffer::new(PAGE_SIZE);
            let write = |index: u64| Request::write(2 * index * PAGE_SIZE as u64, page.as_ptr(), PAGE_SIZE);
            let mut requests: Vec<_> = (0..batch).map(write).collect();
            // SAFETY: nobody writes to the page.
            unsafe { file.run(&mut requests) };
            for request in requests {
                assert_eq!(request.result.unwrap_err().raw_os_error(), Some(libc::EIO));
            }
            // SAFETY: as above.
            let written = unsafe { file.write(0, page.as_ptr(), PAGE_SIZE) };
            assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EIO));
            let (mut queue, mut done) = (file.queue(4).unwrap(), Vec::new());
            // SAFETY: as above.
            (0..batch).for_each(|index| unsafe { queue.submit(write(index), index) });
            queue.reap(Wait::ForAll, &mut done);
            assert_eq!(done.len() as u64, batch);
            for completion in done {
                assert_eq!(completion.result.unwrap_err().raw_os_error(), Some(libc::EIO));
            }
        });
    }
}

#[test]
fn a_file_system_that_cannot_allocate_ahead_has_files_that_grow() {
    for error in [libc::EOPNOTSUPP, libc::ENOSYS] {
        alone(move || {
            let directory = tempfile::tempdir().unwrap();
            let file = open(directory.path(), None).unwrap();
            refuse(libc::SYS_fallocate, error);
            let large = 2 * 1024 * 1024 + 8192;
            file.grow(large).unwrap();
            let about = std::fs::metadata(directory.path().join("file")).unwrap();
            assert!(about.len() == large && about.blocks() * 512 >= large, "{} blocks", about.blocks());
            file.truncate(0).unwrap();
            use_file(&file);
            assert_eq!(file.size().unwrap(), 100 * PAGE_SIZE as u64);
        });
    }
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), None).unwrap();
        file.grow(4096).unwrap();
        refuse(libc::SYS_fallocate, libc::ENOSPC);
        assert_eq!(file.grow(8192).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(file.size().unwrap(), 4096);
    });
}

#[test]
fn direct_io_that_cannot_be_switched_on_is_done_without() {
    alone(|| {
        refuse(libc::SYS_fcntl, libc::EINVAL);
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), None).unwrap();
        assert!(!file.description().direct);
        use_file(&file);
        drop(file);
        let insisting = FileOptions { direct: Some(true), ..options(None) };
        let error = DiskFile::open(&directory.path().join("file"), &insisting).unwrap_err();
        assert!(matches!(error, VmError::DirectUnavailable { .. }), "{error}");
    });
    // A kernel that does not tell what direct I/O wants is asked by trying.
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let usual = open(directory.path(), None).unwrap().description();
        refuse(libc::SYS_statx, libc::ENOSYS);
        let file = open(directory.path(), None).unwrap();
        assert_eq!(file.description(), usual);
        use_file(&file);
    });
    // One that accepts the mode and then refuses to read.
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        refuse(libc::SYS_pread64, libc::EINVAL);
        assert!(!open(directory.path(), None).unwrap().description().direct);
    });
}

#[test]
fn a_device_that_fails_is_reported() {
    alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), Some(IoEngine::Pread)).unwrap();
        use_file(&file);
        refuse(libc::SYS_pread64, libc::EIO);
        refuse(libc::SYS_pwrite64, libc::ENOSPC);
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        let address = page.as_mut_ptr();
        let mut requests = [Request::read(0, address, PAGE_SIZE), Request::write(4096, address, PAGE_SIZE)];
        // SAFETY: the page outlives the call, and this engine does one after the other.
        unsafe { file.run(&mut requests) };
        let error = |number: usize| requests[number].result.as_ref().unwrap_err().raw_os_error();
        assert_eq!((error(0), error(1)), (Some(libc::EIO), Some(libc::ENOSPC)));
    });
}

#[test]
fn a_file_system_without_locks_is_an_error_that_says_so() {
    alone(|| {
        refuse(libc::SYS_flock, libc::ENOLCK);
        let directory = tempfile::tempdir().unwrap();
        let error = open(directory.path(), None).unwrap_err();
        assert!(matches!(error, VmError::Open { action: "lock", .. }), "{error}");
    });
}

#[test]
fn advice_that_is_refused_is_an_error_only_where_it_matters() {
    alone(|| {
        let reserve = || Mapping::reserve(4 * PAGE_SIZE, "a test").unwrap();
        let releaser = Releaser::new(Some(ReleaseMethod::Madvise)).unwrap();
        let page = |mapping: &Mapping| PageRange { address: mapping.base().as_ptr(), bytes: PAGE_SIZE };
        let pages = reserve();
        refuse(libc::SYS_madvise, libc::EAGAIN);
        let error = reserve().for_pages().unwrap_err();
        assert!(matches!(error, VmError::Advise { advice: "MADV_DONTFORK", .. }), "{error}");
        let table = reserve().for_table();
        // SAFETY: the memory is the test's alone.
        unsafe { table.base().write(1) };
        // SAFETY: as above.
        let error = unsafe { releaser.release(&[page(&pages)]) }.unwrap_err();
        assert!(matches!(error, VmError::Release { bytes: PAGE_SIZE, .. }), "{error}");
    });
}
