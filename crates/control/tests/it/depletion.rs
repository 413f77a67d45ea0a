//! What follows when money is used up, and when it comes back in the middle of it.

use std::time::Duration;

use control::Error;
use control::billing::{account, adjust, charge};
use control::policies::Policies;
use domain::ids::AccountId;
use domain::ledger::PostingKind;
use domain::machines::allocation::Status;
use store::ledger::{self, NewPosting};
use testkit::{FUNDS_MINOR, House};
use wire::http::money::NewSpendingCap;

async fn house(policies: Policies) -> House {
    let mut house = House::with(policies).await;
    house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house
}

/// Gives or takes, as an operator does.
async fn adjust(house: &House, account: AccountId, amount_minor: i64) {
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let posting = NewPosting {
        key: &format!("test/{}", testkit::new_id()),
        kind: PostingKind::Adjustment,
        account,
        amount_minor,
        source_id: None,
        actor: "a test",
        reason: Some("a test"),
    };
    assert!(ledger::post(&mut tx, &posting).await.expect("it is posted").is_some());
    tx.commit().await.expect("committed");
}

/// Leaves the tenant with so much.
async fn leave(house: &House, minor: i64) {
    let has = house.balance().await;
    adjust(house, house.account().await, minor - has).await;
}

/// Says what the tenant's project may cost.
async fn cap(house: &House, minor: i64) {
    let new = NewSpendingCap { spend_cap_minor: Some(minor) };
    let set = adjust::set_spend_cap(&house.ctx, &house.tenant, (house.project, &new), None).await;
    assert_eq!(set.expect("they may").body.spend_cap_minor, Some(minor));
}

#[tokio::test]
async fn a_balance_that_is_used_up_takes_everything_back_and_refuses_more_until_it_is_lifted() {
    let house = house(Policies::default()).await;
    let [one, two] =
        [house.active("h100.slice", 2).await.id, house.active("h100.slice", 1).await.id];
    leave(&house, 10).await;
    house.settle().await;
    assert_eq!(house.status(one).await, Status::Active, "low is not depleted");
    house.charge_after(5).await;
    assert!(house.balance().await < 0);
    house.settle().await;
    for id in [one, two] {
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Released);
        assert_eq!(shown.status_reason.as_deref(), Some("balance_depleted"));
    }
    let refused = house.create("h100.slice", 1).await;
    assert!(
        matches!(&refused, Err(Error::BalanceDepleted(why)) if why.contains("USD")),
        "{refused:?}"
    );
    let account = house.account().await;
    let crossings = house.published(account.uuid()).await;
    assert_eq!(
        crossings[crossings.len() - 2..],
        ["billing.balance.low", "billing.balance.depleted"],
        "each once: {crossings:?}"
    );
    leave(&house, FUNDS_MINOR).await;
    house.active("h100.slice", 1).await;
    assert_eq!(
        house.published(account.uuid()).await.last().map(String::as_str),
        Some("billing.balance.recovered")
    );
    house.close().await;
}

#[tokio::test]
async fn within_the_grace_nothing_is_taken_back_and_a_credit_saves_it() {
    let grace = 600;
    let house =
        house(Policies { billing_depletion_grace_seconds: grace, ..Policies::default() }).await;
    let id = house.active("h100.slice", 2).await.id;
    leave(&house, 0).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Active);
    assert!(matches!(house.create("h100.slice", 1).await, Err(Error::BalanceDepleted(_))));
    leave(&house, FUNDS_MINOR).await;
    house.charge_after(11).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Active, "it was lifted in time");
    leave(&house, -1).await;
    house.charge_after(11).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Released);
    house.close().await;
}

#[tokio::test]
async fn where_nobody_enforces_it_nothing_is_refused_nor_taken_back() {
    let house = house(Policies { billing_enforced: 0, ..Policies::default() }).await;
    let id = house.active("h100.slice", 2).await.id;
    leave(&house, -500).await;
    house.charge_after(5).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Active);
    house.active("h100.slice", 1).await;
    house.enforce_nothing().await;
    house.close().await;
}

#[tokio::test]
async fn a_project_at_its_cap_is_refused_more_and_gives_back_what_it_has() {
    let house = house(Policies::default()).await;
    let id = house.active("h100.slice", 2).await.id;
    cap(&house, 20).await;
    house.charge_after(1).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Active, "ten cents a minute");
    house.charge_after(3).await;
    house.pass(Duration::ZERO).await;
    let shown = house.show(id).await;
    assert_eq!(
        (shown.status.0, shown.status_reason.as_deref()),
        (Status::Released, Some("spending_cap"))
    );
    assert!(house.balance().await > 0);
    let refused = house.create("h100.slice", 1).await;
    assert!(matches!(refused, Err(Error::SpendingCapReached(_))), "{refused:?}");
    cap(&house, 2_000).await;
    house.active("h100.slice", 1).await;
    house.close().await;
}

/// The decision holds the account: a credit that comes first is seen, one that comes later is later.
#[tokio::test]
async fn r19_a_credit_that_lands_during_the_release_is_seen_or_comes_after_it() {
    let house = house(Policies::default()).await;
    let account = house.account().await;
    for round in 0..10 {
        leave(&house, FUNDS_MINOR).await;
        let id = house.active("h100.slice", 1).await.id;
        leave(&house, -1).await;
        let credit = adjust(&house, account, 1_000);
        let (taken, ()) = tokio::join!(charge::take_back(&house.ctx, Some(account)), credit);
        let taken = taken.expect("it looks");
        let (released, wrongly) = house.taken_back(id).await;
        // Whichever was first, the release was decided while the account was depleted.
        assert_eq!((taken, wrongly), (released, 0), "round {round}");
        house.settle().await;
        let expected = if taken == 1 { Status::Released } else { Status::Active };
        assert_eq!(house.status(id).await, expected);
        if expected == Status::Active {
            house.release(id).await.expect("given back");
            house.settle().await;
        }
    }
    house.close().await;
}

/// Many accounts use up what they have in the same minute: each crosses once, and only those that have crossed lose what they have.
/// `BERTH_R19_ACCOUNTS` says how many; a thousand take a while.
#[tokio::test]
async fn r19_many_accounts_cross_zero_in_one_minute() {
    let accounts = std::env::var("BERTH_R19_ACCOUNTS").map_or(Ok(100), |text| text.parse::<u32>());
    let accounts = accounts.expect("a number");
    let many = i64::from(accounts);
    let house = house(Policies::default()).await;
    let richer = house.active("h100.slice", 1).await.id;
    house.database.furnish_tenants(accounts, 50).await;
    charge::sweep(&house.ctx).await.expect("they cross");
    let before = house.healthy_accounts().await;
    house.charge_after(10).await;
    assert_eq!(charge::take_back(&house.ctx, None).await.expect("taken back"), u64::from(accounts));
    assert_eq!(charge::take_back(&house.ctx, None).await.expect("it looks"), 0, "once");
    let each_once = [many; 3];
    assert_eq!(house.crowd().await, each_once, "one crossing, one release and one notice each");
    assert_eq!(house.healthy_accounts().await, before, "nobody else");
    assert_eq!(house.status(richer).await, Status::Active, "who could pay keeps theirs");
    house.database.remove().await;
}

#[tokio::test]
async fn an_account_is_opened_once_however_many_ask() {
    let house = house(Policies::default()).await;
    let user = house.operator.user_id;
    let ask = || async {
        let mut tx = house.ctx.store.begin().await?;
        let id = account::ensure(&house.ctx, &mut tx, user).await?;
        tx.commit().await?;
        Ok::<_, Error>(id)
    };
    let asked = futures::future::join_all((0..8).map(|_| ask())).await;
    let ids: Vec<AccountId> = asked.into_iter().map(|id| id.expect("an account")).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    house.settle().await;
    house.close().await;
}
