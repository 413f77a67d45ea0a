//! The private Postgres: found again with everything in it, and clear about what is in its way.

use std::path::PathBuf;

use sqlx::{Connection as _, PgConnection};
use store::cluster::{Cluster, ClusterError, Durability};
use testkit::new_id;

fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("berth-cluster-{}", new_id().simple()))
}

#[tokio::test]
async fn a_cluster_that_is_started_again_has_kept_everything() {
    let place = directory();
    for start in 0..2 {
        let cluster = Cluster::start(&place, Durability::Full).expect("it starts");
        let mut connection =
            PgConnection::connect(&cluster.url("postgres")).await.expect("it answers");
        if start == 0 {
            sqlx::query("CREATE TABLE kept AS SELECT 42 AS number")
                .execute(&mut connection)
                .await
                .expect("a table");
        }
        let number: i32 = sqlx::query_scalar("SELECT number FROM kept")
            .fetch_one(&mut connection)
            .await
            .expect("it is there");
        assert_eq!(number, 42);
        let listening: String = sqlx::query_scalar("SHOW listen_addresses")
            .fetch_one(&mut connection)
            .await
            .expect("it says");
        assert_eq!(listening, "", "nobody reaches it from outside");
        connection.close().await.expect("it closes");
        drop(cluster);
    }
    std::fs::remove_dir_all(place).expect("it is ours");
}

/// Whoever killed its parent starts it anew while the old server is still on its way out.
#[test]
fn a_start_waits_for_the_server_before_it_to_end() {
    let place = directory();
    let before = Cluster::start(&place, Durability::None).expect("it starts");
    let again = {
        let place = place.clone();
        // The server ends with the thread that started it, so it is looked at there.
        std::thread::spawn(move || Cluster::start(&place, Durability::None).map(drop))
    };
    drop(before);
    let answer = again.join().expect("no panic");
    assert!(answer.is_ok(), "{answer:?}");
    std::fs::remove_dir_all(place).expect("it is ours");
}

#[test]
fn a_directory_that_is_too_deep_for_a_socket_is_refused_before_anything_is_made() {
    let deep = directory().join("x".repeat(100));
    let error = Cluster::start(&deep, Durability::None).expect_err("the socket would not fit");
    assert!(matches!(error, ClusterError::PathTooLong(_)), "{error:?}");
    assert!(error.to_string().contains("at most"), "it says what to do: {error}");
    assert!(!deep.exists());
}

#[test]
fn a_server_that_does_not_come_up_names_its_log() {
    let place = directory();
    std::fs::create_dir_all(place.join("data")).expect("a directory");
    let error = Cluster::start(&place, Durability::None).expect_err("there is no cluster in there");
    assert!(
        matches!(&error, ClusterError::NotReady(log) if log.ends_with("server.log")),
        "{error:?}"
    );
    std::fs::remove_dir_all(place).expect("it is ours");
}
