//! Release, cancel, restart and force-release crossing each other (R07): in every order one after another, and at random
//! barriers all at once on a real Postgres. One of them wins each status; who loses is told the status there is.

use std::collections::{BTreeMap, BTreeSet};

use control::Error;
use control::allocation::release;
use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use futures::future::{join, join_all};
use lifecycle::Code as _;
use testkit::{Act, House, Step, envelope_of, new_id};
use uuid::Uuid;
use wire::http::allocations::ForceRelease;
use wire::node::{Access, FailureReason, TaskOutcome};

const SKU: &str = "h100.slice";
/// How many barriers the suite has; `BARRIERS` asks for more, under nextest's profile `long`.
const BARRIERS: usize = 192;
/// How many allocations get ready together.
const BATCH: usize = 32;
/// How many of them are asked at the same moment, each four things: as many connections as the store has.
const AT_ONCE: usize = 4;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ask {
    Release,
    Cancel,
    Restart,
    Force,
}

const ASKS: [Ask; 4] = [Ask::Release, Ask::Cancel, Ask::Restart, Ask::Force];

/// Where an allocation may be when they come.
const STATES: [Status; 5] = [
    Status::Requested,
    Status::Provisioning,
    Status::Active,
    Status::Restarting,
    Status::RestartFailed,
];

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    /// It is so, or was so already: the status it has.
    Accepted(Status),
    /// Not in this status.
    Told(String),
}

async fn ask(house: &House, id: Uuid, what: Ask) -> Said {
    // Who only lost a race is to ask again, as the API says.
    for _ in 0..10 {
        let answer = match what {
            // To the API a cancel is a release.
            Ask::Release | Ask::Cancel => house.release(id).await,
            Ask::Restart => house.restart(id).await,
            Ask::Force => {
                let because = ForceRelease { reason: "the rack is on fire".to_owned() };
                let id = AllocationId(id);
                release::force(&house.ctx, &house.operator, id, &because, None).await
            }
        };
        match answer {
            Ok(answer) => return Said::Accepted(answer.body.status.0),
            Err(Error::Conflict(sentence)) => {
                let words = sentence.strip_prefix("it is ").expect("it names the status");
                let status = words.split(':').next().expect("it goes on");
                return Said::Told(status.to_owned());
            }
            Err(Error::Store(store::Error::Conflict)) => {}
            Err(other) => panic!("{what:?}: {}", other.chain()),
        }
    }
    panic!("{what:?} never won");
}

/// The little model: what is said to a request in this status, and where it leads.
fn foretold(now: &'static str, what: Ask) -> (bool, &'static str) {
    match (what, now) {
        (Ask::Restart, "active" | "restart_failed" | "restarting") => (true, "restarting"),
        (Ask::Restart, _) | (_, "released" | "failed") => (false, now),
        (Ask::Release | Ask::Cancel | Ask::Force, _) => (true, "releasing"),
    }
}

fn orders() -> Vec<Vec<Ask>> {
    fn on(begun: &[Ask], all: &mut Vec<Vec<Ask>>) {
        if begun.len() == ASKS.len() {
            all.push(begun.to_vec());
        }
        for next in ASKS.iter().filter(|next| !begun.contains(next)) {
            on(&[begun, &[*next]].concat(), all);
        }
    }
    let mut all = Vec::new();
    on(&[], &mut all);
    all
}

async fn house(nodes: usize) -> House {
    let mut house = House::open().await;
    for _ in 0..nodes {
        house.node(SKU, &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    }
    house
}

/// Every node does this with whatever comes, while `work` settles.
async fn meanwhile(house: &House, act: Act) {
    for node in house.nodes() {
        node.will(&[act; BATCH]);
    }
    house.settle().await;
    for node in house.nodes() {
        node.forget_script();
    }
}

/// An allocation in each of these states, in their order. A restart has reached its node or not, as `begun` says.
async fn bring(house: &House, states: &[Status], begun: bool) -> Vec<Uuid> {
    let mut ids = vec![None; states.len()];
    let of = |wanted: &'static [Status]| {
        (0..states.len()).filter(move |place| wanted.contains(&states[*place]))
    };
    for place in of(&[Status::Active, Status::Restarting, Status::RestartFailed]) {
        ids[place] = Some(house.create(SKU, 1).await.expect("it fits").id);
    }
    house.settle().await;
    for place in of(&[Status::RestartFailed]) {
        house.restart(ids[place].expect("it is active")).await.expect("asked");
    }
    meanwhile(house, Act::Fail(FailureReason::GuestMissing)).await;
    for place in of(&[Status::Provisioning]) {
        ids[place] = Some(house.create(SKU, 1).await.expect("it fits").id);
    }
    if begun {
        for place in of(&[Status::Restarting]) {
            house.restart(ids[place].expect("it is active")).await.expect("asked");
        }
    }
    meanwhile(house, Act::FallSilent).await;
    for place in of(&[Status::Requested]) {
        ids[place] = Some(house.create(SKU, 1).await.expect("it fits").id);
    }
    for place in of(&[Status::Restarting]) {
        house.restart(ids[place].expect("it is active")).await.expect("asked, or asked again");
    }
    let ids: Vec<Uuid> = ids.into_iter().map(|id| id.expect("each has a state")).collect();
    for (id, state) in ids.iter().zip(states) {
        assert_eq!(house.status(*id).await, *state);
    }
    ids
}

#[tokio::test]
async fn in_every_order_one_wins_each_status_and_the_others_are_told_which_it_is() {
    let house = house(3).await;
    for state in STATES {
        let orders = orders();
        assert_eq!(orders.len(), 24);
        let ids = bring(&house, &[state; 24], true).await;
        for (id, order) in ids.into_iter().zip(orders) {
            let mut now = state.code();
            for what in &order {
                let steps = house.steps(id).await.len();
                let (accepted, then) = foretold(now, *what);
                let status = Status::parse(then).expect("a status");
                let expected =
                    if accepted { Said::Accepted(status) } else { Said::Told(now.to_owned()) };
                assert_eq!(
                    ask(&house, id, *what).await,
                    expected,
                    "{what:?} in {now} of {order:?}"
                );
                let moved = usize::from(then != now);
                assert_eq!(house.steps(id).await.len(), steps + moved, "{what:?} in {now}");
                now = then;
                assert_eq!(house.status(id).await.code(), now);
            }
        }
        house.settle().await;
    }
    house.all_came_to_an_end().await;
    house.close().await;
}

/// Random, and the same again from the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let sides = u64::try_from(sides).expect("it fits");
        usize::try_from((word ^ (word >> 31)) % sides).expect("it fits")
    }

    fn shuffled(&mut self) -> [Ask; 4] {
        let mut asks = ASKS;
        for place in (1..asks.len()).rev() {
            asks.swap(place, self.roll(place + 1));
        }
        asks
    }
}

/// The four at once, each after letting the others go first a few times.
async fn barrier(house: &House, id: Uuid, dice: &mut Dice) -> Vec<(Ask, Said)> {
    let asked = dice.shuffled().map(|what| (what, dice.roll(4)));
    join_all(asked.into_iter().map(|(what, turns)| async move {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        (what, ask(house, id, what).await)
    }))
    .await
}

/// What must be true of one allocation after its barrier, whatever the order was.
fn is_explained(state: Status, before: i64, answers: &[(Ask, Said)], steps: &[Step]) {
    let (id, story) = (state.code(), format!("{state}: {answers:?} {steps:#?}"));
    for (place, step) in steps.iter().enumerate() {
        assert_eq!(step.seq, i64::try_from(place).expect("few") + 1, "{story}");
        let from = place.checked_sub(1).map(|place| steps[place].to_status.clone());
        assert_eq!(step.from_status, from, "{story}");
    }
    let since: Vec<&Step> = steps.iter().filter(|step| step.seq > before).collect();
    let count = |event: &str| since.iter().filter(|step| step.event == event).count();
    assert_eq!(count("release.requested"), 1, "one of the three has won: {story}");
    let mut had: BTreeSet<&str> = since.iter().map(|step| step.to_status.as_str()).collect();
    had.insert(id);
    let mut restarted = false;
    for (what, said) in answers {
        match said {
            Said::Told(status) => assert!(had.contains(status.as_str()), "{what:?}: {story}"),
            Said::Accepted(status) => {
                let expected =
                    if *what == Ask::Restart { Status::Restarting } else { Status::Releasing };
                assert_eq!(*status, expected, "{story}");
                restarted |= *what == Ask::Restart;
            }
        }
    }
    let fresh = [Status::Active, Status::RestartFailed].contains(&state);
    assert_eq!(count("restart.requested"), usize::from(restarted && fresh), "{story}");
    assert_eq!(steps.last().map(|step| step.to_status.as_str()), Some("released"), "{story}");
}

/// Half of what fell silent succeeds after all, too late.
async fn answer_late(house: &House, dice: &mut Dice) {
    for node in house.nodes() {
        for given in node.take_held() {
            if dice.roll(2) == 0 {
                continue;
            }
            let outcome = if envelope_of(&given).kind == "slice.vm_provision" {
                let (host, user) = ("192.0.2.7".to_owned(), "t".to_owned());
                TaskOutcome::Provisioned { access: Access { host, port: 22, user } }
            } else {
                TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() }
            };
            node.answer(&house.ctx, &given, outcome).await;
        }
    }
}

/// One batch of barriers. How often each of the four has won, or was told what.
async fn batch(house: &House, dice: &mut Dice, told: &mut BTreeMap<String, usize>) {
    let states: Vec<Status> = (0..BATCH).map(|_| STATES[dice.roll(STATES.len())]).collect();
    let ids = bring(house, &states, dice.roll(2) == 0).await;
    let mut before = Vec::new();
    for id in &ids {
        before.push(i64::try_from(house.steps(*id).await.len()).expect("few"));
    }
    let mut answers = Vec::new();
    for chunk in ids.chunks(AT_ONCE) {
        let mut own: Vec<Dice> = chunk.iter().map(|_| Dice(dice.roll(usize::MAX) as u64)).collect();
        let barriers = chunk.iter().zip(&mut own).map(|(id, dice)| barrier(house, *id, dice));
        // Sometimes the workers are at it while the requests come.
        let turns = dice.roll(3);
        let workers = async {
            for _ in 0..turns {
                house.spine.step_all().await.expect("the spine moves");
            }
        };
        answers.extend(join(join_all(barriers), workers).await.0);
    }
    answer_late(house, dice).await;
    house.settle().await;
    for (place, id) in ids.iter().enumerate() {
        let (state, steps) = (states[place], house.steps(*id).await);
        is_explained(state, before[place], &answers[place], &steps);
        for (what, said) in &answers[place] {
            *told.entry(format!("{state}: {what:?} {said:?}")).or_default() += 1;
        }
    }
}

#[tokio::test]
async fn at_a_barrier_one_wins_each_status_and_the_others_are_told_one_that_it_had() {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (wanted, seed) = (read("BARRIERS").unwrap_or(BARRIERS), read("SEED").unwrap_or(7));
    let house = house(BATCH / 8).await;
    let began = house.database_micros().await;
    let mut dice = Dice(u64::try_from(seed).expect("it fits"));
    let (mut done, mut told) = (0, BTreeMap::new());
    while done < wanted {
        batch(&house, &mut dice, &mut told).await;
        done += BATCH;
    }
    house.all_came_to_an_end().await;
    let seconds = (house.database_micros().await - began) / 1_000_000;
    println!("{done} barriers in {seconds} s from seed {seed}: {told:#?}");
    house.close().await;
}
