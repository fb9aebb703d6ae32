//! A snapshot that is held while others work: a thread begins a transaction that only reads, keeps it, and sees at the end
//! whether it still shows what it showed.

use crate::engines::store::{Access, Session, Store, Transaction};
use crate::{Failure, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many records of each table are compared.
const COMPARED: usize = 10_000;

/// One that is held. If it is dropped it ends, and is not compared.
pub struct HeldSnapshot {
    end: mpsc::Sender<()>,
    thread: JoinHandle<Result<Duration>>,
}

impl HeldSnapshot {
    /// Begins it; returns once it stands.
    ///
    /// # Errors
    /// What the engine says.
    pub fn begin<S: Store>(store: &Arc<S>, tables: usize) -> Result<Self> {
        let store = store.clone();
        let (end, ended) = mpsc::channel();
        let (begun, stands) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut session = store.session()?;
            let mut transaction = session.begin(Access::Read)?;
            let before = digest(&mut transaction, tables)?;
            let begin = Instant::now();
            let _ = begun.send(());
            if ended.recv().is_err() {
                return Err("the snapshot was not ended".into());
            }
            let held = begin.elapsed();
            let is_same = digest(&mut transaction, tables)? == before;
            transaction.commit()?;
            if S::HAS_TRANSACTIONS && !is_same {
                return Err(Failure::Check("a snapshot has seen records change".to_owned()).into());
            }
            Ok(held)
        });
        // If it cannot begin, its end says why.
        let held = Self { end, thread };
        if stands.recv().is_ok() { Ok(held) } else { Err(held.end().err().unwrap_or("it has ended".into())) }
    }

    /// Ends it; gives how long it was held.
    ///
    /// # Errors
    /// What the engine says, or that records have changed that it shows.
    pub fn end(self) -> Result<Duration> {
        let _ = self.end.send(());
        self.thread.join().unwrap_or_else(|_| Err("the thread that held a snapshot panicked".into()))
    }
}

/// Stands for the first records of each table.
fn digest(transaction: &mut impl Transaction, tables: usize) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for table in 0..tables {
        let mut left = COMPARED;
        transaction.for_each(table, |key, value| {
            (key, value).hash(&mut hasher);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    Ok(hasher.finish())
}
