//! Whether those who wait for work may still do so. A wait gets nothing by having begun, so it is not asked about by itself: all that begin
//! within a moment are asked about together, and whoever may not is put out of the wait.

use super::enrol::{REFUSED_CERTIFICATE, look_up};
use super::rounds::{Line, Rounds, rounds};
use crate::{Ctx, Error};

/// Where waits are handed in. Clones share it.
#[derive(Clone, Debug)]
pub struct RollCall(Line<[u8; 32], Called>);

/// What asks about those who were handed in. One a process.
pub struct Caller {
    ctx: Ctx,
    rounds: Rounds<[u8; 32], Called>,
}

/// Whether a certificate is good.
#[derive(Debug)]
enum Called {
    Good,
    Refused,
    /// The database did not say.
    Unknown,
}

/// A roll call, and the caller that has to [run](Caller::run) for it.
pub fn roll_call(ctx: &Ctx) -> (RollCall, Caller) {
    let (line, rounds) = rounds();
    (RollCall(line), Caller { ctx: ctx.clone(), rounds })
}

impl RollCall {
    /// Whether the certificate with this SHA-256 is still good, as of a moment after this was asked.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] when it is not.
    pub async fn of(&self, fingerprint: [u8; 32]) -> Result<(), Error> {
        match self.0.ask(fingerprint).await? {
            Called::Good => Ok(()),
            Called::Refused => Err(REFUSED_CERTIFICATE),
            // What went wrong was logged once, for the round.
            Called::Unknown => Err(Error::Store(store::Error::Conflict)),
        }
    }
}

impl Caller {
    /// Asks until every [`RollCall`] is gone.
    pub async fn run(mut self) {
        while let Some(round) = self.rounds.next().await {
            let (fingerprints, answers): (Vec<_>, Vec<_>) = round.into_iter().unzip();
            let found = look_up(&self.ctx.store, &self.ctx.clock, &fingerprints).await;
            let called: Vec<Called> = match found {
                Ok(found) => found
                    .iter()
                    .map(|shown| if shown.is_some() { Called::Good } else { Called::Refused })
                    .collect(),
                Err(error) => {
                    let error = Error::Store(error);
                    if !store::fall::noticed(&error) {
                        let error = error.chain();
                        tracing::warn!(error, "nobody knows whether those who wait may do so");
                    }
                    answers.iter().map(|_| Called::Unknown).collect()
                }
            };
            for (called, answer) in called.into_iter().zip(answers) {
                // Whoever is not listening any more has got something, or hung up.
                let _ = answer.send(called);
            }
        }
    }
}
