//! Opening and closing databases, with errors that say what can be done.

use crate::{
    arguments::{Change, General, StoreArguments, WriteArguments},
    failure::{Code, Failure, Result},
    signals, size,
    text::{escaped, named},
};
use rustix::fs::Access;
use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};
use vellum::{
    Database, Error, ErrorKind, MAX_KEY_BYTES, Options, Table, TxnError, ValueReader,
    pool::{POOL_BYTES_MIN, PoolError, PoolFile, PoolOptions, VmError},
};
use vellum_base::{io_causes, shown};

/// How many bytes of a value are read at once.
pub const PART_BYTES: usize = 64 << 10;

/// Opens a database for reading. Other processes may have it open at the same time, and no file is changed. If it was not
/// closed, it is recovered in memory: recovering it in its file would give up the log, which may have to be archived.
pub fn open_to_read(arguments: &StoreArguments, general: &General) -> Result<Database> {
    let database = look_at(arguments)?;
    if database.recovery().is_some() {
        general.remark(format_args!(
                "{} was not closed: what its log holds was done again in memory, as by each command that only reads it; \
                 `vellum recover` does it in the file, once (with its --archive, if its log is archived)",
                shown(&arguments.database)
            ),
        );
    }
    Ok(database)
}

/// As [`open_to_read`], and fails if the database was not closed, because only what is in its file can be copied.
pub fn open_to_copy(arguments: &StoreArguments) -> Result<Database> {
    let database = look_at(arguments)?;
    if database.recovery().is_none() {
        return Ok(database);
    }
    Err(Failure::usage(format!(
        "{} was not closed, and its log holds changes that its file lacks: recover it first with `vellum recover` (with \
         its --archive, if its log is archived)",
        shown(&arguments.database)
    )))
}

fn look_at(arguments: &StoreArguments) -> Result<Database> {
    let path = &arguments.database;
    require_file(path)?;
    open(path, &arguments.engine.options(arguments.pool).read_only(true))
}

/// Fails if there is no file at the path of a database.
pub fn require_file(path: &Path) -> Result {
    existing_file(path)?.map(|_| ()).ok_or_else(|| missing(path))
}

/// Opens a database for writing; from now on signals have to be checked.
pub fn open_to_write(arguments: &WriteArguments, change: Change) -> Result<Database> {
    let path = &arguments.store.database;
    if existing_file(path)?.is_none() {
        return Err(missing(path));
    }
    check_archive(arguments)?;
    let change = as_there_is_room(change, path);
    signals::watch();
    Database::open(path, &arguments.options(change)).map_err(|error| explain_room(path, error, change))
}

/// A disk that is almost full must have room for the log of a command that recovers or compacts a database on it.
fn as_there_is_room(change: Change, path: &Path) -> Change {
    /// With less than this a log of files of the usual size would take a good part of it.
    const ROOM_BYTES: u64 = 512 << 20;
    match free_bytes(directory(&real_path(path))) {
        Some(..ROOM_BYTES) => Change::Little,
        _ => change,
    }
}

/// Opens a database for writing, or creates it; returns whether it was created. See [`open_to_write`].
pub fn open_or_create(arguments: &WriteArguments, change: Change) -> Result<(Database, bool)> {
    let path = &arguments.store.database;
    existing_file(path)?;
    check_archive(arguments)?;
    let change = as_there_is_room(change, path);
    signals::watch();
    let database = Database::open_or_create(path, &arguments.options(change));
    let database = database.map_err(|error| explain_room(path, error, change))?;
    let created = database.was_created();
    Ok((database, created))
}

/// Opens a database; the file is known to be one.
pub fn open(path: &Path, options: &Options) -> Result<Database> {
    Database::open(path, options).map_err(|error| explain(path, error))
}

/// Creates a database.
pub fn create(path: &Path, options: &Options) -> Result<Database> {
    Database::create(path, options).map_err(|error| explain(path, error))
}

/// Removes a database that was created in vain, and what is archived of its log.
pub fn discard(database: Database, general: &General) {
    let path = database.path().to_owned();
    if let Err(error) = database.discard() {
        general.warn(format_args!("a database without entries stays at {}: {error}", shown(&path)));
    }
}

/// Says what can be done about a database that could not be opened or created.
pub fn explain(path: &Path, error: Error) -> Failure {
    let (refused, kind, exists) = (is_refused(&error), error.kind(), path.exists());
    let unfinished = matches!(&error, Error::Pool(PoolError::Unfinished { .. }));
    let no_addresses = matches!(&error, Error::Pool(PoolError::Vm(VmError::AddressSpace { .. })));
    let failure = Failure::from(error);
    let directory = shown(directory(path));
    if unfinished {
        failure.and("`vellum put`, `load` and `import` do")
    } else if no_addresses {
        failure.and("--pool sets the size of the pool")
    } else if kind == ErrorKind::NotClosedCleanly {
        failure
            .and("It had no log, so it cannot be recovered; restore it from a backup, or build it again under another name")
    } else if refused && exists {
        failure.and(
            "Ask its owner for permission, or work on a copy (`get`, `scan`, `tables`, `stat` and \
             `verify` need to read it only)",
        )
    } else if refused {
        failure.and(format_args!(
            "You may not make files in {directory}; name the database in a directory of yours"
        ))
    } else if kind == ErrorKind::NotFound && !exists && !failure.message.ends_with('?') {
        // The error of a creation asks that itself.
        failure.and(format_args!("Is there a directory {directory}?"))
    } else {
        failure
    }
}

/// As [`explain`], for a database that is to be changed: says how much room its log takes.
fn explain_room(path: &Path, error: Error, change: Change) -> Failure {
    let is_log = matches!(error, Error::Log(_));
    let failure = explain(path, error);
    if !is_log || failure.code != Code::Full {
        return failure;
    }
    let room = size::bytes(change.log_bytes(log_file_bytes(path)));
    failure.and(format_args!("While this command runs, the log takes {room} in {}", shown(directory(path))))
}

/// The size of the files of the log that a database has, if it has one.
fn log_file_bytes(path: &Path) -> Option<u64> {
    let files = std::fs::read_dir(Database::log_path(path)).ok()?.filter_map(io::Result::ok);
    let segments = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"segment-"));
    segments.filter_map(|file| Some(file.metadata().ok()?.len())).max().filter(|bytes| *bytes > 0)
}

/// As [`close`], after a command has `done` something; what failed first is told first. Tells if `--no-archive` has ended nothing yet, because nothing was changed.
pub fn close_changed<T>(
    database: Database,
    arguments: &WriteArguments,
    general: &General,
    done: Result<T>,
) -> Result<T> {
    let closed = close_after(database, done.is_ok());
    let done = match (done, closed) {
        (Ok(done), Ok(())) => Ok(done),
        (Ok(_), Err(close)) => return Err(close),
        (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(close)) => return Err(failure.and(close.message)),
    };
    let path = &arguments.store.database;
    // If another archive begins, the file does not say which one it means.
    if arguments.no_archive && arguments.archive.is_none() && is_log_archived(path) {
        general.remark(format_args!(
            "nothing was changed, so the log of {} still counts as archived: its archive ends with the first change that a command \
             with --no-archive makes",
            shown(path)
        ));
    }
    done
}

/// Whether the file of a database that was closed says that its log is archived. False if it cannot be opened, as where
/// another process has opened it meanwhile.
fn is_log_archived(path: &Path) -> bool {
    /// What the files of databases have as the name of their application.
    const APPLICATION: &str = "vellum database";
    let options = PoolOptions::default().pool_bytes(POOL_BYTES_MIN).read_only(true);
    PoolFile::open(path, &options.application(APPLICATION)).is_ok_and(|file| file.is_log_archived())
}

/// Closes a database that was changed. There must be no open tables.
pub fn close(database: Database) -> Result {
    close_after(database, false)
}

/// Closes a database, in which what the command was to do may be done.
fn close_after(database: Database, is_done: bool) -> Result {
    let path = database.path().to_owned();
    database.close().map_err(|error| {
        // All is in the log then, durably.
        let is_kept = is_done && matches!(&error, Error::Log(TxnError::NotArchived { .. }));
        let failure = Failure::from(error).after(format_args!("cannot close {}", shown(&path))).and(
            "Make room or mend the device; then `vellum recover`, with the same --archive if there was one, or the next command that \
             changes the database, recovers what its log holds",
        );
        if is_kept { failure.and("What this command was to do is done") } else { failure }
    })
}

/// Opens a table of any types; if there is none of that name, the error lists the existing ones.
pub fn table(database: &Database, name: &str) -> Result<Table> {
    database.table_as_bytes(name).map_err(|error| match error {
        Error::NoSuchTable { .. } => no_such_table(database, name, "; name it with --table"),
        other => other.into(),
    })
}

/// The error of a command that writes keys and values as bytes, if the table has other types.
pub fn of_bytes(error: Error) -> Failure {
    match error {
        Error::TableTypes { name, stored: (key, value), .. } => Failure::usage(format!(
            "the table {} is one from {key} to {value}, and this command writes bytes, which might be neither; `vellum load \
             --dump` writes such tables, from a dump, and programs do",
            named(&name)
        )),
        other => other.into(),
    }
}

/// An error that lists the existing tables, followed by `advice`.
pub fn no_such_table(database: &Database, name: &str, advice: &str) -> Failure {
    let tables = match database.tables() {
        Ok(tables) => tables,
        Err(error) => return error.into(),
    };
    let names: Vec<String> = tables.iter().map(|table| named(&table.name)).collect();
    let there_are = match names.as_slice() {
        [] => "the database has no tables yet; `vellum put` and `vellum import` create them".to_owned(),
        [only] => format!("the only one is {only}{advice}"),
        several => format!("there are {}{advice}", several.join(", ")),
    };
    Failure::no(format!("there is no table {} in {}: {there_are}", named(name), shown(database.path())))
}

/// The failure for a key that a cursor has shown and a search does not find. No process changes the database meanwhile.
pub fn not_found_again(key: &[u8], table: &str) -> Failure {
    let (key, table) = (escaped(key), named(table));
    let message = format!(
        "the key \"{key}\" is in the table {table}, and is not found from its root: the table is damaged; `vellum verify` tells where"
    );
    Failure::new(Code::Damaged, message)
}

/// Checks a key before anything is opened or created for it.
pub fn check_key(key: &[u8]) -> Result {
    if key.len() > MAX_KEY_BYTES {
        return Err(Failure::usage(format!(
            "the key has {} bytes, and the longest that can be stored has {MAX_KEY_BYTES}",
            key.len()
        )));
    }
    Ok(())
}

/// Whether two files are the same.
pub fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    one.dev() == other.dev() && one.ino() == other.ino()
}

/// Opens a file whose contents go into a database, and which is neither a directory nor the database; `itself`
/// completes "the database cannot be", as in "stored in itself".
pub fn open_input(file: &Path, database: &Path, itself: &str) -> Result<(File, Metadata)> {
    let failed = |error| Failure::file("read", file, &error);
    let opened = File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let message = format!("{} is a directory; `vellum import` stores directories", shown(file));
        return Err(Failure::usage(message));
    }
    if std::fs::metadata(database).is_ok_and(|database| is_same_file(&database, &metadata)) {
        return Err(Failure::usage(format!("the database cannot be {itself}; name another file")));
    }
    Ok((opened, metadata))
}

/// The file at the path of a database; none if there is no file.
pub fn existing_file(path: &Path) -> Result<Option<Metadata>> {
    regular_file(path, "a database").map_err(|failure| match path.is_dir() {
        true => failure.and(format_args!(
            "To import a directory: vellum import DATABASE {}",
            crate::output::shell_path(path)
        )),
        false => failure,
    })
}

/// The regular file at a path where `what` should be; none if there is no file.
pub fn regular_file(path: &Path, what: &str) -> Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Failure::usage(format!("{} is a directory, and {what} is one file", shown(path))))
        }
        Ok(metadata) if !metadata.is_file() => {
            Err(Failure::usage(format!("{} is not a regular file, which {what} is", shown(path))))
        }
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match std::fs::read_link(path) {
            Ok(target) => Err(Failure::new(
                Code::Io,
                format!(
                    "{} is a symbolic link to {}, which does not exist; name that file itself, or remove the link",
                    shown(path),
                    shown(&target)
                ),
            )),
            Err(_) => Ok(None),
        },
        Err(error) => Err(Failure::file("look at", path, &error)),
    }
}

/// Fails if a path cannot be the name of a file that is to be made, because it names a directory.
pub fn check_new_file(path: &Path) -> Result {
    let bytes = path.as_os_str().as_encoded_bytes();
    if path.file_name().is_none() || bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        return Err(Failure::usage(format!(
            "{} is the name of a directory; name the file that is to be made",
            shown(path)
        )));
    }
    Ok(())
}

/// Makes sure that a path leads to a directory; `what` says what should be in it.
pub fn require_directory(path: &Path, what: &str) -> Result {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Failure::usage(format!("{} is not a directory, which {what} is", shown(path)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message =
                format!("there is no directory {}, where {what} should be; check the name", shown(path));
            Err(Failure::new(Code::Io, message))
        }
        Err(error) => Err(Failure::file("look at", path, &error)),
    }
}

/// Fails if the archive of the log neither is a directory in which files can be made, nor can be made. Otherwise that
/// would be noticed when the database is closed, after it was changed.
fn check_archive(arguments: &WriteArguments) -> Result {
    let Some(archive) = &arguments.archive else { return Ok(()) };
    let made_in = match std::fs::read_link(archive) {
        Ok(target) if !archive.exists() => {
            let (archive, target) = (shown(archive), shown(&target));
            return Err(Failure::new(
                Code::Io,
                format!(
                    "{archive} is a symbolic link to {target}, which does not exist; name the archive itself, or remove the link"
                ),
            ));
        }
        _ if archive.exists() => archive,
        _ => directory(archive),
    };
    let what = if made_in == archive { "the archive of a log" } else { "the archive" };
    require_directory(made_in, what)?;
    if real_path(archive) == real_path(&Database::log_path(&arguments.store.database)) {
        let message = format!(
            "{} is the directory of the database's log itself, which is removed with the log; name another directory for its archive",
            shown(archive)
        );
        return Err(Failure::new(Code::Usage, message));
    }
    rustix::fs::access(made_in, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| Failure::file("archive the log in", archive, &error.into()))
}

/// The path without symbolic links; the last part of it need not exist.
fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (directory(path).canonicalize(), path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => path.to_owned(),
    })
}

fn missing(path: &Path) -> Failure {
    let message = format!(
        "there is no file {}; check the name, or create a database with `vellum put` or `vellum import`",
        shown(path)
    );
    Failure::new(Code::Io, message)
}

/// The directory of a file.
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// How many bytes there is room for on the disk of a directory, if the system can say.
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(directory).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Whether the system denied permission.
fn is_refused(error: &Error) -> bool {
    io_causes(error).any(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
}

/// Reads a value in parts, the first `most` bytes of it.
pub fn read_parts(reader: &mut ValueReader<'_>, most: u64, mut take: impl FnMut(&[u8]) -> Result) -> Result {
    let end = most.min(reader.len());
    let mut buffer = vec![0; usize::try_from(end).unwrap_or(PART_BYTES).min(PART_BYTES)];
    let mut offset = 0;
    while offset < end {
        let wanted = usize::try_from(end - offset).unwrap_or(PART_BYTES).min(buffer.len());
        let done = reader.read_at(offset, buffer.get_mut(..wanted).unwrap_or_default())?;
        take(buffer.get(..done).unwrap_or_default())?;
        offset += done as u64;
        if done < wanted {
            return Err(Failure::new(Code::Damaged, "a value ends before its length; run `vellum verify`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_for_a_log_is_that_of_the_segments_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        let room = || Change::Little.log_bytes(log_file_bytes(&path));
        assert_eq!(room(), 12 << 20);
        std::fs::create_dir(Database::log_path(&path)).unwrap();
        assert_eq!(room(), 12 << 20);
        let file = |name: &str, bytes| {
            File::create(Database::log_path(&path).join(name)).unwrap().set_len(bytes).unwrap();
        };
        file("segment-0000000000000007", 16 << 20);
        file("segment-0000000000000008", 0);
        file("buffer", 64 << 20);
        assert_eq!(room(), 36 << 20);
    }
}
