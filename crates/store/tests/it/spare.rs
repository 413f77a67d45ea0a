//! Connections that nobody needs are given back while hardly anything is asked, and kept while it is.

use std::time::Duration;

use store::Store;
use testkit::Database;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

const AT_ONCE: usize = 8;
/// Longer than anything here takes, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// As many transactions as that at the same time.
async fn together(store: &Store) {
    let mut open = Vec::new();
    for _ in 0..AT_ONCE {
        open.push(store.begin().await.expect("there is a connection"));
    }
    for tx in open {
        tx.rollback().await.expect("it is undone");
    }
}

#[tokio::test]
async fn what_nobody_needs_is_given_back_and_there_again_when_it_is_asked_for() {
    let database = Database::new().await;
    for _ in 0..2 {
        together(&database.store).await;
        together(&database.store.hot()).await;
        assert!(database.store.connections().0 >= 2 * AT_ONCE);
        // One on which everything is planned is left for whoever comes next.
        let given_back = async {
            let mut ticks = interval(Duration::from_millis(50));
            while database.store.connections().0 != 1 {
                ticks.tick().await;
            }
        };
        timeout(PATIENCE, given_back).await.expect("they are given back");
    }
    database.remove().await;
}

#[tokio::test]
async fn none_is_given_back_while_many_are_asked() {
    let database = Database::new().await;
    together(&database.store).await;
    let mut askers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let store = database.store.clone();
        askers.spawn(async move {
            loop {
                store.begin().await.expect("a connection").rollback().await.expect("undone");
            }
        });
    }
    let mut ticks = interval(Duration::from_millis(50));
    let watched = async {
        loop {
            ticks.tick().await;
            let (open, _) = database.store.connections();
            assert!(open >= AT_ONCE, "only {open} are left");
        }
    };
    let seconds = timeout(Duration::from_secs(5), watched).await;
    assert!(seconds.is_err());
    askers.shutdown().await;
    database.remove().await;
}
