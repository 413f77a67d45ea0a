//! What happened to an allocation, step by step. Built from allow-lists: every sentence here is ours, chosen by a word that
//! we know; a word that we do not know is left out, and nothing is copied from parameters, results or signed texts.

use domain::ids::AllocationId;
use domain::machines::allocation::Event;
use domain::machines::{Allocation as Machine, node_task};
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::writer::BORN;
use lifecycle::{Code as _, Machine as _, Source};
use store::log::Transition;
use store::views::allocations::{self, Row};
use store::views::timeline::{self as stored, Durations, Phase, Placed, Task};
use wire::http::timeline::{
    ExpectedSeconds, ItemKind, ItemStatus, Timeline, TimelineItem, TimelinePhase,
};
use wire::node::{PhaseStatus, TaskKind};

use super::reason::{OurReason, Reason, word};
use crate::{Caller, Ctx, Error};

/// With fewer past tasks than this, nobody knows how long one takes.
const MEASURED_MIN: i64 = 5;
/// How much of what an agent says is shown, and to operators alone.
const MESSAGE_CHARACTERS_MAX: usize = 512;

/// For whom a timeline is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Tenant,
    Operator,
}

/// The timeline of an allocation of the caller's projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn for_tenant(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Timeline, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocations::find_for(&ctx.store, id, caller.user_id).await?;
    made(ctx, Reader::Tenant, row).await
}

/// The timeline of any allocation, with who did what where, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::NotFound`] when there is none.
pub async fn for_operator(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Timeline, Error> {
    caller.needs(Permission::FleetRead)?;
    let row = allocations::find(&ctx.store, id).await?;
    made(ctx, Reader::Operator, row).await
}

async fn made(ctx: &Ctx, reader: Reader, row: Option<Row>) -> Result<Timeline, Error> {
    let row = row.ok_or(Error::NotFound("allocation"))?;
    let (store, id, now) = (&ctx.store, AllocationId(row.id), ctx.clock.now());
    let steps = store.transitions(Machine::NAME, row.id).await?;
    let mut items: Vec<TimelineItem> = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        let reason = (position + 1 == steps.len()).then_some(row.reason.as_deref()).flatten();
        items.extend(state_item(reader, step, reason));
    }
    if let Some(placed) = stored::placed(store, id).await? {
        items.push(placement_item(reader, &row, placed));
    }
    let (tasks, phases) = (stored::tasks(store, id).await?, stored::phases(store, id).await?);
    for task in tasks {
        let of_task: Vec<&Phase> = phases.iter().filter(|phase| phase.task_id == task.id).collect();
        let Some(mut item) = task_item(reader, &task, &of_task, now) else {
            continue;
        };
        if item.completed_at.is_none() {
            let durations = stored::durations(store, &task.kind, &row.sku, now).await?;
            item.expected_seconds = expected(durations);
        }
        items.push(item);
    }
    items.sort_by_key(|item| item.started_at);
    Ok(Timeline { allocation_id: row.id, status: row.status.into(), items })
}

/// An item about which nothing is known yet but what it is and when it began.
fn item(kind: ItemKind, name: &str, started_at: Timestamp, summary: String) -> TimelineItem {
    TimelineItem {
        kind: kind.into(),
        name: name.to_owned(),
        status: ItemStatus::Succeeded.into(),
        started_at,
        completed_at: Some(started_at),
        duration_seconds: 0,
        summary,
        reason: None,
        advice: None,
        task_id: None,
        phases: Vec::new(),
        expected_seconds: None,
        actor: None,
        node: None,
        dispatches: None,
    }
}

/// One step of the allocation: a moment.
fn state_item(reader: Reader, step: &Transition, reason: Option<&str>) -> Option<TimelineItem> {
    let by_operator = Source::Operator.code() == step.source;
    let (name, summary, failed) = match Event::parse(&step.event) {
        None if step.event == BORN => ("requested", "The GPUs were asked for.", false),
        // An event of a newer binary.
        None => return None,
        Some(event) => {
            let (name, failed) = name_of(event);
            (name, sentence_of(event, by_operator), failed)
        }
    };
    let at = Timestamp::from_microsecond(step.occurred_at_micros).ok()?;
    let mut item = item(ItemKind::AllocationState, name, at, summary.to_owned());
    if failed {
        item.status = ItemStatus::Failed.into();
        item.reason = reason.map(|reason| word(reason).to_owned());
        item.advice = reason.map(|reason| {
            let reason = Reason::read(reason);
            format!("{} {}", reason.sentence(), reason.advice())
        });
    }
    if reader == Reader::Operator {
        item.actor = Some(shortened(&step.actor));
    }
    Some(item)
}

/// What an event is called in a timeline, and whether it is a failure.
const fn name_of(event: Event) -> (&'static str, bool) {
    match event {
        Event::ProvisionStarted => ("provisioning_started", false),
        Event::ProvisionSucceeded | Event::RestartCompleted => ("active", false),
        Event::ProvisionFailed => ("failed", true),
        Event::RestartRequested => ("restarting", false),
        Event::RestartFailedToReturn => ("restart_failed", true),
        Event::ReleaseRequested => ("releasing", false),
        Event::ReleaseCompleted | Event::ReleaseAbandoned => ("released", false),
        Event::ReleaseExhausted => ("release_failed", true),
    }
}

const fn sentence_of(event: Event, by_operator: bool) -> &'static str {
    match event {
        Event::ProvisionStarted => "Work on the machine began.",
        Event::ProvisionSucceeded => "It is ready to use, and billed from here on.",
        Event::ProvisionFailed => "It could not be prepared. You were not charged.",
        Event::RestartRequested => "A restart was asked for; SSH and terminals disconnect.",
        Event::RestartCompleted => "It is back, and ready to use.",
        Event::RestartFailedToReturn => "The restart did not succeed. It is not billed meanwhile.",
        Event::ReleaseRequested if by_operator => {
            "An operator took the machine back. Billing stopped here."
        }
        Event::ReleaseRequested => "It was given back. Billing stopped here.",
        Event::ReleaseCompleted => "The clean-up is proven: nothing was left behind.",
        Event::ReleaseExhausted => {
            "The clean-up did not succeed. The machine stays locked until it does."
        }
        Event::ReleaseAbandoned => {
            "An operator sees to the machine by hand; nobody else gets it until it is cleared."
        }
    }
}

fn placement_item(reader: Reader, row: &Row, placed: Placed) -> TimelineItem {
    let summary = match (row.whole, placed.claims) {
        (true, _) => "A whole machine was reserved.".to_owned(),
        (false, 1) => "1 GPU was reserved.".to_owned(),
        (false, claims) => format!("{claims} GPUs on one machine were reserved."),
    };
    let mut item = item(ItemKind::Placement, "placement_reserved", placed.at, summary);
    if reader == Reader::Operator {
        item.node = Some(placed.node);
    }
    item
}

/// One task; none in a status of a newer binary.
fn task_item(
    reader: Reader,
    task: &Task,
    phases: &[&Phase],
    now: Timestamp,
) -> Option<TimelineItem> {
    let status = node_task::Status::parse(&task.status)?;
    let (name, summary) = TaskKind::parse(&task.kind)
        .map_or(("other", "Other work on the machine"), |kind| (kind.code(), summary_of(kind)));
    let mut item = item(ItemKind::NodeTask, name, task.created_at, summary.to_owned());
    item.status = status_of(status).into();
    item.completed_at = task.ended_at;
    let until = task.ended_at.unwrap_or(now);
    item.duration_seconds = until.duration_since(task.created_at).as_secs().max(0);
    item.task_id = Some(task.id);
    item.phases = merged(phases);
    if let Some(reason) = reason_of(status, task.reason.as_deref()) {
        item.reason = Some(word(reason).to_owned());
        let reason = Reason::read(reason);
        item.advice = Some(format!("{} {}", reason.sentence(), reason.advice()));
    }
    if reader == Reader::Operator {
        item.node = Some(task.node.clone());
        item.dispatches = Some(task.dispatch);
        if let (Some(advice), Some(message)) = (&mut item.advice, &task.message) {
            *advice = format!("{advice} The agent says: {}", shortened(message));
        }
    }
    Some(item)
}

const fn summary_of(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::SliceProvision => "Creating GPU slice VM",
        TaskKind::SliceRestart => "Restarting GPU slice VM",
        TaskKind::NodeReboot => "Rebooting the machine",
        TaskKind::SliceRelease => "Stopping and wiping GPU slice VM",
        TaskKind::UserProvision => "Preparing the account on the machine",
        TaskKind::UserDeprovision => "Removing the account from the machine and wiping it",
    }
}

const fn status_of(status: node_task::Status) -> ItemStatus {
    match status {
        node_task::Status::Queued => ItemStatus::Waiting,
        node_task::Status::Dispatched => ItemStatus::Running,
        node_task::Status::Succeeded => ItemStatus::Succeeded,
        node_task::Status::Failed | node_task::Status::Expired => ItemStatus::Failed,
        node_task::Status::Cancelled => ItemStatus::Cancelled,
    }
}

/// Why a task failed. One that nobody did in time has no reason of its own.
fn reason_of(status: node_task::Status, reason: Option<&str>) -> Option<&str> {
    match status {
        node_task::Status::Failed => Some(reason.unwrap_or_default()),
        node_task::Status::Expired => Some(OurReason::Timeout.code()),
        node_task::Status::Queued
        | node_task::Status::Dispatched
        | node_task::Status::Succeeded
        | node_task::Status::Cancelled => None,
    }
}

/// The phases of the last dispatch, each once, in the order in which they began. The reports come in order.
fn merged(reports: &[&Phase]) -> Vec<TimelinePhase> {
    let last = reports.iter().map(|report| report.dispatch).max();
    let mut phases: Vec<TimelinePhase> = Vec::new();
    for report in reports.iter().filter(|report| Some(report.dispatch) == last) {
        let known = (wire::node::Phase::parse(&report.phase), PhaseStatus::parse(&report.status));
        let (Some(name), Some(status)) = known else {
            continue;
        };
        let ended = match status {
            PhaseStatus::Running => None,
            PhaseStatus::Succeeded | PhaseStatus::Failed => Some(report.at),
        };
        match phases.iter_mut().find(|phase| phase.name.0 == name) {
            Some(phase) => {
                phase.status = status.into();
                phase.completed_at = ended;
            }
            None => phases.push(TimelinePhase {
                name: name.into(),
                status: status.into(),
                started_at: report.at,
                completed_at: ended,
            }),
        }
    }
    phases
}

#[expect(clippy::cast_possible_truncation, reason = "seconds of a task, rounded for people")]
fn expected(durations: Durations) -> Option<ExpectedSeconds> {
    (durations.count >= MEASURED_MIN).then(|| ExpectedSeconds {
        p50: durations.p50_seconds.round() as i64,
        p90: durations.p90_seconds.round() as i64,
    })
}

/// What somebody else wrote, as a short text without control characters.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use store::log::Transition;
    use store::views::timeline::{Phase, Task};
    use uuid::Uuid;
    use wire::http::timeline::ItemStatus;

    use super::{Reader, merged, state_item, task_item};

    const CANARY: &str = "canary \u{1b}[31m AAAAC3NzaC1lZDI1NTE5";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_763_236_800 + seconds).expect("it is a moment")
    }

    fn phase(dispatch: i64, phase: &str, status: &str, seconds: i64) -> Phase {
        let (phase, status) = (phase.to_owned(), status.to_owned());
        Phase { task_id: Uuid::nil(), dispatch, phase, status, at: at(seconds) }
    }

    fn task(status: &str, reason: Option<&str>) -> Task {
        Task {
            id: Uuid::nil(),
            kind: "slice.vm_provision".to_owned(),
            status: status.to_owned(),
            reason: reason.map(str::to_owned),
            created_at: at(0),
            dispatched_at: Some(at(1)),
            ended_at: None,
            dispatch: 2,
            node: "rack-7".to_owned(),
            message: Some(CANARY.repeat(50)),
        }
    }

    #[test]
    fn the_phases_of_the_last_dispatch_are_told_once_each_in_order() {
        let reports = [
            phase(1, "image_prepared", "running", 1),
            phase(1, "image_prepared", "succeeded", 2),
            phase(2, "image_prepared", "running", 10),
            phase(2, "image_prepared", "succeeded", 12),
            phase(2, CANARY, "running", 12),
            phase(2, "vm_started", CANARY, 12),
            phase(2, "vm_started", "running", 13),
            phase(2, "ssh_reachable", "failed", 20),
        ];
        let told = merged(&reports.iter().collect::<Vec<_>>());
        let told: Vec<String> = told
            .iter()
            .map(|phase| {
                let second = |at: Timestamp| at.as_second() - 1_763_236_800;
                let (began, ended) = (second(phase.started_at), phase.completed_at.map(second));
                format!("{} {} {began} {ended:?}", phase.name, phase.status)
            })
            .collect();
        assert_eq!(
            told,
            [
                "image_prepared succeeded 10 Some(12)",
                "vm_started running 13 None",
                "ssh_reachable failed 20 Some(20)"
            ]
        );
    }

    #[test]
    fn every_status_of_a_task_has_its_own_in_the_timeline() {
        let cases = [
            ("queued", Some(ItemStatus::Waiting), None),
            ("dispatched", Some(ItemStatus::Running), None),
            ("succeeded", Some(ItemStatus::Succeeded), None),
            ("failed", Some(ItemStatus::Failed), Some("ssh_not_ready")),
            ("expired", Some(ItemStatus::Failed), Some("timeout")),
            ("cancelled", Some(ItemStatus::Cancelled), None),
            ("from the future", None, None),
        ];
        for (status, shown, reason) in cases {
            let item = task_item(Reader::Tenant, &task(status, Some("ssh_not_ready")), &[], at(90));
            assert_eq!(item.as_ref().map(|item| item.status.0), shown, "{status}");
            assert_eq!(item.as_ref().and_then(|item| item.reason.as_deref()), reason, "{status}");
            assert!(item.is_none_or(|item| item.duration_seconds == 90));
        }
    }

    #[test]
    fn what_somebody_else_wrote_reaches_no_tenant_and_operators_without_its_tricks() {
        let mut broken = task("failed", Some(CANARY));
        broken.kind = CANARY.to_owned();
        let tenants = task_item(Reader::Tenant, &broken, &[], at(5)).expect("an item");
        let text = serde_json::to_string(&tenants).expect("it can be written");
        assert!(!text.contains("canary") && !text.contains("rack-7"), "{text}");
        assert_eq!((tenants.name.as_str(), tenants.reason.as_deref()), ("other", Some("other")));
        let operators = task_item(Reader::Operator, &broken, &[], at(5)).expect("an item");
        let advice = operators.advice.expect("it failed");
        assert!(advice.contains("canary") && !advice.chars().any(char::is_control));
        assert!(advice.chars().count() < 700, "{}", advice.len());
    }

    #[test]
    fn a_step_is_told_in_our_words_and_an_unknown_one_is_left_out() {
        let step = |event: &str, source: &str| Transition {
            seq: 2,
            event_id: Uuid::nil(),
            event: event.to_owned(),
            from: None,
            to: "requested".to_owned(),
            operation_id: None,
            source: source.to_owned(),
            actor: "user 1".to_owned(),
            reason: None,
            cause: Some(CANARY.to_owned()),
            occurred_at_micros: 1_763_236_800_000_000,
        };
        assert!(state_item(Reader::Tenant, &step(CANARY, "user"), None).is_none());
        let told = |event, source, reason| {
            let item = state_item(Reader::Tenant, &step(event, source), reason).expect("known");
            let text = serde_json::to_string(&item).expect("it can be written");
            assert!(!text.contains("canary") && item.actor.is_none(), "{text}");
            item
        };
        assert_eq!(told("born", "user", None).name, "requested");
        let forced = told("release.requested", "operator", Some(CANARY));
        assert!(forced.summary.contains("An operator took the machine back"));
        let failed = told("release.exhausted", "worker", Some(CANARY));
        assert_eq!(
            (failed.name.as_str(), failed.reason.as_deref()),
            ("release_failed", Some("other"))
        );
    }
}
