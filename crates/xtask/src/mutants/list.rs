//! TABLE: the guards, and how each is taken away.

use super::Mutant;

const AGENT: &str = "crates/simulation/src/node.rs";
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
const RELEASE: &str = "crates/control/src/allocation/release.rs";
const RUNS: &str = "crates/store/src/workflow_runs.rs";
const STATEMENT: &str = "crates/store/src/lifecycle/statement.rs";
const TASK: &str = "crates/control/src/node/task.rs";
const TASKS: &str = "crates/store/src/node_tasks.rs";
const WRITER: &str = "crates/store/src/lifecycle.rs";

/// Every mutant.
pub(super) const LIST: &[Mutant] = &[
    Mutant {
        name: "no-fence",
        guards: "the agent begins no work that is older than what it has begun",
        edits: &[(
            AGENT,
            "mark.is_some_and(|(fence, _)| envelope.fence < *fence)",
            "mark.is_some_and(|_| false)",
        )],
    },
    Mutant {
        name: "no-leases-in-cleanup",
        guards: "a clean-up leaves alone what is somebody else's by now",
        edits: &[(
            AGENT,
            "entry.places.retain(|place| !foreign(place));",
            "entry.places.retain(|_| true);",
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
                "WHERE claim.id = $1 AND task.status = 'succeeded' AND task.cleanup_complete\n         ) OR NOT EXISTS (",
                "WHERE claim.id = $1 AND task.status = 'succeeded'\n         ) OR NOT EXISTS (",
            ),
        ],
    },
    Mutant {
        name: "freed-whatever-landed",
        guards: "freeing is gated on the outcome (landed_on), behind no_live_tasks",
        edits: &[(
            RELEASE,
            "        if outcome.landed_on(Status::Released) {",
            "        if outcome.landed_on(Status::Released) || !outcome.is_applied() {",
        )],
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
        name: "failed-and-never-stuck",
        guards: "so does a failed provision whose clean-up gives up",
        edits: &[(PROVISION, "                cleaning.get_stuck(tx, &reason).await?;\n", "")],
    },
    Mutant {
        name: "failed-and-not-freed",
        guards: "a failed provision frees what is proven clean",
        edits: &[(PROVISION, "                cleaning.free(tx).await?;\n", "")],
    },
    Mutant {
        name: "nothing-was-touched",
        guards: "capacity is free at once only if nothing was ever handed to a node",
        edits: &[(
            TASKS,
            "WHERE allocation_id = $1 AND (dispatch > 0 OR status IN ('queued', 'dispatched')))",
            "WHERE allocation_id = $1 AND status = 'dispatched')",
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
        edits: &[(
            PLACEMENT,
            "claims.slot_id = slots.id AND claims.status <> 'freed')",
            "claims.slot_id = slots.id AND claims.status = 'held')",
        )],
    },
    Mutant {
        name: "slots-of-others-unindexed",
        guards: "the same, without the unique index claims_live_slot",
        edits: &[
            (
                PLACEMENT,
                "claims.slot_id = slots.id AND claims.status <> 'freed')",
                "claims.slot_id = slots.id AND claims.status = 'held')",
            ),
            (NOUNS, "CREATE UNIQUE INDEX claims_live_slot", "CREATE INDEX claims_live_slot"),
        ],
    },
    Mutant {
        name: "free-is-not-counted",
        guards: "what is free is counted whenever a claim comes or goes",
        edits: &[(
            PLACES,
            "CREATE TRIGGER count_free_of_moved AFTER UPDATE ON claims",
            "CREATE TRIGGER count_free_of_moved AFTER DELETE ON claims",
        )],
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
        name: "no-lock-no-comparison",
        guards: "the writer locks the row, and compares and sets",
        edits: &[
            (LOCKS, "WHERE id = $1 AND {condition} FOR UPDATE", "WHERE id = $1 AND {condition}"),
            (
                STATEMENT,
                "WHERE id = $1 AND status IS NOT DISTINCT FROM '{from}' AND seq = $2{conditions} AND NOT EXISTS",
                "WHERE id = $1 AND $2::bigint IS NOT NULL{conditions} AND NOT EXISTS",
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
        name: "old-release-begins",
        guards: "a release that another has overtaken does not begin",
        edits: &[(
            RELEASE,
            "held.operation == self.operation() && held.status == Status::Releasing",
            "held.operation != OperationId(Uuid::nil()) || held.status == Status::Releasing",
        )],
    },
    Mutant {
        name: "tasks-for-old-operations",
        guards: "no task is queued for an operation that is over, nor by a provision that is",
        edits: &[
            (
                TASKS,
                "WHERE id = $3 AND operation_id = $4 AND status <> 'released'",
                "WHERE id = $3 AND $4::uuid IS NOT NULL",
            ),
            (
                PROVISION,
                "        if held.operation != self.operation() || held.status != Status::Provisioning {",
                "        if held.operation == self.operation() && held.status != Status::Provisioning {",
            ),
        ],
    },
    Mutant {
        name: "messages-are-dropped",
        guards: "a fact leaves the outbox only as a delivery to everybody who hears it",
        edits: &[(
            OUTBOX,
            "for hearer in hearers.iter().filter(hears) {",
            "for hearer in hearers.iter().filter(hears).skip(1) {",
        )],
    },
    Mutant {
        name: "workflow-lease",
        guards: "only who took a run last may save it",
        edits: &[(
            RUNS,
            "          WHERE id = $1\n            AND lease = $2\n      RETURNING pending -> 0, lease\",",
            "          WHERE id = $1\n            AND $2::bigint IS NOT NULL\n      RETURNING pending -> 0, lease\",",
        )],
    },
    Mutant {
        name: "words-are-lost",
        guards: "a word told to a run is taken off by the step that heard it, and by no other",
        edits: &[(
            RUNS,
            "pending = CASE WHEN $3 THEN pending - 0 ELSE pending END,",
            "pending = CASE WHEN $3 THEN '[]' ELSE pending END,",
        )],
    },
    Mutant {
        name: "results-of-nobody",
        guards: "a result counts once, from the dispatch it is about",
        edits: &[(
            TASK,
            "        .with(DISPATCH, Value::Int(result.dispatch));",
            "        .with(DISPATCH, Value::Int(result.dispatch + 1));",
        )],
    },
    Mutant {
        name: "known-events",
        guards: "an event that was applied is a duplicate for ever, in the statement and by the unique index",
        edits: &[(
            STATEMENT,
            "{conditions} AND NOT EXISTS (SELECT 1 FROM known) \\",
            "{conditions} \\",
        )],
    },
    Mutant {
        name: "conflicts-are-committed",
        guards: "a transaction that has lost a race can't be committed",
        edits: &[(
            "crates/store/src/lib.rs",
            "        if self.aborted {",
            "        if self.aborted && self.rings.len() > 1_000 {",
        )],
    },
    Mutant {
        name: "retry-is-no-conflict",
        guards: "a lost race is run again, and not taken for an answer",
        edits: &[(
            WRITER,
            "Ok(lost_race::<M>(tx, id, report)),\n        Err(fault) => Err(fault),\n    }\n}\n\n/// [`write()`]",
            "Ok(Outcome::Refused(refusal::<M>(report, None, Reason::NotFound))),\n        Err(fault) => Err(fault),\n    }\n}\n\n/// [`write()`]",
        )],
    },
];
