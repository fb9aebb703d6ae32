//! The simulated file: the same as a real one without faults, and every fault as described.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, CrashModel, CreateMode, DiskFile, Faults, File, FileOperation, FileOptions, Image,
    IoEngine, Operation, Request, SimulatedFile,
};

/// What a device writes as a whole, in bytes.
const SECTOR: usize = 512;

fn offset(page: usize) -> u64 {
    (page * PAGE_SIZE) as u64
}

/// Fills a page of a file with one value.
fn write(file: &dyn File, page: usize, value: u8) -> io::Result<()> {
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    buffer.fill(value);
    // SAFETY: the buffer is borrowed for the length of the call.
    unsafe { file.write(offset(page), buffer.as_ptr(), PAGE_SIZE) }
}

/// Reads a page of a file.
fn read(file: &dyn File, page: usize) -> io::Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    // SAFETY: the buffer is borrowed mutably for the length of the call.
    unsafe { file.read(offset(page), buffer.as_mut_ptr(), PAGE_SIZE)? };
    Ok(buffer)
}

/// A file of so many durable pages, each filled with 1.
fn ones(seed: u64, pages: usize) -> SimulatedFile {
    SimulatedFile::from_image(seed, Image::from_bytes(&vec![1; pages * PAGE_SIZE]))
}

/// The values of the sectors of a page; `None` if a sector is mixed.
fn sectors(image: &Image, page: usize) -> Vec<Option<u8>> {
    let mut bytes = [0; PAGE_SIZE];
    assert_eq!(image.read(offset(page), &mut bytes), PAGE_SIZE);
    bytes
        .chunks(SECTOR)
        .map(|sector| sector.iter().all(|byte| *byte == sector[0]).then_some(sector[0]))
        .collect()
}

#[test]
fn without_faults_it_does_what_a_file_on_disk_does() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    let real = DiskFile::open(&directory.path().join("file"), &options).unwrap();
    let simulated = SimulatedFile::new(7);
    // Short transfers and interruptions are none of a caller's business.
    simulated.set_faults(Faults { short: 0.3, interrupted: 0.2, ..Faults::default() });
    let mut state = 12345u64;
    let mut random = |end: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % end
    };
    for step in 0..1500 {
        let (at, pages) = (random(40), 1 + random(6));
        let mut outcomes = Vec::new();
        let kind = random(10);
        let order = random(4);
        for file in [&real as &dyn File, &simulated] {
            let mut buffer = AlignedBuffer::new(pages * PAGE_SIZE);
            let outcome = match kind {
                0 => file.grow(offset(at)),
                1 => file.truncate(offset(at)),
                2 => file.sync(),
                3..=5 => {
                    buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = (step * 3 + index) as u8);
                    // SAFETY: the buffer is borrowed for the length of the call.
                    unsafe { file.write(offset(at), buffer.as_ptr(), buffer.len()) }
                }
                6 | 7 => {
                    let address = buffer.as_mut_ptr();
                    let mut requests: Vec<_> = (0..pages)
                        .map(|page| (page, address.wrapping_add(page * PAGE_SIZE)))
                        .map(|(page, address)| match (page + order) % 4 {
                            0 => Request::write(offset(at + page), address, PAGE_SIZE),
                            _ => Request::read(offset(at + page), address, PAGE_SIZE),
                        })
                        .collect();
                    // Only within the file, where the order of requests means nothing.
                    if offset(at + pages) <= file.size().unwrap() {
                        // SAFETY: each request has its own page of the buffer.
                        unsafe { file.run(&mut requests) };
                    }
                    requests.into_iter().find_map(|request| request.result.err()).map_or(Ok(()), Err)
                }
                // SAFETY: the buffer is borrowed for the length of the call.
                _ => unsafe { file.read(offset(at), buffer.as_mut_ptr(), buffer.len()) },
            };
            let kind = outcome.map_err(|error| error.kind());
            outcomes.push((kind, kind.is_ok().then(|| buffer.to_vec()), file.size().unwrap()));
        }
        assert!(outcomes[0] == outcomes[1], "step {step}, kind {kind}, {at} {pages}");
    }
    assert!(simulated.counts().faults > 100, "{:?}", simulated.counts());
    let on_disk = std::fs::read(directory.path().join("file")).unwrap();
    assert!(simulated.snapshot().to_vec() == on_disk);
}

#[test]
fn every_kind_of_fault_is_seen() {
    let always = |change: fn(&mut Faults)| {
        let file = ones(99, 8);
        let mut faults = Faults::default();
        change(&mut faults);
        file.set_faults(faults);
        file
    };
    let eio = |outcome: io::Result<()>| assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EIO));

    let file = always(|faults| faults.read_error = 1.0);
    eio(read(&file, 0).map(drop));
    write(&file, 0, 2).unwrap();

    let file = always(|faults| faults.write_error = 1.0);
    let mut torn = HashSet::new();
    for _ in 0..20 {
        eio(write(&file, 0, 2));
        torn.insert(sectors(&file.snapshot(), 0));
    }
    assert!(torn.len() > 2, "a failed write leaves any of its sectors: {torn:?}");
    assert!(torn.iter().flatten().all(|sector| matches!(sector, Some(1 | 2))));

    let file = always(|faults| faults.sync_error = 1.0);
    eio(file.sync());
    let file = always(|faults| (faults.sync_error, faults.full_syncs) = (1.0, true));
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::StorageFull);

    let file = always(|faults| faults.grow_error = 1.0);
    eio(file.grow(offset(9)));
    eio(file.truncate(offset(7)));
    assert_eq!(file.size().unwrap(), offset(8));

    let file = always(|faults| faults.capacity_bytes = Some(8 * 4096));
    assert_eq!(file.grow(offset(9)).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(write(&file, 8, 1).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.size().unwrap(), offset(8));
    write(&file, 7, 2).unwrap();

    let file = always(|faults| faults.lost_write = 1.0);
    write(&file, 0, 2).unwrap();
    assert!(read(&file, 0).unwrap().iter().all(|byte| *byte == 1));

    let file = always(|faults| faults.misdirected_write = 1.0);
    write(&file, 0, 2).unwrap();
    let written: Vec<_> = (0..8).filter(|page| read(&file, *page).unwrap()[0] == 2).collect();
    assert!(written.len() == 1 && written[0] != 0, "{written:?}");

    let bits = |bytes: &[u8]| bytes.iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>();
    let file = always(|faults| faults.bit_flip_on_read = 1.0);
    assert_eq!(bits(&read(&file, 0).unwrap()), 1);
    assert_eq!(bits(&file.snapshot().to_vec()), 0, "only what was returned is wrong");

    let file = always(|faults| faults.bit_flip_on_write = 1.0);
    write(&file, 0, 1).unwrap();
    assert_eq!(bits(&file.snapshot().to_vec()), 1, "what is stored is wrong");

    let file = always(|faults| (faults.short, faults.interrupted) = (0.9, 0.5));
    write(&file, 0, 2).unwrap();
    assert!(read(&file, 0).unwrap().iter().all(|byte| *byte == 2));
    let history = file.history();
    assert!(history.contains("cut short") && history.contains("interrupted"), "{history}");

    let file = always(|faults| faults.delay_max = Duration::from_millis(2));
    let begun = std::time::Instant::now();
    (0..20).for_each(|_| drop(read(&file, 0).unwrap()));
    assert!(begun.elapsed() > Duration::from_millis(5), "20 delays of 1 ms on average");
}

#[test]
fn rare_faults_come_as_often_as_told() {
    let file = ones(3, 1);
    file.set_faults(Faults { read_error: 0.1, ..Faults::default() });
    let failed = (0..2000).filter(|_| read(&file, 0).is_err()).count();
    assert!((150..250).contains(&failed), "{failed}");
    assert_eq!(file.counts().faults, failed as u64);
    assert_eq!(file.counts().of(FileOperation::Read), 2000);
    file.heal();
    assert!((0..200).all(|_| read(&file, 0).is_ok()));
}

/// Some of everything: 14 operations, the first error ends it.
fn work(file: &SimulatedFile) -> io::Result<()> {
    file.grow(offset(6))?;
    for page in 0..4 {
        write(file, page, 5)?;
    }
    file.sync()?;
    read(file, 1)?;
    let buffer = AlignedBuffer::new(4 * PAGE_SIZE);
    let mut requests: Vec<_> = (0..4)
        .map(|page| {
            Request::read(offset(page), buffer.as_ptr().cast_mut().wrapping_add(page * PAGE_SIZE), PAGE_SIZE)
        })
        .collect();
    // SAFETY: each request has its own page of the buffer, which is not looked at.
    unsafe { file.run(&mut requests) };
    requests.into_iter().try_for_each(|request| request.result)?;
    file.truncate(offset(5))?;
    write(file, 4, 6)?;
    file.sync()
}

/// Syncs go on after one has failed.
fn forgotten() -> Faults {
    Faults { forgotten_failures: true, ..Faults::default() }
}

#[test]
fn the_nth_operation_fails_for_every_n() {
    let clean = SimulatedFile::new(1);
    work(&clean).unwrap();
    let total = clean.counts().total();
    assert_eq!(total, 14);
    for n in 1..=total + 2 {
        let file = SimulatedFile::new(n);
        file.set_faults(forgotten());
        file.fail_nth(n);
        match work(&file) {
            Err(error) => assert!(n <= total && error.raw_os_error() == Some(libc::EIO), "{n}: {error}"),
            Ok(()) => assert!(n > total, "{n}"),
        }
        assert_eq!(file.counts().scheduled_failures, u64::from(n <= total));
        // It was once, so work can be done again.
        if n <= total {
            work(&file).unwrap();
        }
        assert_eq!(file.snapshot().size(), offset(5));
    }
}

#[test]
fn from_the_nth_operation_on_all_fail_until_healed() {
    for n in 1..=14 {
        let file = SimulatedFile::new(n);
        file.set_faults(forgotten());
        file.fail_from(n);
        work(&file).unwrap_err();
        for _ in 0..3 {
            read(&file, 0).unwrap_err();
            write(&file, 0, 1).unwrap_err();
            file.sync().unwrap_err();
            file.grow(offset(9)).unwrap_err();
        }
        file.heal();
        work(&file).unwrap();
    }
}

#[test]
fn operations_of_one_kind_fail_by_number() {
    for (operation, total) in [
        (FileOperation::Read, 5),
        (FileOperation::Write, 5),
        (FileOperation::Sync, 2),
        (FileOperation::Resize, 2),
    ] {
        for n in 1..=total + 1 {
            let file = SimulatedFile::new(n);
            file.fail_nth_of(operation, n);
            assert_eq!(work(&file).is_err(), n <= total, "{operation} {n}");
            let file = SimulatedFile::new(n);
            file.fail_from_of(operation, n);
            assert_eq!(work(&file).is_err(), n <= total, "{operation} {n}");
        }
        let file = SimulatedFile::new(0);
        work(&file).unwrap();
        assert_eq!(file.counts().of(operation), total);
    }
}

#[test]
fn what_was_synced_survives_every_crash() {
    for seed in 0..300 {
        let file = SimulatedFile::new(seed);
        file.grow(offset(8)).unwrap();
        (0..8).for_each(|page| write(&file, page, 1).unwrap());
        file.sync().unwrap();
        (0..4).for_each(|page| write(&file, page, 2).unwrap());
        let after = file.crash();
        assert_eq!(after.size().unwrap(), offset(8));
        for page in 0..8 {
            let found = sectors(&after.snapshot(), page);
            let allowed: &[_] = if page < 4 { &[Some(1), Some(2)] } else { &[Some(1)] };
            assert!(
                found.iter().all(|sector| allowed.contains(sector)),
                "seed {seed}, page {page}: {found:?}"
            );
        }
        // All of it is durable again, and the file that crashed goes on.
        assert_eq!(after.crash().snapshot(), after.snapshot());
        file.sync().unwrap();
        assert_eq!(file.crash().snapshot(), file.snapshot());
        assert_eq!(file.unsynced_count(), 0);
    }
}

/// What crashes by a model leave of ten pages, each rewritten from 1 to 2 in order: the sectors of each.
fn crashes(model: CrashModel) -> Vec<Vec<Vec<Option<u8>>>> {
    (0..200)
        .map(|seed| {
            let file = ones(seed, 10);
            (0..10).for_each(|page| write(&file, page, 2).unwrap());
            let image = file.crash_with(model).snapshot();
            (0..10).map(|page| sectors(&image, page)).collect()
        })
        .collect()
}

#[test]
fn each_crash_model_leaves_what_it_says() {
    const OLD: [Option<u8>; 8] = [Some(1); 8];
    const NEW: [Option<u8>; 8] = [Some(2); 8];
    let whole = |page: &Vec<Option<u8>>| *page == OLD || *page == NEW;
    let distinct = |found: &Vec<Vec<Vec<Option<u8>>>>| found.iter().collect::<HashSet<_>>().len();

    assert!(crashes(CrashModel::KeepAll).iter().flatten().all(|page| *page == NEW));
    assert!(crashes(CrashModel::LoseAll).iter().flatten().all(|page| *page == OLD));

    let found = crashes(CrashModel::Prefix);
    let first = |pages: &Vec<Vec<Option<u8>>>| pages.iter().take_while(|page| **page == NEW).count();
    assert!(found.iter().all(|pages| pages[first(pages)..].iter().all(|page| *page == OLD)));
    assert_eq!(distinct(&found), 11, "none to all of ten");

    let found = crashes(CrashModel::Reorder);
    assert!(found.iter().flatten().all(whole));
    assert!(distinct(&found) > 100);
    assert!(found.iter().any(|pages| pages[0] == OLD && pages[1] == NEW));

    let found = crashes(CrashModel::Tear);
    assert!(found.iter().flatten().flatten().all(Option::is_some), "sectors are whole");
    assert!(found.iter().flatten().filter(|page| !whole(page)).count() > 1000);

    let found = crashes(CrashModel::Mix);
    for wanted in [OLD, NEW] {
        assert!(found.iter().flatten().any(|page| *page == wanted));
    }
    assert!(found.iter().flatten().any(|page| !whole(page)));

    // All of these are met by drawing any.
    let found = crashes(CrashModel::Any);
    assert!(found.iter().any(|pages| pages.iter().all(|page| *page == NEW)));
    assert!(found.iter().any(|pages| pages.iter().all(|page| *page == OLD)));
    assert!(found.iter().flatten().any(|page| !whole(page)));
}

#[test]
fn changes_of_size_are_lost_in_crashes_too() {
    let sizes: HashSet<_> = (0..100)
        .map(|seed| {
            let file = ones(seed, 2);
            file.grow(offset(4)).unwrap();
            file.grow(offset(6)).unwrap();
            file.truncate(offset(1)).unwrap();
            file.crash().size().unwrap() / PAGE_SIZE as u64
        })
        .collect();
    assert_eq!(sizes, HashSet::from([1, 2, 4, 6]));
}

#[test]
fn crashes_differ_from_each_other_and_repeat_with_the_seed() {
    let run = |seed| {
        let file = ones(seed, 10);
        file.set_faults(Faults { read_error: 0.2, write_error: 0.2, short: 0.5, ..Faults::default() });
        (0..40).for_each(|step| drop((write(&file, step % 10, 2), read(&file, step % 7))));
        let crashes: Vec<_> =
            (0..20).map(|_| file.crash_with(CrashModel::Tear).snapshot().to_vec()).collect();
        (crashes, file.history())
    };
    let (crashes, history) = run(5);
    assert!(crashes.iter().collect::<HashSet<_>>().len() > 10);
    assert!(run(5) == (crashes, history.clone()));
    assert!(run(6).1 != history);
    assert!(history.starts_with("seed 5\n"), "{history}");
    assert!(history.contains("write 4096 bytes at 8192: done"), "{history}");
    assert!(history.contains(": EIO"), "{history}");
}

#[test]
fn a_failed_sync_may_have_lost_what_a_later_one_does_not_bring_back() {
    let mut lost = 0;
    for seed in 0..50 {
        let file = ones(seed, 4);
        (0..4).for_each(|page| write(&file, page, 2).unwrap());
        file.set_faults(forgotten());
        file.fail_nth_of(FileOperation::Sync, 1);
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert!((0..4).all(|page| read(&file, page).unwrap()[0] == 2), "it can still be read");
        let durable = file.crash_with(CrashModel::LoseAll);
        lost += (0..4).filter(|page| read(&durable, *page).unwrap()[0] == 1).count();
        // Written again, it is as good as new.
        (0..4).for_each(|page| write(&file, page, 2).unwrap());
        file.sync().unwrap();
        assert_eq!(file.durable_snapshot(), file.snapshot());
    }
    assert!((50..150).contains(&lost), "about half of 200: {lost}");
}

#[test]
fn after_a_failed_sync_no_other_of_the_same_opening_succeeds() {
    let file = ones(1, 4);
    file.fail_nth_of(FileOperation::Sync, 1);
    for _ in 0..3 {
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    file.heal();
    file.clone().sync().unwrap_err();
    file.crash().sync().unwrap();
}

#[test]
fn a_failing_read_may_leave_anything_in_memory() {
    let file = ones(4, 1);
    file.fail_from_of(FileOperation::Read, 1);
    let mut left = HashSet::new();
    for _ in 0..20 {
        let mut buffer = AlignedBuffer::new(PAGE_SIZE);
        // SAFETY: the buffer is borrowed mutably for the length of the call.
        unsafe { file.read(0, buffer.as_mut_ptr(), PAGE_SIZE) }.unwrap_err();
        left.insert(buffer.to_vec());
    }
    assert!(left.len() > 10);
}

#[test]
fn tests_can_look_and_corrupt() {
    let file = ones(1, 2);
    file.flip_bit(8 * 4097 + 3);
    assert_eq!(read(&file, 1).unwrap()[1], 1 ^ 8);
    file.overwrite(4095, &[7, 7]);
    assert_eq!((read(&file, 0).unwrap()[4095], read(&file, 1).unwrap()[0]), (7, 7));
    let after = file.crash_with(CrashModel::LoseAll);
    assert_eq!(after.snapshot(), file.snapshot(), "corruption is durable");
    assert_eq!(file.description().engine, IoEngine::Simulated);
    assert_eq!(file.description().to_string(), "simulated, in memory");
    assert!(format!("{file:?}").contains("seed 1"), "{file:?}");
    let shared = file.clone();
    write(&shared, 0, 9).unwrap();
    assert_eq!(read(&file, 0).unwrap()[0], 9);
    assert_eq!(file.unsynced_count(), 1);
}

#[test]
fn misuse_is_a_panic() {
    let file = ones(1, 8);
    let mut buffer = AlignedBuffer::new(4 * PAGE_SIZE);
    let address = buffer.as_mut_ptr();
    let page = |number: usize| address.wrapping_add(number * PAGE_SIZE);
    let panics = |run: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(run)).is_err();
    // SAFETY: here and below, all memory lies in the buffer, and what is wrong is found before it is used.
    assert!(panics(&mut || drop(unsafe { file.read(1, address, PAGE_SIZE) })));
    // SAFETY: as above.
    assert!(panics(&mut || drop(unsafe { file.read(0, address, 100) })));
    // SAFETY: as above.
    assert!(panics(&mut || drop(unsafe { file.write(0, address.wrapping_add(8), PAGE_SIZE) })));
    let batch = |requests: &[(Operation, usize, usize, usize)]| {
        let mut requests: Vec<_> = requests
            .iter()
            .map(|(operation, at, place, pages)| match operation {
                Operation::Read => Request::read(offset(*at), page(*place), pages * PAGE_SIZE),
                Operation::Write => Request::write(offset(*at), page(*place), pages * PAGE_SIZE),
            })
            .collect();
        // SAFETY: as above.
        panics(&mut || unsafe { file.run(&mut requests) })
    };
    use Operation::{Read, Write};
    assert!(batch(&[(Write, 0, 0, 2), (Write, 1, 2, 1)]), "two writes to one page of the file");
    assert!(batch(&[(Read, 0, 0, 2), (Write, 1, 2, 1)]), "a read and a write of one page");
    assert!(batch(&[(Read, 0, 0, 1), (Read, 1, 0, 1)]), "two reads into one page of memory");
    assert!(batch(&[(Read, 0, 0, 4), (Read, 5, 1, 1), (Write, 6, 3, 1)]), "not only neighbours are compared");
    assert!(!batch(&[(Write, 0, 0, 1), (Write, 1, 0, 1)]), "one page of memory may be written twice");
    assert!(!batch(&[(Read, 0, 0, 1), (Read, 0, 1, 1)]), "one page of the file may be read twice");
    assert!(!batch(&[(Read, 0, 0, 2), (Write, 2, 2, 2)]));
}

#[test]
fn threads_share_a_file() {
    let file = ones(8, 64);
    file.set_faults(Faults {
        short: 0.2,
        interrupted: 0.2,
        delay_max: Duration::from_micros(20),
        ..Faults::default()
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    for page in (thread..64).step_by(4) {
                        write(&file, page, round).unwrap();
                        assert!(read(&file, page).unwrap().iter().all(|byte| *byte == round));
                    }
                    file.sync().unwrap();
                }
            });
        }
    });
    assert_eq!(file.durable_snapshot(), file.snapshot());
    assert_eq!(file.counts().of(FileOperation::Write), 4 * 20 * 16);
}
