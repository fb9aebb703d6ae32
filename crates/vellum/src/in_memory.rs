//! Recovery in memory: changes go to an overlay ([`OverlayFile`]), and the files are opened for reading only.

use crate::{Options, Recovery, Result, catalog};
use std::{path::Path, sync::Arc};
use vellum_base::{Extent, PageId};
use vellum_pool::{PoolError, PoolFile, Remains};
use vellum_txn::{DurablePool, TxnError};
use vellum_vm::{CreateMode, Directory, DiskFile, File, OverlayDirectory, OverlayFile};

/// The file of a database, opened for reading only.
pub(crate) fn open_base(path: &Path, options: &Options) -> Result<DiskFile> {
    let read_only = options.clone().read_only(true);
    let opened = DiskFile::open(path, &read_only.pool.file_options(CreateMode::OpenExisting));
    Ok(opened.map_err(PoolError::from)?)
}

/// A file in the state in which recovery would leave it.
pub(crate) struct Recovered {
    pub file: Arc<dyn File>,
    pub recovery: Option<Recovery>,
    /// The damage that was skipped.
    pub damage: Vec<TxnError>,
    /// Why the file is not the one to which the log belongs, if it was closed, and the log goes on after that.
    pub older: Option<TxnError>,
    /// The copies of the superblock that are damaged in the file itself: recovery writes both anew.
    pub damaged_superblocks: Vec<PageId>,
}

/// Recovers a database in memory; its file and its log stay as they are.
pub(crate) fn recover_in_memory(
    file: &Arc<dyn File>,
    log: Arc<dyn Directory>,
    options: &Options,
    skip_damage: bool,
) -> Result<Recovered> {
    let failed = |source| PoolError::Read { extent: Extent::page(PageId(0)), source };
    let damaged_superblocks = Remains::damaged_superblocks(&**file);
    let overlay = OverlayFile::over(file.clone()).map_err(failed)?;
    let overlay: Arc<dyn File> = Arc::new(overlay);
    let mut options = options.clone().without_archive().read_only(false).background_checkpoints(false);
    options.log_settings.skip_damage = skip_damage;
    let opened = PoolFile::open_on(overlay.clone(), &options.pool)?;
    if !opened.needs_recovery() {
        // Its superblocks are as they are in the file.
        let (damage, damaged_superblocks) = Default::default();
        let older = DurablePool::refuse_older(&opened, &log).err();
        return Ok(Recovered { file: overlay, recovery: None, damage, older, damaged_superblocks });
    }
    let log = Arc::new(OverlayDirectory::over(log));
    let mut durable = DurablePool::open(opened, log, &options.log_settings)?;
    if catalog::complete(durable.pool())? {
        durable.checkpoint()?;
    }
    let (recovery, damage) = (durable.recovery(), durable.take_damage());
    durable.close()?;
    Ok(Recovered { file: overlay, recovery, damage, older: None, damaged_superblocks })
}
