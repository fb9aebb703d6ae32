//! A process that is killed at a system call: before it is done, or after it.
//!
//! The process is traced (`ptrace`), all of its threads are. Each stops before and after each of its system calls; those that
//! concern files are counted from the first that creates, changes or syncs one. All calls of this module are made by the thread that
//! has started the process, because the system asks for that.

use std::{io, os::unix::process::CommandExt, process::Command, ptr};

/// At which system call a process is killed: the first one has the number 1.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    pub number: u64,
    /// The call is done, and the process hears nothing of it.
    pub is_done: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// How many system calls that concern files it has made.
    pub calls: u64,
    /// Its exit code; none if it was killed.
    pub code: Option<i32>,
}

/// Runs a process to its end, or until it is to be killed.
///
/// # Errors
/// If processes cannot be traced here, or not be started.
pub fn run(command: &mut Command, kill: Option<Kill>) -> io::Result<End> {
    // SAFETY: between fork and exec it makes a system call, and nothing else.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0)) };
    let process = command.spawn()?.id() as libc::pid_t;
    let mut tracer = Tracer { process, kill, calls: 0, has_begun: false, code: None, victim: None };
    let outcome = tracer.follow();
    if outcome.is_err() {
        tracer.kill();
        while wait().is_some() {}
    }
    outcome.map(|()| End { calls: tracer.calls, code: tracer.code })
}

struct Tracer {
    process: libc::pid_t,
    kill: Option<Kill>,
    calls: u64,
    /// A file was created, changed or synced.
    has_begun: bool,
    code: Option<i32>,
    /// The thread that makes the call after which the process is killed.
    victim: Option<libc::pid_t>,
}

impl Tracer {
    fn follow(&mut self) -> io::Result<()> {
        // It stops when its program begins.
        wait().filter(|(_, status)| libc::WIFSTOPPED(*status)).ok_or(io::ErrorKind::NotFound)?;
        let options = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_EXITKILL;
        request(libc::PTRACE_SETOPTIONS, self.process, options as usize)?;
        request(libc::PTRACE_SYSCALL, self.process, 0)?;
        while let Some((thread, status)) = wait() {
            if thread == self.process && libc::WIFEXITED(status) {
                self.code = Some(libc::WEXITSTATUS(status));
            }
            if !libc::WIFSTOPPED(status) {
                continue;
            }
            let signal = match libc::WSTOPSIG(status) {
                stop if stop == libc::SIGTRAP | 0x80 => {
                    if self.is_over(thread)? {
                        self.kill();
                    }
                    0
                }
                // A thread has begun another, or has begun.
                libc::SIGTRAP | libc::SIGSTOP => 0,
                signal => signal,
            };
            match request(libc::PTRACE_SYSCALL, thread, signal as usize) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                // Or it has been killed.
                _ => {}
            }
        }
        Ok(())
    }

    /// A thread has stopped before or after a system call. Whether the process is killed now.
    fn is_over(&mut self, thread: libc::pid_t) -> io::Result<bool> {
        let Some(call) = entered(thread)? else {
            return Ok(self.victim == Some(thread));
        };
        let concerns_files = concerns_files(&call);
        self.has_begun |= concerns_files && call.number != libc::SYS_write;
        if !(concerns_files && self.has_begun) {
            return Ok(false);
        }
        self.calls += 1;
        let Some(kill) = self.kill.filter(|kill| kill.number == self.calls) else { return Ok(false) };
        if kill.is_done {
            self.victim = Some(thread);
        }
        Ok(!kill.is_done)
    }

    /// A thread that has stopped before a call does not make it.
    fn kill(&self) {
        // SAFETY: it touches no memory of this process, and the number is that of a child that was not waited for.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
    }
}

/// Waits for something that happens to a process or thread that this thread traces; none is left otherwise. Those that other threads
/// have started are not waited for.
fn wait() -> Option<(libc::pid_t, libc::c_int)> {
    let mut status = 0;
    loop {
        // SAFETY: the status is written to a variable of this function.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread > 0 {
            return Some((thread, status));
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

/// A request that takes no memory of this process.
fn request(request: libc::c_uint, thread: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: address and data are numbers to these requests.
    match unsafe { libc::ptrace(request, thread, ptr::null_mut::<libc::c_void>(), data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A system call.
struct Call {
    number: libc::c_long,
    arguments: [u64; 6],
}

/// The system call that a thread is about to make; none if it has just made one, or if it was killed.
fn entered(thread: libc::pid_t) -> io::Result<Option<Call>> {
    let mut information = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the system writes at most as many bytes as it is told to where it is told to.
    let written = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            thread,
            size,
            information.as_mut_ptr().cast::<libc::c_void>(),
        )
    };
    if written == -1 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
    }
    // SAFETY: it consists of numbers, and all of it was zeroed or written.
    let information = unsafe { information.assume_init() };
    if information.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: this is the part that the system has written before a call.
    let entry = unsafe { information.u.entry };
    Ok(Some(Call { number: entry.nr as libc::c_long, arguments: entry.args }))
}

/// Whether a call creates, changes, syncs, renames or removes a file.
fn concerns_files(call: &Call) -> bool {
    #[cfg(target_arch = "x86_64")]
    match call.number {
        libc::SYS_open => return call.arguments[1] & libc::O_CREAT as u64 != 0,
        libc::SYS_rename | libc::SYS_unlink | libc::SYS_mkdir | libc::SYS_rmdir => return true,
        _ => {}
    }
    match call.number {
        libc::SYS_openat => call.arguments[2] & libc::O_CREAT as u64 != 0,
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_io_uring_enter
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_linkat
        | libc::SYS_unlinkat
        | libc::SYS_mkdirat => true,
        _ => false,
    }
}
