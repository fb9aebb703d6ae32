//! No engine at all: a file of tuples whose places are computed, and a direct read of one page a lookup.
//!
//! It says what the device gives at best where each lookup is one blocking read, in the same
//! run and with the same keys as the engines. It caches nothing, keeps no order beyond that of its keys,
//! which must be `0, 1, 2, ..` with values of one size, and cannot remove anything.

use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use crate::keys::KEY_BYTES;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use vellum_base::PAGE_SIZE;
use vellum_vm::AlignedBuffer;

/// A scan reads so many pages at a time.
const SCAN_PAGES: u64 = 64;

/// Where tuples lie.
#[derive(Clone, Copy)]
struct Layout {
    value_bytes: usize,
    per_page: u64,
}

impl Layout {
    fn tuple_bytes(self) -> usize {
        KEY_BYTES + self.value_bytes
    }

    fn page(self, index: u64) -> u64 {
        index / self.per_page
    }

    fn offset(self, index: u64) -> u64 {
        self.page(index) * PAGE_SIZE as u64 + (index % self.per_page) * self.tuple_bytes() as u64
    }

    /// The value of tuple `index` in a page, if it is there.
    fn value(self, page: &[u8], index: u64) -> Option<&[u8]> {
        let start = (index % self.per_page) as usize * self.tuple_bytes();
        let (key, value) = page.get(start..start + self.tuple_bytes())?.split_at(KEY_BYTES);
        // An index one higher than the key: what was never written is zero and belongs to no tuple.
        (u64::from_be_bytes(key.try_into().ok()?) == index + 1).then_some(value)
    }
}

/// The file.
pub struct Raw {
    path: PathBuf,
    written: File,
    layout: Layout,
}

/// Reads pages past the page cache.
pub struct RawReader {
    file: File,
    layout: Layout,
    page: AlignedBuffer,
}

/// Gathers tuples that adjoin within a page and writes them together, through the page cache.
pub struct RawWriter<'a> {
    raw: &'a Raw,
    first: u64,
    tuples: Vec<u8>,
}

impl Engine for Raw {
    type Reader<'a> = RawReader;
    type Writer<'a> = RawWriter<'a>;
    type Loader<'a> = RawWriter<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        if options.key_bytes != KEY_BYTES || options.value_bytes == 0 {
            return Err(
                "it computes where a tuple lies, so keys must be numbers (--keys u64) and values of one size"
                    .into(),
            );
        }
        let per_page = (PAGE_SIZE / (KEY_BYTES + options.value_bytes)) as u64;
        if per_page == 0 {
            return Err("values must be smaller than a page".into());
        }
        let path = options.directory.join("table.raw");
        let written = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { path, written, layout: Layout { value_bytes: options.value_bytes, per_page } })
    }

    fn reader(&self) -> Result<RawReader> {
        Ok(RawReader { file: open(&self.path)?.0, layout: self.layout, page: AlignedBuffer::new(PAGE_SIZE) })
    }

    fn writer(&self) -> Result<RawWriter<'_>> {
        Ok(RawWriter { raw: self, first: 0, tuples: Vec::with_capacity(PAGE_SIZE) })
    }

    fn loader(&self) -> Result<RawWriter<'_>> {
        Engine::writer(self)
    }
}

impl Instance for Raw {
    fn notes(&self) -> Vec<String> {
        let access = match open(&self.path) {
            Ok((_, true)) => "past the page cache",
            _ => "from the page cache, because the file system has no direct I/O",
        };
        vec![format!("raw: no engine; each lookup is one blocking read of 4 KiB, {access}; no cache")]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.written.metadata()?.len())
    }

    fn cache_bytes_max(&self) -> u64 {
        0
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(json!({ "tuples_per_page": self.layout.per_page }))
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

/// The number that a key is.
#[inline]
fn number(key: &[u8]) -> Result<u64> {
    let bytes = key.try_into().map_err(|_| "a key that is no number of 8 bytes")?;
    Ok(u64::from_be_bytes(bytes))
}

/// Opens the file for direct reads, or for ordinary ones where there are none; says which.
fn open(path: &PathBuf) -> std::io::Result<(File, bool)> {
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((File::open(path)?, false)),
        Err(error) => Err(error),
    }
}

/// Fills as much of `buffer` as the file has.
fn read(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

impl Reader for RawReader {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let index = number(key)?;
        let count = read(&self.file, &mut self.page, self.layout.page(index) * PAGE_SIZE as u64)?;
        value.clear();
        match self.layout.value(&self.page[..count], index) {
            Some(found) => {
                value.extend_from_slice(found);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn scan<F>(&mut self, first: &[u8], mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let mut buffer = AlignedBuffer::new(SCAN_PAGES as usize * PAGE_SIZE);
        let mut index = number(first)?;
        loop {
            let page = self.layout.page(index);
            let count = read(&self.file, &mut buffer, page * PAGE_SIZE as u64)?;
            if count == 0 {
                return Ok(());
            }
            for page in buffer[..count].chunks(PAGE_SIZE) {
                for _ in index % self.layout.per_page..self.layout.per_page {
                    let Some(value) = self.layout.value(page, index) else { return Ok(()) };
                    if visit(&index.to_be_bytes(), value).is_break() {
                        return Ok(());
                    }
                    index += 1;
                }
            }
        }
    }
}

impl RawWriter<'_> {
    fn flush(&mut self) -> Result<()> {
        self.raw.written.write_all_at(&self.tuples, self.raw.layout.offset(self.first))?;
        self.tuples.clear();
        Ok(())
    }
}

impl Writer for RawWriter<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let layout = self.raw.layout;
        let index = number(key)?;
        if value.len() != layout.value_bytes {
            return Err("a raw file holds values of one size only".into());
        }
        let next = self.first + (self.tuples.len() / layout.tuple_bytes()) as u64;
        if index != next || layout.page(index) != layout.page(self.first) {
            self.flush()?;
            self.first = index;
        }
        self.tuples.extend_from_slice(&(index + 1).to_be_bytes());
        self.tuples.extend_from_slice(value);
        Ok(())
    }

    fn remove(&mut self, _: &[u8]) -> Result<bool> {
        Err("nothing can be removed from a raw file".into())
    }

    fn finish(mut self) -> Result<()> {
        self.flush()?;
        let file = &self.raw.written;
        // The last page is made whole, so that direct reads of it are.
        let length = file.metadata()?.len();
        file.set_len(length.next_multiple_of(PAGE_SIZE as u64))?;
        file.sync_all()?;
        // SAFETY: the descriptor is open; the call touches no memory.
        let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if refused == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(refused).into()) }
    }
}
