//! Groups: all or none, followed by their status, given back together; R37.

use std::time::Duration;

use control::allocation::release as of_one;
use control::allocation_group::{create, release, view};
use control::idempotency::{Answer, Key};
use control::{Error, catalogue};
use domain::derived::allocation_group::Status;
use domain::ids::{AllocationGroupId, AllocationId, EventId, OperationId};
use domain::machines::AllocationGroup as Machine;
use domain::machines::allocation::{Event, Status as Member};
use lifecycle::{Machine as _, Source};
use store::lifecycle::Report;
use testkit::{Act, House, Statements, actor, new_id};
use uuid::Uuid;
use wire::http::allocation_groups::{AllocationGroup, NewGroup, NewMember};
use wire::http::allocations::ForceRelease;
use wire::node::FailureReason;

const SKU: &str = "h100.slice";

fn member(gpus: i16) -> NewMember {
    NewMember {
        sku: SKU.to_owned(),
        gpus,
        region: "eu-1".to_owned(),
        image: None,
        name: None,
        required: None,
        ssh_key_ids: None,
        count: None,
    }
}

fn optional(gpus: i16) -> NewMember {
    NewMember { required: Some(false), ..member(gpus) }
}

fn of(house: &House, members: &[NewMember]) -> NewGroup {
    let (members, ssh_key_ids) = (members.to_vec(), Vec::new());
    NewGroup { project_id: house.project, name: None, members, ssh_key_ids }
}

async fn ask(house: &House, members: &[NewMember]) -> Result<AllocationGroup, Error> {
    let key = house.key("create_allocation_group");
    let asked = of(house, members);
    Ok(create::request(&house.ctx, &house.tenant, &asked, &key).await?.body)
}

async fn show(house: &House, id: Uuid) -> AllocationGroup {
    view::show(&house.ctx, &house.tenant, AllocationGroupId(id)).await.expect("it is theirs")
}

async fn status(house: &House, id: Uuid) -> Status {
    show(house, id).await.status.0
}

async fn give_back(house: &House, id: Uuid) -> Result<Answer<AllocationGroup>, Error> {
    let key = house.key("release_allocation_group");
    release::request(&house.ctx, &house.tenant, AllocationGroupId(id), Some(&key)).await
}

/// How often each member was asked to release.
async fn asked(house: &House, group: &AllocationGroup) -> Vec<usize> {
    let mut counts = Vec::new();
    for member in &group.members {
        let published = house.published(member.id).await;
        counts.push(published.iter().filter(|each| each.ends_with("releasing.requested")).count());
    }
    counts
}

async fn report(house: &House, id: Uuid, event: Event, operation: OperationId, by: Source) {
    let report = Report::new(event, EventId(new_id()), actor(by)).about(operation);
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let told = store::allocations::report(&mut tx, AllocationId(id), &report).await.expect("heard");
    assert!(told.is_applied(), "{told:?}");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn all_members_are_held_when_the_answer_comes_in_the_order_of_the_request() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 1]).await;
    house.node(SKU, &[0; 8]).await;
    house.node(SKU, &[0; 8]).await;
    let workers = NewMember { name: Some("worker".to_owned()), count: Some(2), ..member(4) };
    let made = ask(&house, &[optional(1), workers, member(8)]).await.expect("it fits");
    assert_eq!(made.status.0, Status::Requested);
    let named: Vec<&str> = made.members.iter().map(|each| each.name.as_str()).collect();
    assert_eq!(named[1..3], ["worker-1", "worker-2"], "in the order of the request");
    assert_eq!(made.members.iter().map(|each| each.gpus).collect::<Vec<_>>(), [1, 4, 4, 8]);
    assert!(
        made.members
            .iter()
            .all(|each| each.slots.len() == usize::try_from(each.gpus).expect("few"))
    );
    house.close().await;
}

/// 18 of 16: nothing is kept, not even the first members, and the refusal names who has no place.
#[tokio::test]
async fn one_member_too_many_and_none_is_had() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    house.node(SKU, &[0; 8]).await;
    let last = NewMember { name: Some("straw".to_owned()), ..member(2) };
    let refused = ask(&house, &[member(8), member(4), member(4), last.clone()]).await;
    let Err(Error::SkuUnavailable { detail, .. }) = refused else { panic!("{refused:?}") };
    assert!(detail.contains("all 4 members") && detail.contains("straw"), "{detail}");
    assert!(detail.contains("/members/3"), "{detail}");
    let mut kept = 0;
    for table in ["allocations", "claims", "allocation_groups", "idempotency_keys"] {
        kept += house.rows(table).await;
    }
    assert_eq!(kept, 0, "something was kept of a group that was refused");
    ask(&house, &[member(8), member(4), member(4)]).await.expect("without it they fit");
    house.close().await;
}

/// A SKU that is sold in threes too, on two machines.
async fn odd_house() -> House {
    let mut house = House::open().await;
    let mut offer = catalogue::demonstration();
    for sku in &mut offer.skus {
        if sku.code == SKU {
            sku.gpus_allowed = vec![1, 2, 3, 4, 6, 8];
        }
    }
    catalogue::install(&house.ctx, &offer).await.expect("an offer");
    house.node(SKU, &[0; 8]).await;
    house.node(SKU, &[0; 8]).await;
    house
}

/// One by one, 4 and 3 go together and the last 2 has no place; 4 2 2 and 3 3 2 is how they fit.
#[tokio::test]
async fn what_fits_in_any_way_at_all_is_not_refused() {
    let house = odd_house().await;
    let made = ask(&house, &[4, 3, 3, 2, 2, 2].map(member)).await.expect("it fits exactly");
    assert_eq!(made.members.len(), 6);
    let again = ask(&house, &[member(1)]).await;
    assert!(matches!(again, Err(Error::SkuUnavailable { .. })), "nothing is left: {again:?}");
    house.close().await;
}

/// Both machines have four, but only one has the second image: whoever needs it must get it.
#[tokio::test]
async fn a_member_does_not_take_the_only_machine_that_suits_another() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 4]).await;
    let plain = house.node(SKU, &[0; 4]).await.identity.node_id;
    house.lose_image(plain, "rocky-9-cuda").await;
    let rocky = NewMember { image: Some("rocky-9-cuda".to_owned()), ..member(4) };
    let made = ask(&house, &[member(4), rocky]).await.expect("there is a way");
    assert_ne!(made.members[0].node, made.members[1].node);
    house.close().await;
}

#[tokio::test]
async fn a_repeated_request_is_answered_and_not_done_again_and_a_wrong_one_says_what_is_wrong() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let wanted = of(&house, &[member(2), member(2)]);
    let key = |body: &[u8]| Key::of(house.tenant.user_id, "create_allocation_group", "mine", body);
    let first =
        create::request(&house.ctx, &house.tenant, &wanted, &key(b"a")).await.expect("made");
    let again =
        create::request(&house.ctx, &house.tenant, &wanted, &key(b"a")).await.expect("known");
    assert!(again.replayed && again.body == first.body);
    let other = create::request(&house.ctx, &house.tenant, &wanted, &key(b"b")).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch)), "{other:?}");

    let many = NewMember { count: Some(20), ..member(1) };
    for (members, pointer) in [
        (vec![], "/members"),
        (vec![many.clone(), many], "/members"),
        (vec![NewMember { count: Some(0), ..member(1) }], "/members/0/count"),
        (vec![member(1), member(0)], "/members/1/gpus"),
        (
            vec![NewMember { ssh_key_ids: Some(vec![new_id()]), ..member(1) }],
            "/members/0/ssh_key_ids/0",
        ),
    ] {
        let refused = ask(&house, &members).await;
        let Err(Error::Invalid(faults)) = refused else { panic!("{refused:?}") };
        assert_eq!(faults[0].pointer, pointer, "{faults:?}");
    }
    let unknown = NewMember { sku: "h200".to_owned(), ..member(1) };
    let refused = ask(&house, &[member(1), unknown]).await;
    let Err(Error::SkuUnavailable { detail, .. }) = refused else { panic!("{refused:?}") };
    assert!(detail.starts_with("member 1: there is no SKU"), "{detail}");
    let key = house.key("create_allocation_group");
    let foreign = create::request(&house.ctx, &house.operator, &wanted, &key).await;
    assert!(matches!(foreign, Err(Error::NotFound("project"))), "{foreign:?}");
    house.close().await;
}

/// Groups and single requests at once, for more than there is: no double booking, no deadlock, and nothing is left over
/// that would have fitted.
#[tokio::test]
async fn groups_at_once_are_all_or_none_and_refuse_nothing_that_fits() {
    let mut house = House::open().await;
    for _ in 0..4 {
        house.node(SKU, &[0; 8]).await;
    }
    let groups =
        (0..10).map(|_| async { ask(&house, &[member(4), member(2), member(1)]).await.is_ok() });
    let singles = (0..8).map(|_| async { house.create(SKU, 1).await.is_ok() });
    let (groups, singles) =
        tokio::join!(futures::future::join_all(groups), futures::future::join_all(singles));
    let groups = groups.into_iter().filter(|made| *made).count();
    let singles = singles.into_iter().filter(|made| *made).count();
    let taken = house.rows("claims").await;
    assert_eq!(usize::try_from(taken).expect("few"), groups * 7 + singles);
    assert!(
        groups >= 3 && 32 - taken < 7,
        "{groups} groups and {singles} singles hold {taken} of 32"
    );
    house.close().await;
}

#[tokio::test]
async fn a_group_is_given_back_as_a_whole_and_proven_member_by_member() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let made = ask(&house, &[member(4), member(2), optional(1)]).await.expect("it fits");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Active);
    assert!(shown.members.iter().all(|each| each.access.is_some()));
    assert!(shown.version > made.version);
    let answer = give_back(&house, made.id).await.expect("asked");
    assert_eq!((answer.status, answer.body.status.0), (202, Status::Releasing));
    assert!(answer.body.allowed_actions.is_empty(), "it was just asked for");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Released);
    assert!(shown.members.iter().all(|each| each.status.0 == Member::Released));
    assert_eq!(asked(&house, &made).await, [1, 1, 1]);
    let late = give_back(&house, made.id).await;
    let Err(Error::Conflict(said)) = late else { panic!("{late:?}") };
    assert_eq!(said, "it is released: there is nothing left to release");
    house.close().await;
}

/// R37: the same key and other keys, all at once.
#[tokio::test]
async fn a_group_that_is_given_back_by_many_at_once_is_given_back_once() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let made = ask(&house, &[member(4), member(2)]).await.expect("it fits");
    house.settle().await;
    let id = AllocationGroupId(made.id);
    let same = || Key::of(house.tenant.user_id, "release_allocation_group", "mine", b"");
    let (ctx, tenant) = (&house.ctx, &house.tenant);
    let once = |key: Key| async move { release::request(ctx, tenant, id, Some(&key)).await };
    let keys =
        (0..6).map(|n| if n % 2 == 0 { same() } else { house.key("release_allocation_group") });
    let answers = futures::future::join_all(keys.map(once)).await;
    for answer in answers {
        match answer {
            Ok(answer) => assert_eq!(answer.body.status.0, Status::Releasing),
            Err(error) => assert!(matches!(error, Error::IdempotencyInFlight), "{error:?}"),
        }
    }
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Released);
    assert_eq!(asked(&house, &made).await, [1, 1]);
    house.close().await;
}

/// R37: a member's clean-up gives up, the group says so, and the retry touches only what is left.
#[tokio::test]
async fn a_retry_after_a_failed_clean_up_asks_only_the_members_that_are_left() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 4]).await;
    house.node(SKU, &[0; 4]).await;
    let made = ask(&house, &[member(4), member(4)]).await.expect("it fits");
    house.settle().await;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    give_back(&house, made.id).await.expect("asked");
    for _ in 0..6 {
        house.pass(Duration::from_secs(61)).await;
    }
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::ReleaseFailed, "{shown:?}");
    assert!(shown.status_text.contains("1 of 2") && !shown.allowed_actions.is_empty());
    give_back(&house, made.id).await.expect("asked again");
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Released);
    let mut counts = asked(&house, &made).await;
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "the one that was gone was asked again");
    let log = house.ctx.store.transitions(Machine::NAME, made.id).await.expect("a log");
    let path: Vec<&str> = log.iter().map(|step| step.to.as_str()).collect();
    assert_eq!(path[2..], ["active", "releasing", "release_failed", "releasing", "released"]);
    house.close().await;
}

/// R37: a member that fails to come up, and one that never answers.
#[tokio::test]
async fn a_member_that_fails_or_never_answers_degrades_the_group_and_does_not_hold_up_its_release()
{
    let mut house = House::open().await;
    house.node(SKU, &[0; 4]).await;
    house.node(SKU, &[0; 4]).await;
    house.first_node().will(&[Act::Fail(FailureReason::SshNotReady)]);
    let made = ask(&house, &[member(4), member(4)]).await.expect("it fits");
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Degraded);
    give_back(&house, made.id).await.expect("asked");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Released);
    let mut ends: Vec<String> = shown.members.iter().map(|each| each.status.to_string()).collect();
    ends.sort();
    assert_eq!(ends, ["failed", "released"]);

    house.first_node().will(&[Act::FallSilent]);
    let made = ask(&house, &[member(4), member(4)]).await.expect("it fits again");
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Provisioning);
    give_back(&house, made.id).await.expect("cancelled");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Released, "{shown:?}");
    let usable = shown.members.iter().filter(|each| each.status.0 == Member::Released).count();
    assert_eq!(usable, 2);
    house.close().await;
}

#[tokio::test]
async fn a_group_that_is_cancelled_before_anything_began_is_over_at_once() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 4]).await;
    house.first_node().will(&[Act::StayAway]);
    let made = ask(&house, &[member(2), member(2)]).await.expect("it fits");
    give_back(&house, made.id).await.expect("cancelled");
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Released);
    assert_eq!(house.claims(made.members[0].id).await, ["freed", "freed"]);
    house.close().await;
}

/// The process that noted the wish dies before anybody passes it on, or in the middle of it.
#[tokio::test]
async fn a_release_that_was_noted_is_passed_on_whatever_dies() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let made = ask(&house, &[member(2), member(2), member(2)]).await.expect("it fits");
    house.settle().await;
    let id = AllocationGroupId(made.id);
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    store::allocation_groups::request_release(&mut tx, id, "a request").await.expect("noted");
    let by = house.tenant.user_id;
    let wish = store::allocation_groups::note_release(&mut tx, id, by).await.expect("noted");
    assert!(wish.is_some());
    tx.commit().await.expect("committed");
    house.release(made.members[0].id).await.expect("one of them was asked");
    house.settle().await;
    assert_eq!(status(&house, made.id).await, Status::Releasing);
    assert_eq!(house.status(made.members[1].id).await, Member::Active, "nobody has asked it");
    house.pass(Duration::from_secs(45)).await;
    assert_eq!(status(&house, made.id).await, Status::Released);
    assert_eq!(asked(&house, &made).await, [1, 1, 1]);
    // It is over: the sweep leaves it alone.
    house.pass(Duration::from_secs(45)).await;
    assert_eq!(asked(&house, &made).await, [1, 1, 1]);
    house.close().await;
}

#[tokio::test]
async fn members_that_outlive_a_failed_group_are_given_back_by_its_release() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 4]).await;
    house.node(SKU, &[0; 1]).await;
    house.first_node().will(&[Act::Fail(FailureReason::SshNotReady)]);
    let made = ask(&house, &[member(4), optional(1)]).await.expect("it fits");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert!(shown.status_text.contains("1 optional") && !shown.allowed_actions.is_empty());
    assert_eq!(house.status(made.members[1].id).await, Member::Active);
    give_back(&house, made.id).await.expect("what is left");
    house.settle().await;
    let shown = show(&house, made.id).await;
    assert_eq!(shown.status.0, Status::Failed, "what has ended stays ended");
    assert_eq!(house.status(made.members[1].id).await, Member::Released);
    let late = give_back(&house, made.id).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    house.close().await;
}

#[tokio::test]
async fn a_group_of_one_and_a_group_whose_members_go_one_by_one() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let one = ask(&house, &[member(1)]).await.expect("it fits");
    let two = ask(&house, &[member(1), member(1)]).await.expect("it fits");
    house.settle().await;
    give_back(&house, one.id).await.expect("asked");
    house.release(two.members[0].id).await.expect("a member on its own");
    house.settle().await;
    assert_eq!(status(&house, one.id).await, Status::Released);
    assert_eq!(status(&house, two.id).await, Status::Degraded);
    let because = ForceRelease { reason: "the rack is on fire".to_owned() };
    let last = AllocationId(two.members[1].id);
    of_one::force(&house.ctx, &house.operator, last, &because, None).await.expect("forced");
    house.settle().await;
    assert_eq!(status(&house, two.id).await, Status::Released, "it goes with its members");
    house.close().await;
}

#[tokio::test]
async fn a_group_is_degraded_by_a_lost_member_and_comes_back_with_it() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let made = ask(&house, &[member(1), member(1), optional(1)]).await.expect("it fits");
    house.settle().await;
    let lose = async |id: Uuid| {
        let restart = OperationId(new_id());
        report(&house, id, Event::RestartRequested, restart, Source::User).await;
        assert_eq!(status(&house, made.id).await, Status::Active, "a reboot takes nothing");
        report(&house, id, Event::RestartFailedToReturn, restart, Source::Worker).await;
    };
    lose(made.members[2].id).await;
    assert_eq!(status(&house, made.id).await, Status::Active, "an optional one does not matter");
    lose(made.members[0].id).await;
    assert_eq!(status(&house, made.id).await, Status::Degraded);
    let again = OperationId(new_id());
    report(&house, made.members[0].id, Event::RestartRequested, again, Source::User).await;
    assert_eq!(status(&house, made.id).await, Status::Active);
    report(&house, made.members[0].id, Event::RestartCompleted, again, Source::Worker).await;
    assert_eq!(status(&house, made.id).await, Status::Active);
    house.close().await;
}

#[tokio::test]
async fn lists_show_ones_own_groups_in_pages() {
    let mut house = House::open().await;
    house.node(SKU, &[0; 8]).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(ask(&house, &[member(1), member(1)]).await.expect("it fits").id);
    }
    let filter = view::Filter::default();
    let first =
        view::list(&house.ctx, &house.tenant, &filter, Some(2), None).await.expect("a page");
    assert_eq!(first.items.iter().map(|each| each.id).collect::<Vec<_>>(), [made[2], made[1]]);
    assert!(first.items.iter().all(|each| each.members.len() == 2));
    let cursor = first.next_cursor.as_deref();
    let rest =
        view::list(&house.ctx, &house.tenant, &filter, Some(2), cursor).await.expect("a page");
    assert_eq!(rest.items.iter().map(|each| each.id).collect::<Vec<_>>(), [made[0]]);
    let none = view::Filter { status: Some(Status::Active), ..filter };
    let none = view::list(&house.ctx, &house.tenant, &none, None, None).await.expect("a page");
    assert!(none.items.is_empty());
    let theirs =
        view::list(&house.ctx, &house.operator, &filter, None, None).await.expect("a page");
    assert!(theirs.items.is_empty(), "somebody else's");
    let foreign = view::show(&house.ctx, &house.operator, AllocationGroupId(made[0])).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))), "{foreign:?}");
    house.close().await;
}

/// A request costs what it is judged by, its key, its place and what is written of it, and a member of a group a fixed number.
#[tokio::test]
async fn a_group_costs_so_many_statements_a_member_and_a_few_for_itself() {
    let mut house = House::open().await;
    for _ in 0..3 {
        house.node(SKU, &[0; 8]).await;
    }
    let statements = Statements::count();
    house.create(SKU, 1).await.expect("it fits");
    let single = statements.take();
    let mut groups = Vec::new();
    for members in [1, 4, 8] {
        let alike = NewMember { count: Some(members), ..member(1) };
        ask(&house, &[alike]).await.expect("it fits");
        groups.push(statements.take());
    }
    let [one, four, eight] = groups[..] else { panic!("{groups:?}") };
    assert_eq!((four - one, eight - four), (18, 24), "6 a member; {single} alone, {groups:?}");
    assert_eq!((single, one), (2, 16), "alone, and in a group of one with its BEGIN and COMMIT");
    house.close().await;
}
