//! Why a command failed: a message for people, a code for programs.

use std::{
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};
use vellum::ErrorKind;
use vellum_base::{io_causes, shown};

/// The result of a command, or of a part of it.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// The category of a failure; also the exit code, except for [`Code::Silent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The reader of the output has closed it. Not a failure, and nothing to say.
    Silent = 0,
    /// The answer is no.
    No = 1,
    /// The command makes no sense.
    Usage = 2,
    /// The database cannot be trusted.
    Damaged = 3,
    /// Another process is using the database.
    Busy = 4,
    /// There is no room.
    Full = 5,
    /// A file, a device or the system failed.
    Io = 6,
    /// The user interrupted the command.
    Interrupted = 130,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::No => "no",
            Self::Usage => "usage",
            Self::Damaged => "damaged",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Io => "io",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The category.
    pub code: Code,
    /// What happened, and what can be done.
    pub message: String,
}

impl Failure {
    /// A failure of a category.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The answer is no.
    pub fn no(message: impl Into<String>) -> Self {
        Self::new(Code::No, message)
    }

    /// The command makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// An operation was refused by the system: `what` completes "cannot".
    pub fn io(what: impl std::fmt::Display, error: &io::Error) -> Self {
        let code = if is_full(error) { Code::Full } else { Code::Io };
        Self::new(code, format!("cannot {what}: {error}"))
    }

    /// An operation on a file was refused by the system: `what` completes "cannot".
    pub fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::io(format_args!("{what} {}", shown(path)), error)
    }

    /// The results could not be written.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::Silent, ""),
            _ => Self::io("write the results", error),
        }
    }

    /// The same failure, with `words` before the message.
    #[must_use]
    pub fn after(self, words: impl std::fmt::Display) -> Self {
        Self { message: format!("{words}: {}", self.message), ..self }
    }

    /// The same failure, with a sentence after the message.
    #[must_use]
    pub fn and(self, sentence: impl std::fmt::Display) -> Self {
        Self { message: format!("{}. {sentence}", self.message), ..self }
    }

    /// Reports the failure to the user and returns the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        let code = self.code as u8;
        if self.code != Code::Silent {
            let line = if json {
                let (kind, error) = (self.code.name(), &self.message);
                serde_json::json!({ "kind": "error", "error": error, "reason": kind, "exit_code": code })
                    .to_string()
            } else {
                format!("vellum: {}", self.message)
            };
            // If standard error is closed, the failure cannot be reported.
            let _ = writeln!(io::stderr(), "{line}");
        }
        ExitCode::from(code)
    }
}

/// What a command comes to that has examined or filled a database, and has printed what it found or did. That the
/// reader of the output has gone says nothing about the database, so the verdict comes before it.
pub fn verdict(printed: Result, verdict: Result) -> Result {
    match printed {
        Err(failure) if failure.code != Code::Silent => Err(failure),
        printed => verdict.and(printed),
    }
}

impl From<vellum::Error> for Failure {
    fn from(error: vellum::Error) -> Self {
        Self::new(code_of(&error), error.to_string())
    }
}

/// The code of an error of the engine.
fn code_of(error: &vellum::Error) -> Code {
    if chain_is_full(error) {
        return Code::Full;
    }
    match error.kind() {
        ErrorKind::NotFound if matches!(error, vellum::Error::NoSuchTable { .. }) => Code::No,
        ErrorKind::NotFound | ErrorKind::Io | ErrorKind::ReadOnly => Code::Io,
        ErrorKind::AlreadyExists | ErrorKind::InvalidInput => Code::Usage,
        ErrorKind::Corruption | ErrorKind::NotClosedCleanly | ErrorKind::Incompatible => Code::Damaged,
        ErrorKind::Busy => Code::Busy,
        ErrorKind::OutOfSpace | ErrorKind::OutOfMemory => Code::Full,
        _ => Code::Io,
    }
}

/// Whether an error, or one of its sources, reports lack of space or memory.
fn chain_is_full(error: &vellum::Error) -> bool {
    io_causes(error).any(is_full)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::OutOfMemory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_engine_have_the_documented_codes() {
        let missing = vellum::Error::NoSuchTable { name: "t".into() };
        assert_eq!(Failure::from(missing).code, Code::No);
        let open = vellum::Database::open("/nonexistent/file", &vellum::Options::default());
        assert_eq!(Failure::from(open.unwrap_err()).code, Code::Io);
        let small = vellum::Database::create("/nonexistent/file", &vellum::Options::default().pool_bytes(1));
        assert_eq!(Failure::from(small.unwrap_err()).code, Code::Usage);
    }

    #[test]
    fn a_verdict_comes_before_a_reader_that_has_gone_and_after_other_failures() {
        let failure = |code| Err(Failure::new(code, ""));
        let code = |printed, of| verdict(printed, of).map_err(|failure| failure.code);
        assert_eq!(code(failure(Code::Silent), failure(Code::Damaged)), Err(Code::Damaged));
        assert_eq!(code(failure(Code::Full), failure(Code::Damaged)), Err(Code::Full));
        assert_eq!(code(failure(Code::Silent), Ok(())), Err(Code::Silent));
        assert_eq!(code(Ok(()), failure(Code::Damaged)), Err(Code::Damaged));
        assert_eq!(code(Ok(()), Ok(())), Ok(()));
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures_of_output() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::output(&full).code, Code::Full);
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::output(&pipe).code, Code::Silent);
        assert_eq!(Failure::output(&io::Error::other("x")).code, Code::Io);
    }
}
