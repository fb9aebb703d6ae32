//! `vellum tour`: imports a directory tree into a database and reads it back, with figures.
//!
//! The database is built beside its final place, and moved there when it is complete: until then an earlier one stays
//! as it is, and a tour that ends early leaves nothing. Its table `main` has the contents of the files, and
//! `attributes` the length and time of change of each file, which distinguish a file that was changed meanwhile from
//! one that was not stored correctly.

mod compare;
mod lookups;
mod phase;
mod place;
mod source;
mod summary;

use crate::{
    arguments::{DEFAULT_TABLE, EngineArguments, General},
    failure::{Code, Failure, Result, verdict},
    files::Tree,
    importer::{Importer, Omission, Tally},
    progress::Progress,
    signals, size, store,
    text::escaped,
    workers,
};
use compare::{Comparison, Named};
use phase::Phase;
use place::Place;
use source::Source;
use std::{
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};
use summary::Summary;
use vellum::{Database, Options, Statistics, pool::PAGE_SIZE};
use vellum_base::shown;

const HELP: &str = "\
Imports the regular files under DIR, with a pool an eighth of their size. Closes and opens the database, compares \
every file byte for byte with what is on disk then, reads ten thousand in random order, scans a prefix, and prints \
what it took. The database stays. Without DIR it takes /usr/share, or another directory with much in it.

A database of an earlier tour is replaced once the new one is complete; any other file is left alone, unless --force \
is given. Until then the new one has `.partial` behind its name.

Examples:
  vellum tour
  vellum tour ~/documents --database /tmp/documents.vellum
  vellum tour /usr/lib --pool 32MiB --io-engine pread
  vellum tour --json

Exits with 3 if a file in the database is not what it was on disk.";

/// The table with the length and the time of change of each file.
const ATTRIBUTES_TABLE: &str = "attributes";
/// The least pool, unless one is asked for.
const POOL_BYTES_LEAST: u64 = 1 << 20;

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The directory to import [default: /usr/share, or what else is large]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The database file to make
    #[arg(long, value_name = "FILE", default_value = "tour.vellum")]
    database: PathBuf,
    /// How much memory the buffer pool may take [default: an eighth of the data, at least 1 MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pool: Option<u64>,
    /// Replace the file, whatever it is
    #[arg(long)]
    force: bool,
    /// How many threads read and store files; default: one a processor, at most 4
    #[arg(long, short, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    #[command(flatten)]
    engine: EngineArguments,
}

/// The state that all steps need.
struct Tour<'t> {
    source: Source,
    place: Place,
    options: Options,
    pool_bytes: u64,
    threads: usize,
    general: &'t General,
}

/// The result of the import.
struct Imported {
    tally: Tally,
    unreadable: Named,
    skipped: Named,
    phases: [Phase; 2],
}

/// Takes the tour.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let place = Place::prepare(&arguments.database, arguments.force)?;
    let source = Source::choose(arguments.directory.as_deref(), &place, general.quiet)?;
    place.check_room(source.storage_bytes)?;
    let eighth = (source.bytes / 8).next_multiple_of(PAGE_SIZE as u64);
    let pool_bytes = arguments.pool.unwrap_or(eighth.max(POOL_BYTES_LEAST));
    let tour = Tour {
        source,
        place,
        options: arguments.engine.options(pool_bytes),
        pool_bytes,
        threads: arguments.threads.map_or_else(workers::default_threads, usize::from),
        general,
    };
    tour.announce();
    signals::watch();
    let imported = tour.import().map_err(|failure| tour.abandon(failure))?;
    tour.place.finish(&tour.options).map_err(|failure| tour.abandon(failure))?;
    let summary = tour.look(&imported).map_err(|failure| {
        let path = shown(&tour.place.path);
        failure.and(format_args!("The database in {path} is complete and stays"))
    })?;
    verdict(summary.write(general.json), summary.verdict())
}

impl Tour<'_> {
    fn announce(&self) {
        let Source { root, files, bytes, .. } = &self.source;
        let files = size::counted(*files, "file", "files");
        let line = format!(
            "importing {files} ({}) under {} into {}, through a pool of {}",
            size::bytes(*bytes),
            shown(root),
            shown(&self.place.path),
            size::bytes(self.pool_bytes)
        );
        self.general.remark(line);
        if self.place.replaces {
            let path = shown(&self.place.path);
            self.general.remark(format_args!("{path} will be replaced when that is done"));
        }
    }

    /// Removes the incomplete database.
    fn abandon(&self, failure: Failure) -> Failure {
        match self.place.remove_partial() {
            Ok(true) => failure.and("The incomplete database was removed"),
            Ok(false) => failure,
            Err(removal) => failure.and(removal.message),
        }
    }

    fn import(&self) -> Result<Imported> {
        // Without a log: an incomplete database is removed, so it need not survive a crash.
        let mut database = store::create(&self.place.partial, &self.options.clone().log(false))?;
        let start = Instant::now();
        let (unreadable, skipped) = (Mutex::new(Named::default()), Mutex::new(Named::default()));
        let tally = {
            let progress = Progress::bytes(self.general.quiet, "importing", Some(self.source.bytes));
            let (table, attributes) =
                (database.create_table(DEFAULT_TABLE)?, database.create_table(ATTRIBUTES_TABLE)?);
            let importer = Importer {
                table: &table,
                attributes: Some(&attributes),
                key_prefix: b"",
                strict: false,
                threads: self.threads,
                progress: &progress,
                observer: &|omission, path, reason| {
                    let list = if omission == Omission::Unreadable { &unreadable } else { &skipped };
                    let path = escaped(path.as_os_str().as_bytes());
                    compare::lock(list).add(format!("{path}: {reason}"));
                },
            };
            let tree = Tree { root: &self.source.root, one_file_system: false, except: self.place.files()? };
            let (tally, result) = importer.run(&tree);
            result?;
            tally
        };
        let after_import = database.statistics();
        let import = Phase::new("import", tally.files, tally.bytes, start.elapsed(), None, &after_import);
        let start = Instant::now();
        let progress = Progress::steps(self.general.quiet, "writing", None);
        database.close_in_place()?;
        let after_close = database.statistics();
        store::close(database)?;
        drop(progress);
        let close = Phase::new("close", 0, 0, start.elapsed(), Some(&after_import), &after_close);
        let into = |list: Mutex<Named>| list.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (unreadable, skipped) = (into(unreadable), into(skipped));
        Ok(Imported { tally, unreadable, skipped, phases: [import, close] })
    }

    /// Opens the database and reads all of it.
    fn look(&self, imported: &Imported) -> Result<Summary> {
        let start = Instant::now();
        let database = store::open(&self.place.path, &self.options.clone().read_only(true))?;
        let table = store::table(&database, DEFAULT_TABLE)?;
        let mut phases = imported.phases.to_vec();
        let mut statistics = database.statistics();
        let mut done = |name, entries, bytes, time: Duration, database: &Database| {
            let now: Statistics = database.statistics();
            phases.push(Phase::new(name, entries, bytes, time, Some(&statistics), &now));
            statistics = now;
        };
        done("open", 0, 0, start.elapsed(), &database);

        let start = Instant::now();
        let mut comparison = Comparison::run(self, &database)?;
        done("compare with disk", comparison.entries, comparison.bytes, start.elapsed(), &database);
        comparison.missing = imported.tally.files.saturating_sub(comparison.entries);

        let lookups = lookups::read_at_random(self, &table, &comparison.samples)?;
        done("random reads", lookups.count, lookups.bytes, lookups.time, &database);

        let scan = lookups::scan_prefix(&table, lookups::common_prefix(&comparison.samples))?;
        done("scan of a prefix", scan.entries, scan.bytes, scan.time, &database);

        Summary::new(self, imported, comparison, &lookups, scan, phases, &database)
    }

    /// Ends the tour if a signal has arrived.
    fn check_interrupted(&self) -> Result {
        if signals::interrupted() { Err(Failure::new(Code::Interrupted, "interrupted")) } else { Ok(()) }
    }
}
