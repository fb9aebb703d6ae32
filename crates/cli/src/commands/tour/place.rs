//! Where the tour puts its database, without destroying anything that a user may want to keep.

use super::ATTRIBUTES_TABLE;
use crate::{
    arguments::DEFAULT_TABLE,
    failure::{Code, Failure, Result},
    store,
};
use std::{
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
};
use vellum::{
    Database, ErrorKind, Options,
    pool::{POOL_BYTES_MIN, PoolError},
};
use vellum_base::shown;

/// Where the database is put.
pub struct Place {
    /// Its path when it is complete.
    pub path: PathBuf,
    /// Its path until then.
    pub partial: PathBuf,
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
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let place = Self {
            path: path.to_owned(),
            partial: PathBuf::from(partial),
            replaces: store::existing_file(path)?.is_some(),
        };
        if place.replaces && !force {
            check_replaceable(path)?;
        }
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

    /// Gives the complete database its name.
    pub fn finish(&self) -> Result {
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

/// Fails unless a file is the database of an earlier tour.
fn check_replaceable(path: &Path) -> Result {
    let options = Options::default().pool_bytes(POOL_BYTES_MIN).read_only(true);
    let tables = Database::open(path, &options).and_then(|database| database.tables());
    let why = match tables {
        Ok(tables) => {
            let has = |name: &str| tables.iter().any(|table| table.name == name);
            if has(DEFAULT_TABLE) && has(ATTRIBUTES_TABLE) && tables.len() == 2 {
                return Ok(());
            }
            "it is a database, but not of a tour".to_owned()
        }
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

/// Fails unless the file is that of an incomplete tour, and no process is writing to it.
fn check_abandoned(partial: &Path) -> Result {
    match Database::open(partial, &Options::default().pool_bytes(POOL_BYTES_MIN)) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            Err(Failure::from(error)
                .and("Another tour is making it; wait for it, or choose another --database"))
        }
        Err(error) if error.kind() == ErrorKind::Incompatible && !is_unfinished(&error) => {
            Err(Failure::usage(format!(
                "{} is there already and is needed for a while: {error}. Move it away, or choose another --database",
                shown(partial)
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a file holds nothing yet.
fn is_unfinished(error: &vellum::Error) -> bool {
    matches!(error, vellum::Error::Pool(PoolError::Unfinished { .. }))
}
