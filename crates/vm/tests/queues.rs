//! Queues of requests, of files on disk by both engines and of simulated ones.

use std::collections::HashSet;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, Completion, CreateMode, DiskFile, Faults, File, FileOperation, FileOptions, IoEngine,
    Queue, Request, SimulatedFile, Wait,
};

const PAGES: usize = 200;

type NamedFile = (String, Box<dyn File>);

/// Every kind of file, each with a name; the folder that some of them lie in comes along.
fn files() -> (tempfile::TempDir, Vec<NamedFile>) {
    let directory = tempfile::tempdir().unwrap();
    let mut files: Vec<NamedFile> = Vec::new();
    for engine in [IoEngine::Pread, IoEngine::IoUring] {
        for direct in [false, true] {
            let name = format!("{engine} {direct}");
            let options = FileOptions {
                engine: Some(engine),
                direct: Some(direct),
                create: CreateMode::CreateNew,
                ..FileOptions::default()
            };
            if let Ok(file) = DiskFile::open(&directory.path().join(&name), &options) {
                files.push((name, Box::new(file)));
            }
        }
    }
    assert!(!files.is_empty());
    let faulty = SimulatedFile::new(5);
    faulty.set_faults(Faults { short: 0.3, interrupted: 0.2, ..Faults::default() });
    files.push(("simulated".into(), Box::new(SimulatedFile::new(4))));
    files.push(("simulated, cut short".into(), Box::new(faulty)));
    for (_, file) in &files {
        file.grow((PAGES * PAGE_SIZE) as u64).unwrap();
    }
    (directory, files)
}

fn offset(page: usize) -> u64 {
    (page * PAGE_SIZE) as u64
}

/// Reaps until nothing is under way.
fn reap_all(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.under_way() > 0 {
        let before = done.len();
        queue.reap(Wait::ForOne, &mut done);
        assert!(done.len() > before, "it waits for one");
    }
    done
}

#[test]
fn what_is_submitted_is_done_once_and_reaped_once() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut queue = file.queue(16).unwrap();
        assert_eq!(queue.depth(), 16);
        let mut written = AlignedBuffer::new(PAGES * PAGE_SIZE);
        written.chunks_mut(PAGE_SIZE).enumerate().for_each(|(page, bytes)| bytes.fill(page as u8));
        let mut read = AlignedBuffer::new(PAGES * PAGE_SIZE);
        let (from, to) = (written.as_ptr(), read.as_mut_ptr());
        for write in [true, false] {
            let mut done = Vec::new();
            for page in 0..PAGES {
                let at = page * PAGE_SIZE;
                let request = if write {
                    Request::write(offset(page), from.wrapping_add(at), PAGE_SIZE)
                } else {
                    Request::read(offset(page), to.wrapping_add(at), PAGE_SIZE)
                };
                // SAFETY: each request has a page of its own in a buffer that outlives it.
                unsafe { queue.submit(request, page as u64) };
                if page % 7 == 0 {
                    queue.flush();
                    queue.reap(Wait::No, &mut done);
                }
            }
            done.extend(reap_all(&mut *queue));
            let tags: HashSet<_> = done.iter().map(|completion| completion.tag).collect();
            assert_eq!((done.len(), tags.len()), (PAGES, PAGES), "{name}");
            assert!(done.iter().all(|completion| completion.result.is_ok()), "{name}: {done:?}");
        }
        assert!(*read == *written, "{name}");
    }
}

#[test]
fn requests_of_many_pages_and_of_none_are_done() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut written = AlignedBuffer::new(PAGES * PAGE_SIZE);
        written.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 777) as u8);
        // SAFETY: the buffer is borrowed for the call.
        unsafe { file.write(0, written.as_ptr(), written.len()) }.unwrap();
        let mut read = AlignedBuffer::new(PAGES * PAGE_SIZE);
        let mut queue = file.queue(2).unwrap();
        // SAFETY: the buffer outlives the queue.
        unsafe {
            queue.submit(Request::read(0, read.as_mut_ptr(), read.len()), 1);
            queue.submit(Request::read(0, read.as_mut_ptr(), 0), 2);
        }
        let done = reap_all(&mut *queue);
        assert!(done.len() == 2 && done.iter().all(|one| one.result.is_ok()), "{name}: {done:?}");
        assert!(*read == *written, "{name}");
    }
}

#[test]
fn reads_past_the_end_and_absurd_offsets_are_errors_of_the_request() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut queue = file.queue(4).unwrap();
        let mut buffer = AlignedBuffer::new(3 * PAGE_SIZE);
        let address = buffer.as_mut_ptr();
        let absurd = (i64::MAX as u64 + 1) & !(PAGE_SIZE as u64 - 1);
        for (tag, at) in [0, offset(PAGES), absurd].into_iter().enumerate() {
            // SAFETY: each request has a page of the buffer, which outlives the queue.
            unsafe {
                queue.submit(Request::read(at, address.wrapping_add(tag * PAGE_SIZE), PAGE_SIZE), tag as u64);
            }
        }
        let mut done = reap_all(&mut *queue);
        done.sort_unstable_by_key(|completion| completion.tag);
        let fine: Vec<_> = done.iter().map(|completion| completion.result.is_ok()).collect();
        assert_eq!(fine, [true, false, false], "{name}: {done:?}");
    }
}

#[test]
fn a_queue_that_is_dropped_waits_for_its_buffers() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut buffer = AlignedBuffer::new(PAGES * PAGE_SIZE);
        let address = buffer.as_mut_ptr();
        for flush in [true, false] {
            let mut queue = file.queue(64).unwrap();
            for page in 0..PAGES {
                let at = page * PAGE_SIZE;
                // SAFETY: the buffer outlives the queue.
                unsafe {
                    queue.submit(Request::read(offset(page), address.wrapping_add(at), PAGE_SIZE), 0);
                }
            }
            if flush {
                queue.flush();
            }
            drop(queue);
            // What came later would be overwritten by a device that still holds a buffer.
            buffer.fill(7);
            std::thread::sleep(Duration::from_millis(5));
            assert!(buffer.iter().all(|byte| *byte == 7), "{name}");
        }
    }
}

/// More requests than overlap, of devices that cut reads short and let them overtake each other.
#[test]
fn all_that_is_under_way_is_waited_for_at_once() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut buffer = AlignedBuffer::new(PAGES * PAGE_SIZE);
        let address = buffer.as_mut_ptr();
        let mut queue = file.queue(4).unwrap();
        let mut done = Vec::new();
        for page in 0..40 {
            let at = page * PAGE_SIZE;
            // SAFETY: the buffer outlives the queue.
            unsafe {
                queue.submit(Request::read(at as u64, address.wrapping_add(at), PAGE_SIZE), page as u64)
            };
        }
        queue.reap(Wait::ForAll, &mut done);
        assert_eq!((queue.under_way(), done.len()), (0, 40), "{name}");
        let tags: HashSet<u64> = done.iter().map(|completion| completion.tag).collect();
        assert_eq!(tags.len(), 40, "{name}");
    }
}

#[test]
fn nothing_is_waited_for_when_nothing_is_under_way() {
    let (_directory, files) = files();
    for (name, file) in &files {
        let mut queue = file.queue(4).unwrap();
        let (mut done, begun) = (Vec::new(), Instant::now());
        queue.reap(Wait::ForOne, &mut done);
        queue.reap(Wait::ForAll, &mut done);
        queue.reap(Wait::No, &mut done);
        queue.flush();
        assert!(done.is_empty() && begun.elapsed() < Duration::from_secs(1), "{name}");
    }
}

#[test]
fn a_file_opened_for_reading_refuses_writes_of_its_queue() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let create = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    DiskFile::open(&path, &create).unwrap().grow(offset(1)).unwrap();
    let file = DiskFile::open(&path, &FileOptions { read_only: true, ..FileOptions::default() }).unwrap();
    let mut queue = file.queue(4).unwrap();
    let buffer = AlignedBuffer::new(PAGE_SIZE);
    // SAFETY: the buffer outlives the queue.
    unsafe { queue.submit(Request::write(0, buffer.as_ptr(), PAGE_SIZE), 3) };
    let done = reap_all(&mut *queue);
    assert_eq!(done[0].result.as_ref().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

/// The simulated device fills the memory of a read with anything as soon as it is submitted, lets requests
/// overtake each other, and fails those that it should.
#[test]
fn simulated_requests_overtake_each_other_and_fail_as_they_should() {
    let file = SimulatedFile::new(11);
    file.grow(offset(PAGES)).unwrap();
    let mut buffer = AlignedBuffer::new(PAGES * PAGE_SIZE);
    let address = buffer.as_mut_ptr();
    file.fail_nth_of(FileOperation::Read, 10);
    let mut queue = file.queue(32).unwrap();
    for page in 0..PAGES {
        let at = page * PAGE_SIZE;
        // SAFETY: the buffer outlives the queue.
        unsafe {
            queue.submit(Request::read(offset(page), address.wrapping_add(at), PAGE_SIZE), page as u64)
        };
    }
    // SAFETY: this test is alone with its device.
    assert!((0..buffer.len()).any(|byte| unsafe { address.add(byte).read() } != 0), "scribbled");
    let done = reap_all(&mut *queue);
    assert!(!done.is_sorted_by_key(|completion| completion.tag), "some overtook others");
    let failed: Vec<_> = done.iter().filter(|completion| completion.result.is_err()).collect();
    assert_eq!(failed.len(), 1);
    for completion in done.iter().filter(|completion| completion.result.is_ok()) {
        let at = completion.tag as usize * PAGE_SIZE;
        assert!(buffer[at..at + PAGE_SIZE].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_file_is_let_go_with_its_queue() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for _ in 0..100 {
        let options = FileOptions { create: CreateMode::OpenOrCreate, ..FileOptions::default() };
        let file = DiskFile::open(&path, &options).unwrap();
        file.grow(PAGE_SIZE as u64).unwrap();
        let mut queue = file.queue(4).unwrap();
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        // SAFETY: the page outlives the request.
        unsafe { queue.submit(Request::read(0, page.as_mut_ptr(), PAGE_SIZE), 1) };
        reap_all(&mut *queue);
        drop((queue, file));
        let alone = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: an open file. The kernel grants this lease to the only opening of a file.
        let granted = unsafe { libc::fcntl(alone.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(granted, 0, "{}", std::io::Error::last_os_error());
    }
}
