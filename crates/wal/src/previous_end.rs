//! Where a log ended; and making its end durable before another timeline begins.

use crate::{files::LogFiles, plant::Bug};
use std::io;
use vellum_base::PAGE_SIZE;
use vellum_vm::AlignedBuffer;

const PAGE: u64 = PAGE_SIZE as u64;
/// The most bytes that are rewritten at once.
const PART_BYTES: u64 = 256 << 10;

/// Where the log of an earlier timeline ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PreviousEnd {
    pub lsn: u64,
    /// Up to where it is known to have been durable; at least the beginning of its last segment.
    pub durable: u64,
    pub checksum: u64,
}

/// Makes durable what was read after the last place that is known to be durable. The operating system alone may hold
/// it, and if a sync of it failed once, another sync does nothing. So it is written again first.
pub(crate) fn make_durable(files: &mut LogFiles, end: PreviousEnd) -> io::Result<()> {
    let geometry = files.geometry;
    let mut buffer = AlignedBuffer::new(PART_BYTES as usize);
    // The last one may be full, and durable.
    let last = files.segments.keys().next_back().copied().unwrap_or(0);
    for (number, segment) in files.segments.range_mut(geometry.number(end.durable).min(last)..) {
        // Nothing is in the file of the next one, which may be recycled from now on.
        segment.header.marks.is_left &= files.options.planted(Bug::MarkStays);
        // It is open: these are the files that may have something that is not durable.
        let file = segment.file.open().map_err(io::Error::other)?;
        if !files.options.planted(Bug::EndTrusted) {
            let header = buffer.get_mut(..PAGE_SIZE).unwrap_or_default();
            header.copy_from_slice(&segment.header.encode());
            file.write_from(0, header)?;
            let mut at = end.durable.max(geometry.start(*number)) / PAGE * PAGE;
            let to = end.lsn.min(geometry.start(number + 1)).next_multiple_of(PAGE);
            while at < to {
                let part = buffer.get_mut(..PART_BYTES.min(to - at) as usize).unwrap_or_default();
                file.read_to(geometry.offset(at), part)?;
                file.write_from(geometry.offset(at), part)?;
                at += part.len() as u64;
            }
        }
        file.sync()?;
    }
    files.unsynced.clear();
    Ok(())
}
