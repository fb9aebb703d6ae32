//! The pool by itself: pages as memory, for your own structures.
//!
//! A [`Pool`] is a file of pages, of which a limited number are in memory. Page `p` of the file lives at byte
//! `4096 * p` of one reserved range of addresses, as long as the file is open and whether or not the page is in memory.
//! So a page in memory is reached by an addition: no table is searched, no pointer is swizzled, and pages may refer to
//! each other by number in any way, in cycles too. Unlike with an `mmap` of a file, the pool and not the kernel decides
//! which pages are in memory and when they are evicted.
//!
//! # A first pool
//! ```
//! use vellum::pool::PageKind;
//! use vellum::pool::{Pool, PoolOptions};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("numbers");
//! let options = PoolOptions::default().pool_bytes(1 << 20).application("numbers");
//!
//! let pool = Pool::create(&path, &options)?;
//! let mut guard = pool.allocate(1, PageKind::USER)?;
//! guard.payload_mut()[..8].copy_from_slice(&42u64.to_le_bytes());
//! let page = guard.keep().id();
//! pool.set_root_slot(0, page.0)?;
//! pool.close()?;
//!
//! let pool = Pool::open(&path, &options)?;
//! let page = vellum::pool::PageId(pool.root_slot(0));
//! let guard = pool.shared(vellum::pool::Extent::page(page))?;
//! assert_eq!(guard.payload()[..8], 42u64.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Extents
//! The unit that is allocated, latched, read, written and evicted is an *extent*: one page, or any number of
//! consecutive ones. Its first page, the *head*, identifies it. All its bytes are one slice, whatever its length. The
//! first 32 bytes belong to the pool: a header with the checksum, the extent's place and length, a [kind](PageKind)
//! (values from 64 on are yours) and an LSN. The header of an extent that was read from storage is checked before any
//! reader sees the extent. The rest, the *payload*, is yours.
//!
//! # States and guards
//! Each page has one state word. It says whether the page is unlocked, shared by up to [`SHARED_HOLDERS_MAX`] holders,
//! exclusive, marked (the clock has passed, and nothing has used the page since) or evicted, and it has a version that
//! grows with each change and each eviction. Bytes are reached only through *guards*:
//!
//! | guard | comes from | others may | gives |
//! |---|---|---|---|
//! | [`OptimisticGuard`] | [`Navigation::root`], [`Navigation::child`] | do anything | [`OptimisticBytes`], to be validated |
//! | [`SharedGuard`] | [`Pool::shared`], [`Navigation::shared`] | read | `&[u8]` |
//! | [`ExclusiveGuard`] | [`Pool::exclusive`], [`OptimisticGuard::upgrade`] | wait | `&mut [u8]` |
//! | [`AllocatedGuard`] | [`Pool::allocate`] | not know of it yet | `&mut [u8]` |
//!
//! A guard releases its latch when it is dropped. [`ExclusiveGuard::downgrade`] lets others read, and
//! [`ExclusiveGuard::free`] frees the extent's space. An [`AllocatedGuard`] frees its extent unless
//! [`keep`](AllocatedGuard::keep) says that something will refer to it, so an operation that fails half-way leaks
//! nothing.
//!
//! A thread that waits for a latch spins for a moment and then sleeps. The pool does not look for deadlocks: a thread
//! that holds several latches must take them in a fixed order, say from parent to child, and must not ask for a page
//! that it holds itself. A guard that is leaked (`mem::forget`) keeps its page latched for ever; closing the file then
//! fails. A panic while a page is being changed releases its latch and leaves the page half-changed, so the file can no
//! longer be closed cleanly.
//!
//! # The restart protocol
//! An optimistic guard takes no latch and writes nothing, so readers do not disturb each other, and a hit costs no more
//! than a look at the state word. The price is that the page may change or be evicted while it is read. So anything
//! computed from it is meaningless until [`validate`](OptimisticGuard::validate) confirms that the page did not change,
//! and must not be used as an index before.
//!
//! An operation is therefore a function that reads, decides, and latches what it changes at its end. It stops with an
//! [`Interrupt`] before it has changed anything: on a *conflict* (what it read has changed) or a *miss* (what it needs
//! is not in memory). [`Navigation::run`] resolves the interrupt, which includes any reading and waiting, and calls the
//! function again. Here a list of pages, each with the number of the next at byte 32 and a value at byte 40, is read
//! and changed by several threads:
//! ```
//! use vellum::pool::{Bytes, PageId, PageKind};
//! use vellum::pool::{Interrupt, Navigation, OptimisticGuard, Pool, PoolError, PoolOptions};
//!
//! const NEXT: usize = 32;
//! const VALUE: usize = 40;
//!
//! /// The `n`-th page of the list. `child` checks that the reference still stood when it was followed.
//! fn nth(pool: &Pool, first: PageId, n: usize) -> Result<OptimisticGuard<'_>, Interrupt> {
//!     let mut page = pool.root(first)?;
//!     for _ in 0..n {
//!         page = pool.child(&page, NEXT)?;
//!     }
//!     Ok(page)
//! }
//!
//! fn value(pool: &Pool, first: PageId, n: usize) -> Result<u64, PoolError> {
//!     pool.run(|| {
//!         let page = nth(pool, first, n)?;
//!         let value = page.bytes().u64_at(VALUE);
//!         page.validate()?; // Only now is it known that `value` was ever there.
//!         Ok(value)
//!     })
//! }
//!
//! fn add(pool: &Pool, first: PageId, n: usize, more: u64) -> Result<(), PoolError> {
//!     pool.run(|| {
//!         // `upgrade` fails if the page has changed since the look at it began.
//!         let mut page = nth(pool, first, n)?.upgrade()?;
//!         let sum = page.page().u64_at(VALUE) + more;
//!         page.page_mut()[VALUE..VALUE + 8].copy_from_slice(&sum.to_le_bytes());
//!         Ok(())
//!     })
//! }
//!
//! # let directory = tempfile::tempdir()?;
//! let options = PoolOptions::default().pool_bytes(1 << 20);
//! let pool = Pool::create(directory.path().join("list"), &options)?;
//! let mut first = PageId(0);
//! for _ in 0..100 {
//!     let mut page = pool.allocate(1, PageKind::USER)?;
//!     page.page_mut()[NEXT..NEXT + 8].copy_from_slice(&first.0.to_le_bytes());
//!     first = page.keep().id();
//! }
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| (0..100).try_for_each(|n| add(&pool, first, n, 1)).unwrap());
//!     }
//! });
//! assert_eq!(value(&pool, first, 0)?, 2);
//! assert_eq!(value(&pool, first, 99)?, 2);
//! // There is no hundred-and-first: the last page refers to page 0, which belongs to the pool.
//! assert!(matches!(value(&pool, first, 100), Err(PoolError::Corruption { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Rules for such functions:
//! - Change nothing before you hold the last latch; then change and return, without `?` in between.
//! - Follow a reference with `child`, which validates the parent once more afterwards. For a page that is known by
//!   number and that no page refers to, the root of a structure, use [`root`](Navigation::root); the page must exist as
//!   long as it may be asked for.
//! - Loops over data that was read need a bound that does not come from that data.
//! - All pages that one run of the function uses must fit into the pool at once, because a miss starts the run over. A
//!   function that never completes is ended with [`PoolError::PoolExhausted`].
//! - Hold no latch when you call [`resolve`](Navigation::resolve) or `run`.
//! - Remove every reference to an extent before you free it. A reader that follows a removed reference finds that the
//!   parent has changed, and retries.
//!
//! Structures that are written against the [`Pager`] trait, and not against `Pool`, run on other pagers too.
//!
//! # Large values
//! An extent larger than [`Allocation::comfortable_pages`] is better not brought into memory as a whole:
//! [`Streams::stream`] writes it past the pool from beginning to end, [`Streams::read_part`] reads pages of it, and
//! [`Allocation::discard`] frees it without reading it.
//! ```
//! # use vellum::pool::{Extent, Lsn, PageKind};
//! # use vellum::pool::{Allocation, ExtentWriter, Navigation, Pool, PoolOptions, Streams};
//! # let directory = tempfile::tempdir()?;
//! let options = PoolOptions::default().pool_bytes(64 << 10);
//! let pool = Pool::create(directory.path().join("large"), &options)?;
//! let mut stream = pool.stream(1000, PageKind::USER)?;
//! for part in 0..1000u64 {
//!     stream.append(&part.to_le_bytes())?;
//! }
//! let extent = stream.extent();
//! assert_eq!(stream.finish()?, extent.head);
//! assert!(pool.shared(extent).is_err(), "it does not fit into this pool");
//! pool.discard(extent, Lsn(0))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Allocation
//! Two bits a page record which pages of the file are in use. Freed space is reused for extents of any size; the file
//! grows, in chunks, only when nothing fits, and is cut when it is closed. The pool reads nothing that those bits do
//! not confirm: a damaged or stale reference gives an error, or shows what is there now, but never a part of another
//! extent.
//!
//! # The life of a file
//! Before anything is changed, even only in memory, the file is marked as in use; [`Pool::checkpoint`] and
//! [`Pool::close`] write everything and mark it as closed. A file that was not closed is refused with
//! [`PoolError::NotClosedCleanly`] and never shown half-written: this layer has no log. An application that logs its
//! changes gives the pool a [`ChangeLog`], sets the LSN of each page that it changes, and recovers a file that was not
//! closed with [`PoolFile`] and [`Pool::redo`]. Sixteen numbers ([`Pool::root_slot`]) tell where the structures of a
//! file begin. One process has a file open, or several for reading only. The memory of the pages does not exist in a
//! child made by `fork`.
//!
//! # Memory
//! The pages in memory never exceed [`PoolOptions::pool_bytes`]. In addition, each page of the file that was ever
//! touched takes 8 bytes for its state and a quarter of a byte for its allocation (twice that with a log), and each
//! page of the pool 16 to 32 bytes. The replacement policy is a clock: a page that was not used between two passes of
//! its hand is evicted. A background thread keeps some pages free; without it ([`PoolOptions::background_eviction`])
//! the threads that need room make it. Every guard that takes a latch keeps its extent in memory, so a pool needs room
//! for everything its threads hold at once. Address space is reserved in advance ([`PoolOptions::capacity_bytes`]) and
//! costs nothing.
//!
//! # Errors
//! [`PoolError`] says what was being done, to which extent, and what can be done about it. An operation that fails has
//! changed nothing. A page that could not be written stays in memory and is written later; a page that could not be
//! read can be requested again. A failed *sync* is final: nothing that is written afterwards can be trusted to last, so
//! the file can no longer be closed cleanly.
//!
//! # What it does not do
//! No transactions, recovery, locks on keys, deadlock detection or fairness: a steady stream of readers can keep a
//! writer waiting for ever. The pool does not look into pages, beyond their headers.
//!
//! The design is that of *Virtual-Memory Assisted Buffer Management* (Leis, Alhomssi, Ziegler, Loeck, Dietrich,
//! SIGMOD 2023).

pub use vellum_base::{
    Bytes, ChecksumStream, Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, checksum,
};
pub use vellum_pool::*;
pub use vellum_vm::{
    AlignedBuffer, File, FileDescription, IoEngine, Named, ReleaseMethod, SimulatedFile, VmError,
};
