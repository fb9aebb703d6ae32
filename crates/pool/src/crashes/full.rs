//! The same in a full file: there is always room for the map of a checkpoint.

use super::*;
use crate::undoing;
use vellum_vm::{CrashModel, Faults, FileOperation};

/// What limits the file.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Limit {
    Capacity,
    Disk,
}

/// How a round ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    None,
    Close,
    Crash,
}

const LIMIT_BYTES: u64 = 100 * PAGE_SIZE as u64;

fn limited(limit: Limit) -> PoolOptions {
    match limit {
        Limit::Capacity => options().capacity_bytes(LIMIT_BYTES),
        Limit::Disk => options(),
    }
}

/// Lets a file become no longer than this.
fn limit_file(file: &SimulatedFile, bytes: u64) {
    file.set_faults(Faults { capacity_bytes: Some(bytes), ..Faults::default() });
}

/// A pool that becomes full, and what all records say since it was created.
struct Full {
    world: World,
    model: Model,
    /// The pages, in the order in which they were filled.
    pages: Vec<PageId>,
    number: u64,
    limit: Limit,
}

impl Full {
    fn new(limit: Limit) -> Self {
        let world = World::new(7, None, Duration::ZERO, &limited(limit));
        if limit == Limit::Disk {
            limit_file(&world.file.file, LIMIT_BYTES);
        }
        Self { world, model: Model::default(), pages: Vec::new(), number: 0, limit }
    }

    /// Fills pages until there are no more. Returns how many there were.
    fn fill(&mut self) -> usize {
        self.fill_to(usize::MAX)
    }

    /// Fills up to so many pages.
    fn fill_to(&mut self, most: usize) -> usize {
        for count in 0..most {
            self.number += 1;
            match (self.world.new_page(self.number), self.limit) {
                (Ok(page), _) => self.pages.push(page),
                (Err(PoolError::StorageFull { .. }), Limit::Disk) => return count,
                (Err(PoolError::CapacityExhausted { .. }), Limit::Capacity) => return count,
                (Err(error), _) => panic!("{error}"),
            }
        }
        most
    }

    fn free(&mut self, count: usize) {
        for page in self.pages.drain(..count) {
            self.world.free_page(page).unwrap();
        }
    }

    /// Goes on with a pool that was closed or recovered.
    fn go_on(self, model: Model, file: SimulatedFile, log: Arc<MemoryLog>, pool: Pool) -> Self {
        let file = Gated { file, gate: log.gate.clone(), delay: Duration::ZERO };
        model.check(&pool).unwrap();
        Self { world: World { file, log, pool }, model, ..self }
    }

    /// What the durable records say, which must be what the pool holds.
    fn check(&mut self) -> Model {
        self.world.log.make_all_durable();
        let mut model = Model(self.model.0.clone());
        self.world.log.crash().0.iter().for_each(|(_, record)| model.apply(&Change::decode(record)));
        model.check(&self.world.pool).unwrap();
        model
    }

    fn end_round(mut self, ending: Ending) -> Self {
        let model = self.check();
        let file = self.world.file.file.clone();
        match ending {
            Ending::None => self,
            Ending::Close => {
                let placeholder = World::new(1, None, Duration::ZERO, &options());
                let World { log, pool, .. } = std::mem::replace(&mut self.world, placeholder);
                pool.close().unwrap();
                let log = Arc::new(MemoryLog::new(crate::ChangeLog::end(&*log)));
                let opened = PoolFile::open_on(Arc::new(file.clone()), &limited(self.limit)).unwrap();
                let pool = opened.start(Some(log.clone())).unwrap();
                self.go_on(model, file, log, pool)
            }
            Ending::Crash => {
                let (records, end) = self.world.log.crash();
                let records: Vec<_> =
                    records.iter().map(|(lsn, record)| (*lsn, Change::decode(record))).collect();
                let file = file.crash();
                if self.limit == Limit::Disk {
                    limit_file(&file, LIMIT_BYTES);
                }
                let log = Arc::new(MemoryLog::new(end));
                let opened = PoolFile::open_on(Arc::new(file.clone()), &limited(self.limit)).unwrap();
                let pool = recover_with(opened, &records, log.clone()).unwrap();
                self.go_on(model, file, log, pool)
            }
        }
    }
}

#[test]
fn a_full_file_always_has_room_for_the_map_of_a_checkpoint() {
    for limit in [Limit::Capacity, Limit::Disk] {
        for (ending, frees) in [Ending::None, Ending::Close, Ending::Crash]
            .into_iter()
            .flat_map(|ending| [0, 7].map(|frees| (ending, frees)))
        {
            let mut full = Full::new(limit);
            for round in 0..4 {
                let what = format!("{limit:?}, {ending:?}, {frees} freed, round {round}");
                // Each time, the place of the map before is all that there might be.
                for _ in 0..4 {
                    full.fill();
                    full.world.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                full.fill();
                full = full.end_round(ending);
                full.fill();
                full.free(frees);
                full.world.log.make_all_durable();
                assert!(full.fill() >= frees, "{what}");
                full.world.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            full.end_round(Ending::Close);
        }
    }
}

#[test]
fn there_is_room_for_a_map_that_is_longer_than_the_one_before() {
    // A map of more than 16,256 pages has two.
    for pages in 16_215..16_240 {
        let mut full = Full::new(Limit::Disk);
        limit_file(&full.world.file.file, (pages + 30) * PAGE_SIZE as u64);
        full.fill_to(20);
        full.world.checkpoint().unwrap();
        let storage = full.world.pool.allocator().storage();
        storage.allocate(pages as u32 - 20, |_| ()).unwrap();
        for frees in [0, 0, 0, 3, 0, 1, 0, 0] {
            full.fill();
            full.world.checkpoint().unwrap_or_else(|error| panic!("{pages} pages: {error}"));
            full.free(frees);
            full.world.log.make_all_durable();
        }
        full.world.pool.close().unwrap();
    }
}

#[test]
fn failed_writes_in_a_full_file_leave_room_for_the_next_checkpoint() {
    for ending in [Ending::None, Ending::Close, Ending::Crash] {
        // The map, and each superblock.
        for nth in [1, 2, 3] {
            let mut full = Full::new(Limit::Disk);
            for _ in 0..4 {
                full.fill();
                full.world.checkpoint().unwrap();
            }
            full.fill();
            full.world.log.make_all_durable();
            full.world.pool.evictor().flush().unwrap();
            for _ in 0..3 {
                full.world.file.file.fail_nth_of(FileOperation::Write, nth);
                let failed = full.world.checkpoint();
                assert!(matches!(failed, Err(PoolError::Write { .. })), "write {nth}: {failed:?}");
                full.fill();
            }
            full.world.checkpoint().unwrap_or_else(|error| panic!("write {nth}: {error}"));
            full = full.end_round(ending);
            full.fill();
            full.world.checkpoint().unwrap();
            full.end_round(Ending::Close);
        }
    }
}

/// A file that a former version has filled: it is no longer than its pages, and all of these are allocated.
#[test]
fn a_full_file_without_room_for_a_map_is_opened() {
    let mut full = Full::new(Limit::Disk);
    full.fill();
    full.world.checkpoint().unwrap();
    full.world.log.make_all_durable();
    let (records, end) = full.world.log.crash();
    let mut records: Vec<_> = records.iter().map(|(lsn, record)| (*lsn, Change::decode(record))).collect();
    let file = full.world.file.file.crash_with(CrashModel::KeepAll);
    let opened = PoolFile::open_on(Arc::new(file.clone()), &options()).unwrap();
    let pages = opened.superblock.end;
    let free: Vec<_> = (0..pages).map(PageId).filter(|page| opened.space.is_free(*page)).collect();
    drop(opened);
    let last = Lsn(end.0);
    records.extend(free.iter().map(|page| (last, vec![Change::Format(*page, 5)])));
    file.truncate(pages * PAGE_SIZE as u64).unwrap();
    limit_file(&file, pages * PAGE_SIZE as u64);
    let mut model = Model::default();
    records.iter().for_each(|(_, changes)| model.apply(changes));
    let log = Arc::new(MemoryLog::new(Lsn(end.0 + 1)));
    let opened = PoolFile::open_on(Arc::new(file.clone()), &options()).unwrap();
    let pool = recover_with(opened, &records, log.clone()).unwrap();
    let mut full = full.go_on(model, file, log, pool);
    assert_eq!(full.fill(), 0);
    // There is no place for a map before something is freed.
    assert!(matches!(full.world.checkpoint(), Err(PoolError::StorageFull { .. })));
    full.free(2);
    full.world.checkpoint().unwrap();
    for _ in 0..4 {
        full.fill();
        full.world.checkpoint().unwrap();
    }
    full.end_round(Ending::Close);
}

#[test]
fn a_closed_file_is_changed_on_a_full_disk_if_there_is_room_for_a_map() {
    for frees in [0, 1] {
        let mut full = Full::new(Limit::Disk);
        full.fill();
        full.world.checkpoint().unwrap();
        full.free(frees);
        full = full.end_round(Ending::Close);
        // Others take what is left of the disk.
        let file = full.world.file.file.clone();
        limit_file(&file, file.size().unwrap());
        for _ in 0..4 {
            full.fill();
            full.world.checkpoint().unwrap();
        }
        full.free(3);
        assert_eq!(full.fill(), 3);
        full.end_round(Ending::Close);
    }
}

#[test]
fn what_is_kept_for_undo_is_left_by_changes_and_taken_by_undo() {
    const KEPT: u64 = 10;
    for limit in [Limit::Capacity, Limit::Disk] {
        for freed in [0, 4] {
            let mut full = Full::new(limit);
            full.fill_to(30);
            // The first map has no place to take over.
            full.world.checkpoint().unwrap();
            full.world.pool.undo_space().keep(KEPT);
            assert!(full.world.pool.undo_space().is_scarce());
            full.world.pool.admit_growth(0).unwrap();
            assert!(!full.world.pool.undo_space().is_scarce());
            full.fill();
            // What is freed may be kept as well.
            full.free(freed);
            full.world.log.make_all_durable();
            assert_eq!(full.fill(), freed, "{limit:?}");
            full.world.checkpoint().unwrap();
            full.fill();
            assert_eq!(undoing(|| full.fill_to(KEPT as usize)), KEPT as usize, "{limit:?}");
            full.world.pool.undo_space().release(KEPT);
            assert_eq!(full.fill(), 0, "{limit:?}");
            full.world.checkpoint().unwrap();
            full.end_round(Ending::Crash).end_round(Ending::Close);
        }
    }
}

#[test]
fn nothing_grows_that_undo_may_have_no_room_for() {
    for limit in [Limit::Capacity, Limit::Disk] {
        let mut full = Full::new(limit);
        full.fill();
        let pool = &full.world.pool;
        pool.undo_space().keep(7);
        assert!(pool.undo_space().is_scarce());
        assert!(matches!(pool.admit_growth(0), Err(PoolError::KeptForUndo)), "{limit:?}");
        assert!(matches!(pool.admit_growth(6), Err(PoolError::KeptForUndo)), "{limit:?}");
        pool.admit_growth(7).unwrap();
        pool.cut();
        assert!(pool.undo_space().is_scarce(), "others do not know that");
        full.free(7);
        full.world.pool.admit_growth(0).unwrap();
        assert!(!full.world.pool.undo_space().is_scarce());
        assert_eq!(full.fill(), 0, "{limit:?}");
        full.world.pool.undo_space().release(7);
        assert_eq!(full.fill(), 7, "{limit:?}");
        full.end_round(Ending::Close);
    }
}
