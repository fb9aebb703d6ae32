//! How much is written for what is changed, by the same measure for all engines: what the kernel counts for the process.

use crate::measure::machine::StorageBytes;
use serde_json::{Value, json};

/// What was changed and written in all rounds.
#[derive(Debug, Default)]
pub struct Writing {
    operations: u64,
    changed_bytes: u64,
    written_bytes: u64,
    /// The parts of which an engine says how large they are: its name for them, and how much it has written.
    parts: Vec<(&'static str, u64)>,
    checkpoints: u64,
}

/// The parts, by the names of their counters and how many bytes each of these stands for.
const PARTS: [(&str, &str, u64); 2] =
    [("log", "log_appended_bytes", 1), ("data file", "pages_written", vellum_base::PAGE_SIZE as u64)];

impl Writing {
    /// Adds a round, in which so much was done; what the engine counted before and after it tells the parts.
    pub fn add(
        &mut self,
        (operations, changed_bytes): (u64, u64),
        storage: StorageBytes,
        (before, after): (&Value, &Value),
    ) {
        self.operations += operations;
        self.changed_bytes += changed_bytes;
        self.written_bytes += storage.written;
        let grown = |counter: &str| {
            let (before, after) = (before[counter].as_u64()?, after[counter].as_u64()?);
            Some(after.saturating_sub(before))
        };
        self.checkpoints += grown("checkpoints").unwrap_or(0);
        for (part, counter, unit) in PARTS {
            let Some(count) = grown(counter) else { continue };
            match self.parts.iter_mut().find(|(name, _)| *name == part) {
                Some((_, bytes)) => *bytes += count * unit,
                None => self.parts.push((part, count * unit)),
            }
        }
    }

    /// In words, if anything was changed; `closing` is what was written when the engine was closed.
    pub fn remark(&self, closing: u64) -> Option<String> {
        if self.changed_bytes == 0 {
            return None;
        }
        let a_change = |bytes: u64| bytes as f64 / self.changed_bytes as f64;
        let an_operation = |bytes: u64| bytes / self.operations.max(1);
        let mut text = format!(
            "{:.2} bytes written for each byte of changed records: {} bytes an operation, which changes {}",
            a_change(self.written_bytes),
            an_operation(self.written_bytes),
            an_operation(self.changed_bytes),
        );
        for (part, bytes) in &self.parts {
            text += &format!("; {part} {:.2}, {} bytes", a_change(*bytes), an_operation(*bytes));
        }
        Some(text + &format!("; {} checkpoints; closing wrote {closing} bytes more", self.checkpoints))
    }

    /// The same for programs.
    pub fn to_json(&self, closing: u64) -> Value {
        let parts: serde_json::Map<_, _> =
            self.parts.iter().map(|(part, bytes)| (part.replace(' ', "_"), (*bytes).into())).collect();
        json!({
            "operations": self.operations,
            "changed_bytes": self.changed_bytes,
            "written_bytes": self.written_bytes,
            "closing_bytes": closing,
            "checkpoints": self.checkpoints,
            "parts": parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_add_up_and_parts_are_named() {
        let mut writing = Writing::default();
        assert_eq!(writing.remark(7), None);
        let storage = StorageBytes { read: 0, written: 3000 };
        let before = json!({ "log_appended_bytes": 50, "pages_written": 1 });
        let after = json!({ "log_appended_bytes": 1050, "pages_written": 2 });
        writing.add((10, 1000), storage, (&before, &after));
        writing.add((10, 1000), storage, (&before, &after));
        writing.add((0, 0), storage, (&Value::Null, &Value::Null));
        let text = writing.remark(7).unwrap();
        assert!(text.starts_with("4.50 bytes written for each byte of changed records: 450 bytes"), "{text}");
        assert!(text.contains("; log 1.00, 100 bytes; data file 4.10, 409 bytes;"), "{text}");
        assert_eq!(writing.to_json(7)["parts"], json!({ "log": 2000, "data_file": 8192 }));
    }
}
