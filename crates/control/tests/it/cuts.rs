//! R20: the line between a node and the control plane is cut at every call of a task, in one direction or both, for a moment,
//! for longer than a lease, for longer than any deadline. One result counts, and nothing is ordered for a slot that was given
//! back. The agent in here keeps a journal, as the real one does: it does a task once, and tells the end to whoever asks.

use std::collections::HashMap;
use std::time::Duration;

use control::allocation::clean;
use control::node::{dispatch, task};
use domain::ids::{AllocationId, NodeTaskId};
use domain::machines::allocation::Status;
use lifecycle::Code as _;
use testkit::{Act, CLEAN, House, ScriptedNode, envelope_of, new_id};
use uuid::Uuid;
use wire::Coded;
use wire::http::admin::Because;
use wire::node::{
    Access, Phase, PhaseBatch, PhaseReport, PhaseStatus, SignedTask, TaskKind, TaskOutcome,
};

/// A moment; longer than a lease; longer than any deadline.
const SECONDS: [u64; 3] = [1, 70, 3_600];

/// The call during which the line is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Claim,
    Phases,
    Result,
}

/// Which way it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// The call itself, and with it the answer.
    Both,
    /// The call arrives.
    Answer,
}

/// What was going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    Provision,
    Restart,
    Release,
}

/// An agent with its journal: how each task ended that it has done.
#[derive(Default)]
struct Agent {
    journal: HashMap<Uuid, TaskOutcome>,
}

impl Agent {
    /// What it answers to a task. Done once, whatever dispatch asks for it.
    fn done(&mut self, given: &SignedTask) -> TaskOutcome {
        self.journal.entry(given.task_id).or_insert_with(|| outcome_of(given)).clone()
    }

    /// Takes what there is to be done until there is no more.
    async fn serve(&mut self, house: &House) {
        let node = house.first_node();
        house.beat_all().await;
        house.settle().await;
        while let Some(given) = claim(house).await {
            let outcome = self.done(&given);
            assert!(tell(house, &given).await.applied, "phases of {given:?}");
            assert!(node.answer(&house.ctx, &given, outcome).await.applied, "{given:?}");
            house.settle().await;
        }
    }
}

fn outcome_of(given: &SignedTask) -> TaskOutcome {
    match TaskKind::parse(&envelope_of(given).kind).expect("a kind") {
        TaskKind::SliceProvision | TaskKind::UserProvision => {
            let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "t".to_owned() };
            TaskOutcome::Provisioned { access }
        }
        TaskKind::SliceRestart | TaskKind::NodeReboot => {
            TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() }
        }
        TaskKind::SliceRelease | TaskKind::UserDeprovision => TaskOutcome::Cleaned { proof: CLEAN },
    }
}

/// Asks for a task. Whatever is handed out is for somebody who holds something.
async fn claim(house: &House) -> Option<SignedTask> {
    let given = dispatch::claim(&house.ctx, &house.first_node().identity, 1)
        .await
        .expect("a claim")
        .pop()?;
    let of = envelope_of(&given).allocation_id;
    let claims = house.claims(of).await;
    assert!(claims.iter().all(|status| status != "freed"), "{given:?} for what was given back");
    Some(given)
}

async fn tell(house: &House, given: &SignedTask) -> wire::node::Acknowledged {
    let phase = PhaseReport {
        seq: 1,
        phase: Coded(Phase::ImagePrepared),
        status: Coded(PhaseStatus::Succeeded),
        at: house.ctx.clock.now(),
    };
    let batch = PhaseBatch { dispatch: given.dispatch, phases: vec![phase] };
    let (ctx, agent) = (&house.ctx, &house.first_node().identity);
    task::phases(ctx, agent, NodeTaskId(given.task_id), &batch).await.expect("heard")
}

/// Nothing is heard of the node for so long.
async fn cut(house: &House, seconds: u64) {
    let steps = seconds.div_ceil(600);
    for _ in 0..steps {
        house.pass(Duration::from_secs(seconds / steps)).await;
    }
}

/// Something is going on, and a task for it is queued.
async fn begin(house: &House, agent: &mut Agent, going: Going) -> Uuid {
    house.beat_all().await;
    let id = house.create("h100.slice", 2).await.expect("it fits").id;
    match going {
        Going::Provision => {}
        Going::Restart => {
            agent.serve(house).await;
            house.restart(id).await.expect("asked");
        }
        Going::Release => {
            agent.serve(house).await;
            house.release(id).await.expect("asked");
        }
    }
    house.settle().await;
    id
}

/// Plays one task with the line cut in one of its calls. Says how often its result counted.
async fn play(house: &House, agent: &mut Agent, (call, lost): (Call, Lost), seconds: u64) -> u32 {
    let (ctx, node): (_, &ScriptedNode) = (&house.ctx, house.first_node());
    let mut counted = 0;
    if call == Call::Claim {
        if lost == Lost::Answer {
            claim(house).await.expect("it is handed out, and never arrives");
        }
        cut(house, seconds).await;
        return counted;
    }
    let given = claim(house).await.expect("it is handed out");
    if call == Call::Phases {
        if lost == Lost::Answer {
            assert!(tell(house, &given).await.applied);
        }
        cut(house, seconds).await;
        let again = tell(house, &given).await;
        assert!(lost == Lost::Both || !again.applied, "a phase was told twice");
    }
    let outcome = agent.done(&given);
    if call == Call::Result {
        if lost == Lost::Answer {
            counted += u32::from(node.answer(ctx, &given, outcome.clone()).await.applied);
        }
        cut(house, seconds).await;
    }
    counted += u32::from(node.answer(ctx, &given, outcome.clone()).await.applied);
    // And once more, because nobody knows whether it arrived.
    assert!(!node.answer(ctx, &given, outcome).await.applied, "it counted twice");
    counted
}

/// What was handed out and never arrived comes back with its lease.
async fn rescue(house: &House, agent: &mut Agent) {
    house.ctx.clock.advance(Duration::from_secs(61));
    house.beat_all().await;
    house.pass(Duration::ZERO).await;
    agent.serve(house).await;
}

/// What became of it once the line was back and everybody had caught up.
async fn came_to(house: &House, agent: &mut Agent, id: Uuid) -> Status {
    agent.serve(house).await;
    for _ in 0..2 {
        if house.open_runs(id).await > 0 {
            rescue(house, agent).await;
        }
    }
    house.status(id).await
}

/// Leads what is left to its end, as tenants and operators do.
async fn lead_out(house: &House, agent: &mut Agent, id: Uuid) {
    for _ in 0..4 {
        match house.status(id).await {
            Status::Active | Status::RestartFailed | Status::ReleaseFailed => {
                house.release(id).await.expect("asked");
                agent.serve(house).await;
            }
            Status::Failed if house.claims(id).await.iter().any(|status| status == "stuck") => {
                let why = Because { reason: "the line is back".to_owned() };
                let (ctx, operator, of) = (&house.ctx, &house.operator, AllocationId(id));
                clean::request(ctx, operator, of, &why, None).await.expect("asked");
                agent.serve(house).await;
            }
            Status::Released | Status::Failed if house.open_runs(id).await == 0 => return,
            Status::Released
            | Status::Failed
            | Status::Requested
            | Status::Provisioning
            | Status::Restarting
            | Status::Releasing => rescue(house, agent).await,
        }
    }
}

/// Cut for less than a deadline it is done; cut for longer it has ended, with a reason, and never late in life.
fn expected(going: Going, call: Call, lost: Lost, seconds: u64) -> &'static [Status] {
    let told = (call, lost) == (Call::Result, Lost::Answer);
    match (going, seconds < 600 || told) {
        (Going::Provision | Going::Restart, true) => &[Status::Active],
        (Going::Release, true) => &[Status::Released],
        (Going::Provision, false) => &[Status::Failed],
        (Going::Restart, false) => &[Status::RestartFailed],
        (Going::Release, false) => &[Status::ReleaseFailed, Status::Released],
    }
}

async fn every_cut(going: Going) {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::StayAway]);
    let mut agent = Agent::default();
    for call in [Call::Claim, Call::Phases, Call::Result] {
        for lost in [Lost::Both, Lost::Answer] {
            for seconds in SECONDS {
                let what = format!("{going:?} {call:?} {lost:?} {seconds}");
                let id = begin(&house, &mut agent, going).await;
                let counted = play(&house, &mut agent, (call, lost), seconds).await;
                assert!(counted <= 1, "{what}: a result counted {counted} times");
                let status = came_to(&house, &mut agent, id).await;
                assert!(expected(going, call, lost, seconds).contains(&status), "{what}: {status}");
                let shown = house.show(id).await;
                assert!(
                    matches!(status, Status::Active | Status::Released)
                        || shown.status_reason.is_some(),
                    "{what}: {shown:?}"
                );
                lead_out(&house, &mut agent, id).await;
                house.all_came_to_an_end().await;
            }
        }
    }
    house.beat_all().await;
    house.close().await;
}

#[tokio::test]
async fn r20_a_provision_is_cut_at_every_call_and_one_result_counts() {
    every_cut(Going::Provision).await;
}

#[tokio::test]
async fn r20_a_restart_is_cut_at_every_call_and_one_result_counts() {
    every_cut(Going::Restart).await;
}

#[tokio::test]
async fn r20_a_release_is_cut_at_every_call_and_one_result_counts() {
    every_cut(Going::Release).await;
}
