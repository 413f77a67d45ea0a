//! Threads and environments under one roof, so that a guard on an environment can look at its
//! threads. The first generation only: it is the one whose races the daemon plays.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::rc::Rc;

use lifecycle::{Facts, Fence, Memory, Value};

use crate::columns::{ARCHIVED_AT, DELETED_AT, ENVIRONMENT_ID, STOP_REQUESTED_AT};
use crate::environment_v1::{Environment, NO_LIVE_THREAD, NO_PENDING_STOP};
use crate::shelf::Shelf;
use crate::sqlite::{self, Sqlite};
use crate::thread_v1::Thread;

/// Where threads and environments live together.
pub trait Home {
    /// What can break.
    type Fault: Error + 'static;
    /// Where threads are kept.
    type Threads: Shelf<Thread, Fault = Self::Fault>;
    /// Where environments are kept.
    type Environments: Shelf<Environment, Fault = Self::Fault>;

    /// The threads.
    fn threads(&mut self) -> &mut Self::Threads;
    /// The environments.
    fn environments(&mut self) -> &mut Self::Environments;
}

/// A home in memory.
pub struct MemoryHome {
    threads: Rc<RefCell<Memory<Thread>>>,
    environments: Memory<Environment>,
}

impl MemoryHome {
    /// An empty home with this fence.
    pub fn fenced(fence: Fence) -> Self {
        let threads = Rc::new(RefCell::new(Memory::fenced(fence)));
        let mut environments = Memory::fenced(fence);
        let none = |threads: &Rc<RefCell<Memory<Thread>>>, holds_up: fn(&Facts) -> bool| {
            let threads = Rc::clone(threads);
            move |environment: u128| {
                let threads = threads.borrow();
                let mut inside = threads
                    .rows()
                    .filter(|(_, row)| *row.facts.get(ENVIRONMENT_ID) == Value::Id(environment));
                !inside.any(|(_, row)| holds_up(&row.facts))
            }
        };
        environments.answer(NO_LIVE_THREAD, none(&threads, is_live));
        environments.answer(NO_PENDING_STOP, none(&threads, is_asked_to_stop));
        Self { threads, environments }
    }
}

/// Whether a thread with these facts is in use.
pub fn is_live(thread: &Facts) -> bool {
    thread.get(ARCHIVED_AT).is_null() && thread.get(DELETED_AT).is_null()
}

fn is_asked_to_stop(thread: &Facts) -> bool {
    !thread.get(STOP_REQUESTED_AT).is_null()
}

impl Home for MemoryHome {
    type Fault = Infallible;
    type Threads = Rc<RefCell<Memory<Thread>>>;
    type Environments = Memory<Environment>;

    fn threads(&mut self) -> &mut Self::Threads {
        &mut self.threads
    }

    fn environments(&mut self) -> &mut Self::Environments {
        &mut self.environments
    }
}

/// A home in one SQLite database.
pub struct SqliteHome {
    threads: Sqlite<Thread>,
    environments: Sqlite<Environment>,
}

impl SqliteHome {
    /// An empty home with this fence.
    ///
    /// # Errors
    /// When SQLite can't open a database.
    pub fn fenced(fence: Fence) -> Result<Self, sqlite::Error> {
        let threads = Sqlite::in_memory(fence)?;
        let environments = threads.beside();
        Ok(Self { threads, environments })
    }
}

impl Home for SqliteHome {
    type Fault = sqlite::Error;
    type Threads = Sqlite<Thread>;
    type Environments = Sqlite<Environment>;

    fn threads(&mut self) -> &mut Self::Threads {
        &mut self.threads
    }

    fn environments(&mut self) -> &mut Self::Environments {
        &mut self.environments
    }
}
