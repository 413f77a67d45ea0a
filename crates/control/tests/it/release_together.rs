//! Many give back at the same time: one transaction for those who come together, and an answer for each that is their own.

use control::Error;
use control::allocation::release;
use control::idempotency::{Answer, Key};
use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use futures::future::join_all;
use testkit::{House, new_id};
use uuid::Uuid;
use wire::http::allocations::Allocation;

const ROUTE: &str = "POST /allocations/{id}/release";

async fn house() -> House {
    let mut house = House::open().await;
    for _ in 0..2 {
        house.node("h100.slice", &[0; 8]).await;
    }
    house
}

async fn active(house: &House, count: usize) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(house.active("h100.slice", 1).await.id);
    }
    ids
}

fn keyed(house: &House, key: &str) -> Key {
    Key::of(house.tenant.user_id, ROUTE, key, b"{}")
}

async fn give_back(house: &House, id: Uuid, key: &Key) -> Result<Answer<Allocation>, Error> {
    release::request(&house.ctx, &house.tenant, AllocationId(id), Some(key)).await
}

/// All of them at once, each with a key of its own.
async fn all(house: &House, ids: &[Uuid]) -> Vec<Result<Answer<Allocation>, Error>> {
    let keys: Vec<Key> = ids.iter().map(|_| keyed(house, &new_id().to_string())).collect();
    join_all(ids.iter().zip(&keys).map(|(id, key)| give_back(house, *id, key))).await
}

#[tokio::test]
async fn who_gives_back_together_has_one_transaction_and_an_answer_each() {
    let house = house().await;
    let ids = active(&house, 6).await;
    // One of them is over, one was never there: both are told so, and take nobody along.
    let over = active(&house, 1).await[0];
    house.release(over).await.expect("asked");
    house.settle().await;
    let nobodys = new_id();
    let mut answers = all(&house, &[ids.clone(), vec![over, nobodys]].concat()).await;
    let (unknown, ended) = (answers.pop().expect("the last"), answers.pop().expect("the other"));
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    assert!(matches!(ended, Err(Error::Conflict(_))), "{ended:?}");
    for (id, answer) in ids.iter().zip(answers) {
        let answer = answer.expect("it is given back");
        assert_eq!((answer.status, answer.body.id, answer.replayed), (202, *id, false));
        assert_eq!(answer.body.status.0, Status::Releasing);
        assert_eq!(house.given_back(*id).await, [1; 4]);
    }
    assert_eq!(house.moved_by(&ids).await, 1);
    house.settle().await;
    for id in ids {
        assert_eq!(house.status(id).await, Status::Released);
    }
    house.is_sound().await;
    house.close().await;
}

#[tokio::test]
async fn who_repeats_themselves_in_a_crowd_is_answered_as_before_and_takes_nobody_along() {
    let house = house().await;
    let ids = active(&house, 5).await;
    let first = give_back(&house, ids[0], &keyed(&house, "said before")).await.expect("asked");
    let (again, others) = (keyed(&house, "said before"), all(&house, &ids[1..]));
    let (again, others) = futures::join!(give_back(&house, ids[0], &again), others);
    let again = again.expect("it is answered");
    assert!(again.replayed);
    assert_eq!(again.body, first.body);
    for answer in others {
        assert!(!answer.expect("it is given back").replayed);
    }
    assert_eq!(house.moved_by(&ids[1..]).await, 1);
    for id in &ids {
        assert_eq!(house.given_back(*id).await, [1; 4]);
    }
    house.close().await;
}

/// Whoever charges has one of their records in hand. The others do not stand behind it.
#[tokio::test]
async fn whose_minute_is_being_charged_waits_alone() {
    let house = house().await;
    let ids = active(&house, 5).await;
    let charging = house.charging(ids[2]).await;
    let later = async {
        while house.rows("allocations WHERE status = 'releasing'").await < 4 {}
        while house.waiting_for_locks().await == 0 {}
        charging.done().await;
    };
    let (answers, ()) = futures::join!(all(&house, &ids), later);
    for answer in answers {
        assert_eq!(answer.expect("it is given back").body.status.0, Status::Releasing);
    }
    for id in &ids {
        assert_eq!(house.given_back(*id).await, [1; 4]);
    }
    house.close().await;
}

/// The members of a group meet at its row, so that no two of them share a transaction; who is no member still does.
#[tokio::test]
async fn members_of_a_group_go_alone_and_keep_nobody_from_going_together() {
    let house = house().await;
    let group = house.group("h100.slice", &[1, 1, 1]).await.expect("it fits");
    house.settle().await;
    let members: Vec<Uuid> = group.members.iter().map(|member| member.id).collect();
    let ids = active(&house, 4).await;
    for answer in all(&house, &[members.clone(), ids.clone()].concat()).await {
        assert_eq!(answer.expect("it is given back").body.status.0, Status::Releasing);
    }
    assert_eq!(house.moved_by(&ids).await, 1);
    assert_eq!(house.moved_by(&members).await, 3);
    house.settle().await;
    house.is_sound().await;
    house.close().await;
}
