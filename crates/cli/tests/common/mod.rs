//! Running the program in a directory of its own.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A directory of its own, on the disk where the build is.
pub struct Place(TempDir);

/// What a run of the program came to.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and the directories above it.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Run {
        self.command(arguments).output().unwrap().into()
    }

    /// Runs it with something on standard input.
    pub fn run_with_input<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> Run {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        output.into()
    }

    /// Runs it with standard output a pipe that nothing reads.
    pub fn run_unread<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Run {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        self.command(arguments).stdout(writer).output().unwrap().into()
    }

    /// Copies a database that is open, with its log: the copy is as a crash leaves it.
    pub fn copy_crashed(&self, from: &str, to: &str) {
        let log = |of: &str| self.path(&format!("{of}-log"));
        std::fs::create_dir(log(to)).unwrap();
        std::fs::copy(self.path(from), self.path(to)).unwrap();
        for file in std::fs::read_dir(log(from)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), log(to).join(file.file_name())).unwrap();
        }
    }

    /// Runs a line in a shell.
    pub fn shell(&self, line: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.0.path()).stdin(Stdio::null());
        command.output().unwrap().into()
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { code: output.status.code(), out: output.stdout, err }
    }
}

impl Run {
    /// What it printed, if it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        String::from_utf8(self.out).unwrap()
    }

    /// The JSON objects that it printed, if it succeeded.
    #[track_caller]
    pub fn json(self) -> Vec<serde_json::Value> {
        self.ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Makes sure that it failed with this code, and said all of this.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in {:?}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

/// Waits until a file has so many bytes.
pub fn wait_for_size(path: &Path, bytes: u64) {
    let start = Instant::now();
    while std::fs::metadata(path).map_or(0, |metadata| metadata.len()) < bytes {
        assert!(start.elapsed() < Duration::from_secs(20), "{} does not grow", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal, by its name.
pub fn signal(child: &Child, name: &str) {
    let line = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
}

/// Makes the program obey the permissions of files even if this runs as root.
pub fn without_privileges(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt as _;
    const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
    const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;
    // SAFETY: between fork and exec only prctl is called, which is one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            for capability in [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH] {
                // Without the right to do this there is no such capability to be dropped.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            Ok(())
        })
    }
}

/// Bytes that do not repeat, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
