//! The stories put together with what carries them: one context and one spine a process. The product runs it; a test steps
//! it.

use std::sync::Arc;

use spine::workflow::embedded::Embedded;
use spine::{Clock, Duties, Spine, Wake};
use store::Store;

use crate::desks::Desks;
use crate::keys::Keys;
use crate::payment::provider::Payments;
use crate::policies::{Current, Policies};
use crate::webhook::courier::Post;
use crate::{Ctx, Error, doors};

/// What a process consists of, below its doors for people and nodes.
#[derive(Clone)]
pub struct Assembled {
    /// What stories stand on.
    pub ctx: Ctx,
    /// What moves by itself.
    pub spine: Spine,
}

/// Puts the parts together on a store. The keys of the installation are made if it has none; what operators have turned wins
/// over `policies`.
///
/// # Errors
/// When the store fails, or the keys in it can't be read.
pub async fn assemble(store: Store, clock: Clock, policies: Policies) -> Result<Assembled, Error> {
    let wake = Wake::new();
    let store = store.ringing(wake.bell());
    let keys = Arc::new(Keys::load_or_create(&store).await?);
    let engine = Arc::new(Embedded::undefined(store.hot(), clock.clone()));
    let workflows = Arc::clone(&engine);
    let current = Current::new(policies);
    current.turn(&store::policies::list(&store).await?);
    let (payments, post) = (Payments::default(), Post::default());
    let desks = Desks::new(&store, &clock, &current);
    let ctx = Ctx { store, clock, wake, workflows, keys, current, payments, post, desks };
    // Every allocation goes the same way; timers look for what is rare, each in its own way.
    let hot = ctx.hot();
    engine.define(doors::workflows::table(&hot));
    let spine = Spine {
        store: hot.store.clone(),
        clock: ctx.clock.clone(),
        wake: ctx.wake.clone(),
        subscriptions: doors::subscriptions::table(&hot),
        workflows: engine,
        broker: None,
        driver: None,
        duties: Duties::ALL,
        timers: doors::timers::table(&ctx),
    };
    Ok(Assembled { ctx, spine })
}
