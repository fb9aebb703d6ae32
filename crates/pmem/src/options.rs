//! How a store is created and opened.

use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

/// How stores become durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Persistence {
    /// The file is persistent memory, mapped directly: cache lines are flushed and fenced.
    Dax,
    /// The same, on a machine whose caches are also saved when power fails: only fences.
    Flushless,
    /// An ordinary file: the system is asked to write pages, which is slow.
    Msync,
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::Flushless => "flushless",
            Self::Msync => "msync",
        })
    }
}

impl FromStr for Persistence {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "dax" => Ok(Self::Dax),
            "flushless" => Ok(Self::Flushless),
            "msync" => Ok(Self::Msync),
            _ => Err(format!("{name:?} is no way to make stores durable; use dax, flushless or msync")),
        }
    }
}

/// When and how eagerly space is reclaimed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReclaimOptions {
    /// Whether a background thread reclaims space, and another makes the file longer ahead of fast writers. Without them,
    /// [`Store::reclaim`](crate::Store::reclaim) reclaims space, and the writer that needs room makes the file longer.
    pub background: bool,
    /// A block is compacted when this share of it is free, from 0 to 1.
    pub free_share: f64,
    /// The share of its time that the background thread works, from 0 to 1; otherwise it sleeps, and leaves the
    /// processor and the memory to threads that write. While the file does not grow, memory that only stands in for
    /// persistent memory is given huge pages for three quarters of the time, if that is more.
    pub busy_share: f64,
    /// How long it sleeps when there is nothing to do; not zero.
    pub interval: Duration,
}

impl Default for ReclaimOptions {
    /// In the background, from a third free, for a fifth of the time, checking ten times a second.
    fn default() -> Self {
        Self {
            background: true,
            free_share: 1.0 / 3.0,
            busy_share: 0.2,
            interval: Duration::from_millis(100),
        }
    }
}

/// How a store is created and opened.
///
/// # Examples
/// ```
/// use vellum_pmem::Options;
/// let options = Options { pages_per_block: 4, checksums: false, ..Options::default() };
/// assert_eq!(options.chunk_bytes, 1 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages of 4 KiB in a block: the number of memory modules over which addresses are interleaved. Recorded in a new
    /// store; an existing one keeps its own. 1 to 64.
    pub pages_per_block: u32,
    /// How much of the file is mapped at once, in bytes; a multiple of 1 MiB. Recorded in a new store.
    pub chunk_bytes: u64,
    /// Whether records carry checksums, which opening and verifying check. Recorded in a new store.
    pub checksums: bool,
    /// How much the file grows at a time, in bytes, rounded up to whole pages of 4 KiB; at most `chunk_bytes`.
    pub growth_bytes: u64,
    /// The maximum size of the file, in bytes, in whole pages and at least `chunk_bytes`; a file that is larger already
    /// does not grow. This much address space is reserved, or as much as the process may have, if that is less.
    pub capacity_bytes: u64,
    /// How stores become durable; detected if not given.
    pub persistence: Option<Persistence>,
    /// Believe [`persistence`](Self::persistence) even if the system does not confirm that the file is persistent
    /// memory. For memory that is persistent but does not say so, and for measurements on a stand-in. A program that
    /// sets this vouches for it: if it is not true, what was acknowledged may be lost.
    pub vouch_for_memory: bool,
    /// Create a new store on a device that holds a store or something else, which is lost. Has no effect on files,
    /// which must not exist.
    pub overwrite: bool,
    /// Only read; other processes may read at the same time.
    pub read_only: bool,
    /// Open a damaged store without its damaged parts, which are then neither found nor overwritten.
    pub tolerate_damage: bool,
    /// How many threads rebuild the index; by default as many as there are processors.
    pub recovery_threads: Option<NonZeroUsize>,
    /// How space is reclaimed.
    pub reclaim: ReclaimOptions,
}

impl Default for Options {
    /// Six pages a block, chunks of 1 GiB, checksums, growth by 64 MiB up to 1 TiB, persistence as found.
    fn default() -> Self {
        Self {
            pages_per_block: 6,
            chunk_bytes: 1 << 30,
            checksums: true,
            growth_bytes: 64 << 20,
            capacity_bytes: 1 << 40,
            persistence: None,
            vouch_for_memory: false,
            overwrite: false,
            read_only: false,
            tolerate_damage: false,
            recovery_threads: None,
            reclaim: ReclaimOptions::default(),
        }
    }
}

impl Options {
    /// Checks the options that a new store would record.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        const MIB: u64 = 1 << 20;
        if !(1..=64).contains(&self.pages_per_block) {
            return Err("a block has 1 to 64 pages");
        }
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(MIB) {
            return Err("a chunk is a positive multiple of 1 MiB");
        }
        if self.growth_bytes == 0 || self.growth_bytes > self.chunk_bytes {
            return Err("growth is by at least one byte and at most one chunk");
        }
        if self.capacity_bytes < self.chunk_bytes {
            return Err("the capacity is at least one chunk");
        }
        let share = |share: f64| (0.0..=1.0).contains(&share);
        if !share(self.reclaim.free_share)
            || !share(self.reclaim.busy_share)
            || self.reclaim.busy_share == 0.0
        {
            return Err("shares lie between 0 and 1");
        }
        if self.reclaim.interval.is_zero() {
            return Err("the interval at which space is reclaimed is longer than nothing");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_persistence_come_back() {
        for persistence in [Persistence::Dax, Persistence::Flushless, Persistence::Msync] {
            assert_eq!(persistence.to_string().parse(), Ok(persistence));
        }
        assert!("disk".parse::<Persistence>().is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Options::default().check().is_ok());
        let bad = [
            Options { pages_per_block: 0, ..Options::default() },
            Options { pages_per_block: 65, ..Options::default() },
            Options { chunk_bytes: 4096, ..Options::default() },
            Options { growth_bytes: 0, ..Options::default() },
            Options { capacity_bytes: 1 << 20, ..Options::default() },
            Options {
                reclaim: ReclaimOptions { busy_share: 0.0, ..Default::default() },
                ..Options::default()
            },
            Options {
                reclaim: ReclaimOptions { free_share: 1.5, ..Default::default() },
                ..Options::default()
            },
            Options {
                reclaim: ReclaimOptions { interval: Duration::ZERO, ..Default::default() },
                ..Options::default()
            },
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
    }
}
