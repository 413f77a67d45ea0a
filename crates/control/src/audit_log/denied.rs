//! Who was not let in: at a door for operators, or at the login. Strangers can't fill the log: so many entries are written in
//! a minute, of one and of all, and the rest are counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::json;
use store::audit_log::NewEntry;
use uuid::Uuid;

use super::{Action, Deed, Role, of_nobody};
use crate::{Caller, Ctx, Error};

/// How many entries one may leave in a minute.
const OF_ONE_MAX: u32 = 10;
/// How many there may be of all together, in a process.
const OF_ALL_MAX: u32 = 300;
const DENIED: &str = "denied";

static THIS_MINUTE: Mutex<Option<Minute>> = Mutex::new(None);

/// What was written in a minute.
#[derive(Debug, Default)]
struct Minute {
    number: i64,
    of_all: u32,
    of_one: HashMap<String, u32>,
}

impl Minute {
    /// Counts one more of `whom`, if there is room for it.
    fn admits(&mut self, number: i64, whom: &str) -> bool {
        if self.number != number {
            *self = Minute { number, ..Minute::default() };
        }
        let of_one = self.of_one.get(whom).copied().unwrap_or_default();
        if of_one >= OF_ONE_MAX || self.of_all >= OF_ALL_MAX {
            return false;
        }
        self.of_all += 1;
        self.of_one.insert(whom.to_owned(), of_one + 1);
        true
    }
}

/// Somebody with a good token stood before a door for operators and may not go through it.
///
/// # Errors
/// When the store fails.
pub async fn at_door(ctx: &Ctx, caller: &Caller, door: &str, why: &str) -> Result<(), Error> {
    let deed = Deed::new(caller, Action::AdminAttempt, "door", door).with(json!({ "why": why }));
    write(ctx, &caller.user_id.to_string(), &deed.entry(DENIED)).await
}

/// Somebody who was not let in with a password.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The account they meant, if there is one.
    pub user_id: Option<Uuid>,
    /// The address they gave. It may be anything, a password even: only its hash is kept.
    pub email: &'a str,
    /// The request.
    pub request_id: Option<Uuid>,
    /// Where it came from.
    pub source: Option<&'a str>,
}

/// A login that failed.
///
/// # Errors
/// When the store fails.
pub async fn at_login(ctx: &Ctx, refused: &Refused<'_>) -> Result<(), Error> {
    let Refused { user_id, email, request_id, source } = *refused;
    let hash = wire::seal::sha256_hex(email.trim().to_lowercase().as_bytes());
    let target = user_id.map_or_else(|| format!("sha256:{}", &hash[..16]), |id| id.to_string());
    let entry = NewEntry {
        user_id,
        request_id,
        source: source.map(str::to_owned),
        outcome: DENIED,
        ..of_nobody(Role::User, Action::Login, ("user", target))
    };
    write(ctx, source.unwrap_or_default(), &entry).await
}

async fn write(ctx: &Ctx, whom: &str, entry: &NewEntry) -> Result<(), Error> {
    let minute = ctx.clock.now().as_second().div_euclid(60);
    let admitted = {
        let mut counted = THIS_MINUTE.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get_or_insert_default().admits(minute, whom)
    };
    let kept = if admitted { "written" } else { "counted" };
    metrics::counter!("berth_audit_denied_total", "kept" => kept).increment(1);
    if !admitted {
        return Ok(());
    }
    let mut tx = ctx.store.begin().await?;
    store::audit_log::append(&mut tx, entry).await?;
    Ok(tx.commit().await?)
}

#[cfg(test)]
mod tests {
    use super::{Minute, OF_ALL_MAX, OF_ONE_MAX};

    #[test]
    fn one_can_leave_a_few_entries_a_minute_and_all_together_not_many() {
        let mut minute = Minute::default();
        let of_one = (0..100).filter(|_| minute.admits(7, "mallory")).count();
        assert_eq!(of_one, OF_ONE_MAX as usize);
        let of_many = (0..10_000).filter(|n| minute.admits(7, &n.to_string())).count();
        assert_eq!(of_one + of_many, OF_ALL_MAX as usize);
        assert!(minute.of_one.len() <= OF_ALL_MAX as usize, "nor is more remembered");
        assert!(minute.admits(8, "mallory"), "the next minute is a new one");
    }
}
