//! How the doors speak HTTP, whatever story is behind them: who asks, what they may send, and how they are told what
//! went wrong.

pub mod body;
pub mod caller;
pub mod frame;
pub mod idempotency;
mod json;
pub(crate) mod later;
pub mod params;
pub mod problem;
pub mod rates;
pub mod reply;
pub mod streams;

use std::sync::Arc;

use control::Ctx;

use crate::doors::health;
use crate::telemetry::Telemetry;
use rates::Rates;
use streams::Streams;

use crate::{Ending, Limits};

/// What every door of the API stands on. Clones share it.
#[derive(Clone)]
pub struct Front {
    /// What every story stands on.
    pub ctx: Ctx,
    /// How much a stranger may have.
    pub limits: Limits,
    /// Who has asked how often.
    pub rates: Arc<Rates>,
    /// What is counted.
    pub telemetry: Telemetry,
    /// Who watches something.
    pub streams: Arc<Streams>,
    /// Whether it ends.
    pub ending: Ending,
    /// Whether it can work.
    pub(crate) ready: health::Ready,
}

impl Front {
    /// A front with nobody before it yet.
    pub fn new(ctx: Ctx, limits: Limits) -> Front {
        let (rates, streams) = (Arc::new(Rates::new(&limits)), Arc::default());
        let (ending, ready) = (Ending::default(), health::desk(&ctx, &limits));
        Front { ctx, limits, rates, telemetry: Telemetry::install(), streams, ending, ready }
    }
}
