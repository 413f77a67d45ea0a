//! Requests that are answered once. The key is taken in the transaction of the effect: there is never an effect without
//! its answer, nor an answer without its effect, and a request that was undone leaves its key free.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use spine::Clock;
use store::audit_log::Answering;
use store::idempotency::{OwnKey, StoredAnswer, Taken};
use store::{Company, Tx};
use uuid::Uuid;

use crate::account::secret::sha256;
use crate::audit_log::{DONE, Deed};
use crate::policies::Current;
use crate::{Ctx, Error, growth};

/// What the audit log says of a deed that was not done.
const REFUSED: &str = "refused";

/// The keys that this process is working on, so that a second request does not block a connection to wait for the first.
static IN_FLIGHT: Mutex<Option<HashSet<Name>>> = Mutex::new(None);

/// What names a key: whose, where, which.
type Name = (Uuid, &'static str, String);

/// The key of a request. While one is at work, another of the same name in this process is refused; it is given back when
/// the answer is stored, or when it is dropped.
#[derive(Debug)]
pub struct Key {
    /// Whose.
    pub principal: Uuid,
    /// On which route.
    pub route: &'static str,
    /// What they call it.
    pub key: String,
    /// The SHA-256 of the body.
    pub fingerprint: [u8; 32],
    flight: Mutex<Option<Flight>>,
}

impl Key {
    /// The key called `key` of a request with this body.
    pub fn of(principal: Uuid, route: &'static str, key: &str, body: &[u8]) -> Key {
        let (key, fingerprint) = (key.to_owned(), sha256(body));
        Key { principal, route, key, fingerprint, flight: Mutex::new(None) }
    }

    /// The same, to be asked for together with others.
    pub(crate) fn own(&self) -> OwnKey {
        OwnKey { principal: self.principal, route: self.route, key: self.key.clone() }
    }

    /// Marks the key as at work. A story that is run again after a lost race still has its mark.
    pub(crate) fn take_off(&self) -> Result<(), Error> {
        let mut flight = locked(&self.flight);
        if flight.is_none() {
            let name = (self.principal, self.route, self.key.clone());
            *flight = Some(Flight::begin(name).ok_or(Error::IdempotencyInFlight)?);
        }
        Ok(())
    }

    fn land(&self) {
        locked(&self.flight).take();
    }
}

/// A key at work, until dropped.
#[derive(Debug)]
struct Flight(Name);

impl Flight {
    fn begin(name: Name) -> Option<Flight> {
        let fresh = locked(&IN_FLIGHT).get_or_insert_default().insert(name.clone());
        // Made only if it is ours: one that is made and dropped would give back somebody else's mark.
        fresh.then(|| Flight(name))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(names) = locked(&IN_FLIGHT).as_mut() {
            names.remove(&self.0);
        }
    }
}

/// What is behind these locks is whole after every statement, so a panic elsewhere spoils nothing.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a mutation answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The HTTP status.
    pub status: u16,
    /// What it says.
    pub body: T,
    /// Whether it was said before, and only repeated now.
    pub replayed: bool,
}

/// How a request begins.
#[derive(Debug)]
pub enum Begun<T> {
    /// It is new: do it in this transaction, and [`finish`] it.
    Fresh(Tx),
    /// It was answered before.
    Known(Answer<T>),
}

/// Opens the transaction of a mutation, and takes its key in it. Without a key every request is new.
///
/// # Errors
/// [`Error::IdempotencyInFlight`] while the same request runs, [`Error::IdempotencyMismatch`] when the key was used for
/// another body, [`Error::Conflict`] when the answer was a secret, which is shown once.
pub async fn begin<T: DeserializeOwned>(ctx: &Ctx, key: Option<&Key>) -> Result<Begun<T>, Error> {
    begin_in(ctx, key, Company::Alone).await
}

/// [`begin`], in company: who is told that it has failed is to begin again, alone.
///
/// # Errors
/// As above.
pub(crate) async fn begin_in<T: DeserializeOwned>(
    ctx: &Ctx,
    key: Option<&Key>,
    company: Company,
) -> Result<Begun<T>, Error> {
    let Some(key) = key else {
        return Ok(Begun::Fresh(ctx.store.hot().begin_in(company).await?));
    };
    key.take_off()?;
    let begun = known_or_fresh(ctx, key, company).await;
    if !matches!(begun, Ok(Begun::Fresh(_))) {
        key.land();
    }
    begun
}

async fn known_or_fresh<T: DeserializeOwned>(
    ctx: &Ctx,
    key: &Key,
    company: Company,
) -> Result<Begun<T>, Error> {
    // What is done about a row or two is planned once.
    let mut tx = ctx.store.hot().begin_in(company).await?;
    let (now, expired_before) = (ctx.clock.now(), expired_before(&ctx.clock, &ctx.current));
    let fingerprint = &key.fingerprint;
    let taken =
        store::idempotency::take(&mut tx, key.own(), fingerprint, now, expired_before).await?;
    let answer = match taken {
        Taken::Free => return Ok(Begun::Fresh(tx)),
        Taken::Answered(answer) => answer,
    };
    // It has written nothing, and so takes nobody along who is in the same transaction.
    tx.commit().await?;
    Ok(Begun::Known(replayed(key, answer)?))
}

/// What was answered before, to the same request.
///
/// # Errors
/// [`Error::IdempotencyMismatch`] when it was another one, [`Error::Conflict`] when the answer was a secret.
pub(crate) fn replayed<T: DeserializeOwned>(
    key: &Key,
    answer: StoredAnswer,
) -> Result<Answer<T>, Error> {
    if answer.fingerprint != key.fingerprint {
        return Err(Error::IdempotencyMismatch);
    }
    let Some(body) = answer.body else {
        return Err(Error::Conflict(
            "this request was answered before, with a secret that is shown only once".to_owned(),
        ));
    };
    let body = serde_json::from_value(body)
        .map_err(|_| Error::Broken("a stored answer can't be read".to_owned()))?;
    Ok(Answer { status: answer.status, body, replayed: true })
}

/// Writes down who did it, stores the answer and commits.
///
/// # Errors
/// What the store refuses; nothing has happened then.
pub async fn finish<T: Serialize>(
    mut tx: Tx,
    deed: &Deed<'_>,
    key: Option<&Key>,
    status: u16,
    body: T,
) -> Result<Answer<T>, Error> {
    let stored = key.map(|_| serde_json::to_value(&body)).transpose();
    let stored = stored.map_err(|_| Error::Broken("an answer can't be written".to_owned()))?;
    write(&mut tx, deed, key, (status, stored)).await?;
    tx.commit().await?;
    Ok(settled(key, status, body))
}

/// Writes down who wanted it, and refuses. What the transaction recorded of why is kept; the key, without an answer, is
/// free again.
///
/// # Errors
/// Always: [`Error::Conflict`], or what the store refuses.
pub async fn refuse<T>(mut tx: Tx, deed: &Deed<'_>, why: String) -> Result<Answer<T>, Error> {
    deed.write(&mut tx, REFUSED).await?;
    tx.commit().await?;
    Err(Error::Conflict(why))
}

/// [`finish`] for an answer that carries a secret: that it was answered is stored, the body is not.
///
/// # Errors
/// What the store refuses; nothing has happened then.
pub async fn finish_secret<T>(
    mut tx: Tx,
    deed: &Deed<'_>,
    key: Option<&Key>,
    status: u16,
    body: T,
) -> Result<Answer<T>, Error> {
    write(&mut tx, deed, key, (status, None)).await?;
    tx.commit().await?;
    Ok(settled(key, status, body))
}

/// The entry and the answer, in one statement.
async fn write(
    tx: &mut Tx,
    deed: &Deed<'_>,
    key: Option<&Key>,
    (status, body): (u16, Option<serde_json::Value>),
) -> Result<(), Error> {
    let Some(key) = key else {
        return deed.write(tx, DONE).await;
    };
    if deed.write_answering(tx, Answering { key: key.own(), status, body }).await? {
        return Ok(());
    }
    Err(Error::Broken(format!("{} was finished without its key having been taken", key.route)))
}

fn settled<T>(key: Option<&Key>, status: u16, body: T) -> Answer<T> {
    if let Some(key) = key {
        key.land();
    }
    Answer { status, body, replayed: false }
}

/// Forgets the keys that have expired; says how many.
///
/// # Errors
/// When the store fails.
pub async fn prune(ctx: &Ctx) -> Result<u64, Error> {
    let expired = expired_before(&ctx.clock, &ctx.current);
    growth::counted(&store::idempotency::PRUNE, &ctx.store, expired).await
}

/// A key from before this has expired.
pub(crate) fn expired_before(clock: &Clock, current: &Current) -> Timestamp {
    let ttl = SignedDuration::from_secs(i64::from(current.get().idempotency_ttl_seconds));
    clock.now().checked_sub(ttl).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::Key;

    #[test]
    fn a_key_at_work_is_refused_however_often_it_is_tried_and_free_when_it_has_landed() {
        let key = || Key::of(Uuid::nil(), "a route of this test", "mine", b"");
        let (first, second) = (key(), key());
        assert!(first.take_off().is_ok() && first.take_off().is_ok());
        for _ in 0..3 {
            assert!(second.take_off().is_err() && key().take_off().is_err());
        }
        drop(first);
        assert!(second.take_off().is_ok());
    }
}
