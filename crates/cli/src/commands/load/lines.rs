//! The lines of what is loaded: keys and values. They are read in parts, so that no line needs more memory than its key
//! and its value.

use crate::{
    failure::{Code, Failure, Result},
    signals, size,
    text::{DecodeError, Decoder, Form},
};
use memchr::{memchr, memchr2};
use std::{ffi::OsStr, io::BufRead, os::unix::ffi::OsStrExt as _};
use vellum::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// The maximum length of the text of a key, in bytes: the longest key with each byte escaped.
const KEY_TEXT_BYTES_MAX: usize = 4 * MAX_KEY_BYTES;
/// A buffer for values keeps at most so much memory, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// The lines.
pub struct Lines<'l> {
    source: &'l mut dyn BufRead,
    /// The number of the current line, from 1.
    pub number: u64,
    /// What stands before the first tab of the current line.
    pub field: Vec<u8>,
}

/// How the first field of a line ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A value follows.
    Tab,
    /// The line ends here.
    Line,
}

impl<'l> Lines<'l> {
    /// The lines that a source delivers.
    pub fn new(source: &'l mut dyn BufRead) -> Self {
        Self { source, number: 0, field: Vec::new() }
    }

    /// Begins the next line, and reads its first field; none if there is no further line.
    pub fn begin(&mut self) -> Result<Option<End>> {
        self.number += 1;
        self.field.clear();
        let (field, number) = (&mut self.field, self.number);
        let find = |text: &[u8]| memchr2(b'\t', b'\n', text);
        let end = read_to(&mut *self.source, number, find, |text| {
            if field.len() + text.len() > KEY_TEXT_BYTES_MAX {
                return Err(Failure::usage(format!(
                    "line {number} has no tab in its first {KEY_TEXT_BYTES_MAX} bytes, and a key has at most \
                     {MAX_KEY_BYTES}"
                )));
            }
            field.extend_from_slice(text);
            Ok(())
        })?;
        Ok(match end {
            Some(b'\t') => Some(End::Tab),
            None if self.field.is_empty() => None,
            _ => Some(End::Line),
        })
    }

    /// The key that the first field is.
    pub fn key(&self, form: Form) -> Result<Vec<u8>> {
        let key = form.decode(OsStr::from_bytes(&self.field), "the key");
        key.map_err(|failure| failure.after(format_args!("line {}", self.number)))
    }

    /// Reads the rest of the line as a value, in place of what `value` holds.
    pub fn value(&mut self, form: Form, value: &mut Vec<u8>) -> Result {
        value.clear();
        value.shrink_to(KEPT_BYTES);
        let number = self.number;
        let most = usize::try_from(MAX_VALUE_BYTES).unwrap_or(usize::MAX);
        let mut decoder = Decoder::new(form, value, most);
        let failed = |error| cannot_decode(error, number);
        let find = |text: &[u8]| memchr(b'\n', text);
        read_to(&mut *self.source, number, find, |text| decoder.write(text).map_err(failed))?;
        decoder.finish().map_err(failed)
    }

    /// Appends the rest of the line to `text`; false if it is longer than `most` bytes.
    pub fn rest(&mut self, text: &mut Vec<u8>, most: usize) -> Result<bool> {
        let mut is_whole = true;
        let find = |text: &[u8]| memchr(b'\n', text);
        read_to(&mut *self.source, self.number, find, |part| {
            is_whole &= text.len() + part.len() <= most;
            if is_whole {
                text.extend_from_slice(part);
            }
            Ok(())
        })?;
        Ok(is_whole)
    }
}

/// Reads up to a byte that `find` finds, or to the end. Returns the byte, which is left out.
fn read_to(
    source: &mut dyn BufRead,
    number: u64,
    find: impl Fn(&[u8]) -> Option<usize>,
    mut take: impl FnMut(&[u8]) -> Result,
) -> Result<Option<u8>> {
    loop {
        let buffer = source.fill_buf();
        let buffer = buffer.map_err(|error| match signals::check() {
            Ok(()) => Failure::io(format_args!("read line {number}"), &error),
            Err(interrupted) => interrupted,
        })?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let (text, end) = match find(buffer).and_then(|at| buffer.split_at_checked(at)) {
            Some((text, behind)) => (text, behind.first().copied()),
            None => (buffer, None),
        };
        take(text)?;
        let used = text.len() + usize::from(end.is_some());
        source.consume(used);
        if end.is_some() {
            return Ok(end);
        }
    }
}

fn cannot_decode(error: DecodeError, number: u64) -> Failure {
    let most = size::bytes(MAX_VALUE_BYTES);
    match error {
        DecodeError::Wrong(why) => Failure::usage(format!("line {number}: the value cannot be read: {why}")),
        DecodeError::TooLong => {
            Failure::usage(format!("line {number}: the value is longer than a value can be ({most})"))
        }
        DecodeError::OutOfMemory => {
            Failure::new(Code::Full, format!("line {number}: there is not enough memory for the value"))
        }
    }
}
