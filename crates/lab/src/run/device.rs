//! The runs that measure the kernel, the device and the log instead of an engine: `lab evict`, `lab io` and `lab log`.

use crate::Result;
use crate::config::{EvictSettings, IoSettings, Load, LogSettings, Method, Named, ReleaseName, RunSettings};
use crate::measure::machine::{self, Manifest, StorageBytes};
use crate::report::contest::{Contest, Measured, Setup};
use crate::report::reporter::Reporter;
use crate::run::session::Meter;
use crate::workloads::io::{PageFile, Setting};
use crate::workloads::log::LogFiles;
use crate::workloads::{Pace, Pass, evict, io, log};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use vellum_base::PAGE_SIZE;
use vellum_vm::{Mapping, PageMemory, PageMemoryOptions, Releaser, SimulatedFile};

/// Measures the release of pages by each method.
///
/// # Errors
/// Whatever the kernel refuses.
pub fn evict(run: &RunSettings, arguments: &EvictSettings, reporter: &Reporter) -> Result<()> {
    reporter.manifest(&Manifest::collect(run.dir.as_deref().unwrap_or(&std::env::temp_dir())))?;
    let bytes = usize::try_from(arguments.pool)?.next_multiple_of(PAGE_SIZE);
    let threads_max = run.threads.iter().copied().max().unwrap_or(1);
    let resident_pages_max = usize::try_from(arguments.batch)? * threads_max;
    let mut methods = Vec::new();
    for name in &arguments.methods {
        match memory(*name, bytes, resident_pages_max) {
            Ok(memory) => methods.push((*name, memory)),
            Err(error) => reporter.note(&format!("{} is left out: {error}", name.as_str()))?,
        }
    }
    reporter.object(&json!({
        "kind": "configuration",
        "workload": "evict",
        "batch": arguments.batch,
        "latency_of": "one batch: its pages touched one by one, then released",
    }))?;
    let contest = Contest {
        workload: "evict",
        names: methods.iter().map(|(name, _)| name.as_str().to_owned()).collect(),
        loads: &run.loads(),
        rounds: run.rounds,
    };
    let mut gauge = Gauge::default();
    let all = contest.run(reporter, |contestant, Load { threads, .. }, round| {
        gauge.measure(contestant, threads, || {
            let memory = &methods[contestant].1;
            evict::pass(&memory.pages, &memory.releaser, arguments.batch, &pace(run, threads, round))
        })
    })?;
    let setup = |_, _| Setup {
        tuples: (bytes / PAGE_SIZE) as u64,
        pool_bytes: bytes as u64,
        load_seconds: Some(0.0),
    };
    for (name, memory) in &methods {
        if let Some(counters) = memory.releaser.exmap_counters() {
            reporter.note(&format!("{}: {counters}", name.as_str()))?;
        }
    }
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}

/// Measures raw random reads by each method.
///
/// # Errors
/// Whatever the kernel or the file system refuses.
pub fn io(run: &RunSettings, arguments: &IoSettings, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    // With a folder of the user's, the file stays there and is used again.
    let directory = run.dir.as_deref().unwrap_or(folder.path());
    reporter.manifest(&Manifest::collect(directory))?;
    let pages = arguments.size.div_ceil(PAGE_SIZE as u64);
    let path = directory.join(format!("lab-io-{pages}-pages.data"));
    let begin = Instant::now();
    let (file, written) = PageFile::open_or_create(&path, pages)?;
    let load_seconds = if written { begin.elapsed().as_secs_f64() } else { 0.0 };
    if !file.direct {
        reporter.note("the file system has no direct I/O: the page cache answers, not the device")?;
    }
    let releaser = Releaser::new(None)?;
    let resident_pages_max = usize::try_from(arguments.pool / PAGE_SIZE as u64)?.max(arguments.batch);
    reporter.object(&json!({
        "kind": "configuration",
        "workload": "io",
        "depth": arguments.depth,
        "batch": arguments.batch,
        "release": releaser.method().to_string(),
        "direct": file.direct,
        "latency_of": "one page, from submission to completion",
    }))?;
    let mapping = Mapping::reserve(usize::try_from(pages)? * PAGE_SIZE, "the read workload")?.for_pages()?;
    let contest = Contest {
        workload: "io",
        names: arguments.methods.iter().map(|method| method.as_str().to_owned()).collect(),
        loads: &run.loads(),
        rounds: run.rounds,
    };
    let mut gauge = Gauge::default();
    let all = contest.run(reporter, |contestant, Load { threads, .. }, round| {
        let setting = Setting {
            mapping: &mapping,
            releaser: &releaser,
            depth: arguments.depth,
            batch: arguments.batch,
            resident_pages_max: (resident_pages_max / threads).max(arguments.batch),
        };
        gauge.measure(contestant, threads, || {
            io::pass(&file, arguments.methods[contestant], &setting, &pace(run, threads, round))
        })
    })?;
    let setup = |contestant: usize, Load { threads, .. }| {
        let buffers = match arguments.methods[contestant] {
            Method::Blocking => threads,
            Method::UringFixed => threads * arguments.depth as usize,
            Method::UringPool => resident_pages_max,
            Method::Sequential => threads * 8 * 128,
        };
        Setup { tuples: pages, pool_bytes: (buffers * PAGE_SIZE) as u64, load_seconds: Some(load_seconds) }
    };
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}

/// Measures records that are made durable one by one.
///
/// # Errors
/// Whatever the file system refuses.
pub fn log(run: &RunSettings, arguments: &LogSettings, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    let directory = run.dir.as_deref().unwrap_or(folder.path());
    reporter.manifest(&Manifest::collect(directory))?;
    reporter.object(&json!({
        "kind": "configuration",
        "workload": "log",
        "record_bytes": arguments.record_bytes,
        "latency_of": "one record, from appending it, or beginning its transaction, until it is durable (buffered: written)",
    }))?;
    let contest = Contest {
        workload: "log",
        names: arguments.methods.iter().map(|method| method.as_str().to_owned()).collect(),
        loads: &run.loads(),
        rounds: run.rounds,
    };
    let mut gauge = Gauge::default();
    let all = contest.run(reporter, |contestant, Load { threads, .. }, round| {
        let folder = tempfile::tempdir_in(directory)?;
        let files = LogFiles::create(folder.path(), arguments.methods[contestant], threads)?;
        gauge.measure(contestant, threads, || {
            log::pass(&files, arguments.record_bytes, &pace(run, threads, round))
        })
    })?;
    let setup = |_, _| Setup { tuples: 0, pool_bytes: 0, load_seconds: Some(0.0) };
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}

fn pace(run: &RunSettings, threads: usize, round: usize) -> Pace {
    let round = run.seed.wrapping_add(round as u64);
    Pace { clients: 1, threads, round, duration: run.seconds, sample_every: 1 }
}

/// Measures what a pass in this process uses.
#[derive(Default)]
pub struct Gauge {
    /// By contestant and threads.
    latencies: Meter<(usize, usize)>,
}

impl Gauge {
    /// Measures one pass.
    ///
    /// # Errors
    /// What the pass says.
    pub fn measure(
        &mut self,
        contestant: usize,
        threads: usize,
        pass: impl FnOnce() -> Result<Pass>,
    ) -> Result<Measured> {
        machine::reset_resident_bytes_max();
        let before = StorageBytes::now();
        let pass = pass()?;
        let storage = StorageBytes::now().since(before);
        self.latencies.measured((contestant, threads), &pass, storage)
    }
}

/// Memory whose pages come and go by this method, if it works here.
fn memory(method: ReleaseName, bytes: usize, resident_pages_max: usize) -> Result<PageMemory> {
    let options = PageMemoryOptions {
        wanted_bytes: bytes,
        least_bytes: bytes,
        resident_pages_max,
        method: Some(method.as_str().parse()?),
    };
    // Nothing is read, so any file will do.
    Ok(PageMemory::reserve(&options, Arc::new(SimulatedFile::new(0)))?)
}
