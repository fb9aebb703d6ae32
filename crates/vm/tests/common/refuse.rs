//! Having the kernel refuse a system call to one thread, as sandboxes do.

/// Makes every later use of a system call by this thread fail with `error`. There is no way back, so call
/// it in a thread made for the purpose.
pub fn refuse(system_call: libc::c_long, error: libc::c_int) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD, 0, 0, 0), // the number of the system call
        step(JUMP_IF_EQUAL, 0, 1, system_call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is live during the call, and the kernel copies it.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}
