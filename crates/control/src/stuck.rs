//! The stuck list: what stands longer than it may, why, who owns the next step, and what an operator can do about it. Looked at
//! through a door, and counted by a timer.

pub mod advice;

use domain::machines::{
    Allocation, Claim, Node, PaymentSession, allocation, claim, node, payment_session,
};
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::{Code as _, Machine as _, Source};
use store::deliveries::{self, DeadRow};
use store::views::stuck::{self, Failing, Standing, Tally, Waiting};
use wire::http::stuck::{Stuck, StuckCount, StuckItem};

use crate::policies::Policies;
use crate::{Caller, Ctx, Error};

/// How many of each sort are listed.
const LISTED_MAX: i64 = 200;
/// A step that failed more often than this is told.
const ATTEMPTS_FINE: i32 = 5;
/// So many times as long as it may: then it is stuck.
const STUCK_FACTOR: f64 = 2.0;
/// How much is shown of what went wrong.
const REASON_CHARACTERS_MAX: usize = 512;

/// Everything that stands longer than it may.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn list(ctx: &Ctx, caller: &Caller) -> Result<Stuck, Error> {
    caller.needs(Permission::FleetRead)?;
    let (now, policies) = (ctx.clock.now(), ctx.policies());
    let seconds = |waiting: &Waiting| seconds(&policies, waiting);
    let standing = stuck::list(&ctx.store, now, &seconds, LISTED_MAX).await?;
    let tallies = stuck::tally(&ctx.store, now, &seconds).await?;
    let failing = stuck::failing(&ctx.store, ATTEMPTS_FINE, LISTED_MAX).await?;
    let dead = deliveries::list_dead(&ctx.store, LISTED_MAX, None).await?;
    let (dead_letters, findings_open) = stuck::left_over(&ctx.store).await?;
    let overdue: i64 = tallies.iter().map(|tally| tally.overdue).sum();
    let total = overdue + dead_letters + i64::try_from(failing.len()).unwrap_or_default();
    let statuses = stuck::waiting();
    let mut items: Vec<StuckItem> = Vec::new();
    items.extend(standing.into_iter().map(|row| of_row(now, &statuses, row)));
    items.extend(failing.into_iter().map(|run| of_run(now, run)));
    items.extend(dead.into_iter().map(|letter| of_letter(now, letter)));
    let counts = tallies.iter().filter(|tally| tally.oldest_since.is_some());
    let statuses = counts.map(|tally| count(&policies, tally)).collect();
    Ok(Stuck { at: now, items, total, statuses, dead_letters, findings_open })
}

/// Writes the gauges anew: how much stands longer than it may, and how long the oldest has, of every status that may not
/// last. Answers how much there is.
///
/// # Errors
/// When the store fails.
pub async fn measure(ctx: &Ctx) -> Result<u64, Error> {
    let (now, policies) = (ctx.clock.now(), ctx.policies());
    let seconds = |waiting: &Waiting| seconds(&policies, waiting);
    let mut overdue = 0;
    for tally in stuck::tally(&ctx.store, now, &seconds).await? {
        let Waiting { machine, status, .. } = tally.waiting;
        let labels = [("machine", machine), ("status", status)];
        let age = tally.oldest_since.map_or(0.0, |since| now.duration_since(since).as_secs_f64());
        metrics::gauge!("berth_stuck", &labels).set(tally.overdue as f64);
        metrics::gauge!("berth_oldest_seconds", &labels).set(age.max(0.0));
        overdue += tally.overdue;
    }
    let (dead_letters, findings_open) = stuck::left_over(&ctx.store).await?;
    metrics::gauge!("berth_stuck", "machine" => "message", "status" => "dead")
        .set(dead_letters as f64);
    metrics::gauge!("berth_findings_open").set(findings_open as f64);
    Ok(u64::try_from(overdue + dead_letters).unwrap_or_default())
}

/// How long a status may last: what a policy says about it, or else the machine's table.
pub fn seconds(policies: &Policies, waiting: &Waiting) -> u32 {
    let is = |machine: &str, status: &str| (waiting.machine, waiting.status) == (machine, status);
    let cleaning = policies.release_attempts_max.saturating_mul(policies.release_attempt_seconds);
    match () {
        () if is(Allocation::NAME, allocation::Status::Restarting.code()) => {
            policies.restart_timeout_seconds
        }
        () if is(Allocation::NAME, allocation::Status::Releasing.code()) => cleaning,
        () if is(Claim::NAME, claim::Status::Cleaning.code()) => cleaning,
        () if is(Node::NAME, node::Status::Enrolling.code()) => policies.join_token_ttl_seconds,
        () if is(PaymentSession::NAME, payment_session::Status::Initiated.code()) => {
            policies.payments_session_ttl_seconds
        }
        () => waiting.seconds,
    }
}

fn count(policies: &Policies, tally: &Tally) -> StuckCount {
    StuckCount {
        machine: tally.waiting.machine.to_owned(),
        status: tally.waiting.status.to_owned(),
        seconds: seconds(policies, &tally.waiting),
        overdue: tally.overdue,
        oldest_since: tally.oldest_since,
    }
}

fn of_row(now: Timestamp, statuses: &[Waiting], row: Standing) -> StuckItem {
    let known = |each: &&Waiting| each.machine == row.machine && each.status == row.status;
    let waiting = statuses.iter().find(known);
    let told = advice::about(&row);
    let allowed = row.deadline_at.duration_since(row.since).as_secs_f64().max(1.0);
    let factor = now.duration_since(row.since).as_secs_f64() / allowed;
    StuckItem {
        reason: reason(&row, waiting),
        machine: row.machine,
        id: row.id.to_string(),
        name: row.name,
        status: row.status,
        since: row.since,
        deadline_at: Some(row.deadline_at),
        overdue_seconds: now.duration_since(row.deadline_at).as_secs(),
        factor: Some((factor * 100.0).round() / 100.0),
        stuck: factor >= STUCK_FACTOR,
        owner: waiting.map_or(Source::Operator, |waiting| waiting.owner).to_string(),
        action: told.action,
        command: told.command,
        otherwise: told.otherwise,
    }
}

/// Why it stands there: what the row says, how its node stands, what its workflow waits for or fails at. When nothing of that
/// is known, what the status means.
fn reason(row: &Standing, waiting: Option<&Waiting>) -> String {
    let mut parts: Vec<String> = row.reason.iter().map(|reason| printed(reason)).collect();
    if let Some((name, stands)) = &row.node
        && stands != node::Status::Ready.code()
    {
        parts.push(format!("the node {name} is {stands}"));
    }
    let of_worker = waiting.is_some_and(|waiting| waiting.owner == Source::Worker);
    match &row.run {
        Some(run) if run.attempts > 0 && run.reason.is_some() => parts.push(format!(
            "its workflow failed {} times: {}",
            run.attempts,
            printed(run.reason.as_deref().unwrap_or_default())
        )),
        Some(run) if of_worker && run.waits_for.is_none() => {
            parts.push("no worker has begun with it".to_owned());
        }
        Some(run) => parts.extend(run.waits_for.iter().map(|what| format!("waits for {what}"))),
        None if of_worker => parts.push("no workflow is at it".to_owned()),
        None => {}
    }
    if parts.is_empty() {
        parts.push(waiting.map_or("", |waiting| waiting.meaning).to_owned());
    }
    parts.join("; ")
}

fn of_run(now: Timestamp, run: Failing) -> StuckItem {
    let told = advice::of_run(&run);
    let failed = run.reason.as_deref().map_or_else(String::new, printed);
    StuckItem {
        machine: "workflow_run".to_owned(),
        reason: format!("a step failed {} times: {failed}", run.attempts),
        id: run.id,
        name: Some(run.workflow),
        status: "failing".to_owned(),
        since: run.since,
        deadline_at: None,
        overdue_seconds: now.duration_since(run.since).as_secs(),
        factor: None,
        stuck: true,
        owner: Source::Operator.to_string(),
        action: told.action,
        command: told.command,
        otherwise: told.otherwise,
    }
}

fn of_letter(now: Timestamp, letter: DeadRow) -> StuckItem {
    let told = advice::of_letter(&letter);
    let subject = letter.message.get("subject").and_then(|subject| subject.as_str());
    StuckItem {
        machine: "message".to_owned(),
        id: letter.event_id.to_string(),
        name: subject.map(str::to_owned),
        status: "dead".to_owned(),
        since: letter.dead_at,
        deadline_at: None,
        overdue_seconds: now.duration_since(letter.dead_at).as_secs(),
        factor: None,
        stuck: true,
        owner: Source::Operator.to_string(),
        reason: format!("{} could not handle it: {}", letter.consumer, printed(&letter.reason)),
        action: told.action,
        command: told.command,
        otherwise: told.otherwise,
    }
}

fn printed(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(REASON_CHARACTERS_MAX).collect()
}
