//! Transactions that are shared: what stories do together is what each would have done alone, and whoever fails takes nobody along.

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::{Event, Status};
use futures::FutureExt as _;
use futures::future::join_all;
use jiff::Timestamp;
use lifecycle::{Outcome, Source};
use serde_json::json;
use store::lifecycle::Report;
use store::workflow_runs::{self, NewRun};
use store::{Company, Error, Options, Store, Tx, allocations, notifications, placement};
use testkit::{Database, new_id};
use uuid::Uuid;

use crate::report;

const SEVERAL: usize = 6;

fn company(about: Uuid) -> Company {
    Company::Same { doing: ("test", "restart"), about }
}

fn restart() -> Report<Event> {
    report(Event::RestartRequested, Source::User).about(OperationId(new_id()))
}

async fn several(database: &Database) -> Vec<AllocationId> {
    let mut ids = Vec::new();
    for _ in 0..SEVERAL {
        ids.push(database.active_allocation().await.allocation);
    }
    ids
}

/// Those who ask before anybody else runs begin together.
async fn begun(database: &Database, about: &[Uuid]) -> Vec<Tx> {
    let all = about.iter().map(|about| database.store.begin_in(company(*about)));
    join_all(all).await.into_iter().map(|begun| begun.expect("it begins")).collect()
}

async fn restarted(mut tx: Tx, id: AllocationId) -> Result<Outcome<Status>, Error> {
    let outcome = allocations::report(&mut tx, id, &restart()).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// In how many transactions those rows were written last.
async fn transactions(database: &Database, ids: &[AllocationId]) -> i64 {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM allocations WHERE id = ANY ($1)")
        .bind(ids)
        .fetch_one(&database.sql)
        .await
        .expect("it counts")
}

/// What was written of a restart: a row that moved, its record and its message, or nothing of it.
async fn restarts(database: &Database, id: AllocationId) -> [i64; 3] {
    let queries = [
        "SELECT count(*) FROM allocations WHERE id = $1 AND status = 'restarting'",
        "SELECT count(*) FROM lifecycle_log WHERE entity_id = $1 AND event = 'restart.requested'",
        "SELECT count(*) FROM outbox_events WHERE entity_id = $1 AND payload ->> 'event' = 'restart.requested'",
    ];
    let mut counts = [0; 3];
    for (count, query) in counts.iter_mut().zip(queries) {
        let one = sqlx::query_scalar(query).bind(id.uuid());
        *count = one.fetch_one(&database.sql).await.expect("it counts");
    }
    counts
}

fn uuids(ids: &[AllocationId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.uuid()).collect()
}

#[tokio::test]
async fn those_who_come_together_have_one_transaction_and_an_outcome_each() {
    let database = Database::new().await;
    let ids = several(&database).await;
    // One of them is being restarted already: it is refused, and the refusal is kept with what the others did.
    let busy = database.active_allocation().await.allocation;
    let first = restarted(database.store.begin().await.expect("it begins"), busy).await;
    assert!(first.expect("it answers").is_applied());
    let all = [ids.clone(), vec![busy]].concat();
    let seats = begun(&database, &uuids(&all)).await;
    let outcomes = join_all(seats.into_iter().zip(&all).map(|(tx, id)| restarted(tx, *id))).await;
    let mut outcomes: Vec<_> = outcomes.into_iter().map(|one| one.expect("it answers")).collect();
    assert!(!outcomes.pop().expect("the last").is_applied(), "once is enough");
    for (id, outcome) in ids.iter().zip(outcomes) {
        assert_eq!(
            outcome,
            Outcome::Applied { from: Status::Active, to: Status::Restarting, seq: 4 }
        );
        assert_eq!(restarts(&database, *id).await, [1, 1, 1]);
    }
    assert_eq!(transactions(&database, &ids).await, 1);
    database.remove().await;
}

/// They wait for a connection one after the other, and begin together when there is one.
#[tokio::test]
async fn who_comes_before_a_transaction_has_begun_has_a_seat_in_it() {
    let database = Database::new().await;
    let ids = several(&database).await;
    let options = Options { connections_max: 1, ..Options::default() };
    let store = Store::open(&database.url(), options).await.expect("it opens");
    let taken = store.begin().await.expect("it begins");
    let mut waiting = Vec::new();
    for id in &ids {
        let mut begins = Box::pin(store.begin_in(company(id.uuid())));
        assert!((&mut begins).now_or_never().is_none(), "somebody else has the connection");
        waiting.push(begins);
        // Whoever begins transactions has seen this one before the next one comes.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    drop(taken);
    let seats = join_all(waiting).await.into_iter().map(|begun| begun.expect("it begins"));
    let outcomes = join_all(seats.zip(&ids).map(|(tx, id)| restarted(tx, *id))).await;
    assert!(outcomes.into_iter().all(|outcome| outcome.expect("it answers").is_applied()));
    assert_eq!(transactions(&database, &ids).await, 1);
    store.close().await;
    database.remove().await;
}

#[tokio::test]
async fn two_about_one_row_are_kept_apart() {
    let database = Database::new().await;
    let id = database.active_allocation().await.allocation;
    // The second begins when the first is over, and finds what it left.
    let (first, second) = tokio::join!(
        async {
            let tx = database.store.begin_in(company(id.uuid())).await?;
            restarted(tx, id).await
        },
        async {
            let tx = database.store.begin_in(company(id.uuid())).await?;
            restarted(tx, id).await
        },
    );
    let (first, second) = (first.expect("it answers"), second.expect("it answers"));
    assert!(first.is_applied() && !second.is_applied() && !second.is_retryable(), "{second:?}");
    assert_eq!(restarts(&database, id).await, [1, 1, 1]);
    database.remove().await;
}

#[tokio::test]
async fn who_leaves_with_nothing_written_takes_nobody_along() {
    let database = Database::new().await;
    let ids = several(&database).await;
    let mut seats = begun(&database, &uuids(&ids)).await;
    seats.pop().expect("the last").rollback().await.expect("it goes");
    drop(seats.pop());
    let outcomes = join_all(seats.into_iter().zip(&ids).map(|(tx, id)| restarted(tx, *id))).await;
    assert!(outcomes.into_iter().all(|outcome| outcome.expect("it answers").is_applied()));
    assert_eq!(restarts(&database, ids[0]).await, [1, 1, 1]);
    assert_eq!(restarts(&database, ids[SEVERAL - 1]).await, [0, 0, 0]);
    database.remove().await;
}

/// Who has written and goes has to be undone, and nothing of one transaction can be undone by itself.
#[tokio::test]
async fn who_leaves_with_something_written_undoes_it_all_and_everybody_else_goes_alone() {
    let database = Database::new().await;
    let ids = several(&database).await;
    let seats = begun(&database, &uuids(&ids)).await;
    let outcomes =
        join_all(seats.into_iter().zip(&ids).enumerate().map(async |(number, (mut tx, id))| {
            let outcome = allocations::report(&mut tx, *id, &restart()).await?;
            assert!(outcome.is_applied());
            if number == 2 {
                return Ok(());
            }
            tx.commit().await
        }))
        .await;
    for (number, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(number == 2, outcome.is_ok());
        assert!(matches!(outcome, Ok(()) | Err(Error::Company)), "{outcome:?}");
    }
    for id in &ids {
        assert_eq!(restarts(&database, *id).await, [0, 0, 0]);
    }
    let again = join_all(
        ids.iter()
            .map(async |id| restarted(database.store.begin_in(Company::Alone).await?, *id).await),
    )
    .await;
    assert!(again.into_iter().all(|outcome| outcome.expect("it answers").is_applied()));
    assert_eq!(transactions(&database, &ids).await, SEVERAL as i64);
    database.remove().await;
}

#[tokio::test]
async fn when_the_connection_breaks_everybody_goes_alone_and_nothing_was_done() {
    let database = Database::new().await;
    let ids = several(&database).await;
    let seats = begun(&database, &uuids(&ids)).await;
    database.end_connections().await;
    let outcomes = join_all(seats.into_iter().zip(&ids).map(|(tx, id)| restarted(tx, *id))).await;
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::Company)), "{outcome:?}");
    }
    for id in &ids {
        assert_eq!(restarts(&database, *id).await, [0, 0, 0]);
    }
    database.remove().await;
}

/// Statements that can't be asked together are asked one after the other, on the same connection.
#[tokio::test]
async fn what_is_one_storys_alone_is_part_of_the_same_transaction() {
    let database = Database::new().await;
    let ids = several(&database).await;
    let seats = begun(&database, &uuids(&ids)).await;
    let done = join_all(seats.into_iter().zip(&ids).map(async |(mut tx, id)| {
        placement::lock_groups(&mut tx).await?;
        restarted(tx, *id).await
    }))
    .await;
    assert!(done.into_iter().all(|outcome| outcome.expect("it answers").is_applied()));
    assert_eq!(transactions(&database, &ids).await, 1);
    database.remove().await;
}

fn news<'a>(cause: &'a str) -> notifications::News<'a> {
    notifications::News {
        kind: "k",
        cause,
        title: "t",
        body: "b",
        project_id: None,
        allocation_id: None,
        payment_session_id: None,
        webhook_id: None,
        now: Timestamp::now(),
    }
}

/// One statement numbers what several tell the same person, and what they were told before takes no number.
#[tokio::test]
async fn what_several_tell_one_person_is_numbered_without_a_gap() {
    let database = Database::new().await;
    let user: Uuid = sqlx::query_scalar(
        "INSERT INTO users (id, email, name, password_hash) VALUES (gen_random_uuid(), 'a@b.c', 'A', 'x') RETURNING id",
    )
    .fetch_one(&database.sql)
    .await
    .expect("there is somebody");
    let causes = ["first", "second", "first", "third"];
    let seats = begun(&database, &causes.map(|_| new_id())).await;
    let told = join_all(seats.into_iter().zip(causes).map(async |(mut tx, cause)| {
        let to = notifications::address(&mut tx, &[user]).await?;
        let told = notifications::tell(&mut tx, &to, &news(cause)).await?;
        tx.commit().await?;
        Ok::<_, Error>(told.len())
    }))
    .await;
    let told: Vec<usize> = told.into_iter().map(|told| told.expect("it is told")).collect();
    assert_eq!(told, [1, 1, 0, 1]);
    let all = notifications::after(&database.store, user, 0).await.expect("they are there");
    assert_eq!(all.iter().map(|each| each.number).collect::<Vec<_>>(), [1, 2, 3]);
    database.remove().await;
}

/// A statement changes a row once: two words to one run are two statements, and neither is lost.
#[tokio::test]
async fn two_words_to_one_run_are_both_heard() {
    let database = Database::new().await;
    let state = json!({});
    let run = NewRun { id: "r", workflow: "w", entity_id: new_id(), state: &state };
    workflow_runs::start(&database.store, &run).await.expect("it starts");
    let words = [json!({ "word": 1 }), json!({ "word": 2 })];
    let seats = begun(&database, &[new_id(), new_id()]).await;
    let told = join_all(seats.into_iter().zip(&words).map(async |(mut tx, word)| {
        let told = workflow_runs::tell_in(&mut tx, "r", word).await?;
        tx.commit().await?;
        Ok::<_, Error>(told)
    }))
    .await;
    assert!(told.into_iter().all(|told| told.expect("it is told")));
    let run = workflow_runs::find(&database.store, "r").await.expect("it is answered");
    let pending = run.expect("it is there").pending;
    assert_eq!(pending, json!([workflow_runs::started(), words[0], words[1]]));
    database.remove().await;
}
