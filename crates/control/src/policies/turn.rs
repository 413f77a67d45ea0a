//! Operators turn policies: judged together, written, audited, and true in this process when it is answered. Other processes
//! hear the ring, or find out by a sweep.

use domain::policy::Permission;
use lifecycle::Code as _;
use serde_json::json;
use store::policies::{self, Turned};
use wire::http::policies::{NewPolicy, Policy as Shown};

use super::{Policies, Policy, TABLE};
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::{Caller, Ctx, Error};

const REASON_MAX: usize = 256;
/// How many names are suggested for one that there is not.
const NEAREST_MAX: usize = 3;

/// Every policy, with what it stands at.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn list(ctx: &Ctx, caller: &Caller) -> Result<Vec<Shown>, Error> {
    caller.needs(Permission::FleetRead)?;
    let turned = policies::list(&ctx.store).await?;
    let given = ctx.current.given();
    Ok(TABLE.iter().map(|policy| shown(policy, &given, &turned)).collect())
}

/// Turns a policy.
///
/// # Errors
/// [`Error::NoSuch`] with the nearest names, [`Error::Invalid`] with the range, or with what makes no sense.
pub async fn set(
    ctx: &Ctx,
    caller: &Caller,
    key: &str,
    new: &NewPolicy,
    once: Option<&Key>,
) -> Result<Answer<Shown>, Error> {
    caller.needs(Permission::PolicyManage)?;
    let policy = named(key)?;
    let reason = new.reason.trim();
    if reason.is_empty() || reason.chars().count() > REASON_MAX {
        return Err(Error::invalid(
            "/reason",
            format!("1 to {REASON_MAX} characters are expected"),
        ));
    }
    let Some(value) = policy.fits(new.value) else {
        let (unit, min, max) = (policy.unit, policy.min, policy.max);
        return Err(Error::invalid("/value", format!("must be between {min} and {max} {unit}")));
    };
    let mut tx = match begin(ctx, once).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let before = policies::lock(&mut tx).await?;
    let given = ctx.current.given();
    let from = policy.of(&given.turned(&before));
    policies::put(&mut tx, policy.key, i64::from(value), caller.user_id).await?;
    let after = policies::lock(&mut tx).await?;
    sensible(&given.turned(&after), "/value")?;
    let deed = Deed::new(caller, Action::PolicySet, "policy", policy.key)
        .because(reason)
        .with(json!({ "from": from, "to": value }));
    let answer = finish(tx, &deed, once, 200, shown(policy, &given, &after)).await?;
    ctx.current.turn(&after);
    Ok(answer)
}

/// Turns a policy back to its default.
///
/// # Errors
/// [`Error::NoSuch`] with the nearest names, [`Error::Invalid`] when the default makes no sense with the others.
pub async fn reset(
    ctx: &Ctx,
    caller: &Caller,
    key: &str,
    once: Option<&Key>,
) -> Result<Answer<Shown>, Error> {
    caller.needs(Permission::PolicyManage)?;
    let policy = named(key)?;
    let mut tx = match begin(ctx, once).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let before = policies::lock(&mut tx).await?;
    policies::remove(&mut tx, policy.key).await?;
    let after: Vec<Turned> = before.iter().filter(|each| each.key != key).cloned().collect();
    let given = ctx.current.given();
    sensible(&given.turned(&after), "")?;
    let (from, to) = (policy.of(&given.turned(&before)), policy.of(&given));
    let deed = Deed::new(caller, Action::PolicyReset, "policy", policy.key)
        .with(json!({ "from": from, "to": to }));
    let answer = finish(tx, &deed, once, 200, shown(policy, &given, &after)).await?;
    ctx.current.turn(&after);
    Ok(answer)
}

/// Takes what operators have turned, in whatever process, as how things stand in this one.
///
/// # Errors
/// When the store fails; everything stands as it stood then.
pub async fn refresh(ctx: &Ctx) -> Result<u64, Error> {
    let turned = policies::list(&ctx.store).await?;
    let other = ctx.current.turn(&turned);
    if other {
        tracing::info!(turned = turned.len(), "policies were turned");
    }
    Ok(u64::from(other))
}

fn sensible(policies: &Policies, pointer: &str) -> Result<(), Error> {
    policies.nonsense().map_or(Ok(()), |why| Err(Error::invalid(pointer, why)))
}

fn named(key: &str) -> Result<&'static Policy, Error> {
    Policy::find(key).ok_or_else(|| {
        let names = nearest(key).join(", ");
        Error::NoSuch(format!("there is no policy of this name; the nearest are {names}"))
    })
}

/// The keys that look most like `key`: those that share most pairs of letters with it.
fn nearest(key: &str) -> Vec<&'static str> {
    let pairs = |text: &str| -> Vec<[u8; 2]> {
        text.as_bytes().windows(2).map(|pair| [pair[0], pair[1]]).collect()
    };
    let asked = pairs(key);
    let likeness = |other: &str| {
        let known = pairs(other);
        let shared = known.iter().filter(|pair| asked.contains(pair)).count();
        // Of two that share as much, the shorter is nearer.
        (shared * 1_000) / (known.len() + asked.len()).max(1)
    };
    let mut keys: Vec<&'static str> = TABLE.iter().map(|policy| policy.key).collect();
    keys.sort_by_key(|key| std::cmp::Reverse(likeness(key)));
    keys.truncate(NEAREST_MAX);
    keys
}

fn shown(policy: &Policy, given: &Policies, turned: &[Turned]) -> Shown {
    let found = turned.iter().find(|each| each.key == policy.key);
    Shown {
        key: policy.key.to_owned(),
        meaning: policy.meaning.to_owned(),
        unit: policy.unit.code().to_owned(),
        value: policy.of(&given.turned(turned)),
        default: policy.of(given),
        min: policy.min,
        max: policy.max,
        changed_at: found.map(|found| found.changed_at),
        changed_by: found.and_then(|found| found.changed_by),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_of_the_pen_finds_the_key_that_was_meant() {
        for (slip, meant) in [
            ("node.offline_seconds", "node.offline_after_seconds"),
            ("heartbeat", "node.heartbeat_seconds"),
            ("release.attempts_max", "release.max_deliver"),
            ("restart_timeout", "restart.timeout_seconds"),
        ] {
            assert!(nearest(slip).contains(&meant), "{slip}: {:?}", nearest(slip));
        }
    }
}
