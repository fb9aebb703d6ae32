//! Turns: the tasks of a database that run transactions give way to one that has lost to others again and again.
//!
//! While a task has its turn, others wait before their next attempt, in pauses that keep no thread from its work. Turns end by
//! themselves, because a task may wait for another one.

use crate::{driver::lock, pauses::Pauses};
use std::time::Duration;
use vellum_base::primitive::{Instant, Mutex};

/// How often a task looks whether the turn of another one is over.
const LOOK: Duration = Duration::from_millis(1);

/// Which task goes first.
#[derive(Default)]
pub(crate) struct Turns {
    pub pauses: Pauses,
    turn: Mutex<Option<Turn>>,
}

/// The task that goes first, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn {
    number: u64,
    until: Instant,
}

/// A task has its turn as long as this is there.
pub(crate) struct Turned<'t> {
    turns: &'t Turns,
    own: Turn,
}

impl Turns {
    /// Waits until no other task has its turn, or that is over. If it is to have its own, takes that, for so long at most; `number` is
    /// that of a transaction of the task.
    pub async fn take(&self, number: Option<u64>, longest: Option<Duration>) -> Option<Turned<'_>> {
        loop {
            {
                let mut turn = lock(&self.turn);
                let now = Instant::now();
                if turn.is_none_or(|turn| turn.until <= now) {
                    let own = Turn { number: number?, until: now + longest? };
                    *turn = Some(own);
                    return Some(Turned { turns: self, own });
                }
            }
            self.pauses.pause(LOOK).await;
        }
    }
}

impl Drop for Turned<'_> {
    fn drop(&mut self) {
        let mut turn = lock(&self.turns.turn);
        // If its time was over, another one may have taken it.
        if *turn == Some(self.own) {
            *turn = None;
        }
    }
}
