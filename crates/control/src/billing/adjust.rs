//! What people turn in money: adjustments and prices by operators, with a reason; the line of warning and the cap of a project by
//! those who pay. Doors: POST /admin/ledger/adjustments, PUT /admin/skus/{code}/price, PUT /balance/threshold,
//! PUT /projects/{id}/spending-cap.

use domain::ids::AccountId;
use domain::ledger::PostingKind;
use domain::money::PRICE_MICROS_MAX;
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use serde_json::json;
use store::ledger::{self, NewPosting};
use store::{accounts, charging, prices, projects, views};
use uuid::Uuid;
use wire::http::money::{
    LedgerLine, NewAdjustment, NewPrice, NewSpendingCap, NewThreshold, Price, Spending,
};

use crate::audit_log::{Action, Deed, because};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::{Caller, Ctx, Error};

/// The most that is adjusted at once: more is a slip of the pen.
const ADJUSTMENT_MAX: i64 = 100_000_000_000;
/// How far ahead a price may be set.
const PRICE_AHEAD: SignedDuration = SignedDuration::from_hours(24 * 366);

/// An operator gives or takes, with a reason that stands in the ledger. Repeated with the same key it is one adjustment, in the
/// ledger itself.
///
/// # Errors
/// [`Error::NotFound`] when there is no such account, [`Error::Invalid`] for an amount or a reason that is none.
pub async fn adjust(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewAdjustment,
    key: &Key,
) -> Result<Answer<LedgerLine>, Error> {
    caller.needs(Permission::LedgerAdjust)?;
    let reason = because(&asked.reason)?;
    if asked.amount_minor == 0 || asked.amount_minor.saturating_abs() > ADJUSTMENT_MAX {
        let detail = format!("not 0, and at most {ADJUSTMENT_MAX} minor units either way");
        return Err(Error::invalid("/amount_minor", detail));
    }
    let mut tx = match begin(ctx, Some(key)).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let account = AccountId(asked.account_id);
    let posting = NewPosting {
        key: &format!("adjustment/{}/{}", caller.user_id, key.key),
        kind: PostingKind::Adjustment,
        account,
        amount_minor: asked.amount_minor,
        source_id: None,
        actor: &format!("operator {}", caller.user_id),
        reason: Some(reason),
    };
    let posted = ledger::post(&mut tx, &posting).await?.ok_or(Error::NotFound("account"))?;
    if !posted.fresh {
        // The key has lived longer in the ledger than among the keys.
        return Err(Error::IdempotencyMismatch);
    }
    let line = ledger::line(&mut tx, posted.id).await?;
    let deed = Deed::new(caller, Action::LedgerAdjust, "account", account)
        .because(reason)
        .with(json!({ "amount_minor": asked.amount_minor }));
    finish(tx, &deed, Some(key), 201, line).await
}

/// An operator sets a price, from a moment on: for what is asked for from then on, and if they say so for what runs already.
///
/// # Errors
/// [`Error::NoSuch`] SKU, [`Error::Invalid`] for a moment that is over or a price that is none.
pub async fn set_price(
    ctx: &Ctx,
    caller: &Caller,
    (sku, asked): (&str, &NewPrice),
    key: Option<&Key>,
) -> Result<Answer<Price>, Error> {
    caller.needs(Permission::PriceManage)?;
    let reason = because(&asked.reason)?;
    if !(0..=PRICE_MICROS_MAX).contains(&asked.price_micros_per_gpu_second) {
        let detail = format!("0 to {PRICE_MICROS_MAX} millionths of a unit a GPU and second");
        return Err(Error::invalid("/price_micros_per_gpu_second", detail));
    }
    let from = moment(ctx, asked.from).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let new = prices::NewPrice {
        sku,
        from,
        price_micros_per_gpu_second: asked.price_micros_per_gpu_second,
        running: asked.running,
        changed_by: caller.user_id,
        reason,
    };
    let Some(running) = prices::insert(&mut tx, &new).await? else {
        let known = store::placement::sku_codes(&mut tx).await?;
        return Err(if known.iter().any(|code| code == sku) {
            Error::Conflict(format!("a price was set for {from} already: say another moment"))
        } else {
            Error::NoSuch(format!("there is no SKU {sku:?}; there are {}", known.join(", ")))
        });
    };
    let set = Price {
        sku: sku.to_owned(),
        price_micros_per_gpu_second: asked.price_micros_per_gpu_second,
        from,
        running,
    };
    let deed = Deed::new(caller, Action::PriceSet, "sku", sku).because(reason).with(json!({
        "price_micros_per_gpu_second": set.price_micros_per_gpu_second,
        "from": set.from,
        "running": running,
    }));
    finish(tx, &deed, key, 200, set).await
}

/// From when a price holds: a whole minute that is not charged yet, by the clock that charges.
async fn moment(ctx: &Ctx, asked: Option<Timestamp>) -> Result<Timestamp, Error> {
    let now = charging::now(&ctx.store).await?;
    let minute = |at: Timestamp| {
        Timestamp::from_second((at.as_second() + 59).div_euclid(60) * 60).unwrap_or(at)
    };
    // Two minutes: nobody is charged for a minute while its price is being set.
    let earliest = minute(now.saturating_add(2.minutes()).unwrap_or(now));
    let Some(asked) = asked else {
        return Ok(earliest);
    };
    if asked < earliest {
        return Err(Error::invalid(
            "/from",
            format!("a price is never set backwards: {earliest} or later"),
        ));
    }
    if asked.duration_since(now) > PRICE_AHEAD {
        return Err(Error::invalid("/from", "at most a year ahead"));
    }
    Ok(minute(asked))
}

/// Whoever pays says when they want to be warned.
///
/// # Errors
/// [`Error::Invalid`] for an amount that is none.
pub async fn set_threshold(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewThreshold,
    key: Option<&Key>,
) -> Result<Answer<NewThreshold>, Error> {
    caller.needs(Permission::MoneyWrite)?;
    let minor = asked.low_balance_threshold_minor;
    if !(0..=ADJUSTMENT_MAX).contains(&minor) {
        return Err(Error::invalid("/low_balance_threshold_minor", "0 or more"));
    }
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let account = super::account::ensure(ctx, &mut tx, caller.user_id).await?;
    accounts::set_threshold(&mut tx, account, minor).await?;
    let deed = Deed::new(caller, Action::BalanceThreshold, "account", account)
        .with(json!({ "low_balance_threshold_minor": minor }));
    finish(tx, &deed, key, 200, asked.clone()).await
}

/// An admin of a project says what it may cost in a month.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, [`Error::Invalid`] for an amount that is none.
pub async fn set_spend_cap(
    ctx: &Ctx,
    caller: &Caller,
    (project, asked): (Uuid, &NewSpendingCap),
    key: Option<&Key>,
) -> Result<Answer<Spending>, Error> {
    caller.in_project(ctx, project, Permission::ProjectManage).await?;
    if asked.spend_cap_minor.is_some_and(|minor| !(0..=ADJUSTMENT_MAX).contains(&minor)) {
        return Err(Error::invalid("/spend_cap_minor", "0 or more, or null for none"));
    }
    let shown = views::money::spending(&ctx.store, project).await?;
    let mut shown = shown.ok_or(Error::NotFound("project"))?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    projects::set_spend_cap(&mut tx, project, asked.spend_cap_minor).await?;
    shown.spend_cap_minor = asked.spend_cap_minor;
    let deed = Deed::new(caller, Action::SpendingCap, "project", project)
        .in_project(project)
        .with(json!({ "spend_cap_minor": asked.spend_cap_minor }));
    finish(tx, &deed, key, 200, shown).await
}
