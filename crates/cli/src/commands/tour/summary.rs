//! The summary at the end of the tour.

use super::{
    Imported, Tour,
    compare::{Comparison, Named, Sample},
    lookups::{Lookups, Scan},
    phase::Phase,
};
use crate::{
    failure::{Code, Failure, Result},
    output::{Output, columns, render, shell_path, shell_word},
    size,
    text::escaped,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use vellum::Database;

/// The memory that the engine may take in addition to the pool and its tables, in bytes.
const OTHER_BYTES: u64 = 64 << 20;
/// The memory for its tables, in bytes per page of data.
const TABLE_BYTES_PER_PAGE: u64 = 16;

/// The whole summary.
#[derive(Serialize)]
pub struct Summary {
    kind: &'static str,
    directory: String,
    database: String,
    files: u64,
    bytes: u64,
    database_bytes: u64,
    pool_bytes: u64,
    resident_bytes_max: Option<u64>,
    resident_bytes_limit: u64,
    misses: u64,
    pages_evicted: u64,
    pages_written: u64,
    release_method: String,
    io_engine: String,
    direct_io: bool,
    threads: usize,
    files_compared: u64,
    files_same: u64,
    files_different: u64,
    files_missing: u64,
    files_changed: u64,
    files_unreadable: u64,
    files_skipped: u64,
    different: Vec<String>,
    changed: Vec<String>,
    unreadable: Vec<String>,
    skipped: Vec<String>,
    random_reads: u64,
    random_read_p50_ns: u64,
    random_read_p99_ns: u64,
    prefix: String,
    prefix_entries: u64,
    commands: Vec<String>,
    #[serde(skip)]
    phases: Vec<Phase>,
}

impl Summary {
    /// Collects the results of the steps.
    pub fn new(
        tour: &Tour<'_>,
        imported: &Imported,
        comparison: Comparison,
        lookups: &Lookups,
        scan: Scan,
        phases: Vec<Phase>,
        database: &Database,
    ) -> Result<Self> {
        let path = &tour.place.path;
        let file = std::fs::metadata(path).map_err(|error| Failure::file("look at", path, &error))?;
        let statistics = database.statistics();
        let total = |count: fn(&Phase) -> u64| phases.iter().map(count).sum();
        let mut unreadable = imported.unreadable.clone();
        unreadable.count += comparison.unreadable.count;
        unreadable.first.extend(comparison.unreadable.first);
        Ok(Self {
            kind: "summary",
            directory: tour.source.root.display().to_string(),
            database: path.display().to_string(),
            files: imported.tally.files,
            bytes: imported.tally.bytes,
            database_bytes: file.len(),
            pool_bytes: tour.pool_bytes,
            resident_bytes_max: vellum::resident_bytes_peak().ok(),
            resident_bytes_limit: tour.pool_bytes
                + statistics.pages_in_file * TABLE_BYTES_PER_PAGE
                + OTHER_BYTES,
            misses: total(|phase| phase.misses),
            pages_evicted: total(|phase| phase.pages_evicted),
            pages_written: total(|phase| phase.pages_written),
            release_method: statistics.release_method.to_string(),
            io_engine: statistics.file.engine.to_string(),
            direct_io: statistics.file.direct,
            threads: tour.threads,
            files_compared: comparison.entries,
            files_same: comparison.same,
            files_different: comparison.different.count,
            files_missing: comparison.missing,
            files_changed: comparison.changed.count,
            files_unreadable: unreadable.count,
            files_skipped: imported.skipped.count,
            commands: commands(path, &comparison.samples, &scan.prefix),
            different: comparison.different.first,
            changed: comparison.changed.first,
            unreadable: unreadable.first,
            skipped: imported.skipped.first.clone(),
            random_reads: lookups.count,
            random_read_p50_ns: lookups.p50_ns,
            random_read_p99_ns: lookups.p99_ns,
            prefix: escaped(&scan.prefix),
            prefix_entries: scan.entries,
            phases,
        })
    }

    /// Writes the summary. A [verdict](Self::verdict) follows.
    pub fn write(&self, json: bool) -> Result {
        let mut out = Output::before_verdict();
        if json {
            self.phases.iter().try_for_each(|phase| out.json(phase))?;
            out.json(self)?;
        } else {
            self.write_text(&mut out)?;
        }
        out.finish()
    }

    /// Fails if the database does not hold what it should.
    pub fn verdict(&self) -> Result {
        let wrong = self.files_different + self.files_missing;
        if wrong == 0 {
            return Ok(());
        }
        let files = size::counted(wrong, "file is", "files are");
        let then = if wrong == 1 { "it was" } else { "they were" };
        let message = format!("{files} not in {} as {then} on disk; run `vellum verify`", self.database);
        Err(Failure::new(Code::Damaged, message))
    }

    fn write_text(&self, out: &mut Output) -> Result {
        out.line(format_args!("\nTour of {}\n", self.directory))?;
        out.line(self.figures())?;
        out.line("")?;
        out.line(self.steps())?;
        out.line(format_args!(
            "\nrandom reads: half of them took less than {} µs, 99 % less than {} µs",
            micros(self.random_read_p50_ns),
            micros(self.random_read_p99_ns)
        ))?;
        let keys = size::counted(self.prefix_entries, "key begins", "keys begin");
        out.line(format_args!("scan: {keys} with {}\n", self.prefix))?;
        self.write_verdict(out)?;
        out.line(format_args!("\nThe database stays in {}. To go on from here:", self.database))?;
        self.commands.iter().try_for_each(|command| out.line(format_args!("  {command}")))
    }

    fn figures(&self) -> String {
        let pool = size::bytes(self.pool_bytes);
        let limit = size::bytes(self.resident_bytes_limit);
        let memory = match self.resident_bytes_max {
            Some(bytes) => {
                format!("{} at most (pool + 16 bytes a page + 64 MiB = {limit})", size::bytes(bytes))
            }
            None => "not known: /proc is not there".to_owned(),
        };
        let direct = if self.direct_io { "direct" } else { "buffered" };
        let mut table = columns(&[], 2);
        table
            .add_row(["files", &format!("{} ({})", size::count(self.files), size::bytes(self.bytes))])
            .add_row(["database", &size::bytes(self.database_bytes)])
            .add_row(["pool", &pool])
            .add_row(["memory of the process", &memory])
            .add_row(["misses", &size::count(self.misses)])
            .add_row([
                "pages evicted",
                &format!("{} through {}", size::count(self.pages_evicted), self.release_method),
            ])
            .add_row(["I/O through", &format!("{}, {direct}", self.io_engine)]);
        render(&table)
    }

    fn steps(&self) -> String {
        let header =
            ["step", "entries", "data", "seconds", "entries/s", "data/s", "misses", "evicted", "written"];
        let mut table = columns(&header, 1);
        let unless_zero = |number: u64, text: String| if number == 0 { "-".to_owned() } else { text };
        for phase in &self.phases {
            let rate = |count: u64| (count as f64 / phase.seconds.max(1e-9)) as u64;
            table.add_row([
                phase.phase.to_owned(),
                unless_zero(phase.entries, size::count(phase.entries)),
                unless_zero(phase.bytes, size::bytes(phase.bytes)),
                format!("{:.2}", phase.seconds),
                unless_zero(phase.entries, size::count(rate(phase.entries))),
                unless_zero(phase.bytes, size::bytes(rate(phase.bytes))),
                size::count(phase.misses),
                size::count(phase.pages_evicted),
                size::count(phase.pages_written),
            ]);
        }
        render(&table)
    }

    fn write_verdict(&self, out: &mut Output) -> Result {
        let compared = size::counted(self.files_same, "file is", "files are");
        let there = if self.files_same == 1 { "it is" } else { "they are" };
        out.line(format_args!("{compared} byte for byte in the database what {there} on disk."))?;
        let lists = [
            (self.files_different, "different, although not changed since", &self.different),
            (self.files_changed, "changed on disk since they were imported", &self.changed),
            (self.files_unreadable, "not readable", &self.unreadable),
            (self.files_skipped, "left out", &self.skipped),
        ];
        for (count, what, first) in lists {
            let named = Named { count, first: first.clone() };
            write_list(out, what, &named)?;
        }
        if self.files_missing > 0 {
            out.line(format_args!("{} missing in the database", size::count(self.files_missing)))?;
        }
        Ok(())
    }
}

fn write_list(out: &mut Output, what: &str, list: &Named) -> Result {
    if list.count == 0 {
        return Ok(());
    }
    out.line(format_args!("{} {what}:", size::count(list.count)))?;
    list.first.iter().try_for_each(|name| out.line(format_args!("  {name}")))?;
    let more = list.count - (list.first.len() as u64).min(list.count);
    if more > 0 { out.line(format_args!("  and {} more", size::count(more))) } else { Ok(()) }
}

fn micros(nanoseconds: u64) -> String {
    size::count(nanoseconds.div_ceil(1000))
}

/// Three commands to try on the database, quoted for a shell.
fn commands(database: &Path, samples: &[Sample], prefix: &[u8]) -> Vec<String> {
    let (program, database) = (program(), shell_path(database));
    let mut commands = Vec::new();
    if let Some(sample) = samples.iter().min_by_key(|sample| plainness(sample)) {
        let key = escaped(&sample.key);
        let dashes = if key.starts_with('-') { "-- " } else { "" };
        commands.push(format!("{program} get {dashes}{database} {}", shell_word(&key)));
    }
    let prefix = shell_word(&escaped(prefix));
    commands.push(format!("{program} scan {database} --prefix={prefix} --limit 10"));
    commands.push(format!("{program} verify {database}"));
    commands
}

/// How good an example a key is; smaller is better: a short text under a short and simple name.
fn plainness(sample: &Sample) -> (bool, bool, bool, usize, u64) {
    let key = escaped(&sample.key);
    let is_quoted = shell_word(&key) != key || key.starts_with('-');
    (!sample.is_text, is_quoted, !(200..=4000).contains(&sample.length), key.len(), sample.length)
}

/// How to call this program: through cargo, if it was called that way and can be called so from here.
fn program() -> String {
    let through_cargo = || {
        std::env::var_os("CARGO")?;
        let crate_directory = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
        let here = std::env::current_dir().ok()?;
        let workspace = crate_directory.parent()?.parent()?;
        (here == workspace || here == crate_directory).then(|| {
            let profile = if cfg!(debug_assertions) { "" } else { " --release" };
            format!("cargo run -q{profile} --")
        })
    };
    through_cargo().unwrap_or_else(|| {
        let called = std::env::args_os().next().unwrap_or_else(|| "vellum".into());
        shell_word(&called.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(key: &[u8], length: u64, is_text: bool) -> Sample {
        Sample { key: key.into(), length, checksum: 0, is_text }
    }

    #[test]
    fn the_example_is_a_short_text_with_a_simple_name() {
        let samples =
            [sample(b"a.gz", 1000, false), sample(b"it's", 1000, true), sample(b"doc/readme", 1000, true)];
        let commands = commands(Path::new("my db"), &samples, b"doc/");
        assert!(commands[0].ends_with(" get 'my db' doc/readme"), "{}", commands[0]);
        assert!(commands[1].ends_with(" scan 'my db' --prefix=doc/ --limit 10"), "{}", commands[1]);
        assert_eq!(commands.len(), 3);
    }

    #[test]
    fn awkward_names_are_quoted() {
        let get = |key: &[u8]| commands(Path::new("d"), &[sample(key, 1, true)], b"")[0].clone();
        assert!(get(b"two words").ends_with(" get d 'two words'"));
        assert!(get(b"\xff").ends_with(r" get d '\xff'"));
        assert!(get(b"-dash").ends_with(" get -- d -dash"));
        assert!(get(b"- x y").ends_with(" get -- d '- x y'"));
        let of_dash = commands(Path::new("-d"), &[sample(b"k", 1, true)], b"");
        assert!(of_dash.iter().all(|command| command.contains(" ./-d")), "{of_dash:?}");
    }
}
