//! Files that other processes hold, and files that cannot be opened after all.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vellum_vm::{CreateMode, DiskFile, FileOptions, IoEngine, LockHolder, VmError};

const FILE_VARIABLE: &str = "VELLUM_VM_TEST_LOCKED_FILE";
const LEFT_VARIABLE: &str = "VELLUM_VM_TEST_LOCK_THAT_IS_LEFT";
/// So much memory takes the kernel a while to free, before it gives the locks back.
const MEMORY_BYTES: usize = 256 << 20;

fn place() -> (tempfile::TempDir, PathBuf) {
    // Not where it was built, it may be missing.
    let folder = env!("CARGO_TARGET_TMPDIR");
    std::fs::create_dir_all(folder).unwrap();
    let directory = tempfile::tempdir_in(folder).unwrap();
    let path = directory.path().join("file");
    (directory, path)
}

fn open(path: &Path, create: CreateMode) -> Result<DiskFile, VmError> {
    DiskFile::open(path, &FileOptions { create, ..FileOptions::default() })
}

/// Another process that has the file open. It removes the file and ends when its standard input does.
fn holder(path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "another_process", "--nocapture"]).env(FILE_VARIABLE, path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    assert!(out.lines().any(|line| line.unwrap().contains("it is held")));
    child
}

#[test]
fn another_process() {
    let Some(path) = std::env::var_os(FILE_VARIABLE).map(PathBuf::from) else { return };
    let file = open(&path, CreateMode::OpenOrCreate).unwrap();
    let memory = vec![1u8; MEMORY_BYTES];
    println!("it is held");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::fs::remove_file(&path).unwrap();
    drop((file, std::hint::black_box(memory)));
}

#[test]
fn the_holder_is_named() {
    let (_directory, path) = place();
    let mut child = holder(&path);
    let begin = Instant::now();
    let error = open(&path, CreateMode::OpenExisting).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(5));
    let VmError::Locked { holder: LockHolder::Process { process, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*process, child.id());
    let message = error.to_string();
    assert!(message.contains(&format!("process {} (", child.id())), "{message}");
    assert!(message.contains("close that first"), "{message}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_lock_of_a_process_that_was_killed_is_waited_for() {
    let (_directory, path) = place();
    for _ in 0..5 {
        let mut child = holder(&path);
        child.kill().unwrap();
        open(&path, CreateMode::OpenExisting).unwrap();
        child.wait().unwrap();
    }
}

/// The process that took the lock is gone, and what it has left keeps the lock: here a child, else the kernel, for a while.
#[test]
fn a_lock_that_outlives_its_process_is_waited_for() {
    let (_directory, path) = place();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_process_that_leaves_its_lock"]).env(LEFT_VARIABLE, &path);
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
    let begin = Instant::now();
    open(&path, CreateMode::OpenExisting).unwrap();
    assert!(begin.elapsed() > Duration::from_millis(300), "it was not held: {:?}", begin.elapsed());
}

#[test]
#[expect(clippy::zombie_processes, reason = "it ends before its child")]
fn a_process_that_leaves_its_lock() {
    let Some(path) = std::env::var_os(LEFT_VARIABLE) else { return };
    let file = std::fs::File::create(path).unwrap();
    file.lock().unwrap();
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1").stdin(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
}

#[test]
fn a_file_that_its_holder_removes_is_not_used_on() {
    let (_directory, path) = place();
    let mut child = holder(&path);
    let file = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            drop(child.stdin.take());
        });
        open(&path, CreateMode::OpenOrCreate).unwrap()
    });
    assert!(file.was_created() && path.exists());
    assert!(matches!(open(&path, CreateMode::OpenExisting), Err(VmError::Locked { .. })));
    child.wait().unwrap();
}

#[test]
fn another_handle_of_this_process_is_not_waited_for() {
    let (_directory, path) = place();
    let _file = open(&path, CreateMode::CreateNew).unwrap();
    let begin = Instant::now();
    let error = open(&path, CreateMode::OpenExisting).unwrap_err();
    assert!(matches!(&error, VmError::Locked { holder: LockHolder::ThisProcess, .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_millis(150), "{:?}", begin.elapsed());
}

#[test]
fn nothing_is_left_of_a_file_that_cannot_be_used() {
    let (_directory, path) = place();
    for create in [CreateMode::CreateNew, CreateMode::OpenOrCreate] {
        let options = FileOptions { create, engine: Some(IoEngine::Simulated), ..FileOptions::default() };
        let error = DiskFile::open(&path, &options).unwrap_err();
        assert!(matches!(error, VmError::EngineUnavailable { .. }), "{error}");
        assert!(!path.exists());
    }
    std::fs::write(&path, "mine").unwrap();
    let options = FileOptions { engine: Some(IoEngine::Simulated), ..FileOptions::default() };
    DiskFile::open(&path, &options).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn a_link_that_leads_nowhere_is_named() {
    let (_directory, path) = place();
    std::os::unix::fs::symlink("no/such/file", &path).unwrap();
    for create in [CreateMode::OpenExisting, CreateMode::CreateNew, CreateMode::OpenOrCreate] {
        let message = open(&path, create).unwrap_err().to_string();
        assert!(message.contains("symbolic link to no/such/file, which does not exist"), "{message}");
    }
}
