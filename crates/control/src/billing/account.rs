//! Accounts: everybody who has a project has one, and pays for the projects that they made.

use domain::ids::{AccountId, EventId};
use domain::ledger::PostingKind;
use lifecycle::Source;
use store::accounts::{self, NewAccount};
use store::ledger::{self, NewPosting};
use store::lifecycle::{Actor, Birth};
use store::{Tx, catalogue};
use uuid::Uuid;

use crate::{Ctx, Error};

/// What an account is kept in while nothing is sold yet.
const CURRENCY: &str = "USD";

/// The account of a user, opened if they have none: in the currency that things are sold in.
///
/// # Errors
/// When the store fails.
pub async fn ensure(ctx: &Ctx, tx: &mut Tx, owner: Uuid) -> Result<AccountId, Error> {
    if let Some(found) = accounts::find_of(tx, owner).await? {
        return Ok(found);
    }
    let sold_in = catalogue::sold_in(tx).await?;
    let new = NewAccount {
        id: AccountId(tx.new_id()),
        owner: Some(owner),
        currency: sold_in.unwrap_or_else(|| CURRENCY.to_owned()),
        low_balance_threshold_minor: i64::from(ctx.policies().billing_low_balance_threshold),
    };
    let birth = Birth::new(EventId(tx.new_id()), Actor::new(Source::Worker, "accounts"));
    if accounts::insert(tx, &new, &birth).await? {
        return Ok(new.id);
    }
    // Another was faster: the unique index waited for them.
    accounts::find_of(tx, owner).await?.ok_or(Error::Store(store::Error::Conflict))
}

/// Gives a user something to begin with, once: an adjustment, with its reason in the ledger.
///
/// # Errors
/// When the store fails.
pub async fn welcome(ctx: &Ctx, owner: Uuid, amount_minor: i64) -> Result<bool, Error> {
    let mut tx = ctx.store.begin().await?;
    let account = ensure(ctx, &mut tx, owner).await?;
    let posting = NewPosting {
        key: &format!("welcome/{account}"),
        kind: PostingKind::Adjustment,
        account,
        amount_minor,
        source_id: None,
        actor: "installation",
        reason: Some("something to begin with"),
    };
    let posted = ledger::post(&mut tx, &posting).await?;
    tx.commit().await?;
    Ok(posted.is_some_and(|posted| posted.fresh))
}
