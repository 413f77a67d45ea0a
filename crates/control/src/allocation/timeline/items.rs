//! The items of a timeline: the steps of the allocation, which tile its time; what was reserved; the tasks; and the pauses
//! between them.

use domain::machines::allocation::Status;
use domain::machines::{Allocation, node_task};
use jiff::Timestamp;
use lifecycle::{Code as _, Machine as _, Rest};
use store::log::Transition;
use store::views::allocations::Row;
use store::views::timeline::{Phase, Placed, Task};
use wire::http::timeline::{ItemKind, ItemStatus, TimelineItem, TimelinePhase};
use wire::node::PhaseStatus;

use super::Reader;
use super::tiles::tiled;
use super::words::{self, Told, of_step, of_task, status_of};
use crate::allocation::reason::{OurReason, Reason, word};

/// A shorter pause between two attempts is none.
const PAUSE_SECONDS_MIN: i64 = 1;

/// An item about which nothing is known yet but what it is and when it began.
fn item(kind: ItemKind, id: String, started_at: Timestamp, told: (&str, &str)) -> TimelineItem {
    TimelineItem {
        id,
        kind: kind.into(),
        name: told.0.to_owned(),
        status: ItemStatus::Succeeded.into(),
        started_at,
        completed_at: Some(started_at),
        duration_seconds: 0,
        within: None,
        dispatched_at: None,
        queued_seconds: None,
        summary: told.1.to_owned(),
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

/// The steps of an allocation, each lasting until the next. A step keeps the reason that was given for it; `newest` is the
/// reason on the row, for a last step that was logged without one.
pub(crate) fn states(
    reader: Reader,
    steps: &[Transition],
    newest: Option<&str>,
    now: Timestamp,
) -> Vec<TimelineItem> {
    let moments: Vec<Timestamp> = steps
        .iter()
        .map(|step| Timestamp::from_microsecond(step.occurred_at_micros).unwrap_or(now))
        .collect();
    let over = steps.last().is_some_and(|step| is_terminal(&step.to));
    let tiles = tiled(&moments, over, now);
    let mut items = Vec::with_capacity(steps.len());
    for (place, (step, tile)) in steps.iter().zip(tiles).enumerate() {
        let Told { name, sentence, failed } = of_step(step);
        let id = format!("state:{}", step.seq);
        let mut item = item(ItemKind::AllocationState, id, tile.started_at, (name, sentence));
        item.completed_at = tile.completed_at;
        item.duration_seconds = tile.seconds;
        if failed {
            let last = (place + 1 == steps.len()).then_some(newest).flatten();
            item.status = ItemStatus::Failed.into();
            explain(&mut item, step.reason.as_deref().or(last).unwrap_or_default());
        }
        if reader == Reader::Operator {
            item.actor = Some(words::shortened(&step.actor));
        }
        items.push(item);
    }
    items
}

fn explain(item: &mut TimelineItem, reason: &str) {
    item.reason = Some(word(reason).to_owned());
    let reason = Reason::read(reason);
    item.advice = Some(format!("{} {}", reason.sentence(), reason.advice()));
}

fn is_terminal(status: &str) -> bool {
    let known = Status::parse(status);
    let spec =
        known.and_then(|status| Allocation::STATUSES.iter().find(|spec| spec.status == status));
    spec.is_some_and(|spec| matches!(spec.rest, Rest::Terminal))
}

/// The step in which something began.
fn within(states: &[TimelineItem], at: Timestamp) -> Option<String> {
    let begun = states.iter().rfind(|state| state.started_at <= at);
    begun.or_else(|| states.first()).map(|state| state.id.clone())
}

/// What was reserved: a moment.
pub(crate) fn placement(
    reader: Reader,
    row: &Row,
    placed: Placed,
    states: &[TimelineItem],
) -> TimelineItem {
    let summary = match (row.whole, placed.claims) {
        (true, _) => "A whole machine was reserved.".to_owned(),
        (false, 1) => "1 GPU was reserved.".to_owned(),
        (false, claims) => format!("{claims} GPUs on one machine were reserved."),
    };
    let told = ("placement_reserved", summary.as_str());
    let mut item = item(ItemKind::Placement, "placement".to_owned(), placed.at, told);
    item.within = within(states, placed.at);
    if reader == Reader::Operator {
        item.node = Some(placed.node);
    }
    item
}

/// One task; none in a status of a newer binary.
pub(crate) fn task(
    reader: Reader,
    task: &Task,
    phases: &[&Phase],
    states: &[TimelineItem],
    now: Timestamp,
) -> Option<TimelineItem> {
    let status = node_task::Status::parse(&task.status)?;
    let id = format!("task:{}", task.id);
    let mut item = item(ItemKind::NodeTask, id, task.created_at, of_task(&task.kind));
    item.status = status_of(status).into();
    item.completed_at = task.ended_at;
    item.within = within(states, task.created_at);
    let until = task.ended_at.unwrap_or(now);
    // What it waited and what it worked add up to the whole, because both are counted from its beginning.
    item.duration_seconds = counted(task.created_at, until);
    item.dispatched_at = task.dispatched_at;
    let taken = task.dispatched_at.unwrap_or(until).min(until);
    item.queued_seconds = Some(counted(task.created_at, taken));
    item.task_id = Some(task.id);
    item.phases = merged(phases);
    if let Some(reason) = reason_of(status, task.reason.as_deref()) {
        explain(&mut item, reason);
    }
    if reader == Reader::Operator {
        item.node = Some(task.node.clone());
        item.dispatches = Some(task.dispatch);
        if let (Some(advice), Some(message)) = (&mut item.advice, &task.message) {
            *advice = format!("{advice} The agent says: {}", words::shortened(message));
        }
    }
    Some(item)
}

fn counted(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs().max(0)
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

/// The pauses between two attempts at the same work in the same step; and the one that lasts, when the next attempt at
/// what the newest step does is due at `next_at`.
pub(crate) fn pauses(
    tasks: &[TimelineItem],
    newest: Option<&TimelineItem>,
    next_at: Option<Timestamp>,
    now: Timestamp,
) -> Vec<TimelineItem> {
    let newest = newest.map(|state| &state.id);
    let mut pauses = Vec::new();
    for (place, before) in tasks.iter().enumerate() {
        let Some(from) = before.completed_at else {
            continue;
        };
        let same = |task: &&TimelineItem| task.name == before.name && task.within == before.within;
        let attempt = tasks[..=place].iter().filter(same).count() + 1;
        let until = match tasks[place + 1..].iter().find(same) {
            Some(next) => Some(next.started_at),
            // Only a failure is tried again, and only the last of all tasks is waited after.
            None if before.status.0 != ItemStatus::Failed || place + 1 < tasks.len() => continue,
            None if before.within.as_ref() != newest => continue,
            None if next_at.is_some_and(|next| next > now.max(from)) => None,
            None => continue,
        };
        let seconds = counted(from, until.unwrap_or(now));
        if until.is_some() && seconds < PAUSE_SECONDS_MIN {
            continue;
        }
        let summary = match (until, next_at) {
            (None, Some(next)) => {
                // A second that has begun is still waited for.
                let left = counted(now, next) + 1;
                format!("Waits before attempt {attempt}, which begins in {left} s.")
            }
            (Some(_), _) | (None, None) => format!("Waits {seconds} s before attempt {attempt}."),
        };
        let id = before.id.replacen("task:", "pause:", 1);
        let mut pause = item(ItemKind::Pause, id, from, ("pause", &summary));
        let status = if until.is_some() { ItemStatus::Succeeded } else { ItemStatus::Waiting };
        pause.status = status.into();
        pause.completed_at = until;
        pause.duration_seconds = seconds;
        pause.within = before.within.clone();
        pauses.push(pause);
    }
    pauses
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use store::log::Transition;
    use store::views::timeline::{Phase, Task};
    use uuid::Uuid;
    use wire::http::timeline::{ItemStatus, TimelineItem};

    use super::{Reader, merged, pauses, states, task as task_item};

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

    fn known(reader: Reader, task: &Task, now: i64) -> Option<TimelineItem> {
        task_item(reader, task, &[], &[], at(now))
    }

    fn told(reader: Reader, task: &Task, now: i64) -> TimelineItem {
        known(reader, task, now).expect("an item")
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
            let item = known(Reader::Tenant, &task(status, Some("ssh_not_ready")), 90);
            assert_eq!(item.as_ref().map(|item| item.status.0), shown, "{status}");
            assert_eq!(item.as_ref().and_then(|item| item.reason.as_deref()), reason, "{status}");
            assert!(item.is_none_or(|item| item.duration_seconds == 90));
        }
    }

    #[test]
    fn what_somebody_else_wrote_reaches_no_tenant_and_operators_without_its_tricks() {
        let mut broken = task("failed", Some(CANARY));
        broken.kind = CANARY.to_owned();
        let tenants = told(Reader::Tenant, &broken, 5);
        let text = serde_json::to_string(&tenants).expect("it can be written");
        assert!(!text.contains("canary") && !text.contains("rack-7"), "{text}");
        assert_eq!((tenants.name.as_str(), tenants.reason.as_deref()), ("other", Some("other")));
        let operators = told(Reader::Operator, &broken, 5);
        let advice = operators.advice.expect("it failed");
        assert!(advice.contains("canary") && !advice.chars().any(char::is_control));
        assert!(advice.chars().count() < 700, "{}", advice.len());
    }

    fn step(seq: i64, event: &str, source: &str, reason: Option<&str>) -> Transition {
        Transition {
            seq,
            event_id: Uuid::nil(),
            event: event.to_owned(),
            from: None,
            to: "requested".to_owned(),
            operation_id: None,
            source: source.to_owned(),
            actor: "user 1".to_owned(),
            reason: reason.map(str::to_owned),
            cause: Some(CANARY.to_owned()),
            occurred_at_micros: at(seq).as_microsecond(),
        }
    }

    #[test]
    fn a_step_is_told_in_our_words_and_an_unknown_one_has_its_time_too() {
        let told = |event, source, reason| {
            let steps = [step(1, event, source, reason)];
            let item = states(Reader::Tenant, &steps, None, at(9)).remove(0);
            let text = serde_json::to_string(&item).expect("it can be written");
            assert!(!text.contains("canary") && item.actor.is_none(), "{text}");
            assert_eq!((item.id.as_str(), item.duration_seconds), ("state:1", 8));
            item
        };
        assert_eq!(told(CANARY, "user", None).name, "other");
        assert_eq!(told("born", "user", None).name, "requested");
        let forced = told("release.requested", "operator", Some(CANARY));
        assert!(forced.summary.contains("An operator took the machine back"));
        let failed = told("release.exhausted", "worker", Some(CANARY));
        assert_eq!(
            (failed.name.as_str(), failed.reason.as_deref()),
            ("release_failed", Some("other"))
        );
    }

    #[test]
    fn every_failed_step_keeps_its_own_reason() {
        let steps = [
            step(1, "born", "user", None),
            step(2, "restart.failed", "worker", Some("node_did_not_return")),
            step(3, "restart.requested", "user", None),
            step(4, "restart.failed", "worker", Some("health_not_recovered")),
            step(5, "release.exhausted", "worker", None),
        ];
        let told = states(Reader::Tenant, &steps, Some("timeout"), at(5));
        let reasons: Vec<Option<&str>> = told.iter().map(|item| item.reason.as_deref()).collect();
        let (first, second) = (Some("node_did_not_return"), Some("health_not_recovered"));
        assert_eq!(reasons, [None, first, None, second, Some("timeout")]);
    }

    fn attempt(number: u128, status: &str, from: i64, until: Option<i64>) -> TimelineItem {
        let mut task = task(status, Some("lease_conflict"));
        task.id = Uuid::from_u128(number);
        (task.created_at, task.dispatched_at, task.ended_at) = (at(from), None, until.map(at));
        let states = states(Reader::Tenant, &[step(0, "born", "user", None)], None, at(99));
        task_item(Reader::Tenant, &task, &[], &states, at(99)).expect("an item")
    }

    #[test]
    fn pauses_between_attempts_are_named_and_the_one_that_lasts_says_until_when() {
        let tasks = [
            attempt(1, "failed", 1, Some(10)),
            attempt(2, "failed", 12, Some(20)),
            attempt(3, "failed", 20, Some(30)),
        ];
        let told = |next: Option<i64>, now: i64| {
            let states = states(Reader::Tenant, &[step(0, "born", "user", None)], None, at(99));
            let pauses = pauses(&tasks, states.last(), next.map(at), at(now));
            let line = |item: &TimelineItem| {
                assert_eq!(item.within.as_deref(), Some("state:0"));
                (item.summary.clone(), item.duration_seconds, item.completed_at.is_some())
            };
            pauses.iter().map(line).collect::<Vec<_>>()
        };
        let first = ("Waits 2 s before attempt 2.".to_owned(), 2, true);
        assert_eq!(told(None, 31), std::slice::from_ref(&first), "the third came at once");
        let open = "Waits before attempt 4, which begins in 4 s.".to_owned();
        assert_eq!(told(Some(34), 31), [first.clone(), (open, 1, false)]);
        assert_eq!(told(Some(30), 31), [first], "its time is over");
    }

    #[test]
    fn what_a_task_waited_and_worked_is_told_apart() {
        let item = told(Reader::Tenant, &task("dispatched", None), 90);
        assert_eq!((item.queued_seconds, item.duration_seconds), (Some(1), 90));
        let mut waiting = task("queued", None);
        waiting.dispatched_at = None;
        let item = told(Reader::Tenant, &waiting, 90);
        assert_eq!((item.queued_seconds, item.duration_seconds), (Some(90), 90));
    }
}
