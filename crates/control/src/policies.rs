//! What operators may turn: deadlines, attempts, lifetimes. Defaults of the contract.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// See the module. Each value says its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// A node that was not heard of for so long is offline.
    pub node_offline_after_seconds: u32,
    /// How often agents are to report.
    pub node_heartbeat_seconds: u32,
    /// For how long an agent's certificate is good.
    pub certificate_ttl_seconds: u32,
    /// For how long a join token can be used.
    pub join_token_ttl_seconds: u32,
    /// An agent that was given a task and is not heard of for so long has lost it.
    pub task_lease_seconds: u32,
    /// For how long a signed task may be begun.
    pub task_envelope_ttl_seconds: u32,
    /// How often a provision is tried when the node says that a lease is in the way.
    pub provision_attempts_max: u32,
    /// How often a clean-up is tried before an operator is asked.
    pub release_attempts_max: u32,
    /// How long a restart may take.
    pub restart_timeout_seconds: u32,
    /// How long one attempt to clean up may take.
    pub release_attempt_seconds: u32,
    /// The first pause between two attempts; it doubles, up to a minute.
    pub retry_seconds: u32,
    /// For how long an answer is kept for its idempotency key.
    pub idempotency_ttl_seconds: u32,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            node_offline_after_seconds: 60,
            node_heartbeat_seconds: 10,
            certificate_ttl_seconds: 7 * 86_400,
            join_token_ttl_seconds: 900,
            task_lease_seconds: 60,
            task_envelope_ttl_seconds: 900,
            provision_attempts_max: 3,
            release_attempts_max: 5,
            restart_timeout_seconds: 900,
            release_attempt_seconds: 120,
            retry_seconds: 2,
            idempotency_ttl_seconds: 86_400,
        }
    }
}

impl Policies {
    /// The pause before the attempt after `attempt` failed ones.
    pub fn retry_after(&self, attempt: u32) -> Duration {
        let factor = 1_u32 << attempt.saturating_sub(1).min(5);
        Duration::from_secs(u64::from(self.retry_seconds.saturating_mul(factor).min(60)))
    }
}

/// The policies of this process, as they stand now. Clones share them.
#[derive(Clone, Debug)]
pub struct Current(Arc<RwLock<Policies>>);

impl Current {
    /// Policies to begin with.
    pub fn new(policies: Policies) -> Current {
        Current(Arc::new(RwLock::new(policies)))
    }

    /// As they stand now.
    pub fn get(&self) -> Policies {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// They stand like this from now on.
    pub fn set(&self, policies: Policies) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = policies;
    }
}
