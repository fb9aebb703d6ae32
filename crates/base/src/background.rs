//! What becomes known of a background thread that panics.

/// Does the work of a background thread. If it panics, which is a bug, `tell` gets the words for those who ask for errors:
/// no other thread waits for this one, and the database goes on without it.
pub fn tell_panic(work: impl FnOnce(), tell: impl FnOnce(String)) {
    // A scheduler has to see all panics.
    #[cfg(shuttle)]
    {
        let _ = tell;
        work();
    }
    #[cfg(not(shuttle))]
    if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let thread = std::thread::current();
        tell(format!(
            "the thread `{}` has panicked ({}), which is a bug; close the database and open it again",
            thread.name().unwrap_or_default(),
            text.unwrap_or("it does not say why")
        ));
    }
}
