//! Statuses that follow: groups from their members, balances from their amounts, in the same transaction.

use domain::derived::allocation_group::MemberView;
use domain::derived::{allocation_group, balance};
use domain::ids::{AccountId, AllocationGroupId, OperationId};
use domain::machines::allocation::{Event, Status};
use domain::machines::{AllocationGroup, Balance};
use lifecycle::{Code as _, Machine as _, Source};
use store::lifecycle::Birth;
use store::{Error, accounts, allocation_groups};
use testkit::{Database, Fixture, actor, new_id};

async fn group_status(database: &Database, id: AllocationGroupId) -> allocation_group::Status {
    let folded = database
        .in_transaction(async |tx| allocation_groups::fold(tx, id).await)
        .await
        .expect("it folds");
    assert_eq!(folded.0, folded.1, "the stored status is the fold");
    folded.0
}

async fn activate(database: &Database, member: &Fixture) {
    assert!(
        database
            .report(member.allocation, Event::ProvisionStarted, member.provision)
            .await
            .is_applied()
    );
    assert!(
        database
            .report(member.allocation, Event::ProvisionSucceeded, member.provision)
            .await
            .is_applied()
    );
}

#[tokio::test]
async fn a_group_follows_its_members_through_their_whole_life() {
    use allocation_group::Status as Group;
    let database = Database::new().await;
    let group = database.group().await;
    let one = database.member_of(Some((group, true))).await;
    let two = database.member_of(Some((group, true))).await;
    assert_eq!(group_status(&database, group).await, Group::Requested);

    activate(&database, &one).await;
    assert_eq!(group_status(&database, group).await, Group::Provisioning);
    activate(&database, &two).await;
    assert_eq!(group_status(&database, group).await, Group::Active);

    let restart = OperationId(new_id());
    assert!(database.report(two.allocation, Event::RestartRequested, restart).await.is_applied());
    assert_eq!(
        group_status(&database, group).await,
        Group::Active,
        "a reboot takes nothing from the group"
    );
    assert!(
        database.report(two.allocation, Event::RestartFailedToReturn, restart).await.is_applied()
    );
    assert_eq!(group_status(&database, group).await, Group::Degraded);

    let asked = database.in_transaction(async |tx| {
        allocation_groups::request_release(tx, group, "the owner").await
    });
    assert!(asked.await.expect("it answers").expect("it moves").landed_on(Group::Releasing));
    for member in [&one, &two] {
        let release = OperationId(new_id());
        let asked = database.report(member.allocation, Event::ReleaseRequested, release).await;
        assert!(asked.is_applied());
        assert!(
            database
                .report(member.allocation, Event::ReleaseCompleted, release)
                .await
                .landed_on(Status::Released)
        );
    }
    assert_eq!(group_status(&database, group).await, Group::Released);
    let again = database.in_transaction(async |tx| {
        allocation_groups::request_release(tx, group, "the owner").await
    });
    assert_eq!(again.await.expect("it answers"), None, "what has ended is not released again");

    let log = database
        .store
        .transitions(AllocationGroup::NAME, group.uuid())
        .await
        .expect("the log can be read");
    let path: Vec<&str> = log.iter().map(|step| step.to.as_str()).collect();
    assert_eq!(path, ["requested", "provisioning", "active", "degraded", "releasing", "released"]);
    assert!(
        log[1].cause.as_deref().is_some_and(|cause| cause.contains(&one.allocation.to_string())),
        "{log:?}"
    );
    database.remove().await;
}

#[tokio::test]
async fn a_group_that_rolls_back_with_its_member_has_not_moved() {
    let database = Database::new().await;
    let group = database.group().await;
    let member = database.member_of(Some((group, true))).await;
    let mut tx = database.store.begin().await.expect("a transaction begins");
    let report = crate::report(Event::ProvisionStarted, Source::Worker);
    let outcome =
        store::allocations::report(&mut tx, member.allocation, &report).await.expect("it answers");
    assert!(outcome.is_applied());
    tx.rollback().await.expect("it rolls back");
    assert_eq!(group_status(&database, group).await, allocation_group::Status::Requested);
    database.remove().await;
}

#[tokio::test]
async fn a_group_that_is_not_there_can_be_neither_folded_nor_released() {
    let database = Database::new().await;
    let nobody = AllocationGroupId(new_id());
    let folded =
        database.in_transaction(async |tx| allocation_groups::fold(tx, nobody).await).await;
    assert!(matches!(folded, Err(Error::Unborn { .. })), "{folded:?}");
    let asked = database
        .in_transaction(async |tx| allocation_groups::request_release(tx, nobody, "x").await)
        .await;
    assert_eq!(asked.expect("it answers"), None);
    database.remove().await;
}

async fn set_balance(database: &Database, id: AccountId, minor: i64) {
    sqlx::query("UPDATE accounts SET balance_minor = $2 WHERE id = $1")
        .bind(id.uuid())
        .bind(minor)
        .execute(&database.sql)
        .await
        .expect("a balance is not a status");
}

#[tokio::test]
async fn a_balance_says_each_crossing_once() {
    let database = Database::new().await;
    let id = AccountId(new_id());
    let birth = Birth::new(domain::ids::EventId(new_id()), actor(Source::Worker));
    let new = accounts::NewAccount {
        id,
        owner: None,
        currency: "EUR".to_owned(),
        low_balance_threshold_minor: 1_000,
    };
    let made = database.in_transaction(async |tx| accounts::insert(tx, &new, &birth).await);
    assert!(made.await.expect("an account can be made"));
    for minor in [5_000, 5_000, 1_000, 900, -3, -5, 10, 2_000] {
        set_balance(&database, id, minor).await;
        for _look in 0..3 {
            let looked =
                database.in_transaction(async |tx| accounts::refold(tx, id, "a look").await).await;
            if let Some(outcome) = looked.expect("it answers") {
                assert!(outcome.landed_on(balance::derive(minor, 1_000)), "{outcome:?}");
            }
        }
    }
    let log =
        database.store.transitions(Balance::NAME, id.uuid()).await.expect("the log can be read");
    let events: Vec<&str> = log.iter().map(|step| step.event.as_str()).collect();
    let crossings = [
        "balance.depleted",
        "balance.recovered",
        "balance.low",
        "balance.depleted",
        "balance.lifted",
    ];
    assert_eq!(events, [["born"].as_slice(), &crossings, &["balance.recovered"]].concat());
    let missing = database
        .in_transaction(async |tx| accounts::refold(tx, AccountId(new_id()), "x").await)
        .await;
    assert_eq!(missing.expect("it answers"), None);
    database.remove().await;
}

/// Every group of up to three members in every status, required or not, asked to release or not: the checker's account of
/// the fold agrees with the domain's, and disagrees with any other status.
#[tokio::test]
async fn the_checker_folds_groups_as_the_domain_does() {
    let database = Database::new().await;
    let both =
        |status: &Status| [true, false].map(|required| MemberView { status: *status, required });
    let every: Vec<MemberView> = Status::ALL.iter().flat_map(both).collect();
    let mut groups: Vec<Vec<MemberView>> = vec![vec![]];
    for (first, one) in every.iter().enumerate() {
        groups.push(vec![*one]);
        for (second, two) in every.iter().enumerate().skip(first) {
            groups.push(vec![*one, *two]);
            groups.extend(every.iter().skip(second).map(|three| vec![*one, *two, *three]));
        }
    }
    let mut sql = database.sql.acquire().await.expect("it connects");
    for statement in [
        "SET session_replication_role = replica",
        "CREATE TEMPORARY TABLE told (id uuid, leaving boolean, folded text, statuses text[], required boolean[])",
    ] {
        sqlx::query(statement).execute(&mut *sql).await.expect("an owner may do this");
    }
    for members in &groups {
        for leaving in [false, true] {
            let folded = allocation_group::derive(leaving, members);
            let statuses: Vec<&str> = members.iter().map(|member| member.status.code()).collect();
            let required: Vec<bool> = members.iter().map(|member| member.required).collect();
            sqlx::query("INSERT INTO told VALUES (gen_random_uuid(), $1, $2, $3, $4)")
                .bind(leaving)
                .bind(folded.code())
                .bind(statuses)
                .bind(required)
                .execute(&mut *sql)
                .await
                .expect("it is told");
        }
    }
    for statement in [
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocation_groups (id, project_id, status, release_requested_at)
         SELECT id, id, folded, CASE WHEN leaving THEN clock_timestamp() END FROM told",
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocations (id, project_id, group_id, required, operation_id, sku, gpus, status)
         SELECT gen_random_uuid(), told.id, told.id, member.required, told.id, 's', 1, member.status
           FROM told CROSS JOIN LATERAL unnest(told.statuses, told.required) AS member (status, required)",
    ] {
        sqlx::query(statement).execute(&mut *sql).await.expect("it is written");
    }
    let told = async || {
        let findings = store::audit::run(&database.store).await.expect("it answers");
        let mine = findings.into_iter().find(|(invariant, ..)| invariant.name == "I21");
        let (_, rows, count) = mine.expect("it is asked");
        (rows, count)
    };
    let (rows, count) = told().await;
    assert_eq!(count, 0, "the two accounts differ: {rows:?}");
    // tidy: a forbidden write, on purpose
    let other = "UPDATE allocation_groups SET status = CASE status WHEN 'active' THEN 'degraded' ELSE 'active' END";
    sqlx::query(other).execute(&mut *sql).await.expect("an owner may do this");
    let all = i64::try_from(groups.len() * 2).expect("few");
    assert_eq!(told().await.1, all, "a wrong status went unnoticed");
    drop(sql);
    database.remove().await;
}
