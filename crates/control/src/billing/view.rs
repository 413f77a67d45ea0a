//! What people see of their money: the balance with its runway, usage, and the ledger down to the minute behind a line.
//! Doors: GET /balance, /usage, /ledger, /ledger/{posting}, /ledger/export, /projects/{id}/spending, /admin/accounts.

use domain::derived::balance::Status;
use domain::ids::AccountId;
use domain::ledger::PostingKind;
use domain::money::{Currency, runway_minutes};
use domain::policy::Permission;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use store::views::money::{self as read, Asked, Standing};
use uuid::Uuid;
use wire::Coded;
use wire::http::Page;
use wire::http::money::{
    Account, Balance, BalanceStatus, Charge, LedgerLine, PostingKindWord, Spending, Usage, UsageBy,
};

use super::{account, shown};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// How far back usage is shown when nobody says.
const USAGE_DAYS: i64 = 30;
/// The longest stretch that is summed at once.
const USAGE_DAYS_MAX: i64 = 400;
/// The most lines that are exported at once.
const EXPORT_MAX: i64 = 100_000;

/// The account that a caller may look into: their own, or that of a project they administer.
async fn theirs(ctx: &Ctx, caller: &Caller, project: Option<Uuid>) -> Result<AccountId, Error> {
    caller.needs(Permission::MoneyRead)?;
    if let Some(project) = project {
        caller.in_project(ctx, project, Permission::ProjectManage).await?;
        let payer = read::payer_of(&ctx.store, project).await?;
        return payer.ok_or(Error::NotFound("account"));
    }
    let mut tx = ctx.store.begin().await?;
    let id = account::ensure(ctx, &mut tx, caller.user_id).await?;
    tx.commit().await?;
    Ok(id)
}

/// What they have, and for how long that lasts.
///
/// # Errors
/// [`Error::NotFound`] for a project that is not theirs.
pub async fn balance(ctx: &Ctx, caller: &Caller, project: Option<Uuid>) -> Result<Balance, Error> {
    let account = theirs(ctx, caller, project).await?;
    of_account(ctx, account).await
}

pub(super) async fn of_account(ctx: &Ctx, account: AccountId) -> Result<Balance, Error> {
    let standing = read::standing(&ctx.store, account).await?.ok_or(Error::NotFound("account"))?;
    Ok(told(ctx, standing))
}

fn told(ctx: &Ctx, standing: Standing) -> Balance {
    let Standing { account, low_balance_threshold_minor, burn_micros_per_second, running } =
        standing;
    let currency = Currency::parse(&account.currency);
    let per_minor = currency.map_or(10_000, |currency| currency.micros_per_minor());
    let hourly = u128::from(burn_micros_per_second.unsigned_abs()) * 3_600;
    let rounded_up = hourly.div_ceil(u128::from(per_minor.unsigned_abs()));
    let burn_minor_per_hour = i64::try_from(rounded_up).unwrap_or(i64::MAX);
    let runway = runway_minutes(account.balance_minor, burn_micros_per_second, per_minor);
    let enforced = ctx.policies().billing_enforced == 1;
    let sentence = sentence(&account, (burn_minor_per_hour, runway), enforced);
    Balance {
        account_id: account.id,
        balance: shown(&account.currency, account.balance_minor),
        currency: account.currency,
        balance_minor: account.balance_minor,
        status: account.status,
        status_at: account.status_at,
        low_balance_threshold_minor,
        burn_minor_per_hour,
        running,
        runway_minutes: runway,
        sentence,
    }
}

fn sentence(account: &Account, (burn, runway): (i64, Option<i64>), enforced: bool) -> String {
    let at_zero = if enforced { " At zero, running machines are released." } else { "" };
    match (account.status.0, runway) {
        (Status::Depleted, _) if enforced => {
            "The balance is used up: nothing new is started, and what runs is taken back. Top it up to go on."
                .to_owned()
        }
        (Status::Depleted, _) => "The balance is used up.".to_owned(),
        (Status::Healthy | Status::LowBalance, None) => "Nothing runs, so nothing is spent.".to_owned(),
        (Status::Healthy | Status::LowBalance, Some(minutes)) => format!(
            "At the current rate ({}/h) your balance lasts about {}.{at_zero}",
            shown(&account.currency, burn),
            span(minutes)
        ),
    }
}

/// So many minutes, as people say it.
pub(crate) fn span(minutes: i64) -> String {
    match minutes {
        0..=119 => format!("{minutes} min"),
        120..=2_879 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1_440, minutes % 1_440 / 60),
    }
}

/// Which usage somebody asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Of which project alone.
    pub project: Option<Uuid>,
    /// From when.
    pub from: Option<Timestamp>,
    /// Until when.
    pub until: Option<Timestamp>,
    /// Summed by what; by day when nobody says.
    pub by: Option<UsageBy>,
}

/// What they used, and what it cost.
///
/// # Errors
/// [`Error::NotFound`] for a project that is not theirs, [`Error::Invalid`] for a stretch that is none.
pub async fn usage(ctx: &Ctx, caller: &Caller, wanted: &Wanted) -> Result<Usage, Error> {
    let account = theirs(ctx, caller, wanted.project).await?;
    let until = wanted.until.unwrap_or_else(|| ctx.clock.now());
    let days = |days: i64| SignedDuration::from_hours(24 * days);
    let usual = || until.saturating_sub(days(USAGE_DAYS)).unwrap_or(until);
    let from = wanted.from.unwrap_or_else(usual);
    if from >= until {
        return Err(Error::invalid("/from", "must be before `until`"));
    }
    if until.duration_since(from) > days(USAGE_DAYS_MAX) {
        return Err(Error::invalid("/from", format!("at most {USAGE_DAYS_MAX} days at once")));
    }
    let by = wanted.by.unwrap_or(UsageBy::Day);
    let asked = Asked { account, project: wanted.project, from, until, by };
    let items = read::usage(&ctx.store, &asked).await?;
    let standing = read::standing(&ctx.store, account).await?.ok_or(Error::NotFound("account"))?;
    let total_minor = items.iter().map(|sum| sum.charged_minor - sum.given_back_minor).sum();
    let currency = standing.account.currency;
    Ok(Usage { currency, from, until, by: Coded(by), items, total_minor })
}

/// Their ledger, the newest line first.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn ledger(
    ctx: &Ctx,
    caller: &Caller,
    kind: Option<PostingKindWord>,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<LedgerLine>, Error> {
    let account = theirs(ctx, caller, None).await?;
    let kind = kind.map(|kind| kind.0.code());
    let paging = Paging::<i64>::read(ctx, &("ledger", caller.user_id, kind), limit, cursor)?;
    let rows = read::list_lines(&ctx.store, account, kind, paging.after(), paging.rows()).await?;
    Ok(paging.page(ctx, rows, |line| line.number))
}

/// Their ledger as lines of comma-separated values, the newest first, for a spreadsheet.
///
/// # Errors
/// When the store fails.
pub async fn export(ctx: &Ctx, caller: &Caller) -> Result<String, Error> {
    let account = theirs(ctx, caller, None).await?;
    let lines = read::list_lines(&ctx.store, account, None, None, EXPORT_MAX).await?;
    let mut text = String::from(
        "number,posted_at,kind,amount_minor,balance_after_minor,currency,from,until,posting_id,reason\n",
    );
    for line in lines {
        let at = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
        let reason = line.reason.unwrap_or_default().replace('"', "\"\"");
        text += &format!(
            "{},{},{},{},{},{},{},{},{},\"{reason}\"\n",
            line.number,
            line.posted_at,
            line.kind,
            line.amount_minor,
            line.balance_after_minor,
            line.currency,
            at(line.from_at),
            at(line.until_at),
            line.posting_id,
        );
    }
    Ok(text)
}

/// Everything behind one line of their ledger.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs.
pub async fn explain(ctx: &Ctx, caller: &Caller, posting: Uuid) -> Result<Charge, Error> {
    let account = theirs(ctx, caller, None).await?;
    let line = read::find_line(&ctx.store, account, posting).await?;
    let line = line.ok_or(Error::NotFound("posting"))?;
    let (windows, windows_total) = read::windows_of(&ctx.store, posting).await?;
    let sentence = said_of(&line, windows_total);
    Ok(Charge { line, sentence, windows, windows_total })
}

fn said_of(line: &LedgerLine, windows: i64) -> String {
    let amount = shown(&line.currency, line.amount_minor.saturating_abs());
    let minutes = if windows == 1 { "1 minute".to_owned() } else { format!("{windows} minutes") };
    match line.kind.0 {
        PostingKind::Usage => format!(
            "{amount} for {minutes} of what was running: each costs what is owed at its end, less what was owed at its beginning, so nothing is lost or gained by rounding."
        ),
        PostingKind::Unreachable => {
            format!("{amount} given back for {minutes} in which the machine could not be reached.")
        }
        PostingKind::Overrun => format!("{amount} given back: it was charged behind its end."),
        PostingKind::Payment => format!("{amount} paid in."),
        PostingKind::Refund => format!("{amount} went back to whoever paid it."),
        PostingKind::Adjustment if line.amount_minor < 0 => {
            format!("{amount} taken by an operator.")
        }
        PostingKind::Adjustment => format!("{amount} given by an operator."),
    }
}

/// What a project has cost this month, and may; for its members.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs.
pub async fn spending(ctx: &Ctx, caller: &Caller, project: Uuid) -> Result<Spending, Error> {
    caller.in_project(ctx, project, Permission::ProjectRead).await?;
    read::spending(&ctx.store, project).await?.ok_or(Error::NotFound("project"))
}

/// Accounts, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn accounts(
    ctx: &Ctx,
    caller: &Caller,
    status: Option<BalanceStatus>,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Account>, Error> {
    caller.needs(Permission::LedgerRead)?;
    let status = status.map(|status| status.0.code());
    let paging = Paging::read(ctx, &("admin/accounts", caller.user_id, status), limit, cursor)?;
    let rows = read::list_accounts(&ctx.store, status, paging.after(), paging.rows()).await?;
    Ok(paging.page(ctx, rows, |account| account.id))
}
