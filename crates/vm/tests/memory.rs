//! Mappings and their release, seen from outside: resident size, forked children, both methods.

use std::ptr;
use std::sync::{Mutex, MutexGuard};
use vellum_base::PAGE_SIZE;
use vellum_vm::{Mapping, PageRange, ReleaseMethod, Releaser, VmError, resident_bytes, resident_bytes_peak};

/// Tests that look at the resident size of the process take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Every way of releasing that works here. `madvise` always does.
fn releasers() -> Vec<Releaser> {
    let mut all = vec![Releaser::new(Some(ReleaseMethod::Madvise)).unwrap()];
    all.extend(Releaser::new(Some(ReleaseMethod::ProcessMadvise)).ok());
    all
}

/// The address of a page of a mapping.
fn page(mapping: &Mapping, number: usize) -> *mut u8 {
    assert!(number < mapping.len() / PAGE_SIZE);
    mapping.base().as_ptr().wrapping_add(number * PAGE_SIZE)
}

/// Writes `value` to every byte of a page.
fn fill(mapping: &Mapping, number: usize, value: u8) {
    // SAFETY: the page lies in the mapping, which is the test's alone.
    unsafe { ptr::write_bytes(page(mapping, number), value, PAGE_SIZE) }
}

/// Whether every byte of a page has this value.
fn holds(mapping: &Mapping, number: usize, value: u8) -> bool {
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(page(mapping, number), PAGE_SIZE) };
    bytes.iter().all(|byte| *byte == value)
}

#[test]
fn reserving_costs_no_memory_and_writing_does() {
    let _turn = turn();
    let before = resident_bytes().unwrap();
    let mapping = Mapping::reserve(1 << 38, "a test").unwrap().for_pages().unwrap();
    assert_eq!(mapping.len(), 1 << 38);
    assert_eq!(mapping.base().as_ptr().addr() % PAGE_SIZE, 0);
    assert!(resident_bytes().unwrap() < before + (4 << 20));

    let pages = 8192;
    (0..pages).for_each(|number| fill(&mapping, number, 1));
    let written = resident_bytes().unwrap();
    assert!(written >= before + (pages * PAGE_SIZE) as u64 - (2 << 20), "{before} then {written}");
    assert!(resident_bytes_peak().unwrap() + (2 << 20) >= written);
    drop(mapping);
    assert!(resident_bytes().unwrap() <= before + (4 << 20));
}

#[test]
fn released_pages_read_as_zeroes_and_are_no_longer_resident() {
    let _turn = turn();
    for releaser in releasers() {
        let mapping = Mapping::reserve(64 << 20, "a test").unwrap().for_pages().unwrap();
        let pages = mapping.len() / PAGE_SIZE;
        (0..pages).for_each(|number| fill(&mapping, number, 7));
        let full = resident_bytes().unwrap();
        // Every second page, so that nothing can be joined: many calls' worth.
        let ranges: Vec<_> = (0..pages)
            .step_by(2)
            .map(|number| PageRange { address: page(&mapping, number), bytes: PAGE_SIZE })
            .collect();
        // SAFETY: the ranges lie in the mapping, which no other code uses.
        unsafe { releaser.release(&ranges).unwrap() };
        let half = resident_bytes().unwrap();
        assert!(half + (31 << 20) <= full, "{}: {full} then {half}", releaser.method());
        for number in 0..pages {
            let expected = if number % 2 == 0 { 0 } else { 7 };
            assert!(holds(&mapping, number, expected), "{}: page {number}", releaser.method());
        }
        // What was released can be written and released again.
        fill(&mapping, 0, 9);
        assert!(holds(&mapping, 0, 9));
        // SAFETY: as above.
        unsafe { releaser.release(&ranges[..1]).unwrap() };
        assert!(holds(&mapping, 0, 0));
        assert_eq!(releaser.fallback_count(), 0);
    }
}

#[test]
fn ranges_of_any_length_and_order_are_released_exactly() {
    for releaser in releasers() {
        let mapping = Mapping::reserve(64 * PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
        (0..64).for_each(|number| fill(&mapping, number, 3));
        let range = |first, pages| PageRange { address: page(&mapping, first), bytes: pages * PAGE_SIZE };
        // Adjoining, empty, backwards, long.
        let ranges = [range(1, 1), range(2, 3), range(0, 0), range(40, 8), range(20, 1), range(63, 1)];
        // SAFETY: the ranges lie in the mapping, which no other code uses.
        unsafe { releaser.release(&ranges).unwrap() };
        // SAFETY: nothing is released.
        unsafe { releaser.release(&[]).unwrap() };
        for number in 0..64 {
            let released = matches!(number, 1..=4 | 40..=47 | 20 | 63);
            assert!(holds(&mapping, number, if released { 0 } else { 3 }), "page {number}");
        }
    }
}

#[test]
fn more_than_the_kernel_takes_in_one_call_is_released() {
    let _turn = turn();
    for releaser in releasers() {
        let mapping = Mapping::reserve(6 << 30, "a test").unwrap().for_pages().unwrap();
        let gibibyte = (1 << 30) / PAGE_SIZE;
        let written: Vec<_> = (0..6).flat_map(|g| [g * gibibyte, g * gibibyte + 77]).collect();
        written.iter().for_each(|number| fill(&mapping, *number, 5));
        // The first 5 GiB as one range, and one more page far away: the kernel stops after 2 GiB.
        let ranges = [
            PageRange { address: page(&mapping, 0), bytes: 5 << 30 },
            PageRange { address: page(&mapping, 5 * gibibyte + 77), bytes: PAGE_SIZE },
        ];
        // SAFETY: the ranges lie in the mapping, which no other code uses.
        unsafe { releaser.release(&ranges).unwrap() };
        for number in written {
            let kept = number == 5 * gibibyte;
            assert!(holds(&mapping, number, if kept { 5 } else { 0 }), "page {number}");
        }
        assert_eq!(releaser.fallback_count(), 0, "{}", releaser.method());
    }
}

#[test]
fn releasing_what_is_not_mapped_is_an_error_that_names_the_place() {
    for releaser in releasers() {
        let mapping = Mapping::reserve(3 * PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
        (0..3).for_each(|number| fill(&mapping, number, 1));
        // SAFETY: the kernel refuses ranges that are not aligned before it touches anything.
        let crooked = PageRange { address: page(&mapping, 1).wrapping_add(1), bytes: PAGE_SIZE };
        let good = PageRange { address: page(&mapping, 0), bytes: PAGE_SIZE };
        // SAFETY: as above.
        let error = unsafe { releaser.release(&[good, crooked]) }.unwrap_err();
        assert!(matches!(error, VmError::Release { address, .. } if address == crooked.address.addr()));
        assert!(error.to_string().contains(&format!("{:#x}", crooked.address.addr())), "{error}");
        assert!(holds(&mapping, 0, 0), "what came before it was released");
        assert!(holds(&mapping, 1, 1) && holds(&mapping, 2, 1));
    }
}

#[test]
fn threads_release_at_the_same_time() {
    let _turn = turn();
    for releaser in releasers() {
        let mapping = Mapping::reserve(1024 * PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (mapping, releaser) = (&mapping, &releaser);
                scope.spawn(move || {
                    for round in 0..20u8 {
                        let own = (thread..1024).step_by(4);
                        let ranges: Vec<_> = own
                            .clone()
                            .map(|number| PageRange { address: page(mapping, number), bytes: PAGE_SIZE })
                            .collect();
                        own.clone().for_each(|number| fill(mapping, number, round + 1));
                        assert!(own.clone().all(|number| holds(mapping, number, round + 1)));
                        // SAFETY: the pages are this thread's.
                        unsafe { releaser.release(&ranges).unwrap() };
                        assert!(own.clone().all(|number| holds(mapping, number, 0)));
                    }
                });
            }
        });
    }
}

#[test]
fn a_forked_child_does_not_have_the_pages_but_has_the_table() {
    let pages = Mapping::reserve(PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
    let table = Mapping::reserve(PAGE_SIZE, "a test").unwrap().for_table();
    fill(&pages, 0, 1);
    fill(&table, 0, 1);
    let mut resident = [0u8; 1];
    // SAFETY: the child only calls mincore, which touches no memory of the mapping, and leaves at once.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let found = |mapping: &Mapping, resident: &mut [u8; 1]| {
                libc::mincore(mapping.base().as_ptr().cast(), PAGE_SIZE, resident.as_mut_ptr()) == 0
            };
            let outcome =
                i32::from(found(&pages, &mut resident)) * 2 + i32::from(found(&table, &mut resident));
            libc::_exit(outcome);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 1, "2 is for the pages, 1 for the table");
}

#[test]
fn impossible_reservations_are_explained() {
    for bytes in [0, 1, PAGE_SIZE + 1] {
        let error = Mapping::reserve(bytes, "a test").unwrap_err();
        assert!(matches!(error, VmError::Length { bytes: found, .. } if found == bytes));
    }
    let error = Mapping::reserve(1 << 60, "the pages of a test").unwrap_err();
    assert!(matches!(error, VmError::AddressSpace { bytes, .. } if bytes == 1 << 60));
    let message = error.to_string();
    for part in ["the pages of a test", "capacity", "RLIMIT_AS", "RLIMIT_DATA", "overcommit"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn what_is_refused_is_halved() {
    let mapping = Mapping::reserve_up_to(1 << 60, 1 << 20, "a test").unwrap();
    assert!((1 << 30..1 << 60).contains(&mapping.len()) && mapping.len().is_power_of_two());
    // Half of what was granted was given back.
    assert!(Mapping::reserve(mapping.len() * 4, "a test").is_err());
    assert_eq!(Mapping::reserve_up_to(1 << 20, 1 << 20, "a test").unwrap().len(), 1 << 20);
    assert!(matches!(
        Mapping::reserve_up_to(1 << 60, 1 << 59, "a test").unwrap_err(),
        VmError::AddressSpace { bytes, .. } if bytes == 1 << 59
    ));
}

#[test]
fn a_limit_on_memory_gives_an_error_and_not_a_crash_and_leaves_a_part_to_others() {
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
        // In a child, because the limit is the whole process's.
        // SAFETY: the child only makes system calls and leaves; the reservations allocate no heap memory.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let limit = libc::rlimit { rlim_cur: 1 << 36, rlim_max: 1 << 36 };
                libc::setrlimit(resource, &limit);
                let reserved = Mapping::reserve(1 << 37, "a test");
                let refused = matches!(reserved, Err(VmError::AddressSpace { .. }));
                let smaller = Mapping::reserve_up_to(1 << 37, 1 << 20, "a test");
                let found = smaller.as_ref().is_ok_and(|mapping| mapping.len() == 1 << 34);
                let left = Mapping::reserve(1 << 35, "other things").is_ok();
                libc::_exit(i32::from(refused) + 2 * i32::from(found) + 4 * i32::from(left));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 7, "limit {resource}");
    }
}

#[test]
fn many_large_reservations_leave_addresses_to_the_rest_of_the_process() {
    // In a child, because the addresses are the whole process's.
    // SAFETY: the child only makes system calls and leaves; the reservations allocate no heap memory.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let mut made = 0;
            let refused = loop {
                match Mapping::reserve_up_to(1 << 40, 1 << 20, "a test") {
                    Ok(mapping) => std::mem::forget(mapping),
                    Err(error) => break matches!(error, VmError::AddressSpace { .. }),
                }
                made += 1;
            };
            let left = Mapping::reserve(14 << 30, "stacks and allocators").is_ok();
            let small = Mapping::reserve_up_to(1 << 30, 1 << 20, "a small database")
                .is_ok_and(|it| it.len() == 1 << 30);
            libc::_exit(
                i32::from(refused) + 2 * i32::from(left) + 4 * i32::from(small) + 8 * i32::from(made > 100),
            );
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 15);
}

#[test]
fn methods_have_names() {
    for method in [ReleaseMethod::ProcessMadvise, ReleaseMethod::Madvise] {
        assert_eq!(method.to_string().parse::<ReleaseMethod>().unwrap(), method);
    }
    let error = "exorcism".parse::<ReleaseMethod>().unwrap_err().to_string();
    assert!(error.contains("exorcism") && error.contains("process_madvise, madvise"), "{error}");
}

#[test]
fn the_probe_finds_what_can_be_forced() {
    let found = Releaser::new(None).unwrap().method();
    let forced = Releaser::new(Some(ReleaseMethod::ProcessMadvise));
    match found {
        ReleaseMethod::ProcessMadvise => assert_eq!(forced.unwrap().method(), found),
        _ => assert!(matches!(forced.unwrap_err(), VmError::ReleaseUnavailable { .. })),
    }
}
