//! What did not end well, and what operators do about it: abandon, clean, quarantine, clear. Capacity comes free on proof
//! or on an operator's word, and on nothing else.

use std::time::Duration;

use control::Error;
use control::allocation::{abandon, clean, receipt, release, view};
use control::claim::{aside, view as claims};
use domain::ids::{AllocationId, ClaimId, EventId};
use domain::machines::allocation::Status;
use domain::machines::{Claim, REASON, claim};
use lifecycle::{Source, Value};
use store::allocations;
use store::lifecycle::{Report, apply};
use testkit::{Act, CLEAN, House, Inventory, actor, new_id};
use uuid::Uuid;
use wire::http::admin::Because;
use wire::http::allocations::{Action, ForceRelease};
use wire::node::{FailureReason, TaskOutcome};

const LONGER_THAN_AN_ATTEMPT: Duration = Duration::from_secs(130);

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    house
}

fn because(reason: &str) -> Because {
    Because { reason: reason.to_owned() }
}

/// Time passes, and the nodes are heard of meanwhile.
async fn pass(house: &House, seconds: u64) {
    house.ctx.clock.advance(Duration::from_secs(seconds));
    house.beat_all().await;
    house.pass(Duration::ZERO).await;
}

/// An allocation whose release was given up.
async fn given_up(house: &House, gpus: i16) -> Uuid {
    let id = house.active("h100.slice", gpus).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.release(id).await.expect("asked");
    for _ in 0..6 {
        pass(house, 61).await;
    }
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    id
}

/// An allocation that failed, and whose clean-up was given up too.
async fn failed_and_stuck(house: &House, gpus: i16) -> Uuid {
    let node = house.first_node();
    node.will(&[Act::Fail(FailureReason::DeviceDirty)]);
    node.will(&[Act::LeaveResidue; 5]);
    let id = house.create("h100.slice", gpus).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..6 {
        pass(house, 61).await;
    }
    assert_eq!(house.status(id).await, Status::Failed);
    assert!(house.claims(id).await.iter().all(|status| status == "stuck"));
    id
}

async fn claims_of(house: &House, id: Uuid) -> Vec<ClaimId> {
    let page = claims::list(&house.ctx, &house.operator, None, None, None).await.expect("a page");
    let mine = page.items.into_iter().filter(|claim| claim.allocation_id == id);
    mine.map(|claim| ClaimId(claim.id)).collect()
}

#[tokio::test]
async fn an_abandoned_release_sets_everything_aside_and_proves_nothing() {
    let house = house().await;
    let id = given_up(&house, 2).await;
    let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
    let listed = view::Filter { status: Some(Status::ReleaseFailed), ..view::Filter::default() };
    let listed = view::admin_list(ctx, operator, &listed, None, None).await.expect("a page");
    let may: Vec<Action> = listed.items[0].allowed_actions.iter().map(|action| action.0).collect();
    assert_eq!(may, [Action::ForceRelease, Action::Abandon]);
    let as_tenant = abandon::request(ctx, &house.tenant, of, &because("mine"), None).await;
    assert!(matches!(as_tenant, Err(Error::Forbidden(_))), "{as_tenant:?}");
    let mute = abandon::request(ctx, operator, of, &because(" "), None).await;
    assert!(matches!(mute, Err(Error::Invalid(_))), "{mute:?}");

    let why = because("the disk was shredded");
    let done = abandon::request(ctx, operator, of, &why, None).await.expect("abandoned");
    assert_eq!(done.body.status.0, Status::Released);
    assert_eq!(house.claims(id).await, ["quarantined", "quarantined"]);
    assert!(house.show(id).await.status_text.contains("by hand"));
    let receipt = receipt::show(ctx, &house.tenant, of).await;
    let Err(Error::Conflict(words)) = receipt else { panic!("a receipt claims a proof") };
    assert!(words.contains("never proven"), "{words}");
    let said = house.entries("allocation.abandon").await;
    assert_eq!(said, [("done".to_owned(), Some("the disk was shredded".to_owned()))]);

    let clean = clean::request(ctx, operator, of, &because("once more"), None).await;
    let Err(Error::Conflict(words)) = clean else { panic!("{clean:?}") };
    assert!(words.contains("clear its claims"), "{words}");

    // Nobody gets it until it is cleared, and then it is anybody's.
    assert!(matches!(house.create("h100.slice", 4).await, Err(Error::SkuUnavailable { .. })));
    house.beat_all().await;
    for claim in claims_of(&house, id).await {
        let cleared = aside::clear(ctx, operator, claim, &because("new disk"), None).await;
        assert_eq!(cleared.expect("cleared").body.status.0, claim::Status::Freed);
    }
    pass(&house, 1).await;
    house.create("h100.slice", 4).await.expect("all of it is free");
    house.close().await;
}

#[tokio::test]
async fn only_a_release_that_was_given_up_is_abandoned_and_a_refusal_says_what_to_do() {
    let house = house().await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    let id = house.active("h100.slice", 1).await.id;
    let refusal = async |id: Uuid| {
        let answer = abandon::request(ctx, operator, AllocationId(id), &because("no"), None).await;
        let Err(Error::Conflict(words)) = answer else { panic!("{answer:?}") };
        words
    };
    assert!(refusal(id).await.starts_with("it is active: release it by force"));
    house.first_node().will(&[Act::FallSilent]);
    house.release(id).await.expect("asked");
    house.settle().await;
    assert!(refusal(id).await.starts_with("it is releasing: wait"));
    assert_eq!(house.status(id).await, Status::Releasing);
    let held = house.first_node().held().pop().expect("it was handed out");
    let proof = TaskOutcome::Cleaned { proof: CLEAN };
    assert!(house.first_node().answer(ctx, &held, proof).await.applied, "it was called off");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    let of = AllocationId(Uuid::nil());
    let nobody = abandon::request(ctx, operator, of, &because("x"), None).await;
    assert!(matches!(nobody, Err(Error::NotFound(_))));
    let said = house.entries("allocation.abandon").await;
    assert_eq!(
        said.iter().map(|(outcome, _)| outcome.as_str()).collect::<Vec<_>>(),
        ["refused"; 2]
    );
    house.close().await;
}

/// The last attempt is still with the node when the operator abandons the release.
#[tokio::test]
async fn a_proof_that_comes_after_the_release_was_abandoned_frees_nothing() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 4]);
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    house.release(id).await.expect("asked");
    for _ in 0..5 {
        house.pass(Duration::from_secs(61)).await;
    }
    let held = house.first_node().held().pop().expect("the last attempt");
    house.ctx.clock.advance(LONGER_THAN_AN_ATTEMPT);
    house.settle().await;
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
    abandon::request(ctx, operator, of, &because("it burns"), None).await.expect("abandoned");
    let proof = TaskOutcome::Cleaned { proof: CLEAN };
    let late = house.first_node().answer(ctx, &held, proof).await;
    assert!(!late.applied, "{late:?}");
    house.pass(Duration::from_secs(3_700)).await;
    assert_eq!(house.claims(id).await, ["quarantined"]);
    assert!(receipt::show(ctx, &house.tenant, of).await.is_err());
    house.close().await;
}

#[tokio::test]
async fn what_a_failed_allocation_still_holds_is_cleaned_up_once_more() {
    let house = house().await;
    let id = failed_and_stuck(&house, 2).await;
    let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
    assert!(matches!(house.create("h100.slice", 4).await, Err(Error::SkuUnavailable { .. })));
    // It fails again, and is tried again.
    house.first_node().will(&[Act::LeaveResidue; 5]);
    let asked = clean::request(ctx, operator, of, &because("rebooted"), None).await.expect("asked");
    assert_eq!(asked.status, 202);
    assert_eq!(house.claims(id).await, ["cleaning", "cleaning"]);
    let again = clean::request(ctx, operator, of, &because("rebooted"), None).await;
    let Err(Error::Conflict(words)) = again else { panic!("{again:?}") };
    assert!(words.contains("is being cleaned up"), "{words}");
    for _ in 0..6 {
        pass(&house, 61).await;
    }
    assert_eq!(house.claims(id).await, ["stuck", "stuck"]);
    clean::request(ctx, operator, of, &because("new firmware"), None).await.expect("asked");
    house.settle().await;
    assert_eq!(house.claims(id).await, ["freed", "freed"]);
    assert_eq!(house.status(id).await, Status::Failed);
    let nothing = clean::request(ctx, operator, of, &because("once more"), None).await;
    let Err(Error::Conflict(words)) = nothing else { panic!("{nothing:?}") };
    assert_eq!(words, "it is failed: it holds nothing any more");
    let said = house.entries("allocation.clean").await;
    let outcomes: Vec<&str> = said.iter().map(|(outcome, _)| outcome.as_str()).collect();
    assert_eq!(outcomes, ["done", "refused", "done", "refused"]);
    house.close().await;
}

/// The process dies after the request is answered and before the run is started.
#[tokio::test]
async fn a_clean_up_that_nobody_began_is_taken_up_by_the_sweep() {
    let house = house().await;
    let id = failed_and_stuck(&house, 1).await;
    let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
    clean::request(ctx, operator, of, &because("again"), None).await.expect("asked");
    house.forget_runs("clean").await;
    house.settle().await;
    assert_eq!(house.claims(id).await, ["cleaning"]);
    // The run that takes it up ends with nothing done; so there is another.
    house.first_node().will(&[Act::FallSilent]);
    house.pass(Duration::from_secs(31)).await;
    assert_eq!(house.claims(id).await, ["cleaning"]);
    house.end_runs("clean").await;
    house.pass(Duration::from_secs(31)).await;
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

#[tokio::test]
async fn a_claim_is_set_aside_alone_only_when_its_allocation_has_ended() {
    let house = house().await;
    let id = failed_and_stuck(&house, 2).await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    let [one, two] = claims_of(&house, id).await[..] else { panic!("two claims") };
    let early = aside::clear(ctx, operator, one, &because("looks fine"), None).await;
    let Err(Error::Conflict(words)) = early else { panic!("{early:?}") };
    assert!(words.starts_with("the claim is stuck"), "{words}");
    let why = because("the GPU fell off the bus");
    let set = aside::quarantine(ctx, operator, one, &why, None).await.expect("set aside").body;
    assert_eq!(set.status.0, claim::Status::Quarantined);
    assert_eq!(set.reason.as_deref(), Some("the GPU fell off the bus"));
    // The other one is cleaned up, and the one that was set aside is left alone.
    let of = AllocationId(id);
    clean::request(ctx, operator, of, &because("only one is broken"), None).await.expect("asked");
    house.settle().await;
    assert_eq!(house.claims(id).await, ["quarantined", "freed"]);
    let late = aside::quarantine(ctx, operator, two, &why, None).await;
    let Err(Error::Conflict(words)) = late else { panic!("{late:?}") };
    assert!(words.starts_with("the claim is freed"), "{words}");

    let parked = given_up(&house, 1).await;
    let [claim] = claims_of(&house, parked).await[..] else { panic!("one claim") };
    let refused = aside::quarantine(ctx, operator, claim, &why, None).await;
    let Err(Error::Conflict(words)) = refused else { panic!("{refused:?}") };
    assert!(words.contains("release_failed: abandon that"), "{words}");
    house.close().await;
}

/// The node is heard of, and says what is on it.
#[tokio::test]
async fn nothing_is_cleared_while_the_node_says_that_something_is_left() {
    let house = house().await;
    let id = given_up(&house, 1).await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, house.first_node());
    let of = AllocationId(id);
    abandon::request(ctx, operator, of, &because("by hand"), None).await.expect("abandoned");
    let [claim] = claims_of(&house, id).await[..] else { panic!("one claim") };
    // It may have been given work that it did not know of when it last spoke.
    let refused = aside::clear(ctx, operator, claim, &because("clean"), None).await;
    let Err(Error::Conflict(words)) = refused else { panic!("{refused:?}") };
    assert!(words.contains("has not been heard of since") && words.contains("60 s"), "{words}");
    let with_guest = Inventory { gpus: 4, guests: vec![(id, vec![0])], ..Inventory::default() };
    let with_lease = Inventory { gpus: 4, leases: vec![(id, vec![0])], ..Inventory::default() };
    let tasks = vec![house.dispatches(id).await[0].0];
    let at_work = Inventory { gpus: 4, running: tasks, ..Inventory::default() };
    for (left, what) in
        [(with_guest.clone(), "a guest"), (with_lease, "a lease"), (at_work, "a running task")]
    {
        node.beat(ctx, &left).await.expect("heard");
        let refused = aside::clear(ctx, operator, claim, &because("clean"), None).await;
        let Err(Error::Conflict(words)) = refused else { panic!("{what}: {refused:?}") };
        assert!(words.contains(what) && words.contains("remove it"), "{words}");
        assert_eq!(house.claims(id).await, ["quarantined"]);
    }
    // Something on another slot is not in the way.
    let elsewhere = Inventory { gpus: 4, guests: vec![(id, vec![3])], ..Inventory::default() };
    node.beat(ctx, &elsewhere).await.expect("heard");
    aside::clear(ctx, operator, claim, &because("clean"), None).await.expect("cleared");
    assert_eq!(house.claims(id).await, ["freed"]);
    house.database.remove().await;
}

/// Who clears has looked when it was not set aside yet, and waits for who sets it aside.
#[tokio::test]
async fn what_is_set_aside_while_somebody_clears_it_is_not_cleared_by_an_older_heartbeat() {
    let house = house().await;
    let id = given_up(&house, 1).await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    let [claim] = claims_of(&house, id).await[..] else { panic!("one claim") };
    house.beat_all().await;
    let mut tx = ctx.store.begin().await.expect("it begins");
    allocations::hold(&mut tx, AllocationId(id)).await.expect("it is held");
    let why = because("clean");
    let clears = aside::clear(ctx, operator, claim, &why, None);
    let sets_aside = async {
        while house.waiting_for_locks().await == 0 {
            tokio::task::yield_now().await;
        }
        let report =
            Report::new(claim::Event::Quarantining, EventId(new_id()), actor(Source::Operator))
                .with(REASON, Value::Text("just now".to_owned().into()));
        let set = apply::<Claim>(&mut tx, claim, &report).await.expect("it is answered");
        assert!(set.is_applied(), "{set:?}");
        tx.commit().await.expect("it commits");
    };
    let (cleared, ()) = tokio::join!(clears, sets_aside);
    let Err(Error::Conflict(words)) = cleared else { panic!("{cleared:?}") };
    assert!(words.contains("has not been heard of since"), "{words}");
    assert_eq!(house.claims(id).await, ["quarantined"]);
    house.database.remove().await;
}

#[tokio::test]
async fn what_was_set_aside_on_a_node_that_is_silent_can_be_cleared_and_the_agent_learns_of_it() {
    let house = house().await;
    let id = given_up(&house, 1).await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, house.first_node());
    let left = Inventory {
        gpus: 4,
        guests: vec![(id, vec![0])],
        leases: vec![(id, vec![0]), (Uuid::nil(), vec![1])],
        running: Vec::new(),
    };
    let before = node.beat(ctx, &left).await.expect("heard");
    assert!(before.over.is_empty(), "its release may still be retried: {before:?}");
    let of = AllocationId(id);
    abandon::request(ctx, operator, of, &because("by hand"), None).await.expect("abandoned");
    house.pass(Duration::from_secs(61)).await;
    let [claim] = claims_of(&house, id).await[..] else { panic!("one claim") };
    aside::clear(ctx, operator, claim, &because("scrapped"), None).await.expect("cleared");
    let back = node.beat(ctx, &left).await.expect("heard");
    // The one that nobody here knows is not over: it may be a backup that has forgotten it.
    assert_eq!(back.over, [id]);
    house.database.remove().await;
}

#[tokio::test]
async fn an_agent_is_told_of_what_is_over_and_of_nothing_else() {
    let house = house().await;
    let (ctx, node) = (&house.ctx, house.first_node());
    let active = house.active("h100.slice", 1).await.id;
    let released = house.active("h100.slice", 1).await.id;
    house.release(released).await.expect("asked");
    house.settle().await;
    let stuck = failed_and_stuck(&house, 1).await;
    let named = |ids: &[Uuid]| ids.iter().map(|id| (*id, vec![0])).collect::<Vec<_>>();
    let has = Inventory {
        gpus: 4,
        guests: named(&[active]),
        leases: named(&[active, released, stuck]),
        running: Vec::new(),
    };
    assert_eq!(node.beat(ctx, &has).await.expect("heard").over, [released]);
    let [claim] = claims_of(&house, stuck).await[..] else { panic!("one claim") };
    aside::quarantine(ctx, &house.operator, claim, &because("dirty"), None).await.expect("aside");
    let mut over = node.beat(ctx, &has).await.expect("heard").over;
    over.sort_unstable();
    let mut ended = [released, stuck];
    ended.sort_unstable();
    assert_eq!(over, ended);
    let none = node.beat(ctx, &Inventory { gpus: 4, ..Inventory::default() }).await.expect("heard");
    assert!(none.over.is_empty());
    let many = Inventory { gpus: 4, leases: vec![(active, vec![64])], ..Inventory::default() };
    assert!(matches!(node.beat(ctx, &many).await, Err(Error::Invalid(_))));
    house.database.remove().await;
}

#[tokio::test]
async fn claims_that_wait_are_listed_page_by_page_with_what_to_do() {
    let house = house().await;
    let id = failed_and_stuck(&house, 4).await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    let mut seen = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = claims::list(ctx, operator, None, Some(3), cursor.as_deref()).await;
        let page = page.expect("a page");
        seen.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|claim| claim.allocation_id == id && claim.node == "node-0"));
    assert!(seen.iter().all(|claim| claim.advice.contains("cleaned up once more")), "{seen:?}");
    assert_eq!(seen[0].reason.as_deref(), Some("cleanup_incomplete"));
    let aside = Some(claim::Status::Quarantined);
    let none = claims::list(ctx, operator, aside, None, None).await.expect("a page");
    assert!(none.items.is_empty());
    let held = claims::list(ctx, operator, Some(claim::Status::Held), None, None).await;
    assert!(matches!(held, Err(Error::Invalid(_))));
    let tenant = claims::list(ctx, &house.tenant, None, None, None).await;
    assert!(matches!(tenant, Err(Error::Forbidden(_))));
    house.close().await;
}

/// R23: the wipe fails k times. The slot is offered to nobody meanwhile, and in the end the retry reaches `released`.
#[tokio::test]
async fn r23_a_wipe_that_fails_k_times_ends_in_released_and_the_slot_is_offered_to_nobody_until_then()
 {
    let house = house().await;
    for failures in 0..=10 {
        let id = house.active("h100.slice", 4).await.id;
        house.first_node().will(&vec![Act::LeaveResidue; failures]);
        house.release(id).await.expect("asked");
        let stopped = house.show(id).await.release_requested_at;
        let mut retries = 0;
        for _ in 0..40 {
            house.settle().await;
            let status = house.status(id).await;
            if status == Status::Released {
                break;
            }
            if status == Status::ReleaseFailed {
                retries += 1;
                house.release(id).await.expect("asked again");
            }
            let offered = house.create("h100.slice", 1).await;
            assert!(
                matches!(offered, Err(Error::SkuUnavailable { .. })),
                "{failures}: {offered:?}"
            );
            pass(&house, 61).await;
        }
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Released, "after {failures} failures");
        assert_eq!(retries, failures / 5, "after {failures} failures");
        assert_eq!(shown.release_requested_at, stopped, "billing stopped once");
        assert_eq!(house.claims(id).await, ["freed"; 4]);
        // It is free now: the next one gets it.
        pass(&house, 1).await;
    }
    house.close().await;
}

/// R23: the tenant and an operator retry at the same moment.
#[tokio::test]
async fn r23_two_who_retry_at_once_make_one_release() {
    let house = house().await;
    let id = given_up(&house, 1).await;
    let (ctx, of) = (&house.ctx, AllocationId(id));
    let force = ForceRelease { reason: "hurry".to_owned() };
    let (user, admin) = tokio::join!(
        release::request(ctx, &house.tenant, of, None),
        release::force(ctx, &house.operator, of, &force, None),
    );
    for answer in [user, admin] {
        // Who lost the race is told to try again, and is then told that it is being released.
        match answer {
            Ok(answer) => assert_eq!(answer.body.status.0, Status::Releasing),
            Err(error) => assert!(matches!(error, Error::Store(store::Error::Conflict)), "{error}"),
        }
    }
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    let asked = house.published(id).await;
    let asked = asked.iter().filter(|subject| subject.ends_with("releasing.requested")).count();
    assert_eq!(asked, 2, "the first one, and one retry");
    house.close().await;
}

/// R23: nobody answers for the node any more. An operator forces the release, is asked why, and in the end abandons it.
#[tokio::test]
async fn r23_a_node_that_is_dead_for_good_is_left_by_force_and_then_abandoned() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::StayAway]);
    house.pass(Duration::from_secs(61)).await;
    let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
    let mute = ForceRelease { reason: String::new() };
    let refused = release::force(ctx, operator, of, &mute, None).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let force = ForceRelease { reason: "the machine burnt down".to_owned() };
    release::force(ctx, operator, of, &force, None).await.expect("forced");
    let stopped = house.show(id).await.release_requested_at;
    for _ in 0..6 {
        house.pass(LONGER_THAN_AN_ATTEMPT).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::ReleaseFailed);
    assert_eq!(shown.status_reason.as_deref(), Some("node_lost"));
    assert_eq!(house.claims(id).await, ["stuck"]);
    abandon::request(ctx, operator, of, &because("scrapped"), None).await.expect("abandoned");
    assert_eq!(house.show(id).await.release_requested_at, stopped, "billing stopped once");
    let forced = house.entries("allocation.force_release").await;
    assert_eq!(forced, [("done".to_owned(), Some("the machine burnt down".to_owned()))]);
    house.close().await;
}

/// What another system did: it gave a GPU back for an allocation that had failed long before, when somebody else had it.
#[tokio::test]
async fn a_release_of_what_never_got_its_slots_gives_nothing_of_anybody_back() {
    let house = house().await;
    house.first_node().will(&[Act::Fail(FailureReason::VfioUnavailable)]);
    let failed = house.create("h100.slice", 4).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(house.status(failed).await, Status::Failed);
    assert_eq!(house.claims(failed).await, ["freed"; 4]);
    let cancelled = house.create("h100.slice", 4).await.expect("it fits").id;
    house.release(cancelled).await.expect("before anybody has begun");
    house.settle().await;
    let next = house.active("h100.slice", 4).await.id;
    for over in [failed, cancelled] {
        let refused = house.release(over).await;
        let Err(Error::Conflict(words)) = refused else { panic!("{refused:?}") };
        assert!(words.ends_with("there is nothing to release"), "{words}");
    }
    house.settle().await;
    assert_eq!(house.claims(next).await, ["held"; 4]);
    assert_eq!(house.status(next).await, Status::Active);
    let since = house.dispatches(cancelled).await;
    assert!(since.is_empty(), "no node was ever told of it: {since:?}");
    house.close().await;
}
