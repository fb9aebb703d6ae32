//! Asynchronous reads that are under way, and their completion.

use crate::{
    error::{Miss, PoolError},
    file::outage::copy_of,
    io::fault::Faults,
    pager::{Begun, FinishedRead},
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::{Completion, Queue, Request, Wait};

/// The most pages that one request reads ahead: half a mebibyte.
const AHEAD_PAGES_MAX: u32 = 128;
const _: () = assert!(AHEAD_PAGES_MAX as usize * PAGE_SIZE == 512 << 10);

/// The pages that one request reads.
#[derive(Clone, Copy, Debug)]
struct Reading {
    span: Extent,
    /// Whether these are single pages, read ahead: they come in marked, and errors are left to the operation that needs
    /// the page. Otherwise this is an extent that an operation misses.
    is_ahead: bool,
}

impl Reading {
    /// Whether the request holds the latch of this page.
    fn holds(self, page: PageId) -> bool {
        let latched_end = if self.is_ahead { self.span.end() } else { PageId(self.span.head.0 + 1) };
        (self.span.head..latched_end).contains(&page)
    }
}

/// The reads of one queue, which is locked whenever they are used.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(super) queue: Box<dyn Queue>,
    /// Indexed by the tags of their requests.
    reading: Vec<Option<Reading>>,
    free: Vec<usize>,
    /// Finished reads that the owner has not seen yet.
    finished: Vec<FinishedRead>,
    completions: Vec<Completion>,
}

impl Reads {
    /// Whether one of the reads holds the latch of this page.
    pub(crate) fn holds(&self, page: PageId) -> bool {
        self.reading.iter().flatten().any(|reading| reading.holds(page))
    }

    pub(crate) fn new(queue: Box<dyn Queue>) -> Self {
        let (reading, free, finished, completions) = Default::default();
        Self { queue, reading, free, finished, completions }
    }

    /// Moves finished reads to `finished`, and returns their number. Waits first if asked to, but for one read only if
    /// none is finished.
    pub(crate) fn reap(&mut self, faults: &Faults, wait: Wait, finished: &mut Vec<FinishedRead>) -> usize {
        self.finish(faults, if wait == Wait::ForOne && !self.finished.is_empty() { Wait::No } else { wait });
        let count = self.finished.len();
        finished.append(&mut self.finished);
        count
    }

    /// Begins to read a missing extent, if `has_room` and it can be done without waiting. Called with the queue locked,
    /// so that a thread that sees the latch finds the read here.
    pub(crate) fn begin(&mut self, faults: &Faults, miss: &Miss, has_room: bool) -> Result<Begun, PoolError> {
        let begun = faults.enter(miss, |extent| Ok(has_room && faults.reserve_to_read(extent)?))?;
        if begun == Begun::Reading {
            self.submit(faults, Reading { span: miss.extent, is_ahead: false });
        }
        Ok(begun)
    }

    /// Begins to read single pages ahead, and returns the number of requests. Pages that are not missing, or for which
    /// no memory is available at once, are left out.
    pub(crate) fn begin_read_ahead(&mut self, faults: &Faults, pages: &[PageId]) -> usize {
        let mut runs: Vec<Extent> = Vec::new();
        for page in pages.iter().copied() {
            let miss = Miss::certain(Extent::page(page));
            if !matches!(faults.enter(&miss, |extent| faults.reserve_to_read(extent)), Ok(Begun::Reading)) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end() == page && run.pages < AHEAD_PAGES_MAX => run.pages += 1,
                _ => runs.push(Extent::page(page)),
            }
        }
        for span in runs.iter().copied() {
            self.submit(faults, Reading { span, is_ahead: true });
        }
        runs.len()
    }

    /// Submits a read of pages that are latched and whose memory is reserved.
    fn submit(&mut self, faults: &Faults, reading: Reading) {
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                self.reading.push(None);
                self.reading.len() - 1
            }
        };
        if let Some(slot) = self.reading.get_mut(tag) {
            *slot = Some(reading);
        }
        let span = reading.span;
        let request = Request::read(span.head.offset(), faults.table().address(span.head), span.bytes());
        // SAFETY: the pages lie in the mapping, and their latches are held until the completion is reaped; the requests
        // of all queues are waited for before the mapping goes.
        unsafe { self.queue.submit(request, tag as u64) };
    }

    /// Completes the reads that are done, after waiting for one if asked to; returns their number.
    pub(crate) fn finish(&mut self, faults: &Faults, wait: Wait) -> usize {
        let before = self.finished.len();
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(wait, &mut completions);
        for Completion { tag, result } in completions.drain(..) {
            let reading = self.reading.get_mut(tag as usize).and_then(Option::take);
            let Some(Reading { span, is_ahead }) = reading else { continue };
            self.free.push(tag as usize);
            faults.read_is_over(span.pages);
            let result = if is_ahead {
                for page in (span.head.0..span.end().0).map(PageId) {
                    let result = result.as_ref().map_err(copy_of).map(|_| ());
                    if faults.admit(Extent::page(page), result).is_ok() {
                        // A reader that needs the page removes the mark; the scan itself does not.
                        let state = faults.table().state(page);
                        state.try_mark(state.load());
                    }
                }
                Ok(())
            } else {
                faults.admit(span, result)
            };
            self.finished.push(FinishedRead { page: span.head, result });
        }
        self.completions = completions;
        self.finished.len() - before
    }
}
