//! What a process is told to do, what becomes of it meanwhile, and what is heard of it in the end.

use control::{Assembled, Error};
use futures::future::BoxFuture;
use uuid::Uuid;
use wire::node::{HeartbeatAnswer, SignedTask};

use crate::books::{Asked, Granted};

/// What becomes of a process while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Lives,
    /// It dies before its statement of that number.
    Dies(usize),
    /// It comes to its end, and nobody hears of it.
    Unheard,
    /// It stands still before its statement of that number, for so many events, if it is not in a transaction then.
    Hangs(usize, usize),
    /// Its connection breaks before its statement of that number.
    Cut(usize),
}

/// What is heard of a story.
#[derive(Debug)]
pub enum Heard {
    /// A request was answered: which of the books, and by what.
    Created(usize, Result<Granted, Error>),
    /// Somebody asked for something about what there is, and this is the answer's body.
    Asked(Asked, Result<String, Error>),
    /// A node was given work, or not.
    Given(usize, Result<Vec<SignedTask>, Error>),
    /// The control plane has heard how a node's task ended.
    Acknowledged(usize, Uuid, Result<String, Error>),
    /// A heartbeat was answered.
    Beat(usize, Result<HeartbeatAnswer, Error>),
    /// Something that moves by itself has moved so much.
    Moved(Result<u64, String>),
}

/// A story to be.
pub struct Plan {
    /// What it is, for the trace.
    pub what: String,
    /// How it is begun in a process.
    pub begin: Begin,
}

/// What begins a story in a process.
type Begin = Box<dyn FnOnce(&Assembled) -> BoxFuture<'static, Heard> + Send>;

impl Plan {
    /// A story that is begun like this.
    pub fn new<F>(
        what: impl Into<String>,
        begin: impl FnOnce(&Assembled) -> F + Send + 'static,
    ) -> Plan
    where
        F: Future<Output = Heard> + Send + 'static,
    {
        Plan { what: what.into(), begin: Box::new(move |assembled| Box::pin(begin(assembled))) }
    }
}
