//! The connections of a store: the one that came back last goes out next, and who lets go of one in the middle of something leaves
//! nothing behind on it.

use std::time::Duration;

use futures::FutureExt as _;
use store::{Options, Store, placement};
use testkit::Database;
use tokio::time::{interval, timeout};

const AT_ONCE: usize = 6;
const IN_TRANSACTION: &str = "idle in transaction";
/// Longer than anything here takes, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// A transaction that locks something.
async fn locked(store: &Store) {
    let mut tx = store.begin().await.expect("a transaction begins");
    placement::lock_groups(&mut tx).await.expect("it is locked");
    tx.commit().await.expect("it is committed");
}

/// The processes of the database that serve a store, and are in that state.
async fn serving(database: &Database, state: &str) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid
           FROM pg_stat_activity
          WHERE datname = current_database() AND application_name = 'berth' AND state = $1",
    )
    .bind(state)
    .fetch_all(&database.sql)
    .await
    .expect("the database answers")
}

/// Waits until that process has nothing open. One that is left in a transaction never comes to that: the database ends it after a
/// while, and its locks with it.
async fn at_rest(database: &Database, served: i32) {
    let mut ticks = interval(Duration::from_millis(10));
    let rests = async {
        while !serving(database, "idle").await.contains(&served) {
            ticks.tick().await;
        }
    };
    timeout(PATIENCE, rests).await.expect("it is undone");
}

/// The processes of the database that serve a store and were asked something since then.
async fn asked_since(database: &Database, then: &str) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid
           FROM pg_stat_activity
          WHERE datname = current_database() AND application_name = 'berth' AND query_start > $1::timestamptz",
    )
    .bind(then)
    .fetch_all(&database.sql)
    .await
    .expect("the database answers")
}

async fn moment(database: &Database) -> String {
    sqlx::query_scalar("SELECT clock_timestamp()::text")
        .fetch_one(&database.sql)
        .await
        .expect("the database answers")
}

#[tokio::test]
async fn the_connection_that_came_back_last_goes_out_next() {
    let database = Database::new().await;
    let mut open = Vec::new();
    for _ in 0..AT_ONCE {
        open.push(database.store.begin().await.expect("there is a connection"));
    }
    for tx in open {
        tx.rollback().await.expect("it is undone");
    }
    let then = moment(&database).await;
    for _ in 0..4 * AT_ONCE {
        locked(&database.store).await;
    }
    assert_eq!(asked_since(&database, &then).await.len(), 1);
    database.remove().await;
}

/// Whoever hangs up does it anywhere: while the transaction is begun, in it, while it is committed.
#[tokio::test]
async fn who_is_dropped_anywhere_in_a_transaction_leaves_it_to_nobody() {
    let database = Database::new().await;
    let options = Options { connections_max: 1, ..Options::default() };
    let others = serving(&database, "idle").await;
    let store = Store::open(&database.url(), options).await.expect("the store opens");
    let served = serving(&database, "idle").await.into_iter().find(|pid| !others.contains(pid));
    let served = served.expect("there is one connection");
    let mut ended = 0;
    for looks in 0..40 {
        let mut story = Box::pin(locked(&store));
        let mut over = false;
        for _ in 0..looks {
            over = over || story.as_mut().now_or_never().is_some();
            if over {
                break;
            }
            // Something else, so that the database may answer meanwhile or not.
            tokio::task::yield_now().await;
        }
        drop(story);
        ended += usize::from(over);
        at_rest(&database, served).await;
        timeout(PATIENCE, locked(&store)).await.expect("the lock is free");
    }
    assert!(ended < 40, "none was dropped in the middle");
    store.close().await;
    database.remove().await;
}

/// Nobody comes next: what was left open is undone all the same.
#[tokio::test]
async fn a_transaction_that_is_dropped_holds_its_locks_no_longer() {
    let database = Database::new().await;
    let mut tx = database.store.begin().await.expect("a transaction begins");
    placement::lock_groups(&mut tx).await.expect("it is locked");
    let served = serving(&database, IN_TRANSACTION).await;
    assert_eq!(served.len(), 1);
    drop(tx);
    at_rest(&database, served[0]).await;
    database.remove().await;
}

#[tokio::test]
async fn who_finds_none_free_is_told_so_and_who_waits_gets_the_next() {
    let database = Database::new().await;
    let options = Options { connections_max: 1, acquire: Duration::from_millis(200) };
    let store = Store::open(&database.url(), options).await.expect("the store opens");
    let held = store.begin().await.expect("a transaction begins");
    let error = store.begin().await.expect_err("there is none");
    assert!(error.to_string().contains("connection") || store::fall::noticed(&error), "{error}");
    let waiting = store.begin();
    let (next, ended) = tokio::join!(waiting, held.rollback());
    ended.expect("it is undone");
    next.expect("it is had now").rollback().await.expect("it is undone");
    store.close().await;
    assert!(store.begin().await.is_err(), "a store that is closed opens nothing");
    database.remove().await;
}
