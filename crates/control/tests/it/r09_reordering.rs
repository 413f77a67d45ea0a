//! R09: messages, results and steps in every order, an old message that comes last, and one that never comes: it all
//! converges to the same end.

use std::collections::BTreeSet;
use std::time::Duration;

use control::allocation_group::{release, view};
use control::policies::Policies;
use domain::derived::allocation_group::Status as Group;
use domain::ids::AllocationGroupId;
use domain::machines::allocation::Status;
use testkit::{Act, House};
use uuid::Uuid;
use wire::bus::{Message, Subject};

/// Nodes of a script send no heartbeat, and are not missed.
async fn house() -> House {
    let policies = Policies { node_offline_after_seconds: 10_000_000, ..Policies::default() };
    let mut house = House::with(policies).await;
    house.node("h100.slice", &[0, 0, 1, 1]).await;
    house
}

/// Every order of `length` things.
fn orders(length: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..length {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=order.len()).map(move |place| {
                    let mut longer = order.clone();
                    longer.insert(place, next);
                    longer
                })
            })
            .collect();
    }
    all
}

/// What a history consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    /// The message of this number comes.
    Message(usize),
    /// The engine steps what is due.
    Step,
    /// The node takes what waits for it, and answers.
    Node,
}

async fn go_through(house: &House, messages: &[Message], pieces: &[Piece]) {
    for piece in pieces {
        match piece {
            Piece::Message(number) => house.deliver(&messages[*number]).await,
            Piece::Step => {
                house.spine.workflows.step().await.expect("a step");
            }
            Piece::Node => {
                house.let_nodes_work().await;
            }
        }
    }
}

/// The messages about an allocation so far, which nobody has delivered.
async fn about(house: &House, id: Uuid) -> Vec<Message> {
    house.outbox_of(Some(id)).await
}

/// A request and its release are committed before anything of it is heard; both messages come twice, and the engine steps
/// in between.
#[tokio::test]
async fn r09_all_720_orders_of_a_cancelled_request_end_the_same() {
    let house = house().await;
    let history = [
        Piece::Message(0),
        Piece::Message(0),
        Piece::Message(1),
        Piece::Message(1),
        Piece::Step,
        Piece::Step,
    ];
    let orders = orders(history.len());
    assert_eq!(orders.len(), 720);
    let in_order = |order: &Vec<usize>| order.iter().map(|place| history[*place]).collect();
    // What comes twice is the same both times, so eight orders each are one.
    let distinct: BTreeSet<Vec<Piece>> = orders.iter().map(in_order).collect();
    assert_eq!(distinct.len(), 90);
    let mut ends = Vec::new();
    for pieces in distinct {
        let id = house.create("h100.slice", 1).await.expect("it fits").id;
        house.release(id).await.expect("asked");
        let messages = about(&house, id).await;
        go_through(&house, &messages, &pieces).await;
        house.settle().await;
        ends.push(house.account_of(id).await);
    }
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{:?} … {:?}", ends[0], ends.last());
    house.close().await;
}

/// An older message about a row becomes visible after the newer ones.
#[tokio::test]
async fn r09_an_old_message_that_comes_last_changes_nothing() {
    let house = house().await;
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let requested = about(&house, id).await;
    house.settle().await;
    house.release(id).await.expect("asked");
    house.settle().await;
    let before = house.digest().await;
    go_through(&house, &requested, &[Piece::Message(0), Piece::Step, Piece::Node]).await;
    house.settle().await;
    assert_eq!(house.digest().await, before);
    house.close().await;
}

/// A message that is lost for good: nobody is told, and the sweeps find what it left undone.
#[tokio::test]
async fn r09_whatever_message_is_withheld_for_ever_the_sweep_recovers() {
    let house = house().await;
    for withheld in [Subject::ProvisioningRequested, Subject::TaskFinished] {
        let id = house.create("h100.slice", 1).await.expect("it fits").id;
        for _ in 0..10 {
            house.withhold(withheld).await;
            house.spine.step_all().await.expect("the spine moves");
            house.let_nodes_work().await;
        }
        // Longer than a provision may take: whoever finds then that its time is over finds the answer, too.
        for _ in 0..20 {
            house.pass(Duration::from_secs(60)).await;
        }
        assert_eq!(house.status(id).await, Status::Active, "{withheld}");
        house.release(id).await.expect("asked");
        house.withhold(Subject::ReleasingRequested).await;
        for _ in 0..20 {
            house.pass(Duration::from_secs(60)).await;
        }
        assert_eq!(house.status(id).await, Status::Released, "{withheld}");
        assert_eq!(house.claims(id).await, ["freed"], "{withheld}");
    }
    house.close().await;
}

/// A longer history, its deliveries shuffled within a window, by a fixed pattern.
#[tokio::test]
async fn r09_a_long_history_shuffled_in_a_window_ends_the_same() {
    let house = house().await;
    house.first_node().will(&[Act::Succeed, Act::Succeed, Act::LeaveResidue]);
    let ids = [house.active("h100.slice", 1).await.id, house.active("h100.slice", 2).await.id];
    for id in ids {
        house.release(id).await.expect("asked");
    }
    house.settle().await;
    house.pass(Duration::from_secs(60)).await;
    let before = house.digest().await;
    let mut messages = house.outbox().await;
    let length = messages.len();
    for round in 0..50 {
        for place in 0..length {
            messages.swap(place, (place + (round * 7 + place * 3) % 5) % length);
        }
        for message in &messages {
            house.deliver(message).await;
        }
    }
    house.settle().await;
    assert_eq!(house.digest().await, before);
    house.close().await;
}

/// Every order of these that can be told from the others.
fn distinct(history: &[Piece]) -> BTreeSet<Vec<Piece>> {
    let in_order = |order: &Vec<usize>| order.iter().map(|place| history[*place]).collect();
    orders(history.len()).iter().map(in_order).collect()
}

/// A restart whose message comes twice, with steps and the node in between, in every order. One allocation goes through all
/// of them, so that what is left of one restart would be met by the next.
async fn every_order_of_a_restart(act: Act, ends: Status) {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    let history =
        [Piece::Message(0), Piece::Message(0), Piece::Step, Piece::Step, Piece::Node, Piece::Node];
    let orders = distinct(&history);
    assert_eq!(orders.len(), 90);
    for pieces in orders {
        let (seq, tasks) = (house.show(id).await.seq, house.tasks(id).await.len());
        let published = house.published(id).await.len();
        house.first_node().will(&[act]);
        house.restart(id).await.expect("asked");
        let message = about(&house, id).await.pop().expect("it is published");
        go_through(&house, &[message], &pieces).await;
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!((shown.status.0, shown.seq), (ends, seq + 2), "{pieces:?}");
        assert_eq!(house.tasks(id).await.len(), tasks + 1, "{pieces:?}");
        assert_eq!(house.published(id).await.len(), published + 2, "{pieces:?}");
    }
    house.close().await;
}

#[tokio::test]
async fn r09_all_orders_of_a_restart_end_active() {
    every_order_of_a_restart(Act::Succeed, Status::Active).await;
}

#[tokio::test]
async fn r09_all_orders_of_a_failing_restart_end_failed() {
    every_order_of_a_restart(Act::KeepBoot, Status::RestartFailed).await;
}

/// A restart and the release that overtakes it are committed before anything of either is heard.
#[tokio::test]
async fn r09_all_orders_of_a_restart_that_is_given_back_end_the_same() {
    let house = house().await;
    let history = [Piece::Message(0), Piece::Message(1), Piece::Step, Piece::Step, Piece::Node];
    let mut ends = Vec::new();
    for pieces in distinct(&history) {
        let id = house.active("h100.slice", 1).await.id;
        let before = about(&house, id).await.len();
        house.restart(id).await.expect("asked");
        house.release(id).await.expect("asked");
        let messages = about(&house, id).await.split_off(before);
        go_through(&house, &messages, &pieces).await;
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Released, "{pieces:?}");
        ends.push(house.account_of(id).await);
    }
    assert_eq!(ends.len(), 60);
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{:?} … {:?}", ends[0], ends.last());
    house.close().await;
}

/// A group that is given back before anything of it is heard. How far its members get until they are asked differs; how they
/// end does not.
#[tokio::test]
async fn r09_all_orders_of_a_group_that_is_given_back_at_once_end_released() {
    let house = house().await;
    let history = [Piece::Message(0), Piece::Message(1), Piece::Step, Piece::Step, Piece::Node];
    for pieces in distinct(&history) {
        let group = house.group("h100.slice", &[1, 1]).await.expect("it fits");
        let mut messages = Vec::new();
        for member in &group.members {
            messages.extend(about(&house, member.id).await);
        }
        assert_eq!(messages.len(), 2);
        let key = house.key("release_allocation_group");
        let id = AllocationGroupId(group.id);
        release::request(&house.ctx, &house.tenant, id, Some(&key)).await.expect("asked");
        go_through(&house, &messages, &pieces).await;
        house.settle().await;
        let shown = view::show(&house.ctx, &house.tenant, id).await.expect("theirs");
        assert_eq!(shown.status.0, Group::Released, "{pieces:?}");
        for member in &group.members {
            assert_eq!(house.status(member.id).await, Status::Released, "{pieces:?}");
            assert_eq!(house.claims(member.id).await, ["freed"], "{pieces:?}");
        }
    }
    house.all_came_to_an_end().await;
    house.close().await;
}

/// Nobody hears that a restart was wanted, or that its task has ended.
#[tokio::test]
async fn r09_a_restart_of_which_a_message_is_withheld_for_ever_ends_all_the_same() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    for withheld in [Subject::RestartRequested, Subject::TaskFinished] {
        for (act, ends) in [(Act::Succeed, Status::Active), (Act::KeepBoot, Status::RestartFailed)]
        {
            house.first_node().will(&[act]);
            house.restart(id).await.expect("asked");
            for _ in 0..5 {
                house.withhold(withheld).await;
                house.spine.step_all().await.expect("the spine moves");
                house.let_nodes_work().await;
            }
            // How a task ended is told to its workflow with the end itself: that message nobody needs.
            let heard = withheld == Subject::TaskFinished;
            let stands = if heard { ends } else { Status::Restarting };
            assert_eq!(house.status(id).await, stands, "{withheld} {act:?}");
            for _ in 0..17 {
                house.pass(Duration::from_secs(60)).await;
            }
            // The machine came back, or did not: what it said counts, however late it is looked at.
            assert_eq!(house.status(id).await, ends, "{withheld} {act:?}");
        }
    }
    house.close().await;
}

/// Whoever was to pass a group's release on has died, or the members' messages are lost.
#[tokio::test]
async fn r09_a_group_whose_release_is_lost_on_the_way_is_released_by_the_sweeps() {
    let house = house().await;
    for runs_are_lost in [true, false] {
        let group = house.group("h100.slice", &[1, 2]).await.expect("it fits");
        house.settle().await;
        let (key, id) = (house.key("release_allocation_group"), AllocationGroupId(group.id));
        release::request(&house.ctx, &house.tenant, id, Some(&key)).await.expect("asked");
        if runs_are_lost {
            house.lose_runs().await;
        }
        for _ in 0..5 {
            house.withhold(Subject::ReleasingRequested).await;
            house.spine.step_all().await.expect("the spine moves");
        }
        for _ in 0..10 {
            house.pass(Duration::from_secs(60)).await;
        }
        let shown = view::show(&house.ctx, &house.tenant, id).await.expect("theirs");
        assert_eq!(shown.status.0, Group::Released, "runs lost: {runs_are_lost}");
    }
    house.all_came_to_an_end().await;
    house.close().await;
}
