//! The node protocol: what an agent and the gateway say to each other.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use lifecycle::{Code, codes};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

/// The version of the protocol that this binary speaks.
pub const PROTOCOL: u16 = 1;

codes! {
    /// What a task asks for. Typed parameters each; nothing is ever a shell string.
    pub enum TaskKind {
        SliceProvision = "slice.vm_provision",
        SliceRelease = "slice.vm_release",
        UserProvision = "allocation.provision_user",
        UserDeprovision = "allocation.deprovision_user",
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
        Interrupted = "interrupted",
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
            | FailureReason::Interrupted
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

/// A task's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// `slice.vm_provision`
    SliceProvision(Provision),
    /// `slice.vm_release`
    SliceRelease(Cleanup),
    /// `allocation.provision_user`
    UserProvision(Provision),
    /// `allocation.deprovision_user`
    UserDeprovision(Cleanup),
}

impl Work {
    /// Its kind.
    pub const fn kind(&self) -> TaskKind {
        match self {
            Work::SliceProvision(_) => TaskKind::SliceProvision,
            Work::SliceRelease(_) => TaskKind::SliceRelease,
            Work::UserProvision(_) => TaskKind::UserProvision,
            Work::UserDeprovision(_) => TaskKind::UserDeprovision,
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
        }
    }

    /// The work of that kind with these parameters.
    ///
    /// # Errors
    /// When they are not exactly what the kind takes.
    pub fn read(kind: TaskKind, params: serde_json::Value) -> serde_json::Result<Work> {
        Ok(match kind {
            TaskKind::SliceProvision => Work::SliceProvision(serde_json::from_value(params)?),
            TaskKind::SliceRelease => Work::SliceRelease(serde_json::from_value(params)?),
            TaskKind::UserProvision => Work::UserProvision(serde_json::from_value(params)?),
            TaskKind::UserDeprovision => Work::UserDeprovision(serde_json::from_value(params)?),
        })
    }
}

/// What is signed: one task, for one node, for one dispatch, until it expires. `kind` is text here, so that a kind of a
/// newer control plane is an unknown kind and not a malformed message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
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
    pub params: serde_json::Value,
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

/// `POST /agent/v1/enroll`, without a certificate: the token is the proof.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The version of the protocol.
    pub protocol: u16,
    /// The node the token is for.
    pub node_id: Uuid,
    /// The secret of the join token.
    pub secret: String,
    /// A certificate signing request, PEM. Its subject and names are ignored.
    pub csr: String,
}

/// The certificate an agent gets, and what it pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// When it ends.
    pub not_after: Timestamp,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The keys that sign tasks, in URL-safe base64.
    pub task_keys: Vec<String>,
}

/// `POST /agent/v1/certificate`, over mTLS: a new key each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// A certificate signing request, PEM.
    pub csr: String,
}

/// What an operator hands to a node: everything its agent needs to enrol, as one text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// The node.
    pub node_id: Uuid,
    /// The secret, single use.
    pub secret: String,
    /// Where the gateway listens, `https://host:port`.
    pub gateway: String,
    /// The authority's certificate, PEM, so that the first contact is authenticated too.
    pub authority: String,
}

impl JoinToken {
    /// The token as one text without white space.
    ///
    /// # Errors
    /// Never for this type; serde's signature.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(URL_SAFE_NO_PAD.encode(serde_json::to_vec(self)?))
    }

    /// The token in such a text; `None` when it is none.
    pub fn parse(text: &str) -> Option<JoinToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// One GPU of the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its number, which is the slot's.
    pub index: i16,
    /// Its model.
    pub model: String,
    /// The NUMA node it belongs to.
    pub numa: i16,
}

/// Something that runs on a node for an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// For which allocation.
    pub allocation_id: Uuid,
    /// On which slots; empty for the whole machine.
    pub slots: Vec<i16>,
}

/// `POST /agent/v1/heartbeat`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The version of the protocol.
    pub protocol: u16,
    /// The agent's version.
    pub agent_version: String,
    /// New with every boot of the machine.
    pub boot_id: Uuid,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The images at hand, by name.
    pub images: Vec<String>,
    /// What runs on the node for allocations, finished or not.
    pub guests: Vec<Guest>,
    /// The tasks the agent is working on.
    pub running: Vec<Uuid>,
    /// How many tasks it has refused since it was started.
    pub refused: u64,
}

/// The gateway's answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// After how many seconds the next one is expected.
    pub next_seconds: u32,
    /// Whether the agent should renew its certificate now.
    pub renew: bool,
    /// The node's status.
    pub status: String,
}

/// How long a `GET /agent/v1/tasks/wait` waits before it answers 204.
pub const WAIT_SECONDS: u64 = 30;

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
