//! TABLE: the guards, and how each is taken away.

use super::Mutant;

const AGENT: &str = "crates/simulation/src/node.rs";
const ANSWERS: &str = "crates/control/src/idempotency.rs";
const CLEANUP: &str = "crates/control/src/allocation/cleanup.rs";
const GUARDS: &str = "crates/store/src/lifecycle/guards.rs";
const IDS: &str = "crates/control/src/ids.rs";
const KEYS: &str = "crates/store/src/idempotency.rs";
const LOCKS: &str = "crates/store/src/lifecycle/stored.rs";
const NOUNS: &str = "crates/store/migrations/0002_nouns.sql";
const OUTBOX: &str = "crates/store/src/outbox.rs";
const PLACEMENT: &str = "crates/store/src/placement.rs";
const PLACES: &str = "crates/store/migrations/0004_placement_and_nodes.sql";
const PROVISION: &str = "crates/control/src/allocation/provision.rs";
const GROUP_RELEASE: &str = "crates/control/src/allocation_group/release.rs";
const RELEASE: &str = "crates/control/src/allocation/release.rs";
const RESTART: &str = "crates/control/src/allocation/restart.rs";
const RUNS: &str = "crates/store/src/workflow_runs.rs";
const STATEMENT: &str = "crates/store/src/lifecycle/statement.rs";
const TASK: &str = "crates/control/src/node/task.rs";
const TASKS: &str = "crates/store/src/node_tasks.rs";
const TERMS: &str = "crates/store/src/terms.rs";
const TIMERS: &str = "crates/control/src/doors/timers.rs";
const COUNTED: &str = "crates/store/migrations/0013_counted_together.sql";
const ADMISSION: &str = "crates/store/src/admission.rs";

/// Slots that somebody holds are chosen: by who locks the node first, and by who does not.
const LOCKED_SLOTS: (&str, &str, &str) = (
    PLACEMENT,
    "claims.slot_id = slots.id AND claims.status <> 'freed')",
    "claims.slot_id = slots.id AND claims.status = 'held')",
);
const FOUND_SLOTS: (&str, &str, &str) = (
    TERMS,
    "claims.node_id = spare.id AND claims.status <> 'freed'",
    "claims.node_id = spare.id AND claims.status = 'held'",
);

/// Every mutant.
pub(super) const LIST: &[Mutant] = &[
    Mutant {
        name: "fencing",
        guards: "the agent begins no work that is older than what it has begun; its closed books behind it are taken away too",
        edits: &[(
            AGENT,
            "if self.closed.contains(&entry.allocation)\n            || mark.is_some_and(|(fence, _)| envelope.fence < *fence)",
            "if mark.is_some_and(|(fence, _)| envelope.fence < *fence - 1_000)",
        )],
    },
    Mutant {
        name: "older-work-goes-on",
        guards: "newer work for an allocation stops older",
        edits: &[(
            AGENT,
            "if older.is_open_for(allocation) {",
            "if false && older.is_open_for(allocation) {",
        )],
    },
    Mutant {
        name: "incomplete-proof",
        guards: "only a complete proof completes a clean-up",
        edits: &[(
            CLEANUP,
            "Status::Succeeded if task.cleanup_complete == Some(true) => {",
            "Status::Succeeded if task.cleanup_complete.is_some() => {",
        )],
    },
    Mutant {
        name: "unproven-and-unguarded",
        guards: "the same, and the guard cleanup_proven behind it",
        edits: &[
            (
                CLEANUP,
                "Status::Succeeded if task.cleanup_complete == Some(true) => {",
                "Status::Succeeded if task.cleanup_complete.is_some() => {",
            ),
            (
                GUARDS,
                "WHERE task.operation_id = claim.operation_id AND task.status = 'succeeded' AND task.cleanup_complete\n         ) OR NOT EXISTS (",
                "WHERE task.operation_id = claim.operation_id AND task.status = 'succeeded'\n         ) OR NOT EXISTS (",
            ),
        ],
    },
    Mutant {
        name: "released-and-not-freed",
        guards: "claims are freed in the transaction that completes the release",
        edits: &[(RELEASE, "            self.cleaning().free(tx).await?;\n", "")],
    },
    Mutant {
        name: "never-stuck",
        guards: "a release that gives up reports claim.stuck in the same transaction",
        edits: &[(RELEASE, "            self.cleaning().get_stuck(tx, &reason).await?;\n", "")],
    },
    Mutant {
        name: "failed-and-not-freed",
        guards: "a failed provision frees what is proven clean; the sweep of forgotten clean-ups is taken away too",
        edits: &[
            (PROVISION, "                cleaning.free(tx).await?;\n", ""),
            (TIMERS, "|ctx| Box::pin(clean::take_up(ctx))", "|_| Box::pin(async { Ok(0) })"),
        ],
    },
    Mutant {
        name: "nothing-was-touched",
        guards: "capacity is free at once only if nothing was ever handed to a node",
        edits: &[(
            TASKS,
            "WHERE dispatch > 0 OR status IN ('queued', 'dispatched'))",
            "WHERE status = 'dispatched')",
        )],
    },
    Mutant {
        name: "derived-ids",
        guards: "a step that is done twice says the same thing twice",
        edits: &[(
            IDS,
            "Uuid::new_v5(&DERIVED, format!(\"{run}\\n{label}\").as_bytes())",
            "Uuid::new_v5(&DERIVED, format!(\"{run}\\n{label}{:?}\", std::time::Instant::now()).as_bytes())",
        )],
    },
    Mutant {
        name: "idempotency-key",
        guards: "a key has one answer",
        edits: &[(
            KEYS,
            "WHERE known.created_at < $6 OR known.http_status IS NULL",
            "WHERE known.created_at < $6 OR true",
        )],
    },
    Mutant {
        name: "slots-of-others",
        guards: "only slots without a live claim are chosen; behind it the unique index refuses",
        edits: &[LOCKED_SLOTS, FOUND_SLOTS],
    },
    Mutant {
        name: "unique-index",
        guards: "the unique index claims_live_slot; the choice of free slots in front of it is taken away too",
        edits: &[
            LOCKED_SLOTS,
            FOUND_SLOTS,
            (NOUNS, "CREATE UNIQUE INDEX claims_live_slot", "CREATE INDEX claims_live_slot"),
        ],
    },
    Mutant {
        name: "free-is-not-counted",
        guards: "what is free is counted whenever a claim comes or goes",
        edits: &[(
            COUNTED,
            "WHERE (changed.status = 'freed') <> (former.status = 'freed')",
            "WHERE changed.status IS NULL",
        )],
    },
    Mutant {
        name: "what-is-written-looks-at-nothing",
        guards: "who writes without a lock sees whether a node is still ready and a key still free",
        edits: &[
            (
                ADMISSION,
                "WHERE require_won((SELECT count(*) FROM locked) = cardinality($50::uuid[]))",
                "WHERE cardinality($50::uuid[]) > 0",
            ),
            (
                ADMISSION,
                "SELECT require_won((SELECT count(*) FROM answered) = cardinality($36::text[]))",
                "SELECT true",
            ),
        ],
    },
    Mutant {
        name: "placement-locks-nothing",
        guards: "placement locks the node it has found, and looks again; behind it the unique indexes refuse",
        edits: &[(
            PLACES,
            "             ORDER BY free_numa_max, id\n             LIMIT 1\n               FOR NO KEY UPDATE SKIP LOCKED;",
            "             ORDER BY free_numa_max, id\n             LIMIT 1;",
        )],
    },
    Mutant {
        name: "compare-and-set",
        guards: "the writer compares and sets; the row's lock in front of it is taken away too",
        edits: &[
            (
                LOCKS,
                "WHERE id = ANY ($1) AND {condition} ORDER BY id FOR UPDATE",
                "WHERE id = ANY ($1) AND {condition} ORDER BY id",
            ),
            (
                STATEMENT,
                "WHERE held.id = wish.id AND held.status IS NOT DISTINCT FROM '{from}' AND held.seq = wish.seq{conditions}",
                "WHERE held.id = wish.id AND wish.seq IS NOT NULL{conditions}",
            ),
        ],
    },
    Mutant {
        name: "operation-check",
        guards: "an answer to an old operation is superseded",
        edits: &[(
            "crates/domain/src/machines/allocation.rs",
            "on(ReleaseCompleted).by(&[Worker]).same_operation()",
            "on(ReleaseCompleted).by(&[Worker]).carries(lifecycle::OPERATION_ID)",
        )],
    },
    Mutant {
        name: "messages-are-dropped",
        guards: "a fact leaves the outbox only as a delivery to everybody who hears it",
        edits: &[(
            OUTBOX,
            "    for hearer in hearers {",
            "    for hearer in hearers.iter().skip(1) {",
        )],
    },
    Mutant {
        name: "results-of-nobody",
        guards: "a result counts once, from the dispatch it is about",
        edits: &[(
            TASK,
            ".with(DISPATCH, Value::Int(result.dispatch))",
            ".with(DISPATCH, Value::Int(result.dispatch + 1))",
        )],
    },
    Mutant {
        name: "inbox-key",
        guards: "a message that is delivered twice starts one run: its identity is the run's",
        edits: &[(
            "crates/control/src/doors/subscriptions.rs",
            "    ctx.workflows.start(run).await?;",
            "    let id = format!(\"{}-{:?}\", run.id, std::time::Instant::now());\n    ctx.workflows.start(spine::workflow::NewRun { id, ..run }).await?;",
        )],
    },
    Mutant {
        name: "another-boot",
        guards: "a restart is believed only with another boot than before",
        edits: &[(
            RESTART,
            "Ok(boot_id != boot_id_before && Some(boot_id) != task.boot_id)",
            "Ok(boot_id != boot_id_before || task.result.is_some())",
        )],
    },
    Mutant {
        name: "group-does-not-follow",
        guards: "a group follows its member in the member's transaction",
        edits: &[(
            "crates/store/src/allocations.rs",
            "    if let (Some(group), true) = (group, outcome.is_applied()) {",
            "    if let (Some(group), false) = (group, outcome.is_applied()) {",
        )],
    },
    Mutant {
        name: "all-or-none",
        guards: "a group has all its members or is not there",
        edits: &[(
            "crates/control/src/allocation_group/place.rs",
            "            return Ok(Some((index, crowded)));",
            "            if crowded { continue; }\n            return Ok(Some((index, crowded)));",
        )],
    },
    Mutant {
        name: "one-member-is-not-asked",
        guards: "the release of a group reaches every member that is left",
        edits: &[(
            GROUP_RELEASE,
            "    for member in &pending.members {",
            "    for member in pending.members.iter().skip(1) {",
        )],
    },
    Mutant {
        name: "no-message",
        guards: "a step and what is made known of it are one statement",
        edits: &[(
            STATEMENT,
            "message.append(&mut messages, \"moved, moment\", &luggage);",
            "message.append(&mut String::new(), \"moved, moment\", &luggage);",
        )],
    },
    Mutant {
        name: "the-dead-keep-their-runs",
        guards: "a run whose process has died is taken over when its lease ends",
        edits: &[(
            RUNS,
            "AND (due.lease_until IS NULL OR due.lease_until <= $2)",
            "AND due.lease_until IS NULL",
        )],
    },
    Mutant {
        name: "no-entry",
        guards: "a deed and its entry in the audit log are one transaction",
        edits: &[(ANSWERS, "        return deed.write(tx, DONE).await;", "        return Ok(());")],
    },
];
