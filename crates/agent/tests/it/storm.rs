//! R22: many agents lose the gateway at one moment. They ask again by themselves, seldom and never together, and are back
//! soon after it is.

use std::collections::BTreeMap;
use std::time::Duration;

use agent::Identity;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::gateway::Mood;
use crate::house::House;

const AGENTS: usize = 50;
const AWAY: Duration = Duration::from_secs(600);
/// When every agent has failed often enough to wait for as long as it ever does.
const LONG: SignedDuration = SignedDuration::from_secs(90);
/// An agent asks for work every four seconds on average, and to be heard every five or six: with so many of them twenty-one a second. As
/// many as this in one second do not come by chance.
const TOGETHER: usize = 50;

async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

#[tokio::test(start_paused = true)]
async fn r22_agents_that_lost_their_gateway_ask_seldom_never_together_and_are_all_back_in_time() {
    let houses: Vec<House> = (0..AGENTS).map(|_| House::new()).collect();
    let agents: Vec<_> = houses.iter().map(House::start).collect();
    for house in &houses {
        house.gateway.until("it is there", |log| log.waits > 0 && !log.heartbeats.is_empty()).await;
    }
    let gone = houses[0].clock.now();
    houses.iter().for_each(|house| house.gateway.set_mood(Mood::Away));
    pass(AWAY).await;

    let mut in_one_second: BTreeMap<i64, usize> = BTreeMap::new();
    let mut asked = 0;
    for house in &houses {
        let log = house.gateway.log();
        let times = |what: &str| -> Vec<Timestamp> {
            log.in_vain.iter().filter(|(asked, _)| *asked == what).map(|(_, at)| *at).collect()
        };
        let beats = times("heartbeat");
        let gap = beats.windows(2).map(|two| two[1].duration_since(two[0])).min();
        assert!(gap >= Some(SignedDuration::from_secs(5)), "half the interval at least: {gap:?}");
        let late = times("wait").into_iter().filter(|at| at.duration_since(gone) > LONG);
        let late: Vec<Timestamp> = late.collect();
        // Eight seconds at most, and four on average.
        assert!((90..=165).contains(&late.len()), "{}", late.len());
        asked += late.len();
        for at in log.in_vain.iter().map(|(_, at)| at.duration_since(gone)).filter(|at| *at > LONG)
        {
            *in_one_second.entry(at.as_secs()).or_default() += 1;
        }
    }
    let mean = asked / AGENTS;
    assert!((120..=135).contains(&mean), "{mean} of {}", (AWAY.as_secs() - 90) / 4);
    let most = in_one_second.values().max().copied().unwrap_or_default();
    assert!(most <= TOGETHER, "{most} in one second");

    let back = houses[0].clock.now();
    let so_far: Vec<_> = houses.iter().map(|house| house.gateway.log()).collect();
    houses.iter().for_each(|house| house.gateway.set_mood(Mood::Well));
    for (house, before) in houses.iter().zip(so_far) {
        let (waits, beats) = (before.waits, before.heartbeats.len());
        house.gateway.until("back", |log| log.waits > waits && log.heartbeats.len() > beats).await;
    }
    let took = houses[0].clock.now().duration_since(back);
    assert!(took <= SignedDuration::from_secs(9), "{took}");
    for agent in agents {
        agent.stopped().await;
    }
}

/// A fleet that was enrolled at one moment: its certificates would all end at one, and be renewed at one.
#[test]
fn r22_certificates_that_were_issued_together_are_not_renewed_together() {
    let issued_at: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
    let life = SignedDuration::from_hours(7 * 24);
    let due = |number: u128| {
        let identity = Identity {
            node_id: Uuid::from_u128(number),
            gateway: String::new(),
            key: String::new(),
            certificate: String::new(),
            authority: String::new(),
            task_keys: Vec::new(),
            issued_at,
            not_after: issued_at + life,
            token_sha256: String::new(),
        };
        assert_eq!(identity.renewal_due(), identity.renewal_due(), "started again, it stays");
        identity.renewal_due().duration_since(issued_at).as_secs_f64() / life.as_secs_f64()
    };
    let mut in_each_hundredth: BTreeMap<u64, usize> = BTreeMap::new();
    for share in (0..2_000).map(due) {
        assert!((0.3..0.5).contains(&share), "{share}");
        *in_each_hundredth.entry((share * 100.0) as u64).or_default() += 1;
    }
    // A hundred in each, more or less; a hundredth is more than an hour and a half.
    assert!(
        in_each_hundredth.values().all(|count| (60..=140).contains(count)),
        "{in_each_hundredth:?}"
    );
}
