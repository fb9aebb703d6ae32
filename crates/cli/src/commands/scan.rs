//! `vellum scan`: the entries of a table, in order.

use super::get::write_entry;
use crate::{
    arguments::{FormArguments, General, StoreArguments, TableArguments},
    failure::{Code, Failure, Result, verdict},
    output::Output,
    progress::remark,
    salvage, store,
    text::{Encoder, Form, Target, escaped, named},
};
use std::{ffi::OsString, io::Write as _, ops::Bound};
use vellum::{Cursor, Piece, Prefix, Table};

const HELP: &str = "\
Each line is a key, a tab and the value. Values longer than 64 bytes are cut, and their length is shown; --full \
shows all of them. With --json each line is an object with the key, the length of the value, and all of the \
value, unless --keys leaves it out.

Examples:
  vellum scan data.vellum                                     everything
  vellum scan data.vellum --prefix letters/ --keys            keys that begin with letters/
  vellum scan data.vellum --from b --to d                     from b on, up to and without d
  vellum scan data.vellum --reverse --limit 10                the last ten
  vellum scan data.vellum --from '\\x00\\x80' --to '\\x01'        bounds that are not text
  vellum scan data.vellum --salvage > saved.tsv               what is left of a damaged table, for `vellum load`
  vellum scan data.vellum --json | jq -r .key                 for programs";

/// How much of a value is shown, in bytes.
const SHOWN_BYTES: u64 = 64;

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
    /// Only keys that begin with this
    #[arg(long, short, value_name = "KEY", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    prefix: Option<OsString>,
    /// Only this key and those after it
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// Only keys before this one
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
    /// From the last entry to the first
    #[arg(long, short)]
    reverse: bool,
    /// Show at most this many entries
    #[arg(long, short = 'n', value_name = "COUNT")]
    limit: Option<u64>,
    /// Show keys only
    #[arg(long, short, conflicts_with = "full")]
    keys: bool,
    /// Show values whole
    #[arg(long)]
    full: bool,
    /// Of a damaged table, show what can still be read, whole, and say on standard error what is lost; changes nothing
    #[arg(long, conflicts_with_all = ["prefix", "from", "to", "reverse", "limit", "keys"])]
    salvage: bool,
}

/// Lists entries.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let range = Range::of(arguments, form)?;
    if arguments.salvage && general.json {
        return Err(Failure::usage("--salvage and --json exclude each other"));
    }
    if arguments.salvage {
        return print_salvaged(arguments, form);
    }
    let database = store::open_to_read(&arguments.store, general)?;
    let table = store::table(&database, &arguments.table.table)?;
    let mut cursor = range.cursor(&table)?;
    if arguments.reverse {
        cursor.seek_to_end();
    }
    let mut out = Output::new();
    for _ in 0..arguments.limit.unwrap_or(u64::MAX) {
        let entry = if arguments.reverse { cursor.previous()? } else { cursor.next()? };
        let Some(entry) = entry else { break };
        let (key, length) = (entry.key(), entry.value_length());
        let wants_value = !arguments.keys;
        let mut value = if wants_value { table.reader(key)? } else { None };
        if wants_value && value.is_none() {
            return Err(store::not_found_again(key, &arguments.table.table));
        }
        if general.json {
            write_entry(&mut out, form, key, length, value.as_mut())?;
            continue;
        }
        let failed = |error| Failure::output(&error);
        write_bytes(&mut out, form, key)?;
        if let Some(reader) = &mut value {
            out.write_all(b"\t").map_err(failed)?;
            let most = if arguments.full { u64::MAX } else { SHOWN_BYTES };
            let mut encoder = Encoder::new(&mut out, form, Target::Plain);
            store::read_parts(reader, most, |part| encoder.write(part).map_err(failed))?;
            if length <= most {
                encoder.finish().map_err(failed)?;
            } else {
                // A truncated character is left out.
                drop(encoder);
                write!(out, "… ({length} bytes)").map_err(failed)?;
            }
        }
        out.line("")?;
    }
    out.finish()
}

/// Prints what can be read of a table, and reports what is lost.
fn print_salvaged(arguments: &Arguments, form: Form) -> Result {
    let salvage = salvage::open(&arguments.store)?;
    let name = &arguments.table.table;
    let losses = salvage::losses(&salvage);
    for loss in &losses {
        remark(false, format_args!("lost: {loss}"));
    }
    let (mut out, mut lost, mut failure) = (Output::before_verdict(), 0, None);
    let mut write = |key: &[u8], value: &[u8]| {
        write_bytes(&mut out, form, key)?;
        out.write_all(b"\t").map_err(|error| Failure::output(&error))?;
        write_bytes(&mut out, form, value)?;
        out.line("")
    };
    let mut tell = |after: Option<&[u8]>, upto: Option<&[u8]>, error: String| {
        lost += 1;
        let place = salvage::place(Some(name), after.map(escaped), upto.map(escaped));
        remark(false, format_args!("lost: {place}: {error}"));
    };
    let walked = salvage.table(name, |piece| {
        let written = match piece {
            Piece::Entry { key, value } => write(key, value),
            Piece::LostValue { key, error } => {
                tell(Some(key), Some(key), error.to_string());
                Ok(())
            }
            Piece::LostRange { after, upto, error } => {
                tell(after, upto, error.to_string());
                Ok(())
            }
            _ => Ok(()),
        };
        // If the results cannot be written, stop.
        written.map_err(|error| {
            failure = Some(error);
            vellum::Error::Ended
        })
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    walked.map_err(|error| match error {
        vellum::Error::NoSuchTable { .. } => salvage::missing(&salvage, name, &losses),
        error => error.into(),
    })?;
    let judgement = match lost {
        0 if losses.is_empty() => Ok(()),
        0 => Err(format!(
            "the database is damaged; all of the table {} that was found was printed",
            named(name)
        )),
        _ => Err(format!("part of the table {} is lost; what could be read was printed", named(name))),
    };
    verdict(out.finish(), judgement.map_err(|message| Failure::new(Code::Damaged, message)))
}

fn write_bytes(out: &mut Output, form: Form, bytes: &[u8]) -> Result {
    out.write_all(&form.encode(bytes)).map_err(|error| Failure::output(&error))
}

/// The range of keys.
enum Range {
    Prefix(Vec<u8>),
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Range {
    fn of(arguments: &Arguments, form: Form) -> Result<Self> {
        let decode = |text: &Option<OsString>, what: &str| {
            let bytes = text.as_ref().map(|text| form.decode(text, what)).transpose()?;
            bytes.as_deref().map_or(Ok(()), store::check_key)?;
            Ok::<_, Failure>(bytes)
        };
        if let Some(prefix) = decode(&arguments.prefix, "--prefix")? {
            return Ok(Self::Prefix(prefix));
        }
        let (from, to) = (decode(&arguments.from, "--from")?, decode(&arguments.to, "--to")?);
        if let (Some(from), Some(to)) = (&from, &to)
            && from > to
        {
            return Err(Failure::usage(
                "--from is behind --to, so no key can lie between them; swap them (with --reverse, too, --from \
                 is the lower one)",
            ));
        }
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        Ok(Self::Between(from, to.map_or(Bound::Unbounded, Bound::Excluded)))
    }

    fn cursor<'t>(&self, table: &'t Table) -> Result<Cursor<'t>> {
        Ok(match self {
            Self::Prefix(prefix) => table.cursor(Prefix(prefix))?,
            Self::Between(from, to) => table.cursor((from.as_ref(), to.as_ref()))?,
        })
    }
}
