//! Closing a database, and leaving it to the process that has opened it.
//!
//! A child made by `fork` has the handles of its parent, but neither its threads nor the pages in memory. The file and the
//! log are its parent's, who goes on to use them: the child must not close the database when it drops these handles, or else
//! it removes the log that its parent needs.

use crate::{Error, Result, awaited::Awaited, driver::lock, shared::Inner};

impl Inner {
    /// Writes everything and marks the file as closed.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.log_place.is_inherited() {
            return Err(Error::Inherited);
        }
        // The next opening undoes what is left, and frees it.
        let _ = self.undo_rest();
        self.freeing.stop();
        lock(&self.waiting).awaited = Awaited::default();
        self.sweep_later();
        self.sweep();
        self.durable.close().inspect_err(|_| self.freeing.resume())?;
        self.log_place.remove();
        Ok(())
    }

    /// Keeps what would wait for threads of the parent, or use its pages, from being dropped.
    fn leave(&mut self) {
        std::mem::forget(self.driver.take());
        self.freeing.leave();
        self.durable.leave();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.log_place.is_inherited() {
            return self.leave();
        }
        // After a panic something may be half done: it is better then that the next opening reports it.
        if !std::thread::panicking() {
            // An error cannot be returned here; the next opening reports that the file was not closed cleanly.
            let _ = self.close();
        }
    }
}
