//! What people read: nothing of anybody else's, newest first, at a cost that does not grow with history.

use domain::ids::AllocationId;
use domain::machines::allocation::{Event, Status};
use domain::policy::ProjectRole;
use jiff::Timestamp;
use store::projects::{self, NewProject};
use store::users;
use store::views::allocations::{self, Filter};
use store::views::learnt::{self, Learnt, Like};
use testkit::{Database, Fixture, new_id};
use uuid::Uuid;

/// A user who is a member of the project of each of these allocations.
async fn member_of(database: &Database, fixtures: &[Fixture], role: ProjectRole) -> Uuid {
    let user = new_id();
    let email = format!("{user}@x.org");
    let new = users::NewUser {
        id: user,
        email: &email,
        name: "Somebody",
        operator: false,
        password_hash: None,
    };
    let made = database.in_transaction(async |tx| {
        users::insert(tx, &new).await?;
        for fixture in fixtures {
            let id = project_of(database, fixture).await;
            projects::insert(tx, NewProject { id, name: "theirs", admin: user, account: None })
                .await?;
            let _ = projects::put_member(tx, id, user, role).await?;
        }
        Ok(())
    });
    made.await.expect("they can be made");
    user
}

async fn project_of(database: &Database, fixture: &Fixture) -> Uuid {
    sqlx::query_scalar("SELECT project_id FROM allocations WHERE id = $1")
        .bind(fixture.allocation.uuid())
        .fetch_one(&database.sql)
        .await
        .expect("it is there")
}

#[tokio::test]
async fn somebody_elses_allocation_is_found_no_more_than_one_that_is_not_there() {
    let database = Database::new().await;
    let (theirs, others) = (database.allocation().await, database.allocation().await);
    let user = member_of(&database, &[theirs], ProjectRole::Admin).await;
    let find =
        async |id| allocations::find_for(&database.store, id, user).await.expect("it answers");
    let row = find(theirs.allocation).await.expect("it is theirs");
    assert_eq!((row.role, row.status, row.seq), (Some(ProjectRole::Admin), Status::Requested, 1));
    assert_eq!(row.slots, [0]);
    assert_eq!(row.node, Some(format!("node-{}", theirs.node)));
    assert_eq!(find(others.allocation).await, None);
    assert_eq!(find(AllocationId(new_id())).await, None);
    let everybodys = allocations::find(&database.store, others.allocation).await;
    assert_eq!(everybodys.expect("it answers").map(|row| row.role), Some(None));
    let mut tx = database.store.begin().await.expect("a transaction begins");
    let inside = allocations::find_in(&mut tx, others.allocation).await.expect("it answers");
    assert_eq!(inside.map(|row| row.id), Some(others.allocation.uuid()));
    tx.rollback().await.expect("it ends");
    database.remove().await;
}

#[tokio::test]
async fn a_list_is_newest_first_over_all_projects_and_goes_on_where_it_stopped() {
    let database = Database::new().await;
    let mut theirs = Vec::new();
    for _ in 0..4 {
        theirs.push(database.allocation().await);
    }
    database.allocation().await;
    let user = member_of(&database, &theirs, ProjectRole::Admin).await;
    let (second, third) = (theirs[1].allocation, theirs[2]);
    let released = database.report(second, Event::ReleaseRequested, theirs[1].provision).await;
    assert!(released.is_applied(), "{released:?}");
    let list = async |filter, limit, before| {
        let rows = allocations::list_for(&database.store, user, filter, limit, before).await;
        rows.expect("it answers").into_iter().map(|row| row.id).collect::<Vec<Uuid>>()
    };
    let mut newest: Vec<Uuid> = theirs.iter().map(|fixture| fixture.allocation.uuid()).collect();
    newest.reverse();
    assert_eq!(list(Filter::default(), 10, None).await, newest);
    assert_eq!(list(Filter::default(), 2, None).await, newest[..2]);
    assert_eq!(list(Filter::default(), 2, Some(newest[1])).await, newest[2..]);
    let releasing = Filter { status: Some(Status::Releasing), ..Filter::default() };
    assert_eq!(list(releasing, 10, None).await, [second.uuid()]);
    let project = Some(project_of(&database, &third).await);
    assert_eq!(
        list(Filter { project, ..Filter::default() }, 10, None).await,
        [third.allocation.uuid()]
    );
    let all = async |filter| {
        let rows = allocations::list_all(&database.store, filter, 10, None).await;
        rows.expect("it answers").len()
    };
    assert_eq!((all(Filter::default()).await, all(releasing).await), (5, 1));
    assert_eq!(all(Filter { project, status: Some(Status::Requested), group: None }).await, 1);
    database.remove().await;
}

/// Many that rest, and a few that wait: finding those that wait reads those alone.
#[tokio::test]
async fn operators_find_what_waits_without_reading_what_rests() {
    let database = Database::new().await;
    let fixture = database.leaving_allocation().await;
    for statement in [
        "ALTER TABLE allocations DISABLE TRIGGER USER",
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocations (id, project_id, operation_id, sku, gpus, status, seq)
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'h100', 1, 'active', 3
           FROM generate_series(1, 20000)",
        "ALTER TABLE allocations ENABLE TRIGGER USER",
        "VACUUM ANALYZE allocations",
        "SELECT pg_stat_reset()",
    ] {
        sqlx::query(statement).execute(&database.sql).await.expect("an owner may do this");
    }
    let filter = Filter { status: Some(Status::Releasing), ..Filter::default() };
    for _ in 0..10 {
        let rows = allocations::list_all(&database.store, filter, 50, None).await;
        let ids: Vec<Uuid> = rows.expect("it answers").iter().map(|row| row.id).collect();
        assert_eq!(ids, [fixture.allocation.uuid()]);
    }
    database.store.close().await;
    let (scans, read): (i64, i64) = sqlx::query_as(
        "SELECT seq_scan, (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid)
           FROM pg_stat_user_tables AS t
          WHERE relname = 'allocations'",
    )
    .fetch_one(&database.sql)
    .await
    .expect("the database counts");
    assert!(scans == 0 && read <= 100, "{scans} scans, {read} entries of indexes were read");
    database.remove().await;
}

/// Tasks that ended well, each a second after the one before.
async fn ended_tasks(
    sql: &mut sqlx::PgConnection,
    (allocation, node): (Uuid, Uuid),
    (sku, image): (&str, &str),
    (count, took): (i32, &str),
) {
    let insert = format!(
        // tidy: a forbidden write, on purpose
        "INSERT INTO node_tasks (id, node_id, allocation_id, operation_id, kind, fence, status, sku, image, created_at, ended_at)
         SELECT gen_random_uuid(), $1, $2, gen_random_uuid(), 'slice.vm_provision', 1, 'succeeded', $3, $4,
                ended.at - {took}, ended.at
           FROM generate_series(1, {count}) AS n,
                LATERAL (SELECT clock_timestamp() - ({count} - n) * interval '1 second' AS at) AS ended"
    );
    let made = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(node).bind(allocation);
    made.bind(sku).bind(image).execute(sql).await.expect("an owner may do this");
}

#[tokio::test]
async fn what_usually_happens_is_learnt_from_the_last_of_the_same_sort_whatever_the_history() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let place = (fixture.allocation.uuid(), fixture.node.uuid());
    let mut sql = database.sql.acquire().await.expect("it connects");
    for statement in [
        "SET session_replication_role = replica",
        "INSERT INTO images (code, name, sha256) VALUES ('a', 'A', ''), ('b', 'B', '')",
        "INSERT INTO skus (code, name, shape, gpu_model, gpus_allowed, price_micros_per_gpu_second, currency)
         VALUES ('h100', 'H', 'gpu_slice', 'H', '{1}', 1, 'USD')",
        "INSERT INTO sku_images (sku, image, position) VALUES ('h100', 'a', 1), ('h100', 'b', 2)",
    ] {
        sqlx::query(statement).execute(&mut *sql).await.expect("an owner may do this");
    }
    // A long history of another SKU that took a day each, and of ours: 100 s once, 1 to 200 s lately, and another image.
    ended_tasks(&mut sql, place, ("other", "a"), (100_000, "interval '1 day'")).await;
    ended_tasks(&mut sql, place, ("h100", "a"), (250, "100 * interval '1 second'")).await;
    ended_tasks(&mut sql, place, ("h100", "a"), (200, "n * interval '1 second'")).await;
    ended_tasks(&mut sql, place, ("h100", "b"), (3, "1000 * interval '1 second'")).await;
    sqlx::query("ANALYZE node_tasks").execute(&mut *sql).await.expect("an owner may do this");
    drop(sql);
    let before = Timestamp::now() + jiff::SignedDuration::from_secs(60);
    let ask = async |kind, sku, image| {
        let like = Like { sku, image, before };
        learnt::tasks(&database.store, kind, like).await.expect("it answers")
    };
    // More than a plan is made anew for.
    for _ in 0..10 {
        let learnt = ask("slice.vm_provision", "h100", "a").await;
        assert_eq!(learnt.by_image.count, 200);
        assert!((learnt.by_image.p90_seconds - 180.1).abs() < 25.0, "{learnt:?}");
        assert!(learnt.by_sku.count == 200 && learnt.by_kind.count == 200, "{learnt:?}");
        let rare = ask("slice.vm_provision", "h100", "b").await;
        assert_eq!((rare.by_image.count, rare.by_sku.count), (3, 200));
        assert!(rare.by_sku.p90_seconds < 1_000.0, "{rare:?}");
        let none = ask("slice.vm_release", "h100", "a").await;
        assert_eq!(none, Learnt::default());
    }
    database.store.close().await;
    let (scans, read): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname = 'node_tasks'),
                (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'node_tasks')",
    )
    .fetch_one(&database.sql)
    .await
    .expect("the database counts");
    // Thirty questions, each of at most 200 of the image, 200 of each of two images, and 200 of the kind.
    assert!(scans <= 110_000 && read <= 30 * 900, "{scans} rows and {read} entries were read");
    database.remove().await;
}

#[tokio::test]
async fn how_long_it_takes_until_it_is_ready_is_learnt_too() {
    let database = Database::new().await;
    let like = Like { sku: "h100", image: "a", before: Timestamp::now() };
    let learnt = learnt::allocations(&database.store, like).await.expect("it answers");
    assert_eq!(learnt, Learnt::default());
    database.remove().await;
}
