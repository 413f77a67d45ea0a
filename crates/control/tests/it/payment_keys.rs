//! What each unique key of payments is for: with it, twice is once; without it, it is not. A key that is taken away by mistake
//! fails here.

use control::payment::provider::About;
use domain::ids::{EventId, PaymentSessionId};
use domain::ledger::PostingKind;
use lifecycle::Source;
use store::ledger::{self, NewPosting};
use store::lifecycle::{Actor, Birth};
use store::payment_sessions::{self, NewCheckout};
use testkit::House;

use crate::till::{AMOUNT, Till, books_are_right, facts, page_of, session, stands, tell};

/// Opens a checkout for one and the same key, as one who has just seen that there is none; whether it is new.
async fn open(house: &House) -> bool {
    let ctx = &house.ctx;
    let mut tx = ctx.store.begin().await.expect("it begins");
    let user = house.tenant.user_id;
    let account = store::accounts::find_of(&mut tx, user).await.expect("a look").expect("one");
    let new = NewCheckout {
        id: PaymentSessionId(tx.new_id()),
        account,
        user,
        key: "one",
        fingerprint: b"the same",
        amount_minor: AMOUNT,
        created_at: ctx.clock.now(),
        expires_at: ctx.after_seconds(3_600),
        asked_until: ctx.after_seconds(60),
    };
    let birth = Birth::new(EventId(tx.new_id()), Actor::new(Source::User, "the test"));
    let opened = payment_sessions::open(&mut tx, &new, &birth).await.expect("it is tried");
    tx.commit().await.expect("it is committed");
    opened
}

#[tokio::test]
async fn two_checkouts_of_one_key_are_one_because_of_the_key_of_the_table() {
    let house = House::open().await;
    assert_eq!((open(&house).await, open(&house).await), (true, false));
    assert_eq!(house.rows("payment_sessions").await, 1);
    assert!(house.database.lets("DROP INDEX payment_sessions_key").await);
    assert!(open(&house).await, "nothing else keeps them apart");
    assert_eq!(house.rows("payment_sessions").await, 2);
    house.database.remove().await;
}

#[tokio::test]
async fn one_page_belongs_to_one_session_because_of_the_key_of_the_table() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let (mine, other) = (session(&house).await, session(&house).await);
    let stolen = page_of(mine);
    assert!(!house.database.has_page(other, Some(&stolen)).await, "it is another's");
    assert!(house.database.lets("DROP INDEX payment_sessions_stripe").await);
    assert!(house.database.has_page(other, Some(&stolen)).await, "nothing else keeps them apart");
    house.database.remove().await;
}

#[tokio::test]
async fn an_event_counts_once_because_of_the_key_of_the_inbox() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    for _ in 0..2 {
        tell(&house, "evt_one", &About::Paid(facts(id))).await;
    }
    assert_eq!(house.rows("payment_events").await, 1);
    assert!(
        house.database.lets("ALTER TABLE payment_events DROP CONSTRAINT payment_events_pkey").await
    );
    tell(&house, "evt_one", &About::Paid(facts(id))).await;
    assert_eq!(house.rows("payment_events").await, 2, "it is heard as if it were new");
    // The session and the ledger have keys of their own: it is credited once all the same.
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));
    books_are_right(&house, AMOUNT).await;
    house.database.remove().await;
}

/// Credits a session as if nobody had looked whether it was; whether the ledger has taken it as new.
async fn credit(house: &House, id: uuid::Uuid) -> Result<bool, store::Error> {
    let mut tx = house.ctx.store.begin().await?;
    let account = store::accounts::find_of(&mut tx, house.tenant.user_id).await?;
    let posting = NewPosting {
        key: &format!("payment/{id}"),
        kind: PostingKind::Payment,
        account: account.expect("an account"),
        amount_minor: AMOUNT,
        source_id: Some(id),
        actor: "the test",
        reason: None,
    };
    let posted = ledger::post(&mut tx, &posting).await?;
    tx.commit().await?;
    Ok(posted.is_some_and(|posted| posted.fresh))
}

#[tokio::test]
async fn a_session_is_credited_once_because_of_the_keys_of_the_ledger() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    tell(&house, "evt_one", &About::Paid(facts(id))).await;
    assert!(!credit(&house, id).await.expect("it is tried"), "it is there already");
    books_are_right(&house, AMOUNT).await;
    // A posting is named twice over: by its key, and by an identity that is made of it.
    for keys in [
        "ALTER TABLE ledger_postings DROP CONSTRAINT ledger_postings_key_key",
        "ALTER TABLE ledger_postings DROP CONSTRAINT ledger_postings_pkey",
        "DROP INDEX ledger_entries_posting",
    ] {
        let twice = credit(&house, id).await;
        assert!(!matches!(twice, Ok(true)), "one of its keys is enough: {twice:?}");
        assert!(house.database.lets(keys).await, "{keys}");
    }
    assert!(credit(&house, id).await.expect("it is tried"), "nothing else keeps them apart");
    let funds = house.database.funds_of(house.tenant.user_id).await;
    assert_eq!(funds - testkit::FUNDS_MINOR, 2 * AMOUNT, "credited twice");
    house.database.remove().await;
}
