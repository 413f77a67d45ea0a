//! What a scripted node says: phases, results, and signs of life in the boot it is in.

use control::Ctx;
use control::node::{heartbeat, task};
use domain::ids::NodeTaskId;
use uuid::Uuid;
use wire::Coded;
use wire::node::{
    Access, CleanupProof, Gpu, Heartbeat, HeartbeatAnswer, PROTOCOL, Phase, PhaseBatch,
    PhaseReport, PhaseStatus, SignedTask, TaskKind, TaskOutcome,
};

use super::{Act, CLEAN, House, ScriptedNode, envelope_of};
use crate::new_id;

fn kind_of(given: &SignedTask) -> TaskKind {
    lifecycle::Code::parse(&envelope_of(given).kind).expect("a kind")
}

/// The phases that it gets through.
pub(super) fn phases_of(given: &SignedTask, act: Act) -> Vec<Phase> {
    match (kind_of(given), act) {
        (TaskKind::SliceRestart, Act::Fail(_) | Act::KeepBoot) => vec![Phase::ShutDown],
        (TaskKind::NodeReboot, Act::Fail(_) | Act::KeepBoot) => vec![Phase::Acknowledged],
        (TaskKind::SliceRestart, _) => vec![Phase::ShutDown, Phase::VmStarted],
        (TaskKind::NodeReboot, _) => vec![Phase::Acknowledged, Phase::Rebooted],
        (TaskKind::SliceProvision | TaskKind::UserProvision, _) => vec![Phase::ImagePrepared],
        (TaskKind::SliceRelease | TaskKind::UserDeprovision, _) => vec![Phase::ImagePrepared],
    }
}

impl ScriptedNode {
    /// The boot that the machine is in.
    pub fn boot_id(&self) -> Uuid {
        *self.boot_id.lock().expect("nobody panicked")
    }

    /// The machine is in another boot from now on; answers the one before.
    pub fn reboot(&self) -> Uuid {
        std::mem::replace(&mut self.boot_id.lock().expect("nobody panicked"), new_id())
    }

    pub(super) async fn tell_phases(&self, ctx: &Ctx, given: &SignedTask, phases: &[Phase]) {
        let told = |(seq, phase): (i32, &Phase)| PhaseReport {
            seq,
            phase: Coded(*phase),
            status: Coded(PhaseStatus::Succeeded),
            at: ctx.clock.now(),
        };
        let phases = (1..).zip(phases).map(told).collect();
        let batch = PhaseBatch { dispatch: given.dispatch, phases };
        task::phases(ctx, &self.identity, NodeTaskId(given.task_id), &batch).await.expect("phases");
    }

    /// What it answers to a task; none when it does not.
    pub(super) fn outcome_of(&self, given: &SignedTask, act: Act) -> Option<TaskOutcome> {
        let kind = kind_of(given);
        match act {
            Act::FallSilent | Act::StayAway => None,
            Act::ComeUpAndFallSilent => {
                if kind == TaskKind::NodeReboot {
                    self.reboot();
                }
                None
            }
            Act::Fail(reason) | Act::ComeUpAndFail(reason) => Some(TaskOutcome::Failed {
                reason: Coded(reason),
                phase: Some(Coded(Phase::ImagePrepared)),
                message: "as the script says".to_owned(),
            }),
            Act::Succeed | Act::LeaveResidue | Act::KeepBoot => Some(self.success(kind, act)),
        }
    }

    fn success(&self, kind: TaskKind, act: Act) -> TaskOutcome {
        match kind {
            TaskKind::SliceProvision | TaskKind::UserProvision => TaskOutcome::Provisioned {
                access: Access {
                    host: "192.0.2.7".to_owned(),
                    port: 22,
                    user: "tenant".to_owned(),
                },
            },
            TaskKind::SliceRestart if act == Act::KeepBoot => {
                // A guest has boots of its own.
                let boot_id = new_id();
                TaskOutcome::Restarted { boot_id_before: boot_id, boot_id }
            }
            TaskKind::NodeReboot if act == Act::KeepBoot => {
                let boot_id = self.boot_id();
                TaskOutcome::Restarted { boot_id_before: boot_id, boot_id }
            }
            TaskKind::SliceRestart => {
                TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() }
            }
            TaskKind::NodeReboot => {
                let boot_id_before = self.reboot();
                TaskOutcome::Restarted { boot_id_before, boot_id: self.boot_id() }
            }
            TaskKind::SliceRelease | TaskKind::UserDeprovision => {
                let wiped = act == Act::Succeed;
                TaskOutcome::Cleaned { proof: CleanupProof { wiped, ..CLEAN } }
            }
        }
    }
}

impl House {
    /// A sign of life of a node, in the boot it is in, at work on the tasks that it holds.
    pub async fn beat(&self, node: &ScriptedNode) -> HeartbeatAnswer {
        let node_id = node.identity.node_id.uuid();
        let slots: Vec<(i16, i16)> = sqlx::query_as(
            "SELECT slot_index, numa_node FROM slots WHERE node_id = $1 ORDER BY slot_index",
        )
        .bind(node_id)
        .fetch_all(&self.database.sql)
        .await
        .expect("slots");
        let images =
            sqlx::query_scalar("SELECT image FROM node_images WHERE node_id = $1 ORDER BY image")
                .bind(node_id)
                .fetch_all(&self.database.sql)
                .await
                .expect("images");
        let gpu = |(index, numa)| Gpu { index, model: "H100".to_owned(), numa };
        let heartbeat = Heartbeat {
            protocol: PROTOCOL,
            agent_version: "scripted".to_owned(),
            boot_id: node.boot_id(),
            gpus: slots.into_iter().map(gpu).collect(),
            images,
            guests: Vec::new(),
            leases: Vec::new(),
            running: node.held().iter().map(|given| given.task_id).collect(),
            refused: 0,
        };
        heartbeat::beat(&self.ctx, &node.identity, &heartbeat).await.expect("it was heard")
    }
}
