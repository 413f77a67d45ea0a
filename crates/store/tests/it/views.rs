//! What people read: nothing of anybody else's, newest first, at a cost that does not grow with history.

use domain::ids::AllocationId;
use domain::machines::allocation::{Event, Status};
use domain::policy::ProjectRole;
use jiff::Timestamp;
use store::projects::{self, NewProject};
use store::users;
use store::views::allocations::{self, Filter};
use store::views::timeline;
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
            projects::insert(tx, NewProject { id, name: "theirs", admin: user }).await?;
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
    let releasing = Filter { project: None, status: Some(Status::Releasing) };
    assert_eq!(list(releasing, 10, None).await, [second.uuid()]);
    let project = Some(project_of(&database, &third).await);
    assert_eq!(list(Filter { project, status: None }, 10, None).await, [third.allocation.uuid()]);
    let all = async |filter| {
        let rows = allocations::list_all(&database.store, filter, 10, None).await;
        rows.expect("it answers").len()
    };
    assert_eq!((all(Filter::default()).await, all(releasing).await), (5, 1));
    assert_eq!(all(Filter { project, status: Some(Status::Requested) }).await, 1);
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
    let filter = Filter { project: None, status: Some(Status::Releasing) };
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

#[tokio::test]
async fn what_usually_happens_is_learnt_from_the_last_of_the_same_sort() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let (allocation, node) = (fixture.allocation.uuid(), fixture.node.uuid());
    let mut sql = database.sql.acquire().await.expect("it connects");
    for statement in [
        "SET session_replication_role = replica",
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocations (id, project_id, operation_id, sku, gpus) VALUES
            ('00000000-0000-0000-0000-000000000001', gen_random_uuid(), gen_random_uuid(), 'other', 1)",
    ] {
        sqlx::query(statement).execute(&mut *sql).await.expect("an owner may do this");
    }
    // 250 that took 100 seconds, then the last 200: 1 to 200 seconds; and one of another SKU that took a day.
    let ended = [
        (250, "100 * interval '1 second'", allocation),
        (200, "n * interval '1 second'", allocation),
        (1, "interval '1 day'", Uuid::from_u128(1)),
    ];
    for (count, took, allocation) in ended {
        let insert = format!(
            // tidy: a forbidden write, on purpose
            "INSERT INTO node_tasks (id, node_id, allocation_id, operation_id, kind, fence, status, created_at, ended_at)
             SELECT gen_random_uuid(), $1, $2, gen_random_uuid(), 'slice.vm_provision', 1, 'succeeded',
                    clock_timestamp() - {took}, clock_timestamp()
               FROM generate_series(1, {count}) AS n"
        );
        let made = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(node).bind(allocation);
        made.execute(&mut *sql).await.expect("an owner may do this");
    }
    let soon = Timestamp::now() + jiff::SignedDuration::from_secs(60);
    let ask = async |kind| timeline::durations(&database.store, kind, "h100", soon).await;
    let learnt = ask("slice.vm_provision").await.expect("it answers");
    assert_eq!(learnt.count, 200);
    assert!((learnt.p50_seconds - 100.5).abs() < 0.1, "{learnt:?}");
    assert!((learnt.p90_seconds - 180.1).abs() < 0.1, "{learnt:?}");
    assert_eq!(ask("slice.vm_release").await.expect("it answers").count, 0);
    drop(sql);
    database.remove().await;
}
