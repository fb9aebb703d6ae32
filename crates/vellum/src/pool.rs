//! The pool by itself: pages as memory, for structures of your own.
//!
//! A [`Pool`] is a file of pages, of which as many are in memory as a limit allows. Page `p` of the file
//! lives at byte `4096 * p` of one reserved range of addresses, for as long as the file is open and whether
//! or not it is in memory. So a page that is in memory is reached by an addition: no table is searched, no
//! pointer is swizzled, and pages may refer to each other by number in any way, in cycles too. What is in
//! memory, and when it goes, the pool decides, and not the kernel: that is what `mmap` of a file cannot do.
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
//! What is allocated, latched, read, written and evicted as one is an *extent*: one page, or any number of
//! consecutive ones. Its first page, the *head*, names it. All its bytes are one slice, however many they
//! are. The first 32 belong to the pool: a header with the checksum, the extent's place and length, a
//! [kind](PageKind) (from 64 on they are yours) and an LSN. What was read from storage is
//! checked against its header before any reader sees it. The rest, the *payload*, is yours.
//!
//! # States and guards
//! Each page has one state word: unlocked, shared by up to [`SHARED_HOLDERS_MAX`], exclusive, marked (the
//! clock has passed, and nothing has used it since) or evicted, and a version that grows with each change and each
//! eviction. Bytes are reached through *guards* alone:
//!
//! | guard | comes from | others may | gives |
//! |---|---|---|---|
//! | [`OptimisticGuard`] | [`Navigation::root`], [`Navigation::child`] | do anything | [`OptimisticBytes`], to be validated |
//! | [`SharedGuard`] | [`Pool::shared`], [`Navigation::shared`] | read | `&[u8]` |
//! | [`ExclusiveGuard`] | [`Pool::exclusive`], [`OptimisticGuard::upgrade`] | wait | `&mut [u8]` |
//! | [`AllocatedGuard`] | [`Pool::allocate`] | not know of it yet | `&mut [u8]` |
//!
//! A guard gives its latch up when it is dropped. [`ExclusiveGuard::downgrade`] lets others read,
//! [`ExclusiveGuard::free`] gives the extent's space back. An [`AllocatedGuard`] frees what it guards unless
//! [`keep`](AllocatedGuard::keep) says that something will refer to it, so an operation that fails half-way
//! leaks nothing.
//!
//! A thread that waits for a latch spins for a moment and then sleeps. The pool does not look for deadlocks:
//! a thread that holds several latches takes them in an order, say from parent to child, and does not ask for a
//! page that it holds itself. A guard that is leaked (`mem::forget`) keeps its page latched for ever; closing
//! the file then fails. A panic while a page is being changed releases its latch and leaves it half-changed,
//! so the file cannot be closed cleanly any more.
//!
//! # The restart protocol
//! An optimistic guard takes no latch and writes nothing, so readers do not disturb each other, nor does a
//! hit cost more than a look at the state word. The price: the page may change or go while it is read. So
//! what is computed from it means nothing until [`validate`](OptimisticGuard::validate) says that it did
//! not, and it must not be used to index anything before.
//!
//! An operation is therefore a function that reads, decides, and latches what it changes at its end. It stops
//! with an [`Interrupt`] before it has changed anything: on a *conflict* (what it read has changed) or a
//! *miss* (what it needs is not in memory). [`Navigation::run`] resolves the interrupt, which is where the reading
//! and the waiting happen, and calls the function again. Here a list of pages, each with the number of the
//! next at byte 32 and a value at byte 40, is read and changed by several threads:
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
//! - Change nothing before the last latch is yours; then change and return, without `?` in between.
//! - A reference is followed by `child`, which validates the parent once more afterwards. A page that one
//!   knows by number and that nothing on a page refers to, the root of a structure, is had by
//!   [`root`](Navigation::root); it must exist as long as it may be asked for.
//! - Loops over what was read need a bound that does not come from it.
//! - All pages that one run of the function looks at must fit into the pool at once, because a miss begins
//!   it anew. One that never gets through is ended with [`PoolError::PoolExhausted`].
//! - Hold no latch when you call [`resolve`](Navigation::resolve) or `run`.
//! - Before an extent is freed, every reference to it has been removed. A reader that follows the reference that was
//!   removed finds that the parent has changed, and retries.
//!
//! Structures that are written against the [`Pager`] trait, and not against `Pool`, run on other pagers too.
//!
//! # Large values
//! An extent larger than [`Allocation::comfortable_pages`] is better not brought into memory as a whole:
//! [`Streams::stream`] writes it from its beginning to its end past the pool, [`Streams::read_part`] reads pages of
//! it, and [`Allocation::discard`] frees it without reading it in.
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
//! Which pages of the file are in use is recorded in two bits a page. Freed space is used again for extents of
//! any size; the file grows, in chunks, only when nothing fits, and is cut when it is closed. The pool reads
//! nothing that those bits do not confirm: a damaged or stale reference gives an error, or shows what is there
//! now, but never a part of something else.
//!
//! # The life of a file
//! Before anything is changed, be it in memory alone, the file is marked as in use; [`Pool::checkpoint`] and
//! [`Pool::close`] write everything and mark it as closed. A file that was not closed is refused with
//! [`PoolError::NotClosedCleanly`] and never shown half: this layer has no log. One that logs its changes
//! gives the pool a [`ChangeLog`], sets the LSN of each page that it changes, and recovers a file that was not
//! closed by [`PoolFile`] and [`Pool::redo`]. Sixteen numbers ([`Pool::root_slot`]) tell where the structures of a
//! file begin. One process has a file open, or several for reading only. The memory of the pages does not exist in a child made by `fork`.
//!
//! # Memory
//! The pages in memory never exceed [`PoolOptions::pool_bytes`]. Beside them, each page of the file that was
//! ever touched takes 8 bytes for its state and a quarter of a byte for its allocation (twice that with a log), and each page of the
//! pool 16 to 32 bytes. Replacement is a clock: a page that was not used between two passes of its hand is
//! evicted. A thread in the background keeps some room; without it
//! ([`PoolOptions::background_eviction`]) the threads that need room make it. Every guard that takes a latch keeps
//! its extent in memory, so a pool needs room for what its threads hold at once. Address space is reserved
//! ahead ([`PoolOptions::capacity_bytes`]) and costs nothing.
//!
//! # Errors
//! [`PoolError`] names what was being done, to which extent, and what to do about it. An operation that fails
//! has changed nothing. A page that could not be written stays in memory and is written later;
//! a page that could not be read can be asked for again. A failed *sync* is final: nothing that is written
//! afterwards can be trusted to last, so the file cannot be closed cleanly any more.
//!
//! # What it does not do
//! No transactions and no recovery, no locks on keys, no search for deadlocks, no fairness: readers that come
//! one after another can keep a writer waiting for ever. It does not look into pages, beyond their headers.
//!
//! The design is that of *Virtual-Memory Assisted Buffer Management* (Leis, Alhomssi, Ziegler, Loeck, Dietrich,
//! SIGMOD 2023).

pub use vellum_base::{
    Bytes, ChecksumStream, Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, checksum,
};
pub use vellum_pool::*;
pub use vellum_vm::{AlignedBuffer, File, FileDescription, IoEngine, ReleaseMethod, SimulatedFile, VmError};
