//! TABLE: everything that is measured, as `/metrics` and docs/metrics.md tell it. What is not in it is not exported by any of
//! our crates: a test looks.

use std::fmt::Write as _;

/// What is done with a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows: look at its rate.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It has buckets.
    Histogram,
}

impl Kind {
    /// As Prometheus calls it.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// What it is called.
    pub name: &'static str,
    /// What is done with it.
    pub kind: Kind,
    /// By what it is told apart.
    pub labels: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Measure {
    Measure { name, kind: Kind::Counter, labels, meaning }
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Measure {
    Measure { name, kind: Kind::Gauge, labels, meaning }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Measure {
    Measure { name, kind: Kind::Histogram, labels, meaning }
}

/// The table.
#[rustfmt::skip]
pub const MEASURES: &[Measure] = &[
    histogram("berth_http_request_seconds", &["method", "path", "status"], "How long requests took, by the route's pattern"),
    counter("berth_http_refusals_total", &["code"], "Requests that were refused, by the code of the problem"),
    gauge("berth_http_places", &[], "How many requests of people are let in at a time: fewer while most of them take long"),
    counter("berth_http_turned_away_total", &[], "Requests that found no place and were turned away; no other measure tells of their time"),
    gauge("berth_streams_open", &[], "Streams of events that are open in this process"),
    gauge("berth_long_polls_open", &[], "Agents that wait for work at this process"),
    gauge("berth_draining", &[], "Whether this process is ending and says so; not there before"),
    gauge("berth_pool_connections", &["state"], "Connections to Postgres of this process, in use or idle"),
    counter("berth_batches_total", &["desk"], "Batches of what was asked at the same time"),
    counter("berth_batched_total", &["desk"], "Questions in them"),
    counter("berth_batches_spoilt_total", &["desk"], "Shared transactions that failed, so that each of them was done alone"),
    counter("berth_usage_windows_total", &[], "Minutes of usage that were charged"),
    counter("berth_gateway_handshakes_total", &["kind"], "TLS handshakes of agents"),
    gauge("berth_agents_online", &[], "Nodes that are ready and whose agent was heard of lately"),
    counter("berth_enrolments_total", &["outcome"], "Attempts to enrol a node"),
    counter("berth_heartbeats_total", &[], "Heartbeats that were written down"),
    counter("berth_heartbeat_commits_total", &[], "Transactions in which they were"),
    counter("berth_heartbeats_with_other_gpus_total", &[], "Heartbeats of nodes with other GPUs than they have by the books"),
    gauge("berth_outbox_waiting", &[], "Facts that have not left the outbox; 10000 means so many or more"),
    gauge("berth_outbox_lag_seconds", &[], "How long the oldest of them has waited"),
    gauge("berth_queue_depth", &["consumer"], "Messages that a consumer has not handled; 10000 means so many or more"),
    gauge("berth_queue_age_seconds", &["consumer"], "How long the oldest of them has waited"),
    gauge("berth_dead_letters", &["consumer"], "Messages that were given up and wait for an operator"),
    counter("berth_bus_delivered_total", &["consumer"], "Messages that were handled"),
    counter("berth_bus_failed_total", &["consumer"], "Attempts to handle a message that failed"),
    counter("berth_bus_dead_total", &["consumer"], "Messages that were given up"),
    gauge("berth_broker_connected", &[], "Whether this process is connected to NATS"),
    counter("berth_broker_untold_total", &[], "Messages that NATS could not be told of; a sweep found them"),
    gauge("berth_workflow_runs", &["state"], "Runs of workflows that are due and in nobody's hand, and that are open in all; 10000 means so many or more"),
    gauge("berth_workflow_lag_seconds", &[], "How long the longest of those has been due"),
    counter("berth_workflow_steps_total", &["workflow", "result"], "Steps of workflows"),
    gauge("berth_temporal_connected", &[], "Whether this process is connected to Temporal"),
    gauge("berth_node_tasks", &["status"], "Tasks that wait for an agent, and that an agent has; 10000 means so many or more"),
    histogram("berth_node_task_seconds", &["kind", "stage"], "How long tasks were queued until an agent had them, and how long the agent took"),
    counter("berth_lifecycle_reports_total", &["machine", "event", "outcome"], "Reports to the machines: applied, duplicate, or why they were refused"),
    gauge("berth_oldest_seconds", &["machine", "status"], "How long the oldest row has stood in a status that may not last"),
    gauge("berth_stuck", &["machine", "status"], "Rows that stand longer than they may, and dead letters"),
    gauge("berth_findings_open", &[], "Findings of the audit that nobody has closed"),
    gauge("berth_findings", &["kind"], "Findings of the last comparison of nodes, bill and database"),
    counter("berth_payment_checkouts_total", &["result"], "Checkouts that the payment provider was asked for: made, unavailable, or refused"),
    counter("berth_payment_webhooks_total", &["result"], "What came in as the payment provider's word: heard, repeated, or unproven"),
    counter("berth_payment_events_total", &["outcome"], "What came of what the payment provider told"),
    counter("berth_audit_denied_total", &["kept"], "Refused attempts that the audit log was to keep"),
    counter("berth_notifications_total", &["kind"], "What people were told"),
    counter("berth_webhook_attempts_total", &["result"], "Attempts to deliver to webhooks: taken, failed, or given up after three days"),
    counter("berth_pruned_total", &["table"], "Rows that were old and that nobody needed any more; of usage_windows whole days"),
    counter("berth_timer_runs_total", &["timer", "result"], "Runs of timers"),
];

/// The table of docs/metrics.md.
pub fn table() -> String {
    let mut text = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Measure { name, kind, labels, meaning } in MEASURES {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.word(), labels.join(", "));
        // Writing to a string can't fail.
        let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {meaning} |");
    }
    text
}

/// Tells the recorder what everything means.
pub(crate) fn describe() {
    for measure in MEASURES {
        match measure.kind {
            Kind::Counter => metrics::describe_counter!(measure.name, measure.meaning),
            Kind::Gauge => metrics::describe_gauge!(measure.name, measure.meaning),
            Kind::Histogram => metrics::describe_histogram!(measure.name, measure.meaning),
        }
    }
}
