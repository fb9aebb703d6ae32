//! How busy the process is.

use std::mem::MaybeUninit;
use std::time::Duration;

/// The processor time that this process has used so far, without that of the calling thread; zero if the system does
/// not report it.
pub fn cpu_time_of_others() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(clock(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the call fills the structure, or leaves it as it is; all zeroes are a valid structure.
    let time = unsafe {
        libc::clock_gettime(which, time.as_mut_ptr());
        time.assume_init()
    };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_another_thread_counts() {
        const SPIN: Duration = Duration::from_millis(50);
        let before = cpu_time_of_others();
        let spin = || {
            let begun = clock(libc::CLOCK_THREAD_CPUTIME_ID);
            while clock(libc::CLOCK_THREAD_CPUTIME_ID) - begun < SPIN {}
        };
        std::thread::spawn(spin).join().unwrap();
        assert!(cpu_time_of_others() - before >= SPIN);
    }
}
