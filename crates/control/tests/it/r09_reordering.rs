//! R09: messages, results and steps in every order, an old message that comes last, and one that never comes: it all
//! converges to the same end.

use std::collections::BTreeSet;
use std::time::Duration;

use control::policies::Policies;
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
        // Longer than a provision may take: what was not heard of has failed then, and is cleaned up.
        for _ in 0..20 {
            house.pass(Duration::from_secs(60)).await;
        }
        let expected =
            if withheld == Subject::TaskFinished { Status::Failed } else { Status::Active };
        assert_eq!(house.status(id).await, expected, "{withheld}");
        if house.status(id).await == Status::Active {
            house.release(id).await.expect("asked");
            house.withhold(Subject::ReleasingRequested).await;
            for _ in 0..20 {
                house.pass(Duration::from_secs(60)).await;
            }
            assert_eq!(house.status(id).await, Status::Released, "{withheld}");
        }
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
