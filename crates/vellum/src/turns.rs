//! Turns: the tasks of a database that run transactions give way to one that has repeatedly lost to others.
//!
//! While a task has its turn, others wait before their next attempt, in pauses that block no thread. Turns end after a
//! time limit, because a task may be waiting for another one. What it runs inside its transaction does not wait.

use crate::{driver::lock, pauses::Pauses};
use std::time::Duration;
use vellum_base::primitive::{Instant, Mutex};

/// How often a task checks whether the turn of another one is over.
const LOOK: Duration = Duration::from_millis(1);

/// Which task has its turn.
#[derive(Default)]
pub(crate) struct Turns {
    pub pauses: Pauses,
    turn: Mutex<Option<Turn>>,
}

/// The task that has its turn, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Turn {
    number: u64,
    until: Instant,
}

/// A task has its turn as long as this exists.
pub(crate) struct Turned<'t> {
    turns: &'t Turns,
    /// None if it belongs to an outer one of the same task.
    own: Option<Turn>,
}

impl Turns {
    /// Waits until no other task has its turn, or that turn is over. If `longest` is given, then takes a turn of at
    /// most that time; `number` is that of a transaction of the task.
    ///
    /// If this is called inside a transaction of the task that has its turn, which `is_inside` says of that task's
    /// number, it does not wait, and the outer one lasts as long as it would have.
    pub async fn take(
        &self,
        number: Option<u64>,
        longest: Option<Duration>,
        is_inside: impl Fn(u64) -> bool,
    ) -> Option<Turned<'_>> {
        loop {
            {
                let mut turn = lock(&self.turn);
                let now = Instant::now();
                match *turn {
                    Some(Turn { number, until }) if now < until => {
                        if is_inside(number) {
                            return longest.map(|_| Turned { turns: self, own: None });
                        }
                    }
                    _ => {
                        let own = Some(Turn { number: number?, until: now + longest? });
                        *turn = own;
                        return Some(Turned { turns: self, own });
                    }
                }
            }
            self.pauses.pause(LOOK).await;
        }
    }
}

impl Turned<'_> {
    /// The number of the task that has its turn; `None` if that is an outer one.
    pub fn number(&self) -> Option<u64> {
        self.own.map(|own| own.number)
    }
}

impl Drop for Turned<'_> {
    fn drop(&mut self) {
        let mut turn = lock(&self.turns.turn);
        // If the time was over, another task may have taken its turn.
        if self.own.is_some() && *turn == self.own {
            *turn = None;
        }
    }
}
