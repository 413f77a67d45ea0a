//! What the spine rests on: facts leave the outbox in order and none is in the way of another; deliveries are leased, fenced
//! and given up; a word that is said to a run is never lost, in whichever order two sessions write.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use serde_json::{Value, json};
use sqlx::Row as _;
use store::deliveries::{self, Claim, Claimed, Failed, RELAY};
use store::notify::{Line, Rung};
use store::outbox::{self, Hearer, Relayed};
use store::workflow_runs::{self, NewRun, Saved, Taken, Wait, driven};
use store::{Ring, Store, prune, seen};
use testkit::{Database, new_id};
use uuid::Uuid;
use wire::bus::Subject;

use crate::sessions::overtaken;

const ALL: Hearer<'static> = Hearer { consumer: "all", subjects: Subject::ALL };

fn payload(entity: Uuid, seq: i64) -> Value {
    json!({
        "version": 1, "machine": "node", "id": entity, "seq": seq, "event": "enrolled", "event_id": new_id(),
        "from": null, "to": "ready", "operation_id": null, "occurred_at": "2025-11-15T20:00:00Z",
    })
}

/// A fact that nobody made: `(id, subject, entity, seq, payload)`.
async fn write(
    database: &Database,
    (id, subject, entity, seq, payload): (Uuid, &str, Uuid, i64, Value),
) {
    sqlx::query(
        "INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at)
         VALUES ($1, $2, 'node', $3, $4, $5, clock_timestamp())",
    )
    .bind(id)
    .bind(subject)
    .bind(entity)
    .bind(seq)
    .bind(payload)
    .execute(&database.sql)
    .await
    .expect("an owner may do this");
}

async fn online(database: &Database, entity: Uuid, seq: i64) -> Uuid {
    let id = new_id();
    write(database, (id, "node.online", entity, seq, payload(entity, seq))).await;
    id
}

async fn relay(store: &Store, hearers: &[Hearer<'_>]) -> Relayed {
    outbox::relay(store, hearers).await.expect("the relay moves")
}

async fn claim(store: &Store, now: Timestamp) -> Vec<Claimed> {
    let lease_until = now + SignedDuration::from_secs(30);
    let claim = Claim { consumer: "all", now, lease_until, limit: 64 };
    let mut claimed = deliveries::claim(store, &claim).await.expect("a claim is answered");
    claimed.sort_by_key(|claimed| claimed.event_id);
    claimed
}

async fn count(database: &Database, query: &'static str) -> i64 {
    sqlx::query(query).fetch_one(&database.sql).await.expect("it counts").get(0)
}

#[tokio::test]
async fn a_fact_reaches_everybody_who_hears_its_subject_and_rings_for_them() {
    let database = Database::new().await;
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let rung = std::sync::Arc::clone(&heard);
    let bell = store::Bell::new(move |ring| rung.lock().expect("nobody panics").push(ring));
    let store = database.store.clone().ringing(bell);
    online(&database, new_id(), 1).await;
    let deaf = Hearer { consumer: "deaf", subjects: &[Subject::NodeOffline] };
    let keen = Hearer { consumer: "keen", subjects: &[Subject::NodeOffline, Subject::NodeOnline] };
    let relayed = relay(&store, &[ALL, deaf, keen]).await;
    assert_eq!((relayed.published, relayed.unreadable), (1, 0));
    assert!((0.0..60.0).contains(&relayed.lag_seconds), "{relayed:?}");
    let rings = ["all", "keen"].map(|name| Ring::Consumer(name.to_owned()));
    assert_eq!(*heard.lock().expect("nobody panics"), rings);
    for (consumer, live) in [("all", 1), ("deaf", 0), ("keen", 1)] {
        assert_eq!(deliveries::count_live(&store, consumer).await.expect("it counts"), live);
    }
    assert_eq!(relay(&store, &[ALL]).await, Relayed::default(), "it left once");

    online(&database, new_id(), 1).await;
    assert_eq!(
        relay(&store, &[deaf]).await.published,
        1,
        "that nobody hears a fact is no obstacle"
    );
    drop(store);
    database.remove().await;
}

#[tokio::test]
async fn a_fact_that_somebody_was_told_of_before_is_told_to_the_others_and_leaves() {
    let database = Database::new().await;
    let (first, second) =
        (online(&database, new_id(), 1).await, online(&database, new_id(), 1).await);
    assert_eq!(relay(&database.store, &[ALL]).await.published, 2);
    // As if it had been delivered by somebody who did not come to publish it.
    sqlx::query("UPDATE outbox_events SET published_at = NULL WHERE id = $1")
        .bind(first)
        .execute(&database.sql)
        .await
        .expect("an owner may do this");
    let third = online(&database, new_id(), 1).await;
    let keen = Hearer { consumer: "keen", subjects: Subject::ALL };
    let relayed = relay(&database.store, &[ALL, keen]).await;
    assert_eq!((relayed.published, relayed.unreadable), (2, 0));
    let told = "SELECT event_id FROM bus_deliveries WHERE consumer = $1 ORDER BY event_id";
    for (consumer, facts) in [("all", vec![first, second, third]), ("keen", vec![first, third])] {
        let told: Vec<Uuid> = sqlx::query_scalar(told)
            .bind(consumer)
            .fetch_all(&database.sql)
            .await
            .expect("it is read");
        assert_eq!(told, facts, "{consumer}");
    }
    assert_eq!(relay(&database.store, &[ALL, keen]).await, Relayed::default(), "all have left");
    database.remove().await;
}

#[tokio::test]
async fn what_can_not_be_read_is_put_aside_with_its_reason_and_can_be_driven_again() {
    let database = Database::new().await;
    let (strange, broken, entity) = (new_id(), new_id(), new_id());
    write(&database, (strange, "node.eaten", entity, 1, payload(entity, 1))).await;
    write(&database, (broken, "node.online", entity, 2, json!({ "version": "one" }))).await;
    let good = online(&database, entity, 3).await;
    let relayed = relay(&database.store, &[ALL]).await;
    assert_eq!((relayed.published, relayed.unreadable), (3, 2));
    let claimed = claim(&database.store, Timestamp::now()).await;
    assert_eq!(claimed.iter().map(|claimed| claimed.event_id).collect::<Vec<_>>(), [good]);

    let dead = deliveries::list_dead(&database.store, 1, None).await.expect("a list");
    let more = deliveries::list_dead(&database.store, 9, Some(&dead[0].cursor())).await;
    let dead = [dead, more.expect("a list")].concat();
    let reasons: BTreeMap<Uuid, &str> =
        dead.iter().map(|dead| (dead.event_id, dead.reason.as_str())).collect();
    assert_eq!(dead.len(), 2);
    assert!(dead.iter().all(|dead| dead.consumer == RELAY && dead.entity_id == entity));
    assert!(reasons[&strange].contains("node.eaten"), "{reasons:?}");
    assert!(reasons[&broken].contains("not a fact"), "{reasons:?}");

    sqlx::query("UPDATE outbox_events SET payload = $2 WHERE id = $1")
        .bind(broken)
        .bind(payload(entity, 2))
        .execute(&database.sql)
        .await
        .expect("somebody mends it");
    let redriven = database
        .in_transaction(async |tx| {
            let there = deliveries::redrive(tx, RELAY, broken).await?;
            Ok((there, deliveries::redrive(tx, RELAY, good).await?))
        })
        .await
        .expect("it commits");
    assert_eq!(redriven, (true, false), "only what is dead");
    assert_eq!(relay(&database.store, &[ALL]).await.published, 1);
    assert_eq!(
        count(&database, "SELECT count(*) FROM bus_deliveries WHERE dead_at IS NOT NULL").await,
        1
    );
    database.remove().await;
}

/// Identities are made by processes. One whose clock is ahead writes the first fact about a row with an identity that is
/// greater than those of the whole batch behind it.
#[tokio::test]
async fn r09_facts_leave_in_the_order_in_which_they_were_written_not_in_that_of_their_identities() {
    let database = Database::new().await;
    let entity = new_id();
    let first = Uuid::max();
    write(&database, (first, "node.online", entity, 1, payload(entity, 1))).await;
    sqlx::query(
        "INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at)
         SELECT gen_random_uuid(), 'node.online', 'node', $1, number + 1, $2, clock_timestamp()
           FROM generate_series(1, $3) AS number",
    )
    .bind(entity)
    .bind(payload(entity, 2))
    .bind(outbox::BATCH)
    .execute(&database.sql)
    .await
    .expect("an owner may do this");
    let batch = usize::try_from(outbox::BATCH).expect("a number");
    assert_eq!(relay(&database.store, &[ALL]).await.published, batch);
    let claimed = claim(&database.store, Timestamp::now()).await;
    assert_eq!(claimed.iter().map(|claimed| claimed.event_id).collect::<Vec<_>>(), [first]);
    assert_eq!(relay(&database.store, &[ALL]).await.published, 1);
    database.remove().await;
}

#[tokio::test]
async fn a_relay_waits_for_the_facts_that_another_one_has_in_hand() {
    let database = Database::new().await;
    let entity = new_id();
    let first = online(&database, entity, 1).await;
    for ending in ["ROLLBACK", "COMMIT"] {
        let mut other = database.sql.acquire().await.expect("a session");
        sqlx::raw_sql("BEGIN").execute(&mut *other).await.expect("it begins");
        sqlx::query("UPDATE outbox_events SET published_at = clock_timestamp() WHERE id = $1")
            .bind(first)
            .execute(&mut *other)
            .await
            .expect("it has the first fact");
        online(&database, entity, 2).await;
        let hearers = [ALL];
        let ends = sqlx::raw_sql(ending).execute(&mut *other);
        let (relayed, ended) =
            overtaken(&database, outbox::relay(&database.store, &hearers), ends).await;
        ended.expect("the other relay ends");
        let published = relayed.expect("it moves").published;
        assert_eq!(published, if ending == "ROLLBACK" { 2 } else { 1 }, "after {ending}");
        sqlx::query("UPDATE outbox_events SET published_at = NULL WHERE id = $1")
            .bind(first)
            .execute(&mut *other)
            .await
            .expect("once more");
    }
    database.remove().await;
}

#[tokio::test]
async fn a_failure_that_is_told_too_late_does_not_disturb_the_attempt_that_has_begun_since() {
    let database = Database::new().await;
    let (store, now) = (&database.store, Timestamp::now());
    let event_id = online(&database, new_id(), 1).await;
    relay(store, &[ALL]).await;
    assert_eq!(claim(store, now).await[0].attempts, 1);
    assert!(claim(store, now).await.is_empty(), "it is leased");
    let later = now + SignedDuration::from_secs(30);
    assert_eq!(claim(store, later).await[0].attempts, 2, "nothing was heard of it");
    let late = |attempts, due_at| {
        let reason = "x".repeat(600) + "\0";
        Failed { event_id, attempts, reason, due_at }
    };
    deliveries::failed(store, "all", later, &[late(1, None)]).await.expect("it is answered");
    assert!(deliveries::list_dead(store, 9, None).await.expect("a list").is_empty());
    deliveries::failed(store, "all", later, &[late(2, Some(later))]).await.expect("it is answered");
    assert_eq!(claim(store, later).await[0].attempts, 3);
    deliveries::failed(store, "all", later, &[late(3, None)]).await.expect("it is answered");
    let dead = deliveries::list_dead(store, 9, None).await.expect("a list");
    assert_eq!((dead.len(), dead[0].reason.len(), dead[0].attempts), (1, 500, 3));
    database.remove().await;
}

#[tokio::test]
async fn two_deliveries_at_once_wait_for_each_other_and_only_one_is_the_first() {
    for committed in [true, false] {
        let database = Database::new().await;
        let event = new_id();
        let mut one = database.store.begin().await.expect("it begins");
        assert!(seen::first_time(&mut one, "c", event).await.expect("it is written"));
        assert!(seen::first_time(&mut one, "other", event).await.expect("it is written"));
        let mut two = database.store.begin().await.expect("it begins");
        let ends = async { if committed { one.commit().await } else { one.rollback().await } };
        let (first, ended) =
            overtaken(&database, seen::first_time(&mut two, "c", event), ends).await;
        ended.expect("it ends");
        assert_eq!(first.expect("it is answered"), !committed);
        two.commit().await.expect("it commits");
        database.remove().await;
    }
}

#[tokio::test]
async fn what_is_old_is_pruned_unless_it_may_still_be_delivered() {
    let database = Database::new().await;
    let store = &database.store;
    for seq in 1..=3 {
        online(&database, new_id(), seq).await;
    }
    relay(store, &[]).await;
    let (unread, waiting) = (new_id(), online(&database, new_id(), 1).await);
    write(&database, (unread, "node.eaten", new_id(), 1, Value::Null)).await;
    relay(store, &[ALL]).await;
    let unpublished = online(&database, new_id(), 1).await;
    for event in [waiting, unread, unpublished] {
        let marked = database
            .in_transaction(async |tx| seen::first_time(tx, "all", event).await)
            .await
            .expect("it commits");
        assert!(marked);
    }
    let now = Timestamp::now();
    let (past, future) = (now - SignedDuration::from_hours(1), now + SignedDuration::from_hours(1));
    assert_eq!(outbox::prune(store, past).await.expect("it prunes"), 0);
    assert_eq!(prune::run(store, &seen::PRUNE, past).await.expect("it prunes"), 0);
    assert_eq!(outbox::prune(store, future).await.expect("it prunes"), 4, "all that is published");
    assert_eq!(count(&database, "SELECT count(*) FROM outbox_events").await, 2);
    assert_eq!(
        prune::run(store, &seen::PRUNE, future).await.expect("it prunes"),
        2,
        "one is on its way"
    );
    database.remove().await;
}

#[tokio::test]
async fn who_listens_and_was_cut_off_listens_again_and_says_that_anything_may_have_been_missed() {
    let database = Database::new().await;
    let mut ear = Line::new(&database.store).listen().await.expect("it listens");
    let cut = count(
        &database,
        "SELECT count(pg_terminate_backend(pid))
           FROM pg_stat_activity
          WHERE datname = current_database()
            AND query LIKE 'LISTEN%'",
    );
    assert_eq!(cut.await, 1);
    assert_eq!(ear.hear().await.expect("it is connected again"), Rung::Everything);
    let rings = [Ring::Outbox, Ring::Node(Uuid::max())];
    Line::new(&database.store).send(&rings.into()).await.expect("it is sent");
    let Rung::These(heard) = ear.hear().await.expect("it hears") else { panic!("too much") };
    assert_eq!(heard.len(), 2);
    drop(ear);
    database.remove().await;
}

/// Nested loops, over tables that are believed to be almost empty: what is picked may be looked for anew for every row there is.
const WORST_PLAN: &str = "DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET enable_hashjoin = off', current_database());
    EXECUTE format('ALTER DATABASE %I SET enable_mergejoin = off', current_database());
    EXECUTE format('ALTER DATABASE %I SET enable_material = off', current_database());
END $$";

#[tokio::test]
async fn nobody_begins_more_than_they_have_room_for_whatever_the_plan() {
    let database = Database::new().await;
    for number in 0..24 {
        online(&database, new_id(), 1).await;
        assert!(start(&database.store, &format!("run {number}")).await);
        relay(&database.store, &[ALL]).await;
        if number == 0 {
            let counted = sqlx::raw_sql("ANALYZE bus_deliveries, workflow_runs");
            counted.execute(&database.sql).await.expect("an owner may do this");
        }
    }
    sqlx::raw_sql(WORST_PLAN).execute(&database.sql).await.expect("an owner may do this");
    let store = Store::open(&database.url(), store::Options::default()).await.expect("it opens");
    let now = Timestamp::now();
    let lease_until = now + LEASED;
    for _ in 0..3 {
        let deliveries = Claim { consumer: "all", now, lease_until, limit: 3 };
        let begun = deliveries::claim(&store, &deliveries).await.expect("a claim is answered");
        assert_eq!(begun.len(), 3, "deliveries");
        let runs = workflow_runs::Claim { workflows: &["w"], now, lease_until, limit: 3 };
        let told = driven::announce(&store, &runs).await.expect("it is answered");
        assert_eq!(told.len(), 3, "runs that an engine is told of");
        let begun = workflow_runs::claim(&store, &runs).await.expect("a claim is answered");
        assert_eq!(begun.len(), 3, "runs");
    }
    store.close().await;
    database.remove().await;
}

// Runs.

const LEASED: SignedDuration = SignedDuration::from_secs(60);

#[tokio::test]
async fn a_message_in_the_hands_of_the_dead_is_due_at_once_for_one_that_is_alone() {
    let database = Database::new().await;
    let id = online(&database, new_id(), 1).await;
    relay(&database.store, &[ALL]).await;
    let now = Timestamp::now();
    assert_eq!(claim(&database.store, now).await.len(), 1);
    assert!(claim(&database.store, now).await.is_empty(), "for all anybody knows it is in hand");
    assert_eq!(deliveries::free_leases(&database.store).await.expect("it is freed"), 1);
    let again = claim(&database.store, now).await;
    assert_eq!((again[0].event_id, again[0].attempts), (id, 2));
    database.remove().await;
}

async fn start(store: &Store, id: &str) -> bool {
    let run = NewRun { id, workflow: "w", entity_id: Uuid::nil(), state: &Value::Null };
    workflow_runs::start(store, &run).await.expect("it starts")
}

async fn take(store: &Store, now: Timestamp) -> Vec<workflow_runs::Claimed> {
    let claim =
        workflow_runs::Claim { workflows: &["w"], now, lease_until: now + LEASED, limit: 32 };
    workflow_runs::claim(store, &claim).await.expect("a claim is answered")
}

fn taken<'a>(claimed: &'a workflow_runs::Claimed) -> Taken<'a> {
    Taken { id: &claimed.id, lease: claimed.lease, heard: claimed.word.is_some() }
}

async fn save(store: &Store, taken: Taken<'_>, now: Timestamp) -> Saved {
    let (until, lease_until) = (now + SignedDuration::from_hours(1), now + LEASED);
    let wait = Wait { state: &Value::Null, until, waits_for: "more", lease_until };
    workflow_runs::save(store, taken, &wait).await.expect("a save is answered")
}

fn finished(task: u128) -> Value {
    json!({ "happened": "task_finished", "task_id": Uuid::from_u128(task) })
}

async fn pending(store: &Store, id: &str) -> Value {
    let run = workflow_runs::find(store, id).await.expect("it is answered");
    run.expect("there is such a run").pending
}

#[tokio::test]
async fn a_word_whose_sayer_commits_while_the_step_is_saved_is_not_lost() {
    let database = Database::new().await;
    let (store, now) = (&database.store, Timestamp::now());
    assert!(start(store, "r").await);
    let claimed = take(store, now).await.remove(0);
    assert_eq!(claimed.word, Some(workflow_runs::started()));
    let mut tx = store.begin().await.expect("it begins");
    assert!(workflow_runs::tell_in(&mut tx, "r", &finished(1)).await.expect("it is told"));
    // The save waits for the sayer's transaction, and takes the first word off what is there then.
    let (saved, ended) = overtaken(&database, save(store, taken(&claimed), now), tx.commit()).await;
    ended.expect("the sayer commits");
    let Saved::Told { word, lease } = saved else { panic!("the word is lost: {saved:?}") };
    assert_eq!(word, finished(1));
    assert!(take(store, now).await.is_empty(), "the saver still has it");
    let next = Taken { id: "r", lease, heard: true };
    assert_eq!(save(store, next, now).await, Saved::Rests);
    assert_eq!(pending(store, "r").await, json!([]));
    assert!(take(store, now).await.is_empty(), "it waits for an hour");
    database.remove().await;
}

#[tokio::test]
async fn a_word_that_is_told_behind_a_save_is_pending_after_it() {
    let database = Database::new().await;
    let (store, now) = (&database.store, Timestamp::now());
    start(store, "r").await;
    let claimed = take(store, now).await.remove(0);
    let mut holder = database.sql.acquire().await.expect("a session");
    sqlx::raw_sql("BEGIN; SELECT id FROM workflow_runs FOR UPDATE")
        .execute(&mut *holder)
        .await
        .expect("held");
    let word = finished(1);
    // Both queue up for the row; whoever is first, the word is there in the end.
    let both = async {
        tokio::join!(save(store, taken(&claimed), now), workflow_runs::tell(store, "r", &word))
    };
    let ((saved, told), ended) =
        overtaken(&database, both, sqlx::raw_sql("COMMIT").execute(&mut *holder)).await;
    ended.expect("it ends");
    assert!(told.expect("it is told"));
    assert_ne!(saved, Saved::Lost);
    assert_eq!(pending(store, "r").await, json!([finished(1)]));
    drop(holder);
    database.remove().await;
}

#[tokio::test]
async fn only_the_newest_lease_may_save_and_a_save_that_is_tried_again_takes_no_second_word() {
    let database = Database::new().await;
    let (store, now) = (&database.store, Timestamp::now());
    start(store, "r").await;
    let dead = take(store, now).await.remove(0);
    let later = now + LEASED;
    let heir = take(store, later).await.remove(0);
    assert_eq!((&heir.word, heir.attempts), (&dead.word, 2), "it begins where the other one began");
    assert_eq!(save(store, taken(&dead), later).await, Saved::Lost);
    let lost = workflow_runs::finish(store, taken(&dead), later).await.expect("it is answered");
    assert_eq!(lost, Saved::Lost);
    let failed = workflow_runs::Failed { reason: "late", attempts: 1, again_at: now };
    assert!(!workflow_runs::fail(store, taken(&dead), &failed).await.expect("it is answered"));

    for task in [1, 2] {
        workflow_runs::tell(store, "r", &finished(task)).await.expect("it is told");
    }
    assert!(matches!(save(store, taken(&heir), later).await, Saved::Told { .. }));
    assert_eq!(save(store, taken(&heir), later).await, Saved::Lost);
    assert_eq!(pending(store, "r").await, json!([finished(1), finished(2)]));
    database.remove().await;
}

#[tokio::test]
async fn a_run_starts_once_hears_a_repeated_word_once_and_nothing_after_its_end() {
    let database = Database::new().await;
    let (store, now) = (&database.store, Timestamp::now());
    assert!(start(store, "r").await);
    assert!(!start(store, "r").await);
    for task in [1, 1, 2, 1] {
        assert!(workflow_runs::tell(store, "r", &finished(task)).await.expect("it is told"));
    }
    let expected = json!([workflow_runs::started(), finished(1), finished(2), finished(1)]);
    assert_eq!(pending(store, "r").await, expected);
    let claimed = take(store, now).await.remove(0);
    assert_eq!(
        workflow_runs::finish(store, taken(&claimed), now).await.expect("it ends"),
        Saved::Over
    );
    assert!(!workflow_runs::tell(store, "r", &finished(3)).await.expect("it is answered"));
    assert!(!start(store, "r").await, "also after its end");
    assert!(take(store, now + LEASED + LEASED).await.is_empty());
    assert!(!workflow_runs::tell(store, "nobody", &finished(3)).await.expect("it is answered"));
    database.remove().await;
}
