//! The port through which something leaves for the outside. Whoever carries it judges where it may go, and tells no more of what
//! is there than whether it was taken.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use wire::http::webhooks::DeliveryFault;

/// Something on its way.
#[derive(Clone)]
pub struct Letter {
    /// Where to.
    pub url: String,
    /// What it says of itself.
    pub headers: Vec<(&'static str, String)>,
    /// What it says: JSON.
    pub body: Vec<u8>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it was answered with.
    pub http_status: Option<u16>,
    /// Why it was not taken; none when it was.
    pub fault: Option<DeliveryFault>,
}

/// Whoever carries letters.
pub trait Courier: Send + Sync {
    /// The URL as it is kept, if something may be sent there; otherwise what is wrong with it, in words for its owner. It is
    /// looked up for that, so nobody asks this in a transaction.
    fn judge<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, String>>;

    /// Carries a letter, once, within a bounded time. Where it goes is judged again: what a name leads to may have changed.
    fn carry(&self, letter: Letter) -> BoxFuture<'_, Outcome>;
}

/// Who carries letters in this process: nobody, until somebody is set. Clones share it.
#[derive(Clone, Default)]
pub struct Post(Arc<OnceLock<Arc<dyn Courier>>>);

impl Post {
    /// From now on it is this one. Says whether there was nobody before.
    pub fn set(&self, courier: Arc<dyn Courier>) -> bool {
        self.0.set(courier).is_ok()
    }

    /// Whoever it is.
    pub fn courier(&self) -> Option<Arc<dyn Courier>> {
        self.0.get().map(Arc::clone)
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post({})", if self.0.get().is_some() { "somebody" } else { "nobody" })
    }
}
