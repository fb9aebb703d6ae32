//! Disks that are full: whatever is being done then is refused by an error that says so, nothing that was acknowledged is lost,
//! reading goes on, and so does everything else when there is room again.
//!
//! Each workload meets some amounts of space that are left, on a simulated disk; `VELLUM_CAPACITIES=500` tries so many of each.
//! They also meet a few on a file system of a few MiB in memory, which a child makes for itself where the system lets it.

use crate::{
    life::{End, Journal},
    model::{Contents, Operation},
    number,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use vellum::{Backup, BackupOptions, Database, Directory, DiskDirectory, Error, ErrorKind, Options};
use vellum_vm::SimulatedDisk;

const NAME: &str = "data";
const TABLE: &str = "table";

fn options() -> Options {
    Options::default()
        .pool_bytes(512 << 10)
        .capacity_bytes(256 << 20)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .background_eviction(false)
        .background_checkpoints(false)
        .huge_pages(false)
}

/// What is being done when the disk becomes full.
#[derive(Clone, Copy, Debug)]
enum Workload {
    /// Keys anywhere, so that nodes are split.
    Inserts,
    Transactions,
    LargeValues,
    BulkLoads,
    Checkpoints,
    Tables,
    /// Backups of the database to the same disk, and restoring them to small ones.
    Backups,
}

const WORKLOADS: [Workload; 7] = [
    Workload::Inserts,
    Workload::Transactions,
    Workload::LargeValues,
    Workload::BulkLoads,
    Workload::Checkpoints,
    Workload::Tables,
    Workload::Backups,
];

/// What comes after the disk was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// There is room again.
    Room,
    /// The database is closed, and opened when there is room.
    Close,
    /// The process is killed, and the database opened, first while the disk is full.
    Kill,
}

/// Where a database lies.
trait Place {
    fn directory(&self) -> Arc<dyn Directory>;
    /// From now on there are so many bytes left.
    fn leave_free(&self, bytes: u64);
    fn make_room(&self);
    /// The process that uses it is killed; the disk stays full.
    fn kill(&mut self);
}

struct Simulated(SimulatedDisk);

impl Place for Simulated {
    fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(self.0.clone())
    }

    fn leave_free(&self, bytes: u64) {
        self.0.leave_free(bytes);
    }

    fn make_room(&self) {
        self.0.heal();
    }

    fn kill(&mut self) {
        let survivor = self.0.kill();
        self.0.fail_from(1);
        self.0 = survivor;
        self.0.leave_free(0);
    }
}

/// A directory of a small file system, of which a file takes what is not left.
struct Real(PathBuf);

impl Real {
    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Place for Real {
    fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(DiskDirectory::new(&self.0))
    }

    fn leave_free(&self, bytes: u64) {
        let mut file = File::create(self.ballast()).unwrap();
        let full = (0..).find_map(|_| file.write_all(&[1; 4096]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let length = file.metadata().unwrap().len();
        file.set_len(length.checked_sub(bytes).unwrap()).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn kill(&mut self) {
        unreachable!("that needs a process of its own");
    }
}

/// A database, and what it should hold.
struct Run {
    journal: Journal,
    random: StdRng,
    workload: Workload,
    count: u64,
}

type Failure = (Error, Option<Operation>);

impl Run {
    fn new(workload: Workload, seed: u64) -> Self {
        Self { journal: Journal::default(), random: StdRng::seed_from_u64(seed), workload, count: 0 }
    }

    fn key(&mut self) -> Vec<u8> {
        self.random.random_range(0..u32::MAX).to_be_bytes().to_vec()
    }

    fn put(&mut self, bytes: usize) -> Operation {
        let (key, value) = (self.key(), vec![self.random.random(); bytes]);
        Operation::Put { table: TABLE.to_owned(), key, value }
    }

    fn perform(&mut self, operation: Operation, database: &Database) -> Option<Failure> {
        let done = match &operation {
            Operation::Commit { changed } => database.begin().and_then(|transaction| {
                for ((table, key), value) in changed {
                    let value = value.as_deref().unwrap_or_default();
                    transaction.put(&database.table(table)?, key, value).map(drop)?;
                }
                transaction.commit()
            }),
            single => single.perform(database),
        };
        match done {
            Ok(()) => {
                self.journal.acknowledge(operation, vellum::Durability::Synced);
                None
            }
            Err(error) => Some((error, Some(operation))),
        }
    }

    /// A step of its workload.
    fn step(&mut self, place: &dyn Place, database: &Database) -> Option<Failure> {
        self.count += 1;
        let number = self.count;
        let operation = match self.workload {
            Workload::Inserts => self.put(700),
            Workload::LargeValues => self.put(90_000),
            Workload::Transactions => {
                let changed = (0..20).map(|_| ((TABLE.to_owned(), self.key()), Some(vec![7; 300])));
                Operation::Commit { changed: changed.collect() }
            }
            Workload::BulkLoads | Workload::Tables if number % 2 == 1 => {
                Operation::Create { table: format!("table {number}") }
            }
            Workload::BulkLoads => {
                let entries: BTreeMap<_, _> = (0..2000).map(|_| (self.key(), vec![3; 250])).collect();
                Operation::Load { table: format!("table {}", number - 1), entries }
            }
            Workload::Tables => self.put(3000),
            Workload::Checkpoints if number.is_multiple_of(10) => {
                return database.checkpoint().err().map(|error| (error, None));
            }
            Workload::Checkpoints => self.put(2500),
            Workload::Backups => {
                return back_up(place, database, number).err().map(|error| (error, None));
            }
        };
        self.perform(operation, database)
    }
}

impl Run {
    /// A step when there is room again. What the same process was refused is tried again after a pause, of a second at
    /// most: longer after an attempt that took longer, as on a busy machine.
    fn step_with_room(&mut self, place: &dyn Place, database: &Database, then: Then) -> Result<(), String> {
        let begun = Instant::now();
        while let Some((error, operation)) = self.step(place, database) {
            let may_pause = then == Then::Room && begun.elapsed() < Duration::from_secs(2);
            refusal(&error).and(if may_pause { Ok(()) } else { Err(format!("with room: {error}")) })?;
            if !self.journal.settle(operation.as_ref(), database)? {
                return Err(format!("after {error} it has to be opened anew"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn back_up(place: &dyn Place, database: &Database, number: u64) -> vellum::Result<()> {
    let name = format!("backup-{number}");
    let made = database.backup_in(place.directory(), &name, BackupOptions::default()).and_then(|_| {
        let backup = Backup::open_in(&*place.directory(), &name)?;
        // Elsewhere, because its log would lie among that of the database.
        let disk = SimulatedDisk::new(number);
        disk.leave_free(number << 20);
        let restored = Backup::restore_in(
            &[backup],
            Arc::new(disk.clone()),
            "restored",
            &options(),
            vellum::RestoreOptions::default(),
        );
        assert_eq!(disk.names().unwrap().is_empty(), restored.is_err());
        restored
    });
    if made.is_err() {
        let mut left = place.directory().names().unwrap();
        // The backup may have been finished.
        left.retain(|file| file.starts_with(&name) && *file != name);
        assert!(left.is_empty(), "{left:?} is left over");
    }
    made.map(drop)
}

/// Whether an error says that there is no room, and what to do.
fn refusal(error: &Error) -> Result<(), String> {
    let text = error.to_string();
    let says = ["ake room", "free space"].iter().any(|what| text.contains(what));
    if error.kind() == ErrorKind::OutOfSpace && says {
        return Ok(());
    }
    Err(format!("it says {:?}, {text:?}", error.kind()))
}

/// Works on a disk that has so much room left, and goes on after it was full. Whether it was.
fn run(place: &mut dyn Place, workload: Workload, free: u64, then: Then) -> Result<bool, String> {
    let say = |error: Error| error.to_string();
    let mut run = Run::new(workload, free);
    let database = Database::create_in(place.directory(), NAME, &options()).map_err(say)?;
    let mut operations = vec![Operation::Create { table: TABLE.to_owned() }];
    operations.extend((0..100).map(|_| run.put(200)));
    for operation in operations {
        run.perform(operation, &database).map_or(Ok(()), |(error, _)| Err(say(error)))?;
    }
    place.leave_free(free);
    let Some((error, operation)) = (0..20_000).find_map(|_| run.step(place, &database)) else {
        return Err("the disk does not become full".to_owned());
    };
    refusal(&error)?;
    if !run.journal.settle(operation.as_ref(), &database)? {
        return Err(format!("after {error} it has to be opened anew"));
    }
    // There may be room for less.
    let small = run.put(10);
    let refused = run.perform(small.clone(), &database);
    refused.map_or(Ok(()), |(error, _)| refusal(&error))?;
    if !run.journal.settle(Some(&small), &database)? {
        return Err("after a small change it has to be opened anew".to_owned());
    }
    let (database, end) = continue_with(place, database, then, &run.journal.now)?;
    match end {
        End::Closed => run.journal.check_contents(&database, end)?,
        end => run.journal.check(&database, end)?,
    }
    run.workload = Workload::Transactions;
    for _ in 0..10 {
        run.step_with_room(place, &database, then)?;
    }
    database.checkpoint().map_err(say)?;
    database.close().map_err(say)?;
    let database = Database::open_in(place.directory(), NAME, &options()).map_err(say)?;
    if database.recovery().is_some() {
        return Err("it was closed and is recovered".to_owned());
    }
    run.journal.check(&database, End::Closed)?;
    Ok(true)
}

/// The database after the disk was full, and how the one before ended.
fn continue_with(
    place: &mut dyn Place,
    database: Database,
    then: Then,
    now: &Contents,
) -> Result<(Database, End), String> {
    let say = |error: Error| error.to_string();
    let end = match then {
        Then::Room => {
            place.make_room();
            return Ok((database, End::Closed));
        }
        Then::Close => match database.close() {
            Ok(()) => End::Closed,
            Err(error) => refusal(&error).map(|()| End::Killed)?,
        },
        Then::Kill => {
            place.kill();
            drop(database);
            // Without room it can be read.
            let read_only = options().read_only(true);
            let reader = Database::open_in(place.directory(), NAME, &read_only);
            let reader = reader.map_err(|error| format!("it cannot be read: {error}"))?;
            if crate::model::contents(&reader).map_err(say)? != *now {
                return Err("a reader sees something else".to_owned());
            }
            drop(reader);
            match Database::open_in(place.directory(), NAME, &options()) {
                Ok(opened) => place.kill_with(opened),
                Err(error) => refusal(&error).map_err(|why| format!("opened without room {why}"))?,
            }
            End::Killed
        }
    };
    place.make_room();
    let opened = Database::open_in(place.directory(), NAME, &options());
    opened.map(|database| (database, end)).map_err(|error| format!("with room it does not open: {error}"))
}

impl dyn Place + '_ {
    fn kill_with(&mut self, database: Database) {
        self.kill();
        drop(database);
    }
}

fn run_all(thens: &[Then], frees: &[u64], mut place: impl FnMut(u64) -> Box<dyn Place>) {
    let mut wrong = Vec::new();
    for workload in WORKLOADS {
        for free in frees {
            for then in thens {
                if let Err(why) = run(&mut *place(*free), workload, *free, *then) {
                    wrong.push(format!("{workload:?} with {free} bytes left, then {then:?}: {why}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
}

/// Changes records again and again while the disk has no room for another segment of the log: checkpoints give some up.
fn run_updates(place: &dyn Place) -> Result<(), String> {
    let say = |error: Error| error.to_string();
    let mut run = Run::new(Workload::Inserts, 1);
    let database = Database::create_in(place.directory(), NAME, &options()).map_err(say)?;
    run.perform(Operation::Create { table: TABLE.to_owned() }, &database);
    let mut puts: Vec<_> = (0..500).map(|_| run.put(1000)).collect();
    for round in 0..60_u8 {
        for put in &mut puts {
            if let Operation::Put { value, .. } = put {
                value.fill(round);
            }
            if let Some((error, _)) = run.perform(put.clone(), &database) {
                return Err(format!("in round {round}: {error}"));
            }
        }
        if round == 0 {
            place.leave_free(200_000);
        }
    }
    run.journal.check_contents(&database, End::Closed)?;
    database.close().map_err(say)?;
    let database = Database::open_in(place.directory(), NAME, &options()).map_err(say)?;
    run.journal.check(&database, End::Closed)
}

#[test]
fn updates_go_on_in_what_checkpoints_give_up() {
    run_updates(&Simulated(SimulatedDisk::new(1))).unwrap();
}

#[test]
fn simulated() {
    let count = number("VELLUM_CAPACITIES").unwrap_or(6);
    let mut random = StdRng::seed_from_u64(count);
    // More small ones, for that is where files and their maps do not fit by a little.
    let frees: Vec<u64> = (0..count)
        .map(|number| match number % 3 {
            0 => number << 12,
            1 => random.random_range(0..1 << 20),
            _ => random.random_range(0..6 << 20),
        })
        .collect();
    run_all(&[Then::Room, Then::Close, Then::Kill], &frees, |free| {
        Box::new(Simulated(SimulatedDisk::new(free)))
    });
}

/// By which a child is told where its file system is.
const CHILD: &str = "VELLUM_FULL_DISK_CHILD";

#[test]
fn file_system() {
    if let Some(path) = std::env::var_os(CHILD) {
        let path = PathBuf::from(path).join("place");
        let place = |_| -> Box<dyn Place> {
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Box::new(Real(path.clone()))
        };
        run_updates(&*place(0)).unwrap();
        return run_all(&[Then::Room, Then::Close], &[0, 300_000, 3_000_000], place);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["full_disk::file_system", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, folder.path());
    match on_small_file_system(command, folder.path()) {
        Ok(ended) => assert!(ended, "see above"),
        Err(error) => eprintln!("SKIPPED, NOTHING WAS TESTED: no file system can be mounted here ({error})"),
    }
}

/// Runs a command that alone sees a file system of 24 MiB in a folder. Whether it succeeds.
///
/// # Errors
/// If the system does not let it have one.
fn on_small_file_system(mut command: Command, folder: &Path) -> io::Result<bool> {
    let folder = CString::new(folder.as_os_str().as_encoded_bytes())?;
    // SAFETY: they only ask for numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [(c"/proc/self/setgroups", "deny".to_owned()), (c"/proc/self/uid_map", format!("0 {user} 1"))];
    let maps = [&maps[..], &[(c"/proc/self/gid_map", format!("0 {group} 1"))]].concat();
    let prepare = move || {
        // SAFETY: the process has one thread, and no memory of others is touched.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
        for (path, text) in &maps {
            // SAFETY: the path ends with a zero, and the text is as long as is said.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY);
                check(file)?;
                check(libc::write(file, text.as_ptr().cast(), text.len()) as libc::c_int)?;
                check(libc::close(file))?;
            }
        }
        let (kind, size) = (c"tmpfs".as_ptr(), c"size=24m".as_ptr());
        // SAFETY: all of them end with a zero.
        check(unsafe { libc::mount(kind, folder.as_ptr(), kind, 0, size.cast()) })
    };
    // SAFETY: between fork and exec it makes system calls, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    Ok(command.status()?.success())
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
