//! App instances: bound to what lives, with roles of their own, and touched by nothing.

use control::app_instance;
use control::{Error, allocation_group};
use domain::ids::{AllocationGroupId, AppInstanceId, EventId, OperationId};
use domain::machines::allocation::Event;
use lifecycle::Source;
use store::lifecycle::Report;
use testkit::{House, actor, new_id};
use uuid::Uuid;
use wire::http::app_instances::{AppInstance, AppMembers, NewAppInstance, NewAppMember};

fn asked(house: &House, allocation: Option<Uuid>, group: Option<Uuid>) -> NewAppInstance {
    NewAppInstance {
        project_id: house.project,
        name: "my cluster".to_owned(),
        app: "ray".to_owned(),
        allocation_id: allocation,
        group_id: group,
        members: Vec::new(),
    }
}

fn part(allocation_id: Uuid, role: &str) -> NewAppMember {
    NewAppMember { allocation_id, role: role.to_owned() }
}

async fn make(house: &House, new: &NewAppInstance) -> Result<AppInstance, Error> {
    Ok(app_instance::create(&house.ctx, &house.tenant, new, None).await?.body)
}

async fn show(house: &House, id: Uuid) -> AppInstance {
    app_instance::show(&house.ctx, &house.tenant, AppInstanceId(id)).await.expect("it is theirs")
}

#[tokio::test]
async fn an_instance_keeps_its_roles_and_shows_where_its_group_stands() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let group = house.group("h100.slice", &[2, 2]).await.expect("it fits");
    let other = house.create("h100.slice", 1).await.expect("it fits").id;
    let [head, worker] = [group.members[0].id, group.members[1].id];
    let mut new = asked(&house, None, Some(group.id));
    new.members = vec![part(head, "head"), part(worker, "worker")];
    let made = make(&house, &new).await.expect("bound");
    assert_eq!((made.bound_status.as_str(), made.members.len()), ("requested", 2));
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(
        (shown.bound_status.as_str(), shown.members[0].status.as_str()),
        ("active", "active")
    );

    let id = AppInstanceId(made.id);
    let swapped = AppMembers { members: vec![part(worker, "head")] };
    let put = app_instance::put_members(&house.ctx, &house.tenant, id, &swapped, None).await;
    let roles: Vec<_> = put.expect("changed").body.members;
    assert_eq!((roles.len(), roles[0].allocation_id, roles[0].role.as_str()), (1, worker, "head"));
    let stray = AppMembers { members: vec![part(head, "head"), part(other, "spy")] };
    let put = app_instance::put_members(&house.ctx, &house.tenant, id, &stray, None).await;
    let Err(Error::Invalid(faults)) = put else { panic!("{put:?}") };
    assert_eq!(faults[0].pointer, "/members/1/allocation_id");

    let key = house.key("release_allocation_group");
    let group = AllocationGroupId(group.id);
    allocation_group::release::request(&house.ctx, &house.tenant, group, Some(&key))
        .await
        .expect("asked");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(
        (shown.bound_status.as_str(), shown.ended_at),
        ("released", None),
        "it is told, not ended"
    );
    let late = make(&house, &new).await;
    let Err(Error::Conflict(said)) = late else { panic!("{late:?}") };
    assert!(said.contains("released"), "{said}");
    let ended = app_instance::end(&house.ctx, &house.tenant, id, None).await.expect("ended").body;
    assert!(ended.ended_at.is_some() && ended.allowed_actions.is_empty());
    let again = app_instance::end(&house.ctx, &house.tenant, id, None).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
    house.close().await;
}

/// Its row and its roles are compared before and after.
#[tokio::test]
async fn a_restart_of_what_it_is_bound_to_leaves_an_instance_untouched() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let id = house.active("h100.slice", 1).await.id;
    let mut new = asked(&house, Some(id), None);
    new.members = vec![part(id, "head")];
    let made = make(&house, &new).await.expect("bound");
    let restart = OperationId(new_id());
    for (event, by) in
        [(Event::RestartRequested, Source::User), (Event::RestartCompleted, Source::Worker)]
    {
        let report = Report::new(event, EventId(new_id()), actor(by)).about(restart);
        let mut tx = house.ctx.store.begin().await.expect("a transaction");
        let told = store::allocations::report(&mut tx, id.into(), &report).await.expect("heard");
        assert!(told.is_applied(), "{told:?}");
        tx.commit().await.expect("committed");
        let shown = show(&house, made.id).await;
        assert_eq!(
            (&shown.members[0].role, shown.created_at),
            (&made.members[0].role, made.created_at)
        );
    }
    assert_eq!(show(&house, made.id).await, show(&house, made.id).await);
    house.close().await;
}

#[tokio::test]
async fn a_wrong_request_says_what_is_wrong_and_strangers_find_nothing() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let fine = asked(&house, Some(id), None);
    let mut shouting = fine.clone();
    shouting.members = vec![part(id, "HEAD OF ALL")];
    let mut twice = fine.clone();
    twice.members = vec![part(id, "a"), part(id, "b")];
    for (wrong, pointer) in [
        (asked(&house, None, None), "/allocation_id"),
        (asked(&house, Some(id), Some(id)), "/allocation_id"),
        (asked(&house, Some(new_id()), None), "/allocation_id"),
        (asked(&house, None, Some(id)), "/group_id"),
        (NewAppInstance { app: "Ray 2".to_owned(), ..fine.clone() }, "/app"),
        (NewAppInstance { name: " ".to_owned(), ..fine.clone() }, "/name"),
        (shouting, "/members/0/role"),
        (twice, "/members/1/allocation_id"),
    ] {
        let answer = make(&house, &wrong).await;
        let Err(Error::Invalid(faults)) = answer else { panic!("{answer:?}") };
        assert_eq!(faults[0].pointer, pointer, "{faults:?}");
    }
    let made = make(&house, &fine).await.expect("bound");
    let foreign = app_instance::create(&house.ctx, &house.operator, &fine, None).await;
    assert!(matches!(foreign, Err(Error::NotFound("project"))), "{foreign:?}");
    for answer in [
        app_instance::show(&house.ctx, &house.operator, AppInstanceId(made.id)).await.err(),
        app_instance::end(&house.ctx, &house.operator, AppInstanceId(made.id), None).await.err(),
    ] {
        assert!(matches!(answer, Some(Error::NotFound(_))), "{answer:?}");
    }
    let listed =
        app_instance::list(&house.ctx, &house.tenant, None, None, None).await.expect("a page");
    assert_eq!(listed.items.len(), 1);
    house.close().await;
}
