//! What the processes of engines have in common: they obey commands, and measure.

use crate::config::Load;
use crate::measure::machine::{self, StorageBytes};
use crate::measure::statistics::Latencies;
use crate::report::contest::Measured;
use crate::run::protocol::{Command, Reply};
use crate::workloads::Pass;
use crate::{Failure, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// What does as it is told.
pub trait Obey {
    /// Obeys one command.
    fn obey(&mut self, command: Command) -> Result<Reply>;
}

/// Obeys the commands of `input` until the last one, or one that fails.
///
/// # Errors
/// If the parent cannot be understood or reached.
pub fn converse(mut session: impl Obey, input: impl BufRead, mut output: impl Write) -> Result<()> {
    for line in input.lines() {
        let command: Command = serde_json::from_str(&line?)?;
        let reply = session.obey(command).unwrap_or_else(|error| match error.downcast_ref() {
            Some(Failure::Check(what)) => Reply::Failed { message: what.clone(), check: true },
            None => Reply::Failed { message: error.to_string(), check: false },
        });
        serde_json::to_writer(&mut output, &reply)?;
        output.write_all(b"\n")?;
        output.flush()?;
        if matches!(reply, Reply::Finished(_) | Reply::Failed { .. }) {
            break;
        }
    }
    Ok(())
}

/// The latencies of all rounds, by the load, or what else tells apart what is added up.
pub struct Meter<K = Load>(BTreeMap<K, Latencies>);

impl<K> Default for Meter<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Meter<K> {
    /// What is reported of a round that was just run.
    ///
    /// # Errors
    /// If latencies cannot be added up, which their equal bounds exclude.
    pub fn measured(&mut self, load: K, pass: &Pass, storage: StorageBytes) -> Result<Measured> {
        let latencies = match self.0.entry(load) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Latencies::new()?),
        };
        latencies.add(&pass.latencies)?;
        Ok(Measured {
            operations: pass.operations,
            seconds: pass.elapsed.as_secs_f64(),
            percentiles: latencies.percentiles(),
            latency_samples: latencies.samples(),
            storage,
            resident_bytes_max: machine::resident_bytes_max(),
            line: None,
        })
    }
}

/// Waits until nothing of the file system that holds `directory` is left to be written.
///
/// # Errors
/// If the folder cannot be opened, or something could not be written.
pub fn settle(directory: &Path) -> Result<()> {
    let directory = File::open(directory)?;
    // SAFETY: the descriptor is open for the length of the call, which touches no memory.
    if unsafe { libc::syncfs(directory.as_raw_fd()) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().into())
}
