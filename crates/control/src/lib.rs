//! What follows from what: the stories. A file is a story, top to bottom in order of time; each of its steps is a few
//! short transactions, and none of them waits for anything but the database.
//!
//! People come in through `server`; facts come in through [`doors`]: the tables of subscriptions, workflows and timers.

pub mod account;
pub mod allocation;
pub mod allocation_group;
pub mod app_instance;
mod assembly;
pub mod audit_log;
pub mod billing;
pub mod caller;
pub mod catalogue;
pub mod claim;
pub mod desks;
pub mod documents;
pub mod doors;
mod error;
pub mod findings;
mod gauges;
pub mod growth;
pub mod idempotency;
pub mod ids;
pub mod keys;
pub mod node;
pub mod notification;
pub mod operations;
pub mod page;
pub mod payment;
pub mod policies;
mod run_state;
pub mod stuck;
pub mod webhook;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use spine::workflow::Workflows;
use spine::{Clock, Wake};
use store::Store;

pub use assembly::{Assembled, assemble};
pub use caller::Caller;
use desks::Desks;
pub use error::Error;
use keys::Keys;
use payment::provider::Payments;
use policies::{Current, Policies};
use webhook::courier::Post;

/// What every story stands on. Clones share it.
#[derive(Clone)]
pub struct Ctx {
    /// Where truth rests.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
    /// Who waits for what.
    pub wake: Wake,
    /// The engine that runs workflows.
    pub workflows: Arc<dyn Workflows>,
    /// The keys of the installation.
    pub keys: Arc<Keys>,
    /// What operators may turn, as it stands now.
    pub current: Current,
    /// Who carries what leaves for webhooks, if this process has somebody.
    pub post: Post,
    /// Whom people pay through, once that is said.
    pub payments: Payments,
    /// Where what many ask at once is answered together.
    pub desks: Desks,
}

impl Ctx {
    /// The same on connections that plan each statement once: for what is asked again and again, and asks for few rows by their index.
    #[must_use]
    pub fn hot(&self) -> Ctx {
        Ctx { store: self.store.hot(), ..self.clone() }
    }

    /// The policies as they stand now.
    pub fn policies(&self) -> Policies {
        self.current.get()
    }

    /// What time it will be after so many seconds.
    pub fn after_seconds(&self, seconds: u32) -> Timestamp {
        self.clock.after(Duration::from_secs(u64::from(seconds)))
    }
}
