//! Models of runs that are backed by huge pages while their pages leave memory.

use super::{check, note};
use crate::page::{
    huge_runs::{Backing, HugeRuns},
    state::PageState,
};
use loom::{
    sync::{Arc, Mutex},
    thread,
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::Collapse;

/// The page that leaves memory, and the number of pages of the run.
const PAGE: PageId = PageId(1);
const RUN_PAGES: u64 = 2;

/// The memory of a run, as the kernel sees it: each call is done as a whole, one after the other.
#[derive(Default)]
struct Kernel(Mutex<Memory>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Memory {
    #[default]
    Small,
    Huge,
    /// A page that a huge page spans was released. Its memory is free once the huge page is split.
    Kept,
}

impl Kernel {
    fn set(&self, memory: Memory) {
        *self.0.lock().unwrap() = memory;
    }

    fn get(&self) -> Memory {
        *self.0.lock().unwrap()
    }

    /// Releases the memory of the page.
    fn release(&self) {
        let mut memory = self.0.lock().unwrap();
        if *memory == Memory::Huge {
            *memory = Memory::Kept;
        }
    }
}

impl Backing for Kernel {
    fn collapse(&self, _: usize, _: usize) -> Collapse {
        self.set(Memory::Huge);
        Collapse::Done
    }

    fn populate_huge(&self, _: usize, _: usize) -> Collapse {
        self.set(Memory::Huge);
        Collapse::Done
    }

    fn split(&self, _: usize) {
        self.set(Memory::Small);
    }

    fn len(&self) -> usize {
        RUN_PAGES as usize * PAGE_SIZE
    }
}

struct Shared {
    runs: HugeRuns,
    kernel: Kernel,
    state: PageState,
    /// Whether the pages are counted, so that they can be allocated.
    counted: Mutex<bool>,
}

impl Shared {
    /// A run of which the page is in memory.
    fn new() -> Arc<Self> {
        let state = PageState::evicted();
        assert!(state.try_exclusive(state.load()));
        let _ = state.release_exclusive(false);
        let (runs, kernel) = (HugeRuns::of_one_run(RUN_PAGES), Kernel::default());
        Arc::new(Self { runs, kernel, state, counted: Mutex::new(false) })
    }

    fn is_whole(&self) -> bool {
        let now = self.state.load();
        !now.is_evicted() && !now.is_exclusive()
    }

    /// What the evictor does with the page.
    fn evict(&self) {
        assert!(self.state.try_exclusive(self.state.load()), "no other thread latches it");
        self.runs.split(&self.kernel, &[Extent::page(PAGE)]);
        self.kernel.release();
        let _ = self.state.release_exclusive_evicted();
    }

    /// Notes whether the run is huge in the end, which is so only if the page has stayed.
    fn end(&self) {
        let memory = self.kernel.get();
        assert_ne!(memory, Memory::Kept, "the memory of a page that has left is not free");
        let is_huge = memory == Memory::Huge;
        assert_eq!(
            is_huge,
            self.runs.is_flagged(0),
            "a huge page without a flag, or a flag without a huge page"
        );
        assert_eq!(self.runs.pages(), u64::from(is_huge) * RUN_PAGES);
        note(u64::from(is_huge));
    }
}

model!(
    a_page_that_leaves_while_its_run_is_collapsed_is_freed,
    [ReleaserFence, CollapserFence],
    [0, 10, 11],
    || {
        let shared = Shared::new();
        let evictor = {
            let shared = shared.clone();
            thread::spawn(move || shared.evict())
        };
        let outcome = shared.runs.collapse(&shared.kernel, 0, |_| shared.is_whole());
        // Whether the page had left before, or left a run that was huge.
        note(10 + u64::from(outcome == Collapse::Done));
        evictor.join().unwrap();
        shared.end();
    }
);

model!(a_page_that_leaves_before_its_memory_came_has_no_huge_page, [NoLookAfterFetch], [0, 1], || {
    let shared = Shared::new();
    let evictor = {
        let shared = shared.clone();
        thread::spawn(move || {
            // It is allocated once it is counted, and is evicted at once.
            if *shared.counted.lock().unwrap() {
                shared.evict();
            }
        })
    };
    let populated = shared.runs.populate(&shared.kernel, PageId(0), |pages, fetch| {
        assert_eq!(pages, 0..RUN_PAGES);
        *shared.counted.lock().unwrap() = true;
        fetch()
    });
    assert_eq!(populated, Some(RUN_PAGES));
    evictor.join().unwrap();
    shared.end();
});
