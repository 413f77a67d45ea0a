//! The node protocol: what an agent and the gateway say to each other.

mod heartbeat;
mod identity;

use jiff::Timestamp;
use lifecycle::{Code, codes};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

pub use heartbeat::{Gpu, Guest, Heartbeat, HeartbeatAnswer, Lease};
pub use identity::{Certificate, Enrolment, JoinToken, Renewal};

/// The version of the protocol that this binary speaks. 2: an agent says its version in every request, and a task comes with
/// its place in a trace.
pub const PROTOCOL: u16 = 2;

/// The oldest version that this binary understands, as gateway and as agent: one back, so that the control plane is replaced
/// first, and its agents one by one.
pub const PROTOCOL_OLDEST: u16 = PROTOCOL - 1;

/// The header in which an agent says which version it speaks. Version 1 did not have it.
pub const PROTOCOL_HEADER: &str = "berth-protocol";

/// Whether this binary understands a version of the protocol.
pub const fn is_understood(protocol: u16) -> bool {
    PROTOCOL_OLDEST <= protocol && protocol <= PROTOCOL
}

codes! {
    /// What a task asks for. Typed parameters each; nothing is ever a shell string.
    pub enum TaskKind {
        SliceProvision = "slice.vm_provision",
        SliceRestart = "slice.vm_restart",
        SliceRelease = "slice.vm_release",
        UserProvision = "allocation.provision_user",
        UserDeprovision = "allocation.deprovision_user",
        NodeReboot = "node.reboot",
    }
}

codes! {
    /// A step of a task, as people see it.
    pub enum Phase {
        ImagePrepared = "image_prepared",
        SeedGenerated = "seed_generated",
        DomainDefined = "domain_defined",
        VmStarted = "vm_started",
        UserCreated = "user_created",
        KeysInstalled = "keys_installed",
        SshReachable = "ssh_reachable",
        DriverProbe = "driver_probe",
        Acknowledged = "acknowledged",
        Rebooted = "rebooted",
        MountsReconciled = "mounts_reconciled",
        RuntimesReconciled = "runtimes_reconciled",
        AccessRevoked = "access_revoked",
        ShutDown = "shut_down",
        Destroyed = "destroyed",
        Undefined = "undefined",
        Wiped = "wiped",
        LeasesReleased = "leases_released",
    }
}

/// [`Phase`], as it travels.
pub type PhaseWord = Coded<Phase>;

codes! {
    /// How a phase stands.
    pub enum PhaseStatus {
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
    }
}

/// [`PhaseStatus`], as it travels.
pub type PhaseStatusWord = Coded<PhaseStatus>;

codes! {
    /// Why a task failed.
    pub enum FailureReason {
        LeaseConflict = "lease_conflict",
        ImageUnavailable = "image_unavailable",
        ImageChecksumMismatch = "image_checksum_mismatch",
        VfioUnavailable = "vfio_unavailable",
        SshNotReady = "ssh_not_ready",
        GuestNotReady = "guest_not_ready",
        DeviceDirty = "device_dirty",
        CleanupIncomplete = "cleanup_incomplete",
        GuestMissing = "guest_missing",
        RebootFailed = "reboot_failed",
        MountsNotReady = "mounts_not_ready",
        RuntimesNotReady = "runtimes_not_ready",
        Interrupted = "interrupted",
        AgentDied = "agent_died",
        DriverFailed = "driver_failed",
        BadSignature = "bad_signature",
        OtherNode = "other_node",
        TaskExpired = "task_expired",
        UnknownKind = "unknown_kind",
        Malformed = "malformed",
        StaleFence = "stale_fence",
    }
}

/// [`FailureReason`], as it travels.
pub type FailureReasonWord = Coded<FailureReason>;

impl FailureReason {
    /// Whether the agent refused the task before it did anything.
    pub const fn is_refusal(self) -> bool {
        match self {
            FailureReason::BadSignature
            | FailureReason::OtherNode
            | FailureReason::TaskExpired
            | FailureReason::UnknownKind
            | FailureReason::Malformed
            | FailureReason::StaleFence => true,
            FailureReason::LeaseConflict
            | FailureReason::ImageUnavailable
            | FailureReason::ImageChecksumMismatch
            | FailureReason::VfioUnavailable
            | FailureReason::SshNotReady
            | FailureReason::GuestNotReady
            | FailureReason::DeviceDirty
            | FailureReason::CleanupIncomplete
            | FailureReason::GuestMissing
            | FailureReason::RebootFailed
            | FailureReason::MountsNotReady
            | FailureReason::RuntimesNotReady
            | FailureReason::Interrupted
            | FailureReason::AgentDied
            | FailureReason::DriverFailed => false,
        }
    }
}

/// A slot, as the node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotRef {
    /// Its identity.
    pub id: Uuid,
    /// Its number on the node.
    pub index: i16,
    /// The NUMA node it belongs to.
    pub numa: i16,
}

/// What a node must know to prepare an allocation. `slots` is empty for a whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provision {
    /// The GPUs it gets; empty for a whole machine.
    pub slots: Vec<SlotRef>,
    /// The image, by name.
    pub image: String,
    /// The SHA-256 that the image must have.
    pub image_sha256: String,
    /// Who may log in: public keys in OpenSSH's form.
    pub ssh_keys: Vec<String>,
}

/// What a node must know to clean up after an allocation. It names its slots: a slot that was given back before is not
/// touched again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// The GPUs to give back; empty for a whole machine.
    pub slots: Vec<SlotRef>,
}

/// What a node must know to restart what an allocation has: the guest on its slots, or the machine itself. Everything else
/// stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// The GPUs it has; empty for a whole machine.
    pub slots: Vec<SlotRef>,
}

/// A task's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// `slice.vm_provision`
    SliceProvision(Provision),
    /// `slice.vm_restart`
    SliceRestart(Restart),
    /// `slice.vm_release`
    SliceRelease(Cleanup),
    /// `allocation.provision_user`
    UserProvision(Provision),
    /// `allocation.deprovision_user`
    UserDeprovision(Cleanup),
    /// `node.reboot`
    NodeReboot(Restart),
}

impl Work {
    /// Its kind.
    pub const fn kind(&self) -> TaskKind {
        match self {
            Work::SliceProvision(_) => TaskKind::SliceProvision,
            Work::SliceRestart(_) => TaskKind::SliceRestart,
            Work::SliceRelease(_) => TaskKind::SliceRelease,
            Work::UserProvision(_) => TaskKind::UserProvision,
            Work::UserDeprovision(_) => TaskKind::UserDeprovision,
            Work::NodeReboot(_) => TaskKind::NodeReboot,
        }
    }

    /// Its parameters.
    ///
    /// # Errors
    /// Never for these types; serde's signature.
    pub fn params(&self) -> serde_json::Result<serde_json::Value> {
        match self {
            Work::SliceProvision(params) | Work::UserProvision(params) => {
                serde_json::to_value(params)
            }
            Work::SliceRelease(params) | Work::UserDeprovision(params) => {
                serde_json::to_value(params)
            }
            Work::SliceRestart(params) | Work::NodeReboot(params) => serde_json::to_value(params),
        }
    }

    /// The work of that kind with these parameters.
    ///
    /// # Errors
    /// When they are not exactly what the kind takes.
    pub fn read(kind: TaskKind, params: serde_json::Value) -> serde_json::Result<Work> {
        Ok(match kind {
            TaskKind::SliceProvision => Work::SliceProvision(serde_json::from_value(params)?),
            TaskKind::SliceRestart => Work::SliceRestart(serde_json::from_value(params)?),
            TaskKind::SliceRelease => Work::SliceRelease(serde_json::from_value(params)?),
            TaskKind::UserProvision => Work::UserProvision(serde_json::from_value(params)?),
            TaskKind::UserDeprovision => Work::UserDeprovision(serde_json::from_value(params)?),
            TaskKind::NodeReboot => Work::NodeReboot(serde_json::from_value(params)?),
        })
    }
}

/// What is signed: one task, for one node, for one dispatch, until it expires. `kind` is text here, so that a kind of a
/// newer control plane is an unknown kind and not a malformed message. Who signs it takes the parameters as text, as they are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope<Params = serde_json::Value> {
    /// The version of the protocol.
    pub v: u16,
    /// Which key signed it.
    pub key_id: String,
    /// The task.
    pub task_id: Uuid,
    /// The only node that may act on it.
    pub node_id: Uuid,
    /// The allocation it is for.
    pub allocation_id: Uuid,
    /// The allocation's operation it is for.
    pub operation_id: Uuid,
    /// Grows with every step of the allocation: older work must not begin after newer.
    pub fence: i64,
    /// The number of this dispatch.
    pub dispatch: i64,
    /// What to do.
    pub kind: String,
    /// The kind's parameters.
    pub params: Params,
    /// When it was signed.
    pub issued_at: Timestamp,
    /// Before this it must not be begun.
    pub not_before: Timestamp,
    /// After this it must not be begun.
    pub expires_at: Timestamp,
}

/// A task on its way to an agent: the exact text that was signed, and the signature. What stands beside the envelope is
/// not signed, and only names what a refusal is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedTask {
    /// The task.
    pub task_id: Uuid,
    /// The dispatch.
    pub dispatch: i64,
    /// An [`Envelope`], as the text that was signed.
    pub envelope: String,
    /// The signature over it, for [`Purpose::Task`](crate::seal::Purpose::Task).
    pub signature: String,
    /// Where the dispatch stands in its trace, as W3C writes it. It decides nothing; an agent that does not know it works
    /// as well without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Several tasks at once, for an agent that asked for as many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBatch {
    /// The tasks, in the order in which they were queued.
    pub tasks: Vec<SignedTask>,
}

/// One phase as it begins or ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseReport {
    /// Counts the reports of one dispatch, from 1.
    pub seq: i32,
    /// Which phase.
    pub phase: PhaseWord,
    /// How it stands.
    pub status: PhaseStatusWord,
    /// When, by the node's clock.
    pub at: Timestamp,
}

/// `POST /agent/v1/tasks/{id}/events`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseBatch {
    /// The dispatch they belong to.
    pub dispatch: i64,
    /// In order.
    pub phases: Vec<PhaseReport>,
}

/// What a clean-up achieved. Only a complete one frees anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanupProof {
    /// The machine, or the account on it, is gone.
    pub released: bool,
    /// It did not stop when asked, and was ended.
    pub hard_stopped: bool,
    /// Disk and GPU memory hold nothing of the tenant.
    pub wiped: bool,
    /// The leases on the node were returned.
    pub leases_released: bool,
}

impl CleanupProof {
    /// Whether nothing was left behind. A hard stop is as good as a gentle one.
    pub const fn is_complete(&self) -> bool {
        self.released && self.wiped && self.leases_released
    }
}

/// How a tenant reaches what was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user.
    pub user: String,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum TaskOutcome {
    /// It was prepared.
    Provisioned {
        /// How to reach it.
        access: Access,
    },
    /// It was restarted, and is in working order again.
    Restarted {
        /// The boot that was ended: of the guest, or of the machine.
        boot_id_before: Uuid,
        /// The boot that has begun. A restart without a new one is none.
        boot_id: Uuid,
    },
    /// It was cleaned up, as far as the proof says.
    Cleaned {
        /// What was achieved.
        proof: CleanupProof,
    },
    /// It could not be done.
    Failed {
        /// Why.
        reason: FailureReasonWord,
        /// In which phase.
        phase: Option<PhaseWord>,
        /// A sentence for operators; at most 512 characters, shown as text.
        message: String,
    },
}

/// `POST /agent/v1/tasks/{id}/result`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskResult {
    /// The dispatch it is the result of.
    pub dispatch: i64,
    /// How it ended.
    pub outcome: TaskOutcome,
    /// The phases that the gateway may not have heard of yet, in order.
    pub phases: Vec<PhaseReport>,
}

/// What the gateway says to a report: whether it counted, and if not, why. Either way the agent need not say it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Whether it changed something.
    pub applied: bool,
    /// `applied`, `duplicate`, or why it was refused.
    pub answer: String,
}

/// The most tasks that a `GET /agent/v1/tasks/wait?most=…` is handed at once. Who does not say how many is handed one, and not as a
/// [`TaskBatch`].
pub const TASKS_MAX: u16 = 16;
/// How long a `GET /agent/v1/tasks/wait` waits before it answers 204, for who does not say how long it is to be.
pub const WAIT_SECONDS: u64 = 30;
/// The longest that a `GET /agent/v1/tasks/wait?seconds=…` waits. Heartbeats keep the connection alive meanwhile.
pub const WAIT_SECONDS_MAX: u64 = 60;

impl Provision {
    /// Whether it is a whole machine.
    pub fn is_whole(&self) -> bool {
        self.slots.is_empty()
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind().code())
    }
}
