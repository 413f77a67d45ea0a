//! What grows and is pruned: what is needed survives, what is not goes, whoever prunes at the same time, and by an index.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use store::prune::{self, Prune};
use store::webhooks::deliveries;
use store::{
    Options, Store, api_tokens, findings, idempotency, log, node_agents, node_tasks, notifications,
    outbox, payment_events, seen, workflow_runs,
};
use testkit::Database;
use uuid::Uuid;

use crate::sessions::overtaken;

const ALL: &[&Prune] = &[
    &api_tokens::PRUNE,
    &findings::PRUNE,
    &idempotency::PRUNE,
    &log::PRUNE_REFUSALS,
    &node_agents::PRUNE_CERTIFICATES,
    &node_tasks::PRUNE_PHASES,
    &notifications::PRUNE,
    &payment_events::PRUNE,
    &seen::PRUNE,
    &workflow_runs::PRUNE,
];

/// Sixty days ago: between what is old here (a hundred days) and what is young (now).
fn cut() -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(60 * 24)
}

const OLD: &str = "clock_timestamp() - interval '100 days' + n * interval '1 second'";
const YOUNG: &str = "clock_timestamp() - interval '1 hour' + n * interval '1 second'";

/// So many rows of every table that is pruned, stamped at that time, of which nobody needs any. `name` tells them from others.
fn rows(name: &str, count: i64, at: &str) -> Vec<String> {
    let each = format!("FROM generate_series(1, {count}) AS n");
    let id = |what: &str| format!("md5('{name} {what} ' || n)::uuid");
    let one = |what: &str| format!("md5('{name} {what}')::uuid");
    let (of, user, node, task) = (id("it"), one("user"), one("node"), one("task"));
    vec![
        format!("INSERT INTO users (id, email, name) VALUES ({user}, '{name}@x.org', 'x')"),
        format!("INSERT INTO api_tokens (id, user_id, name, secret_hash, scopes, expires_at)
                 SELECT {of}, {user}, 'x', decode(md5('{name}' || n), 'hex'), '{{}}', {at} {each}"),
        format!("INSERT INTO findings (id, kind, subject, detail, closed_at) SELECT {of}, 'k', '{name} ' || n, 'd', {at} {each}"),
        format!("INSERT INTO idempotency_keys (principal, route, key, fingerprint, created_at) SELECT {user}, 'r', n::text, '', {at} {each}"),
        format!("INSERT INTO lifecycle_refusals (machine, entity_id, event_id, event, reason, source, actor, occurred_at)
                 SELECT 'allocation', {of}, {of}, 'e', 'r', 'worker', 'a', {at} {each}"),
        format!("INSERT INTO node_certificates (fingerprint, agent_id, not_after) SELECT decode(md5('{name}' || n), 'hex'), {node}, {at} {each}"),
        // tidy: a forbidden write, on purpose
        format!("INSERT INTO node_tasks (id, node_id, operation_id, kind, fence, status, ended_at)
                 VALUES ({task}, {node}, {node}, 'k', 1, 'succeeded', clock_timestamp())"),
        format!("INSERT INTO node_task_events (task_id, dispatch, seq, phase, stands, at, received_at)
                 SELECT {task}, 1, n, 'p', 's', {at}, {at} {each}"),
        format!("INSERT INTO notifications (id, user_id, number, kind, cause, title, body, created_at)
                 SELECT {of}, {user}, n, 'k', n::text, 't', 'b', {at} {each}"),
        format!("INSERT INTO webhook_deliveries (webhook_id, notification_id, due_at) SELECT {user}, {of}, NULL {each}"),
        format!("INSERT INTO payment_events (id, kind, payload, received_at, due_at, done_at, outcome)
                 SELECT '{name} ' || n, 'k', '{{}}', {at}, NULL, {at}, 'credited' {each}"),
        format!("INSERT INTO consumed_events (consumer, event_id, consumed_at) SELECT 'c', {of}, {at} {each}"),
        format!("INSERT INTO workflow_runs (id, workflow, entity_id, state, done_at) SELECT '{name} ' || n, 'w', {of}, '{{}}', {at} {each}"),
    ]
}

async fn prune_all(database: &Database) -> BTreeMap<&'static str, u64> {
    let mut gone = BTreeMap::new();
    for what in ALL {
        let count = prune::run(&database.store, what, cut()).await.expect("it prunes");
        gone.insert(what.table, count);
    }
    gone
}

#[tokio::test]
async fn what_is_old_and_not_needed_goes_and_everything_else_stays() {
    let database = Database::new().await;
    database.tamper(&rows("old", 3, OLD)).await;
    database.tamper(&rows("young", 3, YOUNG)).await;
    let old = |what: &str, n: i64| format!("md5('old {what} ' || {n})::uuid");
    let (first, second) = (old("it", 1), old("it", 2));
    database
        .tamper(&[
            // Somebody is at it, or may be again.
            format!("INSERT INTO bus_deliveries (consumer, event_id, entity_id, seq, message, due_at, dead_at)
                     VALUES ('c', {first}, {first}, 1, '{{}}', 'epoch', NULL), ('c', {second}, {first}, 1, '{{}}', 'epoch', clock_timestamp())"),
            "UPDATE payment_events SET outcome = 'unmatched' WHERE id = 'old 1'".to_owned(),
            "UPDATE payment_events SET outcome = NULL, due_at = clock_timestamp() WHERE id = 'old 2'".to_owned(),
            "UPDATE webhook_deliveries SET due_at = clock_timestamp() WHERE notification_id = md5('old it 1')::uuid".to_owned(),
            format!("INSERT INTO workflow_runs (id, workflow, entity_id, state) VALUES ('running', 'w', {first}, '{{}}')"),
            format!("INSERT INTO workflow_runs (id, workflow, entity_id, state, done_at) VALUES ('recent', 'w', {second}, '{{}}', clock_timestamp())"),
            "UPDATE findings SET closed_at = NULL WHERE subject = 'old 1'".to_owned(),
            // Not expired, but revoked long ago; and the other way round.
            "UPDATE api_tokens SET expires_at = clock_timestamp() + interval '1 day', revoked_at = clock_timestamp() - interval '99 days'
              WHERE id = md5('old it 1')::uuid".to_owned(),
            // A task that goes on for as long as that keeps what it told.
            // tidy: a forbidden write, on purpose
            "INSERT INTO node_tasks (id, node_id, operation_id, kind, fence, status)
             VALUES (md5('long')::uuid, md5('old node')::uuid, md5('old node')::uuid, 'k', 1, 'dispatched')".to_owned(),
            "UPDATE node_task_events SET task_id = md5('long')::uuid WHERE task_id = md5('old task')::uuid AND seq = 1".to_owned(),
        ])
        .await;
    let gone = prune_all(&database).await;
    let expected = BTreeMap::from([
        ("api_tokens", 3),
        ("consumed_events", 1),
        ("findings", 2),
        ("idempotency_keys", 3),
        ("lifecycle_refusals", 3),
        ("node_certificates", 3),
        ("node_task_events", 2),
        // The first is being delivered, the last is the last of its reader.
        ("notifications", 1),
        ("payment_events", 1),
        ("workflow_runs", 1),
    ]);
    assert_eq!(gone, expected);
    let kept = "SELECT count(*) FROM webhook_deliveries WHERE webhook_id = md5('old user')::uuid";
    assert_eq!(database.number(kept).await, 2, "deliveries go with what they deliver");
    let runs = "SELECT count(*) FROM workflow_runs";
    assert_eq!(database.number(runs).await, 2 + 2 + 3, "all runs of a row, or none");
    assert!(prune_all(&database).await.values().all(|gone| *gone == 0), "a second time none");
    database.remove().await;
}

/// A notification is numbered after the last one: who lost all of them would be told number 1 again, which no stream waits for.
#[tokio::test]
async fn who_was_told_nothing_for_long_is_told_the_next_number() {
    let database = Database::new().await;
    database.tamper(&rows("old", 1_200, OLD)).await;
    let gone = prune::run(&database.store, &notifications::PRUNE, cut()).await.expect("it prunes");
    assert_eq!(gone, 1_199);
    let user = md5(&database, "old user").await;
    let told = database.in_transaction(async |tx| {
        let to = notifications::address(tx, &[user]).await?;
        let news = notifications::News {
            kind: "k",
            cause: "another",
            title: "t",
            body: "b",
            project_id: None,
            allocation_id: None,
            payment_session_id: None,
            webhook_id: None,
            now: Timestamp::now(),
        };
        notifications::tell(tx, &to, &news).await
    });
    assert_eq!(told.await.expect("they are told").len(), 1);
    let after = notifications::after(&database.store, user, 1_200).await.expect("news");
    assert_eq!(after.iter().map(|each| each.number).collect::<Vec<_>>(), [1_201]);
    database.remove().await;
}

async fn md5(database: &Database, name: &str) -> Uuid {
    sqlx::query_scalar("SELECT md5($1)::uuid")
        .bind(name)
        .fetch_one(&database.sql)
        .await
        .expect("one")
}

#[tokio::test]
async fn four_who_prune_at_once_take_each_row_once() {
    let database = Database::new().await;
    database.tamper(&rows("old", 4_500, OLD)).await;
    for what in ALL {
        let mut pruners = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (store, what) = (database.store.clone(), **what);
            pruners.spawn(async move { prune::run(&store, &what, cut()).await });
        }
        let done = pruners.join_all().await;
        let mut gone: u64 = done.into_iter().map(|each| each.expect("it prunes")).sum();
        // Who found a page in other hands has gone home; the next comes soon.
        gone += prune::run(&database.store, what, cut()).await.expect("it prunes");
        let last_of_reader = u64::from(what.table == "notifications");
        assert_eq!(gone, 4_500 - last_of_reader, "{}", what.table);
    }
    database.remove().await;
}

/// Somebody asks for a delivery anew while what it delivers is about to go.
#[tokio::test]
async fn what_is_asked_for_anew_is_not_pruned_under_their_hands() {
    let database = Database::new().await;
    database.tamper(&rows("old", 2, OLD)).await;
    let (user, notification) = (md5(&database, "old user").await, md5(&database, "old it 1").await);
    let webhook = format!(
        "INSERT INTO webhooks (id, user_id, url, secret) VALUES ('{user}', '{user}', 'https://x.org', 's')"
    );
    database.tamper(&[webhook]).await;
    let mut asking = database.store.begin().await.expect("it begins");
    let asked = deliveries::again(&mut asking, (user, user), notification, Timestamp::now()).await;
    assert!(asked.expect("it answers"));
    let pruning = prune::run(&database.store, &notifications::PRUNE, cut());
    let (gone, asked) = overtaken(&database, pruning, asking.commit()).await;
    asked.expect("it is asked for");
    assert_eq!(gone.expect("it prunes"), 0);
    let due = "SELECT count(*) FROM webhook_deliveries WHERE due_at IS NOT NULL";
    assert_eq!(database.number(due).await, 1);
    database.remove().await;
}

#[tokio::test]
async fn what_is_young_is_removed_by_nobody() {
    let database = Database::new().await;
    database.tamper(&rows("old", 1, "clock_timestamp() - interval '31 days'")).await;
    database.tamper(&rows("young", 1, "clock_timestamp() - interval '29 days'")).await;
    for table in ["lifecycle_refusals", "node_task_events"] {
        let column = if table == "node_task_events" { "phase" } else { "reason" };
        let changes = [
            format!("UPDATE {table} SET {column} = 'another'"),
            format!("DELETE FROM {table}"),
            format!("TRUNCATE {table}"),
        ];
        for change in changes {
            assert!(!database.lets(&change).await, "{change}");
        }
    }
    let now = Timestamp::now();
    // On one connection: a refusal is told before what it held is let go, and another one would pass that by.
    let options = Options { connections_max: 1, ..Options::default() };
    let store = Store::open(&database.url(), options).await.expect("the store opens");
    for what in [&log::PRUNE_REFUSALS, &node_tasks::PRUNE_PHASES] {
        let asked = prune::run(&store, what, now).await;
        assert!(asked.is_err(), "whoever asks for too much gets nothing");
        let gone = prune::run(&store, what, now - SignedDuration::from_hours(30 * 24)).await;
        assert_eq!(gone.expect("it prunes"), 1);
    }
    store.close().await;
    database.remove().await;
}

/// Most of what there is stays: it is not read to find what goes, nor is what is old and stays read by every statement.
#[tokio::test]
async fn what_goes_is_found_by_an_index() {
    let database = Database::new().await;
    database.tamper(&rows("young", 20_000, YOUNG)).await;
    database.tamper(&rows("old", 1_500, OLD)).await;
    let relayed = format!(
        "INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at, published_at)
         SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || substr(md5(n::text), 1, 20))::uuid, 's', 'm', gen_random_uuid(), 1,
                '{{}}', at, at
           FROM generate_series(1, 21500) AS n, LATERAL (SELECT CASE WHEN n <= 1500 THEN {OLD} ELSE {YOUNG} END) AS said (at)"
    );
    database.tamper(&[relayed]).await;
    for statement in ["ANALYZE", "SELECT pg_stat_reset()"] {
        assert!(database.lets(statement).await);
    }
    let gone = prune_all(&database).await;
    assert!(gone.values().all(|gone| *gone >= 1_499), "{gone:?}");
    assert_eq!(outbox::prune(&database.store, cut()).await.expect("it prunes"), 1_500);
    // A connection hands its counts in when it ends at the latest.
    database.store.close().await;
    let tables = ALL.iter().map(|what| format!("'{}'", what.table)).collect::<Vec<_>>().join(", ");
    let read = format!(
        "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables
          WHERE relname IN ({tables}, 'outbox_events', 'webhook_deliveries')"
    );
    assert_eq!(database.number(&read).await, 0, "a table was read from its beginning to its end");
    let fetched = format!(
        "SELECT sum(idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname IN ({tables}, 'outbox_events', 'webhook_deliveries')"
    );
    let fetched = database.number(&fetched).await;
    assert!(fetched < 12 * 1_500 * 3, "{fetched} rows were read");
    database.remove().await;
}

/// The rows of a table that are old and stay do not hold up those behind them.
#[tokio::test]
async fn what_is_old_and_stays_is_passed_by() {
    let database = Database::new().await;
    database
        .tamper(&[
            "INSERT INTO payment_events (id, kind, payload, received_at, due_at, done_at, outcome)
             SELECT n::text, 'k', '{}', clock_timestamp() - interval '100 days' + n * interval '1 second', NULL, clock_timestamp(),
                    CASE WHEN n <= 2500 THEN 'unmatched' ELSE 'credited' END
               FROM generate_series(1, 2600) AS n",
        ])
        .await;
    let gone = prune::run(&database.store, &payment_events::PRUNE, cut()).await;
    assert_eq!(gone.expect("it prunes"), 100);
    assert_eq!(database.number("SELECT count(*) FROM payment_events").await, 2_500);
    database.remove().await;
}
