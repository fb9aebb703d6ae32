//! The directory that the tour imports, and how much is in it.

use super::place::Place;
use crate::{
    failure::{Code, Failure, Result},
    files::{Found, Tree},
    progress::Progress,
    size, store,
};
use std::path::{Path, PathBuf};
use vellum::{MAX_VALUE_BYTES, pool::PAGE_SIZE};
use vellum_base::shown;

/// A directory with less data is used only if there is none with more.
const ENOUGH_BYTES: u64 = 64 << 20;
/// Values up to this length, in bytes, are stored in the tree, see [`vellum::Table`].
const INLINE_BYTES: u64 = 1 << 10;

/// What is imported.
pub struct Source {
    /// The directory.
    pub root: PathBuf,
    /// Regular files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Regular files that are longer than a value can be, and not counted above.
    pub oversized: u64,
    /// Approximately how much they will take in a database.
    pub storage_bytes: u64,
}

impl Source {
    /// The requested directory, or one with much data.
    pub fn choose(wish: Option<&Path>, place: &Place, quiet: bool) -> Result<Self> {
        if let Some(root) = wish {
            Tree::check_root(root)?;
            let source = Self::measure(root, place, quiet)?;
            if source.files == 0 && source.oversized > 0 {
                let files = size::counted(source.oversized, "file", "files");
                let most = size::bytes(MAX_VALUE_BYTES);
                let message = format!(
                    "{files} under {} cannot be imported, because a value has at most {most}; name another directory",
                    shown(root)
                );
                return Err(Failure::usage(message));
            }
            if source.files == 0 {
                let message =
                    format!("there are no regular files under {}; name another directory", shown(root));
                return Err(Failure::usage(message));
            }
            return Ok(source);
        }
        let mut best: Option<Self> = None;
        for root in candidates() {
            if Tree::check_root(&root).is_err() {
                continue;
            }
            let source = Self::measure(&root, place, quiet)?;
            if source.bytes >= ENOUGH_BYTES {
                return Ok(source);
            }
            if source.files > 0 && best.as_ref().is_none_or(|best| best.bytes < source.bytes) {
                best = Some(source);
            }
        }
        best.ok_or_else(|| Failure::usage("no directory with files was found; name one: vellum tour DIR"))
    }

    fn measure(root: &Path, place: &Place, quiet: bool) -> Result<Self> {
        let progress = Progress::steps(quiet, "looking at files", None);
        let tree = Tree { root, one_file_system: false, except: place.files()? };
        let mut source = Self { root: root.to_owned(), files: 0, bytes: 0, oversized: 0, storage_bytes: 0 };
        tree.walk(|found| {
            if let Found::File(job) = found {
                let length = std::fs::symlink_metadata(&job.path).map_or(0, |metadata| metadata.len());
                if length <= MAX_VALUE_BYTES {
                    source.add(job.key.len() as u64, length);
                } else {
                    source.oversized += 1;
                }
                progress.advance(1);
            }
            true
        });
        Ok(source)
    }

    fn add(&mut self, key_length: u64, length: u64) {
        self.files += 1;
        self.bytes += length;
        // Leaves are about two thirds full; attributes and slots add to keys and small values.
        let in_tree = 64 + 2 * key_length + if length <= INLINE_BYTES { length } else { 0 };
        let outside =
            if length <= INLINE_BYTES { 0 } else { (length + 64).next_multiple_of(PAGE_SIZE as u64) };
        self.storage_bytes += in_tree * 3 / 2 + outside + length / 8192;
    }
}

/// Directories that contain much data on some machines.
fn candidates() -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> =
        ["/usr/share", "/usr/lib", "/usr/local", "/opt"].map(PathBuf::from).into();
    if let Some(home) = std::env::home_dir() {
        candidates.push(home.join(".cargo/registry"));
        candidates.push(home);
    }
    candidates.push(PathBuf::from("."));
    candidates
}

impl Place {
    /// Makes sure that there is room for `bytes` bytes.
    pub fn check_room(&self, bytes: u64) -> Result {
        let directory = self.directory();
        // If the system cannot say, the attempt will show.
        let Some(free) = store::free_bytes(directory).filter(|free| *free < bytes) else { return Ok(()) };
        let (needed, free) = (size::bytes(bytes), size::bytes(free));
        let message = format!(
            "the database needs about {needed}, and only {free} are free in {}; choose another place with \
             --database, or a smaller directory: vellum tour DIR",
            shown(directory)
        );
        Err(Failure::new(Code::Full, message))
    }
}
