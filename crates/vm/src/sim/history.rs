//! The operations on a simulated disk, for a person who examines a failed test.

use super::faults::FileOperation;
use std::collections::VecDeque;
use std::fmt;

/// How many operations are remembered.
const ENTRIES_MAX: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    entries: VecDeque<Entry>,
    /// How many entries were forgotten.
    forgotten: u64,
}

/// One operation or fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The file; `None` for the directory.
    pub file: Option<usize>,
    pub operation: FileOperation,
    pub offset: u64,
    pub bytes: u64,
    /// The result.
    pub outcome: &'static str,
}

impl History {
    pub fn add(&mut self, entry: Entry) {
        if self.entries.len() == ENTRIES_MAX {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        self.entries.push_back(entry);
    }

    /// Writes the history, oldest entry first; `name` names files, `only` leaves out all others.
    pub fn print<'a>(
        &self,
        out: &mut impl fmt::Write,
        name: impl Fn(usize) -> &'a str,
        only: Option<usize>,
    ) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(out, "({} earlier ones are forgotten)", self.forgotten)?;
        }
        for (number, entry) in (self.forgotten + 1..).zip(&self.entries) {
            if only.is_some() && entry.file != only {
                continue;
            }
            let Entry { file, operation, offset, bytes, outcome } = entry;
            let file = file.map_or("the directory", &name);
            match operation {
                FileOperation::Read | FileOperation::Write | FileOperation::Map => {
                    writeln!(out, "{number:6} {file}: {operation} {bytes} bytes at {offset}: {outcome}")?;
                }
                FileOperation::Resize => writeln!(out, "{number:6} {file}: resize to {offset}: {outcome}")?,
                FileOperation::Sync | FileOperation::Name => {
                    writeln!(out, "{number:6} {file}: {operation}: {outcome}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operations_are_remembered_and_numbered() {
        let mut history = History::default();
        for offset in 0..ENTRIES_MAX as u64 + 5 {
            let operation = FileOperation::Write;
            history.add(Entry { file: Some(0), operation, offset, bytes: 1, outcome: "done" });
        }
        let mut text = String::new();
        history.print(&mut text, |_| "f", Some(0)).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), ENTRIES_MAX + 1);
        assert_eq!(lines[0], "(5 earlier ones are forgotten)");
        assert_eq!(lines[1], "     6 f: write 1 bytes at 5: done");
        text.clear();
        history.print(&mut text, |_| "f", Some(1)).unwrap();
        assert_eq!(text.lines().count(), 1, "nothing was done with the other file");
    }
}
