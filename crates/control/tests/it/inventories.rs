//! What heartbeats say of their nodes: written when it is new, and left alone while it stands.

use control::node::enrol::AgentIdentity;
use control::node::heartbeat::{self, Collector, Flusher};
use futures::future::{join, join_all};
use testkit::House;
use wire::node::Heartbeat;

use crate::enrol::{alive, certified};

/// More than are tried one by one.
const MANY: usize = 20;

type Agent = (AgentIdentity, [u8; 32]);

async fn agents(house: &House, count: usize) -> Vec<Agent> {
    let mut agents = Vec::new();
    for number in 0..count {
        agents.push(certified(house, number).await);
    }
    agents
}

fn with_images(images: &[&str]) -> Heartbeat {
    Heartbeat { images: images.iter().map(|&image| image.to_owned()).collect(), ..alive(2) }
}

/// All of them say this to that process, and are heard.
async fn say(to: &Collector, agents: &[Agent], said: &Heartbeat) {
    let come = |(identity, certificate): &Agent| {
        let (identity, certificate) = (*identity, *certificate);
        async move { to.beat(&identity, certificate, said).await.expect("heard") }
    };
    let answers = join_all(agents.iter().map(come)).await;
    assert!(answers.iter().all(|answer| answer.status == "ready"), "{answers:?}");
}

async fn beside(flushers: [Flusher; 2], story: impl Future<Output = ()>) {
    let [one, two] = flushers.map(Flusher::run);
    tokio::select! {
        () = story => (),
        _ = join(one, two) => panic!("there is somebody left who could hand one in"),
    }
}

#[tokio::test]
async fn nodes_that_speak_to_two_processes_in_turn_are_shown_as_they_said_last() {
    let house = House::open().await;
    let agents = agents(&house, MANY).await;
    let ((here, first), (there, second)) =
        (heartbeat::collector(&house.ctx), heartbeat::collector(&house.ctx));
    let (a, b) = (with_images(&["a"]), with_images(&["b"]));
    let all = i64::try_from(MANY).expect("a few");
    beside([first, second], async {
        for one in [&a, &a] {
            say(&here, &agents, one).await;
            assert_eq!(house.say_and_have("a").await, (all, all));
        }
        say(&there, &agents, &b).await;
        assert_eq!(house.say_and_have("b").await, (all, all));
        // It knows that it wrote the same before, and not that others have written since.
        say(&here, &agents, &a).await;
        assert_eq!(house.say_and_have("a").await, (all, all));
        say(&there, &agents[..1], &b).await;
        assert_eq!(
            (house.say_and_have("a").await, house.say_and_have("b").await),
            ((19, 19), (1, 1))
        );
        say(&here, &agents[..2], &a).await;
        assert_eq!(house.say_and_have("a").await, (all, all));
    })
    .await;
    house.close().await;
}

#[tokio::test]
async fn what_stands_there_already_is_not_sent_again() {
    let house = House::open().await;
    let agents = agents(&house, 2).await;
    let ((here, first), (_there, second)) =
        (heartbeat::collector(&house.ctx), heartbeat::collector(&house.ctx));
    let a = with_images(&["a"]);
    beside([first, second], async {
        say(&here, &agents, &a).await;
        // Nobody does that; it shows who writes.
        house.blank_inventories().await;
        say(&here, &agents, &a).await;
        assert_eq!(house.say_and_have("a").await, (0, 2), "it was believed to stand");
        say(&here, &agents, &with_images(&["b"])).await;
        assert_eq!(house.say_and_have("b").await, (2, 2));
    })
    .await;
    house.close().await;
}
