//! The doors of money: what somebody has, what it goes for, every line behind it; and what operators correct.

use axum::Json;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use control::billing::{adjust, view};
use control::operations;
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::http::Page;
use wire::http::money::{
    Account, Balance, BalanceStatus, Charge, LedgerAudit, LedgerLine, NewAdjustment, NewPrice,
    NewSpendingCap, NewThreshold, PostingKindWord, Price, Spending, Usage, UsageByWord,
};

use crate::http::Front;
use crate::http::body::Body;
use crate::http::caller::Known;
use crate::http::idempotency::{MayHaveKey, NeedsKey, Once};
use crate::http::params::{Asked, Id, Parted};
use crate::http::problem::Refusal;
use crate::http::reply::answer;

/// Whose balance.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    /// The account that pays for this project, which you administer; your own when you do not say.
    project: Option<Uuid>,
}

/// What you have, what is spent, and for how long that lasts.
#[utoipa::path(
    get, path = "/api/v1/balance", tag = "money", params(Whose),
    responses((status = 200, description = "The balance", body = Balance))
)]
pub(super) async fn show_balance(
    State(front): State<Front>,
    caller: Known,
    Asked(whose): Asked<Whose>,
) -> Result<Json<Balance>, Refusal> {
    Ok(Json(view::balance(&front.ctx, &caller, whose.project).await?))
}

/// Sets the line at which you are warned.
#[utoipa::path(
    put, path = "/api/v1/balance/threshold", tag = "money", params(MayHaveKey),
    request_body(content = NewThreshold, example = json!({"low_balance_threshold_minor": 2000})),
    responses((status = 200, description = "The line", body = NewThreshold))
)]
pub(super) async fn set_balance_threshold(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewThreshold>,
) -> Result<Response, Refusal> {
    let once = once.key(&caller, "set_balance_threshold", &body.raw);
    Ok(answer(adjust::set_threshold(&front.ctx, &caller, &body.value, once.as_ref()).await?))
}

/// Which usage.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichUsage {
    /// Only of this project, which you administer.
    project: Option<Uuid>,
    /// From this moment on; 30 days before the end when you do not say.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Until this moment; now when you do not say.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// What it is summed by; by day when you do not say.
    by: Option<UsageByWord>,
}

/// What was used, and what it cost.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "money", params(WhichUsage),
    responses((status = 200, description = "The sums", body = Usage))
)]
pub(super) async fn show_usage(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichUsage>,
) -> Result<Json<Usage>, Refusal> {
    let WhichUsage { project, from, until, by } = which;
    let wanted = view::Wanted { project, from, until, by: by.map(|by| by.0) };
    Ok(Json(view::usage(&front.ctx, &caller, &wanted).await?))
}

/// Which lines.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichLines {
    /// Only of this kind.
    kind: Option<PostingKindWord>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// Your ledger, the newest line first, each with what the account had after it.
#[utoipa::path(
    get, path = "/api/v1/ledger", tag = "money", params(WhichLines),
    responses((status = 200, description = "One page of it", body = Page<LedgerLine>))
)]
pub(super) async fn list_ledger(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichLines>,
) -> Result<Json<Page<LedgerLine>>, Refusal> {
    let WhichLines { kind, limit, cursor } = which;
    Ok(Json(view::ledger(&front.ctx, &caller, kind, limit, cursor.as_deref()).await?))
}

/// Your ledger as comma-separated values, the newest line first; at most 100,000 of them.
#[utoipa::path(
    get, path = "/api/v1/ledger/export", tag = "money",
    responses((status = 200, description = "The lines", body = String, content_type = "text/csv"))
)]
pub(super) async fn export_ledger(
    State(front): State<Front>,
    caller: Known,
) -> Result<Response, Refusal> {
    let text = view::export(&front.ctx, &caller).await?;
    let kind = (CONTENT_TYPE, "text/csv; charset=utf-8");
    let name = (CONTENT_DISPOSITION, "attachment; filename=\"ledger.csv\"");
    Ok(([kind, name], text).into_response())
}

/// Everything behind one line: the minutes, their price, the step that began them, and the machine that was heard of.
#[utoipa::path(
    get, path = "/api/v1/ledger/{id}", tag = "money",
    params(("id" = Uuid, Path, description = "The posting")),
    responses((status = 200, description = "What it rests on", body = Charge))
)]
pub(super) async fn explain_charge(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Charge>, Refusal> {
    Ok(Json(view::explain(&front.ctx, &caller, id).await?))
}

/// What a project has cost this month, and may.
#[utoipa::path(
    get, path = "/api/v1/projects/{id}/spending", tag = "money",
    params(("id" = Uuid, Path, description = "The project")),
    responses((status = 200, description = "What it costs", body = Spending))
)]
pub(super) async fn show_spending(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
) -> Result<Json<Spending>, Refusal> {
    Ok(Json(view::spending(&front.ctx, &caller, id).await?))
}

/// Says what a project may cost in a calendar month (UTC). When it has cost that, nothing new is started in it and what runs is taken back.
#[utoipa::path(
    put, path = "/api/v1/projects/{id}/spending-cap", tag = "money",
    params(("id" = Uuid, Path, description = "The project"), MayHaveKey),
    request_body(content = NewSpendingCap, example = json!({"spend_cap_minor": 50000})),
    responses((status = 200, description = "What it costs", body = Spending))
)]
pub(super) async fn set_spending_cap(
    State(front): State<Front>,
    caller: Known,
    Id(id): Id,
    once: Once,
    body: Body<NewSpendingCap>,
) -> Result<Response, Refusal> {
    let once = once.key(&caller, "set_spending_cap", &body.raw);
    let set = adjust::set_spend_cap(&front.ctx, &caller, (id, &body.value), once.as_ref()).await?;
    Ok(answer(set))
}

/// Which accounts.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichAccounts {
    /// Only those whose balance stands like this.
    status: Option<BalanceStatus>,
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    cursor: Option<String>,
}

/// Every account with what it has.
#[utoipa::path(
    get, path = "/api/v1/admin/accounts", tag = "admin", params(WhichAccounts),
    responses((status = 200, description = "One page of them", body = Page<Account>))
)]
pub(super) async fn list_accounts(
    State(front): State<Front>,
    caller: Known,
    Asked(which): Asked<WhichAccounts>,
) -> Result<Json<Page<Account>>, Refusal> {
    let WhichAccounts { status, limit, cursor } = which;
    Ok(Json(view::accounts(&front.ctx, &caller, status, limit, cursor.as_deref()).await?))
}

/// The ledger, computed again from usage and payments, to the minor unit.
#[utoipa::path(
    get, path = "/api/v1/admin/ledger/audit", tag = "admin",
    responses((status = 200, description = "Every sum twice, and the invariants of money", body = LedgerAudit))
)]
pub(super) async fn audit_ledger(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<LedgerAudit>, Refusal> {
    Ok(Json(operations::audit_ledger(&front.ctx, &caller).await?))
}

/// Gives an account something, or takes it: a posting with a reason and who did it.
#[utoipa::path(
    post, path = "/api/v1/admin/ledger/adjustments", tag = "admin", params(NeedsKey),
    request_body(content = NewAdjustment, example = json!({
        "account_id": "0198c0de-0000-7000-8000-000000000001", "amount_minor": 5000, "reason": "for the outage of Monday"
    })),
    responses((status = 201, description = "The line in the ledger", body = LedgerLine))
)]
pub(super) async fn adjust_ledger(
    State(front): State<Front>,
    caller: Known,
    once: Once,
    body: Body<NewAdjustment>,
) -> Result<Response, Refusal> {
    let key = once.needed(&caller, "adjust_ledger", &body.raw)?;
    Ok(answer(adjust::adjust(&front.ctx, &caller, &body.value, &key).await?))
}

/// Sets a price from a moment on, never backwards: for what is asked for from then on, and if you say so for what runs.
#[utoipa::path(
    put, path = "/api/v1/admin/skus/{code}/price", tag = "admin",
    params(("code" = String, Path, description = "The SKU", max_length = 64), MayHaveKey),
    request_body(content = NewPrice, example = json!({
        "price_micros_per_gpu_second": 900, "running": false, "reason": "power costs more"
    })),
    responses((status = 200, description = "The price", body = Price))
)]
pub(super) async fn set_price(
    State(front): State<Front>,
    caller: Known,
    Parted(code): Parted<String>,
    once: Once,
    body: Body<NewPrice>,
) -> Result<Response, Refusal> {
    let once = once.key(&caller, "set_price", &body.raw);
    let set = adjust::set_price(&front.ctx, &caller, (&code, &body.value), once.as_ref()).await?;
    Ok(answer(set))
}
