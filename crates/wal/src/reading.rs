//! All records of a log, read and checked by one thread while another works with earlier ones.

use crate::{LogError, LogReader, Record};
use vellum_base::{
    Lsn,
    primitive::{
        mpsc::{Receiver, SyncSender, sync_channel},
        spawn_scoped, thread,
    },
};
use vellum_vm::prefetch;

/// About how many bytes of records are passed between threads at once. A shorter log needs no second thread.
const BATCH_BYTES: usize = if cfg!(any(test, shuttle)) { 1 << 10 } else { 256 << 10 };
/// How many batches wait at most.
const BATCHES: usize = 4;
/// How far ahead is prefetched while a record is shown.
const AHEAD_BYTES: usize = 1 << 10;

/// Consecutive records.
#[derive(Default)]
struct Batch {
    /// Where each record begins in the log, and the length of its payload.
    records: Vec<(Lsn, usize)>,
    payloads: Vec<u8>,
}

impl Batch {
    /// Replaces the records by the next ones. Returns whether there may be more.
    fn fill(&mut self, reader: &mut LogReader) -> Result<bool, LogError> {
        self.records.clear();
        self.payloads.clear();
        while self.payloads.len() < BATCH_BYTES {
            let Some(Record { lsn, payload }) = reader.next()? else { return Ok(false) };
            self.records.push((lsn, payload.len()));
            self.payloads.extend_from_slice(payload);
        }
        Ok(true)
    }

    fn show<E>(&self, show: &mut impl FnMut(Record<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut rest = &self.payloads[..];
        for (lsn, bytes) in &self.records {
            let (payload, others) = rest.split_at_checked(*bytes).unwrap_or_default();
            rest = others;
            // It is in the cache of another processor.
            prefetch(others.as_ptr().wrapping_add(AHEAD_BYTES), *bytes);
            show(Record { lsn: *lsn, payload })?;
        }
        Ok(())
    }
}

impl LogReader {
    /// Shows all records that follow, in order. If the log is long, another thread reads and checks ahead.
    ///
    /// # Errors
    /// As for [`next`](Self::next), when all before has been shown; and the first error of `show`, which ends this.
    pub fn for_each<E: From<LogError>>(
        &mut self,
        mut show: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = self.end();
        while self.end().0 - first.0 < BATCH_BYTES as u64 {
            let Some(record) = self.next()? else { return Ok(()) };
            show(record)?;
        }
        if thread::available_parallelism().is_ok_and(|threads| threads.get() > 1)
            && let Some(shown) = self.show_by_two(&mut show)
        {
            return shown;
        }
        while let Some(record) = self.next()? {
            show(record)?;
        }
        Ok(())
    }

    /// `None`, with nothing read, if the system refuses a thread.
    fn show_by_two<E: From<LogError>>(
        &mut self,
        show: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        thread::scope(|scope| {
            let (sender, batches) = sync_channel(BATCHES);
            // Returning a batch never waits: there are no more batches than that.
            let (back, used) = sync_channel(BATCHES + 2);
            let read = move || read_all(self, &sender, &used);
            let reading = spawn_scoped(scope, "vellum-log-check", read).ok()?;
            let shown = batches.iter().try_for_each(|batch: Batch| {
                batch.show(show)?;
                // A thread that has ended has no use for it.
                let _ = back.send(batch);
                Ok(())
            });
            drop(batches);
            // It panics only if `next` does.
            let read = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Some(shown.and_then(|()| Ok(read?)))
        })
    }
}

/// Reads all records to the end of the log, or until no thread takes them.
fn read_all(
    reader: &mut LogReader,
    batches: &SyncSender<Batch>,
    used: &Receiver<Batch>,
) -> Result<(), LogError> {
    loop {
        let mut batch = used.try_recv().unwrap_or_default();
        let goes_on = batch.fill(reader);
        // What was read before an error counts.
        let is_taken = batches.send(batch).is_ok();
        if !goes_on? || !is_taken {
            return Ok(());
        }
    }
}
