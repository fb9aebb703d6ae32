//! Where the tour puts its database, without destroying anything that a user may want to keep.

use super::{ATTRIBUTES_TABLE, POOL_BYTES_LEAST};
use crate::{
    arguments::{Change, DEFAULT_TABLE},
    failure::{Code, Failure, Result},
    store,
};
use std::{
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
};
use vellum::{Database, ErrorKind, Options, pool::PoolError};
use vellum_base::shown;

/// Where the database is put.
pub struct Place {
    /// Its path when it is complete.
    pub path: PathBuf,
    /// Its path until then.
    pub partial: PathBuf,
    /// Where it would find a log, when it has its path.
    log: PathBuf,
    /// Whether there is a database of an earlier tour.
    pub replaces: bool,
}

impl Place {
    /// Makes sure that a database may be created here, and removes what a killed tour has left.
    pub fn prepare(path: &Path, force: bool) -> Result<Self> {
        let directory = store::directory(path);
        if !directory.is_dir() {
            let message = format!("there is no directory {} to make the database in", shown(directory));
            return Err(Failure::new(Code::Io, message));
        }
        let place = Self {
            path: path.to_owned(),
            partial: with_suffix(path, ".partial"),
            log: with_suffix(path, "-log"),
            replaces: store::existing_file(path)?.is_some(),
        };
        if place.replaces && !force {
            check_replaceable(path)?;
        }
        place.check_log()?;
        if store::existing_file(&place.partial)?.is_some() {
            check_abandoned(&place.partial)?;
            place.remove_partial()?;
        }
        Ok(place)
    }

    /// The directory in which it is.
    pub fn directory(&self) -> &Path {
        store::directory(&self.path)
    }

    /// The existing files, which must not be imported.
    pub fn files(&self) -> Result<Vec<Metadata>> {
        let files = [store::existing_file(&self.path)?, store::existing_file(&self.partial)?];
        let log = std::fs::metadata(vellum::Database::log_path(&self.path)).ok();
        Ok(files.into_iter().flatten().chain(log).collect())
    }

    /// Fails if there is a log in the way that does not belong to the database that is replaced.
    fn check_log(&self) -> Result {
        if !self.has_log() {
            return Ok(());
        }
        let why = if !self.replaces || self.path.is_symlink() {
            "it belongs to another database, or to one that is gone".to_owned()
        } else {
            match Database::open(&self.path, &looking()) {
                Err(error) if error.kind() == ErrorKind::Busy => return Err(error.into()),
                Err(error) if !is_unfinished(&error) => error.to_string(),
                _ => return Ok(()),
            }
        };
        Err(self.in_the_way(Failure::usage(why)))
    }

    /// Whether there is a log where the complete database would have its own.
    fn has_log(&self) -> bool {
        let mut files = std::fs::read_dir(&self.log).into_iter().flatten().flatten();
        files.any(|file| file.file_name().as_encoded_bytes().starts_with(b"segment-"))
    }

    /// The failure because of a log that cannot be removed: the complete database could not be changed beside it.
    fn in_the_way(&self, why: Failure) -> Failure {
        let log = shown(&self.log);
        why.after(format_args!("the log in {log} would be in the way of the new database"))
            .and("Move it away, or choose another --database")
    }

    /// Closes the database that is replaced, if it was not closed. That removes its log. The database stays whole
    /// until it is replaced.
    fn close_replaced(&self, options: &Options) -> Result {
        if !self.has_log() {
            return Ok(());
        }
        let options = Change::Little.options(options.clone().end_log_archive(true));
        // A creation that was interrupted may have left a log, too. It is completed.
        let closed = Database::open_or_create(&self.path, &options).and_then(Database::close);
        closed.map_err(|error| match error.kind() {
            ErrorKind::Busy => error.into(),
            _ => self.in_the_way(error.into()),
        })
    }

    /// Gives the complete database its name. `options` are those for the database that it replaces.
    pub fn finish(&self, options: &Options) -> Result {
        self.close_replaced(options)?;
        let renamed = std::fs::rename(&self.partial, &self.path);
        let durable = renamed.and_then(|()| File::open(self.directory())?.sync_all());
        durable.map_err(|error| Failure::file("give the database its name,", &self.path, &error))
    }

    /// Removes the incomplete database, if there is one; returns whether there was.
    pub fn remove_partial(&self) -> Result<bool> {
        match std::fs::remove_file(&self.partial) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Failure::file("remove", &self.partial, &error)),
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The options for looking at a database without changing anything.
fn looking() -> Options {
    Options::default().pool_bytes(POOL_BYTES_LEAST).read_only(true)
}

/// Whether a database is that of a complete tour.
fn is_of_tour(path: &Path) -> vellum::Result<bool> {
    let database = Database::open(path, &looking())?;
    let tables = database.tables()?;
    let has = |name: &str| tables.iter().any(|table| table.name == name);
    let has_both = has(DEFAULT_TABLE) && has(ATTRIBUTES_TABLE);
    Ok(has_both && tables.len() == 2 && database.heaps()?.is_empty())
}

/// What is said of another database.
const NOT_OF_TOUR: &str = "it is a database, but not of a tour";

/// Fails unless a file is the database of an earlier tour.
fn check_replaceable(path: &Path) -> Result {
    let why = match is_of_tour(path) {
        Ok(true) => return Ok(()),
        Ok(false) => NOT_OF_TOUR.to_owned(),
        Err(error) if error.kind() == ErrorKind::Busy => return Err(error.into()),
        Err(error) if is_unfinished(&error) => return Ok(()),
        Err(error) => error.to_string(),
    };
    Err(Failure::usage(format!(
        "{} is there already and would be replaced: {why}. Name another file with --database, or give --force to \
         replace it all the same",
        shown(path)
    )))
}

/// Fails unless the file is what a killed tour leaves, and no process is writing to it. Such a file holds nothing
/// yet, or was not closed and has no log, or is complete and has not got its name.
fn check_abandoned(partial: &Path) -> Result {
    let why = match is_of_tour(partial) {
        Ok(true) => return Ok(()),
        Ok(false) => NOT_OF_TOUR.to_owned(),
        Err(error) if error.kind() == ErrorKind::Busy => {
            return Err(Failure::from(error)
                .and("Another tour is making it; wait for it, or choose another --database"));
        }
        Err(error) if is_unfinished(&error) || was_without_log(&error) => return Ok(()),
        Err(error) => error.to_string(),
    };
    Err(Failure::usage(format!(
        "{} is there already and is needed for a while: {why}. Move it away, or choose another --database",
        shown(partial)
    )))
}

/// Whether a file holds nothing yet.
fn is_unfinished(error: &vellum::Error) -> bool {
    matches!(error, vellum::Error::Pool(PoolError::Unfinished { .. }))
}

/// Whether a database was not closed and has no log, as one that a tour is making.
fn was_without_log(error: &vellum::Error) -> bool {
    matches!(error, vellum::Error::Pool(PoolError::NotClosedCleanly { has_log: false, .. }))
}
