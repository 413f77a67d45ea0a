//! Waiting for a node, however long: nothing is held open meanwhile, and what is stamped afterwards is when it was done. (A
//! control plane that was held up before ours kept one transaction open for 279 seconds, and stamped its beginning.)

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use control::node::dispatch;
use control::policies::Policies;
use domain::machines::allocation::Status;
use testkit::{Act, CLEAN, House, new_id};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{Access, SignedTask, TaskOutcome};

/// No transaction of ours is open for longer.
const SECONDS_MAX: f64 = 1.0;

/// What somebody saw who looked at every connection, again and again.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    open: usize,
    oldest_seconds: f64,
    /// The longest that a look was late: on a machine that is held up so long, so is everybody.
    held_up_seconds: f64,
}

/// Both go on beside each other: a look holds nobody up who is looked at.
async fn watched<T>(house: &House, work: impl Future<Output = T>) -> (T, Seen) {
    let seen = Cell::new(Seen::default());
    let look = async {
        let mut looks = interval(Duration::from_millis(5));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked = looks.tick().await;
        loop {
            let at = looks.tick().await;
            let open = house.open_transactions().await;
            let Seen { open: before, oldest_seconds, held_up_seconds } = seen.get();
            seen.set(Seen {
                open: before + open.len(),
                oldest_seconds: open.into_iter().fold(oldest_seconds, f64::max),
                held_up_seconds: held_up_seconds.max((at - looked).as_secs_f64()),
            });
            looked = at;
        }
    };
    let done = tokio::select! {
        done = work => done,
        never = look => never,
    };
    (done, seen.get())
}

impl Seen {
    fn is_short(self) {
        assert!(self.open > 0, "the watcher has seen none of our transactions");
        assert!(self.oldest_seconds < SECONDS_MAX + self.held_up_seconds, "{self:?}");
    }
}

fn provisioned() -> TaskOutcome {
    let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "t".to_owned() };
    TaskOutcome::Provisioned { access }
}

/// Lets time pass while the node works, with its signs of life in between. At no step is anything left open.
async fn works_for(house: &House, seconds: u64, step: u64) {
    let mut left = seconds;
    while left > 0 {
        let now = left.min(step);
        house.beat(house.first_node()).await;
        house.pass(Duration::from_secs(now)).await;
        let open = house.open_transactions().await;
        assert!(open.is_empty(), "{left} seconds before the end: {open:?}");
        left -= now;
    }
}

/// The node answers, and everything settles; between which two moments of the database that was.
async fn answered(house: &House, given: &SignedTask, outcome: TaskOutcome) -> (i64, i64) {
    let before = house.database_micros().await;
    let answer = house.first_node().answer(&house.ctx, given, outcome).await;
    assert!(answer.applied, "{answer:?}");
    house.settle().await;
    (before, house.database_micros().await)
}

/// Its last step was taken in between.
async fn last_step_was(house: &House, id: Uuid, event: &str, (from, to): (i64, i64)) {
    let step = house.steps(id).await.pop().expect("a step");
    assert_eq!(step.event, event);
    assert!((from..=to).contains(&step.micros), "{step:?} is not between {from} and {to}");
}

#[tokio::test]
async fn a_node_that_takes_279_seconds_holds_nothing_open_and_is_stamped_when_it_is_done() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let work = async {
        house.first_node().will(&[Act::FallSilent]);
        let id = house.create("h100.slice", 1).await.expect("it fits").id;
        house.settle().await;
        let given = house.first_node().held().pop().expect("it was handed out");
        works_for(&house, 279, 10).await;
        assert_eq!(house.status(id).await, Status::Provisioning);
        let done = answered(&house, &given, provisioned()).await;
        last_step_was(&house, id, "provision.succeeded", done).await;
        let active_at = house.show(id).await.active_at.expect("it is active").as_microsecond();
        assert!((done.0..=done.1).contains(&active_at), "{active_at} is not in {done:?}");

        house.first_node().will(&[Act::FallSilent]);
        house.release(id).await.expect("asked");
        let asked = house.database_micros().await;
        house.settle().await;
        let given = house.first_node().held().pop().expect("it was handed out");
        works_for(&house, 110, 10).await;
        let done = answered(&house, &given, TaskOutcome::Cleaned { proof: CLEAN }).await;
        last_step_was(&house, id, "release.completed", done).await;
        let shown = house.show(id).await;
        let ended_at = shown.ended_at.expect("it has ended").as_microsecond();
        let given_back = shown.release_requested_at.expect("it was").as_microsecond();
        assert!((done.0..=done.1).contains(&ended_at) && given_back <= asked, "{shown:?}");
    };
    let ((), seen) = watched(&house, work).await;
    seen.is_short();
    house.close().await;
}

#[tokio::test]
async fn a_restart_that_takes_two_hours_holds_nothing_open_and_is_stamped_when_it_is_done() {
    let policies = Policies { restart_timeout_seconds: 3 * 3_600, ..Policies::default() };
    let mut house = House::with(policies).await;
    house.node("h100.metal", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    let work = async {
        let id = house.active("h100.metal", 8).await.id;
        house.first_node().will(&[Act::FallSilent]);
        house.restart(id).await.expect("asked");
        house.settle().await;
        let given = house.first_node().held().pop().expect("it was handed out");
        works_for(&house, 7_200, 50).await;
        assert_eq!(house.status(id).await, Status::Restarting);
        assert_eq!(house.first_node().held().len(), 1, "it was handed out once");
        let outcome = TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() };
        let done = answered(&house, &given, outcome).await;
        last_step_was(&house, id, "restart.completed", done).await;
    };
    let ((), seen) = watched(&house, work).await;
    seen.is_short();
    house.close().await;
}

/// Everything runs by itself, and the seconds are real ones.
#[tokio::test]
async fn a_real_wait_of_seconds_holds_nothing_open() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let (spine, ending) = (house.spine.clone(), stop.clone());
    running.spawn(async move { spine.run(ending).await });
    let work = async {
        let id = house.create("h100.slice", 1).await.expect("it fits").id;
        let mut ticks = interval(Duration::from_millis(20));
        // A tick that was missed is not made up for: the wait would be shorter.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let given = loop {
            ticks.tick().await;
            let claimed = dispatch::claim(&house.ctx, &house.first_node().identity, 1).await;
            if let Some(given) = claimed.expect("a claim").pop() {
                break given;
            }
        };
        for _ in 0..150 {
            ticks.tick().await;
        }
        let before = house.database_micros().await;
        let answer = house.first_node().answer(&house.ctx, &given, provisioned()).await;
        assert!(answer.applied, "{answer:?}");
        while house.status(id).await != Status::Active {
            ticks.tick().await;
        }
        let done = (before, house.database_micros().await);
        last_step_was(&house, id, "provision.succeeded", done).await;
        let begun = house.steps(id).await[1].micros;
        assert!(done.0 - begun > 2_500_000, "the node took three seconds");
    };
    let ((), seen) = watched(&house, work).await;
    seen.is_short();
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.expect("it did not panic").expect("it ended well");
    }
    house.close().await;
}
