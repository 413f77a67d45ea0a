//! What runs beside the doors of the gateway: writing heartbeats, calling the roll of those who wait, saying that it listens, looking for
//! revocations of other processes and for tasks that nobody has fetched.

use std::sync::Arc;
use std::time::Duration;

use control::Ctx;
use control::node::heartbeat::{self, Flusher};
use control::node::roll_call::Caller;
use control::node::{enrol, task};
use tokio::time::{MissedTickBehavior, interval};

use super::enrolments::Enrolments;
use crate::Ending;

/// How often revocations are looked for. With the moment it takes to wake a poll it stays below five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many looks there are between two for tasks that nobody has fetched.
const LOOKS_TO_FETCH: u32 = 5;
/// How many looks there are between two times of forgetting.
const LOOKS_TO_FORGET: u32 = 30;

/// See the module. It has to [run](Duties::run) as long as the doors are open.
pub struct Duties {
    pub(super) ctx: Ctx,
    pub(super) flusher: Flusher,
    pub(super) caller: Caller,
    pub(super) enrolments: Arc<Enrolments>,
    pub(super) ending: Ending,
}

impl Duties {
    /// Runs until the doors are gone; heartbeats that came before are written.
    pub async fn run(self) {
        let Duties { ctx, flusher, caller, enrolments, ending } = self;
        let looked = async {
            tokio::select! {
                () = ending.closing() => {}
                () = look(&ctx, &enrolments) => {}
            }
        };
        futures::future::join3(flusher.run(), caller.run(), looked).await;
    }
}

async fn look(ctx: &Ctx, enrolments: &Enrolments) {
    let mut every = interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut since = None;
    for looks in 1_u32.. {
        every.tick().await;
        if let Err(error) = heartbeat::listen(ctx).await {
            tracing::warn!(error = error.chain(), "nobody could be told that the gateway listens");
        }
        match enrol::wake_revoked(ctx, since).await {
            Ok(asked_at) => since = Some(asked_at),
            Err(error) if store::fall::noticed(&error) => {}
            Err(error) => {
                tracing::warn!(error = error.chain(), "revocations could not be looked for")
            }
        }
        if looks.is_multiple_of(LOOKS_TO_FETCH)
            && let Err(error) = task::ring_again(ctx).await
            && !store::fall::noticed(&error)
        {
            tracing::warn!(error = error.chain(), "tasks could not be looked for");
        }
        if looks.is_multiple_of(LOOKS_TO_FORGET) {
            enrolments.forget();
        }
    }
}
