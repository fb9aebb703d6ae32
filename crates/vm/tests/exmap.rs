//! Memory for pages by `/dev/exmap`. Where there is no device these tests do nothing, and say so; where
//! `EXMAP_EXPECTED` is set, as in the machine that loads the module, that is a failure.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    Completion, CreateMode, DiskFile, File, FileOptions, PageMemory, PageMemoryOptions, PageRange,
    ReleaseMethod, Request, SimulatedFile, VmError, Wait,
};

const PAGES: usize = 4096;

fn options(resident_pages_max: usize) -> PageMemoryOptions {
    PageMemoryOptions {
        wanted_bytes: PAGES * PAGE_SIZE,
        least_bytes: PAGES * PAGE_SIZE,
        resident_pages_max,
        method: Some(ReleaseMethod::Exmap),
    }
}

/// Memory for `resident` pages in front of a file, if there is a device.
fn memory_of(file: Arc<dyn File>, resident: usize) -> Option<PageMemory> {
    match PageMemory::reserve(&options(resident), file) {
        Ok(memory) => Some(memory),
        Err(error) => {
            assert!(std::env::var_os("EXMAP_EXPECTED").is_none(), "the device should be there: {error}");
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn memory(resident: usize) -> Option<PageMemory> {
    memory_of(Arc::new(SimulatedFile::new(1)), resident)
}

fn page(memory: &PageMemory, number: usize) -> *mut u8 {
    memory.pages.base().as_ptr().wrapping_add(number * PAGE_SIZE)
}

fn range(memory: &PageMemory, first: usize, pages: usize) -> PageRange {
    PageRange { address: page(memory, first), bytes: pages * PAGE_SIZE }
}

/// The first byte of a page, whether or not it has memory.
fn byte(memory: &PageMemory, number: usize) -> u8 {
    // SAFETY: every page of the mapping can be read.
    unsafe { page(memory, number).read_volatile() }
}

fn fill(memory: &PageMemory, number: usize, value: u8) {
    // SAFETY: the page has memory, and this test is alone with it.
    unsafe { page(memory, number).write_bytes(value, PAGE_SIZE) };
}

fn release(memory: &PageMemory, ranges: &[PageRange]) {
    // SAFETY: the ranges lie in the mapping, and no reference into it exists.
    unsafe { memory.releaser.release(ranges).unwrap() };
}

/// A file on disk whose pages hold their number and nothing else.
fn numbered(directory: &std::path::Path, pages: usize) -> Arc<dyn File> {
    let path = directory.join("numbered");
    let plain = std::fs::File::create(&path).unwrap();
    for number in 0..pages {
        plain.write_all_at(&[number as u8 | 1; PAGE_SIZE], (number * PAGE_SIZE) as u64).unwrap();
    }
    plain.sync_all().unwrap();
    let options = FileOptions { create: CreateMode::OpenExisting, ..FileOptions::default() };
    Arc::new(DiskFile::open(&path, &options).unwrap())
}

#[test]
fn what_was_released_reads_as_zeroes_and_comes_back_as_zeroes_if_asked() {
    let Some(memory) = memory(64) else { return };
    memory.releaser.supply(&[range(&memory, 0, 64)]).unwrap();
    (0..64).for_each(|number| fill(&memory, number, 7));
    release(&memory, &[range(&memory, 10, 4), range(&memory, 20, 1)]);
    for number in 0..64 {
        let released = matches!(number, 10..=13 | 20);
        assert_eq!(byte(&memory, number), if released { 0 } else { 7 }, "page {number}");
    }
    // SAFETY: the range lies in the mapping, and no reference into it exists.
    unsafe { memory.releaser.supply_zeroes(range(&memory, 10, 4)).unwrap() };
    for number in 10..14 {
        assert_eq!(byte(&memory, number), 0);
        fill(&memory, number, 9);
        assert_eq!(byte(&memory, number), 9);
    }
    // What is there stays as it is.
    // SAFETY: as above.
    unsafe { memory.releaser.supply_zeroes(range(&memory, 10, 4)).unwrap() };
    assert_eq!(byte(&memory, 10), 9);
    assert!(memory.releaser.exmap_counters().unwrap().flushes_blank > 0);
}

#[test]
fn the_pool_is_as_large_as_asked_for_and_exhaustion_is_an_error() {
    let Some(memory) = memory(128) else { return };
    memory.releaser.supply(&[range(&memory, 0, 128)]).unwrap();
    let error = memory.releaser.supply(&[range(&memory, 0, PAGES)]).unwrap_err();
    assert!(matches!(error, VmError::Supply { bytes, .. } if bytes == PAGES * PAGE_SIZE), "{error}");
    release(&memory, &[range(&memory, 0, PAGES)]);
    memory.releaser.supply(&[range(&memory, PAGES - 128, 128)]).unwrap();
    fill(&memory, PAGES - 1, 1);
}

#[test]
fn a_range_outside_is_an_error() {
    let Some(memory) = memory(64) else { return };
    assert!(memory.releaser.supply(&[range(&memory, PAGES - 1, 2)]).is_err());
    let below = PageRange { address: memory.pages.base().as_ptr().wrapping_sub(PAGE_SIZE), bytes: PAGE_SIZE };
    assert!(memory.releaser.supply(&[below]).is_err());
}

#[test]
fn a_single_read_brings_and_fills_pages_in_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let Some(memory) = memory_of(numbered(directory.path(), 64), 64) else { return };
    let read = |first: usize, pages: usize| {
        // SAFETY: the pages lie in the mapping, and no reference into it exists.
        unsafe { memory.file.read((first * PAGE_SIZE) as u64, page(&memory, first), pages * PAGE_SIZE) }
    };
    read(3, 1).unwrap();
    read(10, 20).unwrap();
    let counters = memory.releaser.exmap_counters().unwrap();
    assert_eq!((counters.pages_supplied, counters.pages_read), (21, 21));
    assert!((10..30).chain([3]).all(|number| byte(&memory, number) == number as u8 | 1));
    // Over what is there, and over what is partly there.
    fill(&memory, 12, 0xff);
    read(8, 8).unwrap();
    assert!((8..16).all(|number| byte(&memory, number) == number as u8 | 1));
    // Beyond the end nothing is left.
    let error = read(60, 8).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    release(&memory, &[range(&memory, 0, PAGES)]);
    memory.releaser.supply(&[range(&memory, 100, 64)]).unwrap();
    // From another place of the file, and to another place than the area.
    release(&memory, &[range(&memory, 0, PAGES)]);
    // SAFETY: as above.
    unsafe { memory.file.read(5 * PAGE_SIZE as u64, page(&memory, 40), PAGE_SIZE).unwrap() };
    assert_eq!(byte(&memory, 40), 5);
    let mut buffer = vellum_vm::AlignedBuffer::new(PAGE_SIZE);
    // SAFETY: the buffer is this test's own.
    unsafe { memory.file.read(6 * PAGE_SIZE as u64, buffer.as_mut_ptr(), PAGE_SIZE).unwrap() };
    assert_eq!(buffer[0], 7);
}

#[test]
fn batches_and_queues_bring_all_their_pages_by_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let Some(memory) = memory_of(numbered(directory.path(), 256), 256) else { return };
    let request =
        |number: usize| Request::read((number * PAGE_SIZE) as u64, page(&memory, number), PAGE_SIZE);
    let mut requests: Vec<_> = (0..100).map(|number| request(number * 2)).collect();
    // SAFETY: the requests lie in the mapping, do not overlap, and no reference into it exists.
    unsafe { memory.file.run(&mut requests) };
    assert!(requests.iter().all(|request| request.result.is_ok()));
    assert!((0..100).all(|number| byte(&memory, number * 2) == (number * 2) as u8 | 1));
    let mut queue = memory.file.queue(32).unwrap();
    // SAFETY: as above, and the queue is dropped before the mapping.
    (0..100).for_each(|number| unsafe { queue.submit(request(number * 2 + 1), number as u64) });
    assert_eq!(queue.under_way(), 100);
    queue.flush();
    let mut done: Vec<Completion> = Vec::new();
    while queue.under_way() > 0 {
        queue.reap(Wait::ForOne, &mut done);
    }
    assert!(done.len() == 100 && done.iter().all(|completion| completion.result.is_ok()));
    assert!((0..200).all(|number| byte(&memory, number) == number as u8 | 1));
    // More than there is: those that found no page fail, and are reaped.
    // SAFETY: as above.
    (200..256).for_each(|number| unsafe { queue.submit(request(number), 1000 + number as u64) });
    // SAFETY: as above.
    (300..500).for_each(|number| unsafe { queue.submit(request(number), number as u64) });
    done.clear();
    while queue.under_way() > 0 {
        queue.reap(Wait::ForOne, &mut done);
    }
    assert_eq!(done.len(), 256);
    let failed = done.iter().filter(|completion| completion.result.is_err()).count();
    // The last are beyond the end of the file or found no page.
    assert!(failed >= 200, "{failed}");
}

/// Readers without latches look at pages that come and go: they see zeroes or a page's own contents, and no reader
/// gets a signal. Each page is filled before its number is published, and zeroed before it goes.
#[test]
fn readers_without_latches_see_zeroes_or_the_page() {
    const USED: usize = 64;
    let Some(memory) = memory(256) else { return };
    let published: Vec<AtomicU64> = (0..USED).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let (looks, certain) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (memory, published, stop, looks, certain) = (&memory, &published, &stop, &looks, &certain);
            scope.spawn(move || {
                let mut number = reader;
                while !stop.load(Ordering::Relaxed) {
                    number = (number * 5 + 1) % USED;
                    let before = published[number].load(Ordering::Acquire);
                    // SAFETY: every page of the mapping can be read, by an atomic load of an aligned word.
                    let word =
                        unsafe { AtomicU64::from_ptr(page(memory, number).cast()) }.load(Ordering::Acquire);
                    let after = published[number].load(Ordering::Acquire);
                    if before != 0 && before == after {
                        assert_eq!(word, before, "page {number}");
                        certain.fetch_add(1, Ordering::Relaxed);
                    }
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=60_u64 {
            for (number, published) in published.iter().enumerate() {
                memory.releaser.supply(&[range(&memory, number, 1)]).unwrap();
                let value = round << 8 | number as u64;
                // SAFETY: the page has memory; readers load the word atomically.
                let word = unsafe { AtomicU64::from_ptr(page(&memory, number).cast()) };
                word.store(value, Ordering::Release);
                published.store(value, Ordering::Release);
            }
            std::thread::yield_now();
            published.iter().for_each(|number| number.store(0, Ordering::SeqCst));
            let ranges: Vec<_> = (0..USED).map(|number| range(&memory, number, 1)).collect();
            release(&memory, &ranges);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(looks.load(Ordering::Relaxed) > 0 && certain.load(Ordering::Relaxed) > 0);
}

#[test]
fn threads_use_interfaces_of_their_own_and_all_pages_are_reached() {
    let Some(memory) = memory(1024) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..200 {
                    let first = thread * 512 + round % 256;
                    let ranges: Vec<_> = (0..100).map(|index| range(memory, first + index * 2, 1)).collect();
                    memory.releaser.supply(&ranges).unwrap();
                    (0..100).for_each(|index| fill(memory, first + index * 2, thread as u8 + 1));
                    std::thread::yield_now();
                    assert!((0..100).all(|index| byte(memory, first + index * 2) == thread as u8 + 1));
                    release(memory, &ranges);
                }
            });
        }
    });
    // By one thread that never released anything.
    memory.releaser.supply(&[range(&memory, 0, 1024)]).unwrap();
    assert!(memory.releaser.exmap_counters().unwrap().pages_stolen > 0);
}

#[test]
fn several_areas_know_nothing_of_each_other() {
    let (Some(first), Some(second)) = (memory(64), memory(64)) else { return };
    first.releaser.supply(&[range(&first, 0, 64)]).unwrap();
    (0..64).for_each(|number| fill(&first, number, 3));
    second.releaser.supply(&[range(&second, 0, 64)]).unwrap();
    drop(first);
    (0..64).for_each(|number| fill(&second, number, 4));
    assert!((0..64).all(|number| byte(&second, number) == 4));
}

#[test]
fn another_method_can_be_forced_and_lack_of_the_device_is_explained() {
    let forced = PageMemoryOptions { method: Some(ReleaseMethod::Madvise), ..options(64) };
    let memory = PageMemory::reserve(&forced, Arc::new(SimulatedFile::new(1))).unwrap();
    assert_eq!(memory.releaser.method(), ReleaseMethod::Madvise);
    assert_eq!(memory.releaser.exmap_counters(), None);
    memory.releaser.supply(&[range(&memory, 0, 1)]).unwrap();
    fill(&memory, 0, 1);
    match PageMemory::reserve(&options(64), Arc::new(SimulatedFile::new(1))) {
        Ok(memory) => assert_eq!(memory.releaser.method(), ReleaseMethod::Exmap),
        Err(error) => assert!(error.to_string().contains("kernel/exmap"), "{error}"),
    }
    // More than any machine has: forced it is an error, otherwise something else serves.
    let vast = PageMemoryOptions { resident_pages_max: usize::MAX / 8192, ..options(0) };
    let refused = PageMemory::reserve(&vast, Arc::new(SimulatedFile::new(1))).unwrap_err();
    assert!(matches!(refused, VmError::ReleaseUnavailable { method: ReleaseMethod::Exmap, .. }), "{refused}");
    let any = PageMemoryOptions { method: None, ..vast };
    let memory = PageMemory::reserve(&any, Arc::new(SimulatedFile::new(1))).unwrap();
    assert_ne!(memory.releaser.method(), ReleaseMethod::Exmap);
}
