//! `vellum pmem`: stores of persistent memory, beside databases.

mod bench;
mod help;
mod store;

use crate::{
    arguments::{FormArguments, General},
    failure::{Code, Failure, Result, verdict},
    output::{Output, columns, render},
    size,
    text::{Form, escaped},
};
use serde::Serialize;
use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Write as _},
    ops::ControlFlow,
    path::PathBuf,
};
use store::{AnyStore, FromBytes, PersistenceArguments, StoreArguments, WithLayout, open, with_layout};
use vellum_base::shown;
use vellum_pmem::{Options, Put, Shape, Store, VALUE_BYTES_MAX};

const HELP: &str = "\
A store of persistent memory is a file on a file system mounted with `-o dax`, or a device (/dev/dax0.0); there, what a \
command has acknowledged is durable. On other files it is as well, by msync, but slowly. Stores have no order: \
`scan` lists entries as they come.

Examples:
  vellum pmem create /mnt/pmem/store                   keys and values of any size
  vellum pmem create /mnt/pmem/small --sizes 16/200    records of one size: less space, faster
  vellum pmem put /mnt/pmem/store greeting 'hello'
  vellum pmem get /mnt/pmem/store greeting
  vellum pmem verify /mnt/pmem/store
  vellum pmem bench /dev/shm/store --persistence dax --vouch-for-memory    with memory as a stand-in";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a store
    #[command(after_help = help::CREATE)]
    Create(CreateArguments),
    /// Store a value under a key
    #[command(after_help = help::PUT)]
    Put(PutArguments),
    /// Print the value of a key
    #[command(after_help = help::GET)]
    Get(KeyArguments),
    /// Remove a key and its value
    #[command(after_help = help::DELETE)]
    Delete(KeyArguments),
    /// List all entries, in no order
    #[command(after_help = help::SCAN)]
    Scan(ScanArguments),
    /// Show how large a store is, and how changes become durable
    #[command(after_help = help::STAT)]
    Stat(OnlyStore),
    /// Check every block and every record; a record that has become zeroes is taken for free room, and not noticed
    #[command(after_help = help::VERIFY)]
    Verify(OnlyStore),
    /// Measure a new store, which is removed afterwards
    #[command(after_help = help::BENCH)]
    Bench(bench::Arguments),
}

#[derive(clap::Args)]
struct OnlyStore {
    #[command(flatten)]
    store: StoreArguments,
}

#[derive(clap::Args)]
struct CreateArguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    layout: LayoutArguments,
    /// Make it on a device that holds a store, or something else, which is lost
    #[arg(long)]
    overwrite: bool,
}

/// How a new store is laid out.
#[derive(clap::Args)]
pub struct LayoutArguments {
    /// Records of one size: bytes of keys and of values, such as 8/8 or 16/200; any size if not given
    #[arg(long, value_name = "KEY/VALUE", value_parser = parse_sizes)]
    sizes: Option<(u32, u32)>,
    /// Pages of 4 KiB in a block: how many modules of memory addresses are interleaved over
    #[arg(long, value_name = "PAGES", default_value_t = 6)]
    block_pages: u32,
    /// How much of the file is mapped at once
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    chunk: u64,
    /// Leave out the checksums of records
    #[arg(long)]
    no_checksums: bool,
}

impl LayoutArguments {
    fn shape(&self) -> Shape {
        self.sizes.map_or(Shape::Variable, |(key_bytes, value_bytes)| Shape::Fixed { key_bytes, value_bytes })
    }

    fn options(&self, how: PersistenceArguments) -> Options {
        let options = how.options();
        Options {
            pages_per_block: self.block_pages,
            chunk_bytes: self.chunk,
            growth_bytes: options.growth_bytes.min(self.chunk),
            capacity_bytes: options.capacity_bytes.max(self.chunk),
            checksums: !self.no_checksums,
            ..options
        }
    }
}

#[derive(clap::Args)]
struct PutArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The key
    key: OsString,
    /// The value; `-` reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_negative_numbers = true)]
    value: Option<OsString>,
    /// Store the contents of this file; `-` is standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    form: FormArguments,
}

#[derive(clap::Args)]
struct KeyArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The key
    key: OsString,
    #[command(flatten)]
    form: FormArguments,
}

#[derive(clap::Args)]
struct ScanArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Keys that begin with this only
    #[arg(long)]
    prefix: Option<OsString>,
    /// Show at most this many entries
    #[arg(long)]
    limit: Option<u64>,
    /// Keys without values
    #[arg(long)]
    keys: bool,
    /// Leave out what is damaged, and list the rest
    #[arg(long)]
    tolerate_damage: bool,
    #[command(flatten)]
    form: FormArguments,
}

fn parse_sizes(text: &str) -> Result<(u32, u32), String> {
    let sizes = text.split_once('/').and_then(|(key, value)| Some((key.parse().ok()?, value.parse().ok()?)));
    sizes.ok_or_else(|| "two numbers of bytes with a slash between them, such as 16/200".to_owned())
}

/// Runs the command.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    match &arguments.command {
        Command::Create(command) => create(command, general),
        Command::Put(command) => put(command, general),
        Command::Get(command) => get(command, general),
        Command::Delete(command) => delete(command, general),
        Command::Scan(command) => scan(command, general),
        Command::Stat(command) => stat(command, general),
        Command::Verify(command) => verify(command, general),
        Command::Bench(command) => bench::run(command, general),
    }
}

struct Create<'a>(&'a CreateArguments);

impl WithLayout for Create<'_> {
    type Output = Box<dyn AnyStore>;

    fn run<L: FromBytes>(self) -> Result<Self::Output> {
        let options = Options { overwrite: self.0.overwrite, ..self.0.layout.options(self.0.store.how) };
        Ok(Box::new(Store::<L>::create(&self.0.store.store, &options)?))
    }
}

fn create(arguments: &CreateArguments, general: &General) -> Result {
    let store = with_layout(arguments.layout.shape(), Create(arguments))?;
    let (path, persistence) = (&arguments.store.store, store.persistence());
    if general.json {
        return print(&serde_json::json!({
            "store": path.display().to_string(),
            "result": "created",
            "persistence": persistence,
        }));
    }
    let path = shown(path);
    general.remark(format_args!("created {path}: changes become durable by {persistence}"));
    Ok(())
}

fn put(arguments: &PutArguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    let value = match (&arguments.file, &arguments.value) {
        (Some(path), _) if path.as_os_str() != "-" => {
            let file = File::open(path).map_err(|error| Failure::file("read", path, &error))?;
            read_value(file, &shown(path).to_string())?
        }
        (None, Some(text)) if text != "-" => form.decode(text, "the value")?,
        // `-` is it in both places.
        _ => read_value(std::io::stdin().lock(), "standard input")?,
    };
    let put = open(&arguments.store, general, |_| {})?.put(&key, &value)?;
    let result = if put == Put::Replaced { "replaced" } else { "inserted" };
    if general.json {
        return print(
            &serde_json::json!({ "key": text(form, &key), "result": result, "value_length": value.len() }),
        );
    }
    let length = size::counted(value.len() as u64, "byte", "bytes");
    general.remark(format_args!("{result} {}: {length}", escaped(&key)));
    Ok(())
}

/// Reads a value to its end, which may not come: no more than a value can have.
fn read_value(from: impl Read, what: &str) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    let read = from.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::io(format_args!("read {what}"), &error))?;
    if value.len() > VALUE_BYTES_MAX {
        let most = size::bytes(VALUE_BYTES_MAX as u64);
        return Err(Failure::usage(format!("{what} is longer than a value can be ({most})")));
    }
    Ok(value)
}

fn get(arguments: &KeyArguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    let store = open(&arguments.store, general, |options| options.read_only = true)?;
    let value = store.get(&key)?.ok_or_else(|| no_such_key(&key, arguments))?;
    if general.json {
        return print(&Entry { key: text(form, &key), value: Some(text(form, &value)) });
    }
    let mut out = Output::new();
    let bytes = if form == Form::Hex { form.encode(&value) } else { value };
    out.write_all(&bytes).map_err(|error| Failure::output(&error))?;
    out.finish()
}

fn delete(arguments: &KeyArguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    if !open(&arguments.store, general, |_| {})?.delete(&key)? {
        return Err(no_such_key(&key, arguments));
    }
    if general.json {
        return print(&serde_json::json!({ "key": text(form, &key), "result": "deleted" }));
    }
    general.remark(format_args!("deleted {}", escaped(&key)));
    Ok(())
}

fn no_such_key(key: &[u8], arguments: &KeyArguments) -> Failure {
    Failure::no(format!("there is no key {} in {}", escaped(key), shown(&arguments.store.store)))
}

/// An entry, for programs.
#[derive(Serialize)]
struct Entry {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

fn text(form: Form, bytes: &[u8]) -> String {
    String::from_utf8_lossy(&form.encode(bytes)).into_owned()
}

fn print(object: &impl Serialize) -> Result {
    let mut out = Output::new();
    out.json(object)?;
    out.finish()
}

fn scan(arguments: &ScanArguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let prefix = arguments.prefix.as_ref().map(|text| form.decode(text, "--prefix")).transpose()?;
    let prefix = prefix.unwrap_or_default();
    let store = open(&arguments.store, general, |options| {
        options.read_only = true;
        options.tolerate_damage = arguments.tolerate_damage;
    })?;
    let mut out = Output::new();
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let mut outcome = Ok(());
    store.for_each(&mut |key, value| {
        if !key.starts_with(&prefix) {
            return ControlFlow::Continue(());
        }
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        let value = (!arguments.keys).then_some(value);
        outcome = if general.json {
            out.json(&Entry { key: text(form, key), value: value.map(|value| text(form, value)) })
        } else {
            write_entry(&mut out, form, key, value)
        };
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    out.finish()
}

fn write_entry(out: &mut Output, form: Form, key: &[u8], value: Option<&[u8]>) -> Result {
    let mut line = form.encode(key);
    if let Some(value) = value {
        line.push(b'\t');
        line.extend(form.encode(value));
    }
    line.push(b'\n');
    out.write_all(&line).map_err(|error| Failure::output(&error))
}

/// Figures, for programs.
#[derive(Serialize)]
struct StatReport {
    store: String,
    records: String,
    record_count: u64,
    file_bytes: u64,
    block_bytes: u64,
    blocks: u64,
    blocks_free: u64,
    index_bytes: u64,
    checksums: bool,
    persistence: String,
}

fn stat(arguments: &OnlyStore, general: &General) -> Result {
    let store = open(&arguments.store, general, |options| options.read_only = true)?;
    let statistics = store.statistics();
    let report = StatReport {
        store: arguments.store.store.display().to_string(),
        records: statistics.shape.to_string(),
        record_count: statistics.records,
        file_bytes: statistics.file_bytes,
        block_bytes: statistics.block_bytes,
        blocks: statistics.blocks,
        blocks_free: statistics.blocks_free,
        index_bytes: statistics.index_bytes,
        checksums: statistics.checksums,
        persistence: store.persistence(),
    };
    if general.json {
        return print(&report);
    }
    let mut table = columns(&[], 2);
    table
        .add_row(["store", &report.store])
        .add_row(["holds", &report.records])
        .add_row(["records", &size::count(report.record_count)])
        .add_row(["file", &size::bytes(report.file_bytes)])
        .add_row([
            "blocks",
            &format!("{} of {}", size::count(report.blocks), size::bytes(report.block_bytes)),
        ])
        .add_row(["  free", &size::count(report.blocks_free)])
        .add_row(["checksums", if report.checksums { "yes" } else { "no" }])
        .add_row(["changes become durable by", &report.persistence])
        .add_row(["memory of the index", &size::bytes(report.index_bytes)]);
    let mut out = Output::new();
    out.line(render(&table))?;
    out.finish()
}

fn verify(arguments: &OnlyStore, general: &General) -> Result {
    let store = open(&arguments.store, general, |options| {
        options.read_only = true;
        options.tolerate_damage = true;
    })?;
    let recovery = store.recovery();
    let mut out = Output::before_verdict();
    for damage in &recovery.damage {
        if general.json {
            out.json(&serde_json::json!({ "kind": "problem", "message": damage.to_string() }))?;
        } else {
            out.line(format_args!("problem: {damage}"))?;
        }
    }
    if general.json {
        out.json(&serde_json::json!({
            "kind": "summary",
            "clean": recovery.damage_count == 0,
            "problems": recovery.damage_count,
            "records": recovery.records,
            "superseded": recovery.superseded,
            "blocks": recovery.blocks,
        }))?;
    } else {
        let records = size::counted(recovery.records, "record", "records");
        let sums = if store.statistics().checksums { "" } else { " (they carry no checksums)" };
        let outcome = if recovery.damage_count == 0 {
            "what is there is as it should be (what has become zeroes counts as free)"
        } else {
            "damaged"
        };
        out.line(format_args!(
            "{records} in {} blocks verified{sums}: {outcome}",
            size::count(recovery.blocks)
        ))?;
    }
    let found = match recovery.damage_count {
        0 => Ok(()),
        count => {
            let problems = size::counted(count, "problem", "problems");
            let path = shown(&arguments.store.store);
            Err(Failure::new(Code::Damaged, format!("{problems} found in {path}; restore it from a backup")))
        }
    };
    verdict(out.finish(), found)
}
