//! Databases, from outside: each file is a scenario. One program, because each would translate the engine's code anew.
//!
//! What changes the whole process is a program of its own: planted bugs (`crash`), and how much memory there is
//! (`resident_size`).

mod archive_ends;
mod async_ranges;
mod async_runs;
mod asynchronous;
mod changes;
mod clearing;
mod compaction;
mod covered_snapshots;
mod creation;
mod database;
mod encoding;
mod entries;
mod exchange;
mod format;
mod full_log;
mod heaps;
mod histories;
mod loading;
mod lookups;
mod moved;
mod needless_conflicts;
mod nested;
mod nested_runs;
mod old_archives;
mod old_snapshots;
mod paths;
mod plain_tables;
mod points;
mod recovery;
mod reservations;
mod restored_logs;
mod salvage;
mod scanned;
mod schema;
mod serializable;
mod single_operations;
mod spill;
mod support;
mod together;
mod transaction_batches;
mod transactions;
mod typed;
mod without_log;
