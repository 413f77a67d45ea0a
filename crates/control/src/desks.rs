//! Where what many ask at the same time is answered together: tokens, certificates and whose an allocation is are looked up, requests
//! judged and admitted, several by one statement. Whoever is in a batch that fails asks alone, and gets an error of their own.

use domain::ids::AllocationId;
use spine::together::Limits;
use spine::{Clock, Together};
use store::Store;
use store::allocations::{self, Relation};
use store::api_tokens::{self, Live};
use store::node_agents::Shown;
use uuid::Uuid;

use crate::Error;
use crate::allocation::admit::{self, Request, Verdict};
use crate::allocation::in_hand::InHand;
use crate::idempotency::expired_before;
use crate::node::enrol;
use crate::policies::Current;

/// What is only read. A batch is a statement.
const READS: Limits = Limits { at_once: 1, batch_max: 64 };
/// What is written. A batch is a transaction: short enough that nobody in it waits for long.
const WRITES: Limits = Limits { at_once: 2, batch_max: 64 };

/// See the module.
#[derive(Clone, Debug)]
pub struct Desks {
    /// Whose connections know the few statements that are asked here.
    store: Store,
    clock: Clock,
    tokens: Together<[u8; 32], Told<Option<Live>>>,
    certificates: Together<[u8; 32], Told<Option<Shown>>>,
    relations: Together<(AllocationId, Uuid), Told<Option<Relation>>>,
    admissions: Together<Request, Verdict>,
}

impl Desks {
    /// The desks of one process.
    pub(crate) fn new(store: &Store, clock: &Clock, current: &Current) -> Desks {
        let (store, clock) = (store.hot(), clock.clone());
        let of = store.clone();
        let tokens = Together::new("tokens", READS, move |hashes: Vec<[u8; 32]>| {
            let store = of.clone();
            async move { told(api_tokens::find_live_by_hash(&store, &hashes).await, hashes.len()) }
        });
        let of = (store.clone(), clock.clone());
        let certificates = Together::new("certificates", READS, move |shown: Vec<[u8; 32]>| {
            let (store, clock) = of.clone();
            async move { told(enrol::look_up(&store, &clock, &shown).await, shown.len()) }
        });
        let of = store.clone();
        let relations =
            Together::new("relations", READS, move |wanted: Vec<(AllocationId, Uuid)>| {
                let store = of.clone();
                async move { told(allocations::relations(&store, &wanted).await, wanted.len()) }
            });
        let of = (store.clone(), clock.clone(), current.clone(), InHand::default());
        let admissions = Together::new("admissions", WRITES, move |requests| {
            let (store, clock, current, in_hand) = of.clone();
            async move {
                let times = (clock.now(), expired_before(&clock, &current));
                admit::together((&store, &in_hand), &current.get(), times, requests).await
            }
        });
        Desks { store, clock, tokens, certificates, relations, admissions }
    }

    /// The live token with that hash.
    pub(crate) async fn token(&self, hash: [u8; 32]) -> Result<Option<Live>, Error> {
        if let Told::Answer(live) = self.tokens.ask(hash).await? {
            return Ok(live?);
        }
        Ok(api_tokens::find_live_by_hash(&self.store, &[hash]).await?.pop().flatten())
    }

    /// Who shows the certificate with that SHA-256.
    pub(crate) async fn certificate(&self, shown: [u8; 32]) -> Result<Option<Shown>, Error> {
        if let Told::Answer(known) = self.certificates.ask(shown).await? {
            return Ok(known?);
        }
        Ok(enrol::look_up(&self.store, &self.clock, &[shown]).await?.pop().flatten())
    }

    /// What a user has to do with an allocation; none when there is no such allocation.
    pub(crate) async fn relation(
        &self,
        id: AllocationId,
        user: Uuid,
    ) -> Result<Option<Relation>, Error> {
        if let Told::Answer(relation) = self.relations.ask((id, user)).await? {
            return Ok(relation?);
        }
        Ok(allocations::relations(&self.store, &[(id, user)]).await?.pop().flatten())
    }

    /// Whether somebody gets what they ask for.
    pub(crate) async fn admission(&self, request: Request) -> Result<Verdict, Error> {
        Ok(self.admissions.ask(request).await?)
    }
}

/// What is told at a desk.
enum Told<T> {
    /// This.
    Answer(Result<T, store::Error>),
    /// Nothing: the batch failed, and nobody knows whose fault it was.
    Nothing,
}

/// An answer each. Who was alone has the error that it was.
fn told<T>(answers: Result<Vec<T>, store::Error>, count: usize) -> Vec<Told<T>> {
    match answers {
        Ok(answers) => answers.into_iter().map(|answer| Told::Answer(Ok(answer))).collect(),
        Err(error) if count == 1 => vec![Told::Answer(Err(error))],
        Err(error) => {
            tracing::debug!(%error, count, "a batch of questions failed: each is asked alone");
            (0..count).map(|_| Told::Nothing).collect()
        }
    }
}
