//! Creating: judged, placed and written in one transaction, answered once.

use control::Error;
use control::allocation::create;
use control::idempotency::Key;
use domain::machines::allocation::Status;
use testkit::House;
use uuid::Uuid;
use wire::http::allocations::NewAllocation;

fn asked(house: &House, gpus: i16) -> NewAllocation {
    NewAllocation {
        project_id: house.project,
        sku: "h100.slice".to_owned(),
        gpus,
        region: "eu-1".to_owned(),
        ssh_key_ids: Vec::new(),
        image: None,
        name: None,
    }
}

#[tokio::test]
async fn what_was_asked_for_is_held_when_the_answer_comes() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    let made = house.create("h100.slice", 2).await.expect("it fits");
    assert_eq!(made.status.0, Status::Requested);
    assert_eq!(made.slots.len(), 2);
    assert_eq!(made.node.as_deref(), Some("node-0"));
    assert_eq!(house.claims(made.id).await, ["reserved", "reserved"]);
    assert_eq!(house.published(made.id).await, ["provisioning.requested"]);
    house.close().await;
}

#[tokio::test]
async fn a_request_that_is_repeated_is_answered_and_not_done_again() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let asked = asked(&house, 1);
    let key = |body: &[u8]| Key::of(house.tenant.user_id, "POST /allocations", "mine", body);
    let first = create::request(&house.ctx, &house.tenant, &asked, &key(b"a")).await.expect("made");
    let again =
        create::request(&house.ctx, &house.tenant, &asked, &key(b"a")).await.expect("known");
    assert!(again.replayed && !first.replayed);
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    let other = create::request(&house.ctx, &house.tenant, &asked, &key(b"b")).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch)), "{other:?}");
    house.close().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_what_would() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 4]).await;
    let refused = house.create("h100.slice", 8).await;
    let Err(Error::SkuUnavailable { detail, would_fit, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(detail, "no h100.slice in eu-1 has 8 GPUs on one machine free right now");
    let fits: Vec<(String, i16)> =
        would_fit.into_iter().map(|fit| (fit.region, fit.gpus)).collect();
    assert_eq!(fits, [("eu-1".to_owned(), 4)]);
    // Nothing was kept of it, its key neither.
    assert!(house.create("h100.slice", 4).await.is_ok());
    house.close().await;
}

#[tokio::test]
async fn every_wrong_request_says_what_is_wrong() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 4]).await;
    for (wrong, expected) in [
        (NewAllocation { sku: "h200".to_owned(), ..asked(&house, 1) }, "there is no SKU"),
        (NewAllocation { region: "moon".to_owned(), ..asked(&house, 1) }, "there is no region"),
        (asked(&house, 3), "comes with"),
        (
            NewAllocation { image: Some("dos".to_owned()), ..asked(&house, 1) },
            "does not run the image",
        ),
    ] {
        let key = house.key("POST /allocations");
        let answer = create::request(&house.ctx, &house.tenant, &wrong, &key).await;
        let Err(Error::SkuUnavailable { detail, .. }) = answer else {
            panic!("{answer:?}");
        };
        assert!(detail.contains(expected), "{detail}");
    }
    let stranger = Uuid::from_u128(7);
    let key = house.key("POST /allocations");
    let foreign = NewAllocation { ssh_key_ids: vec![stranger], ..asked(&house, 1) };
    let answer = create::request(&house.ctx, &house.tenant, &foreign, &key).await;
    let Err(Error::Invalid(faults)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(faults[0].pointer, "/ssh_key_ids/0");
    let key = house.key("POST /allocations");
    let answer = create::request(&house.ctx, &house.operator, &asked(&house, 1), &key).await;
    assert!(matches!(answer, Err(Error::NotFound("project"))), "{answer:?}");
    house.close().await;
}
