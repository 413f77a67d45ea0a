//! Who waits for a commit is told of it at once, in this process; nobody can forget to, because the statement that writes
//! also says whom it concerns. A lost ring costs a sweep's delay, never work.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// Whom a commit concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ring {
    /// The relay: there are new messages in the outbox.
    Outbox,
    /// A consumer: there are deliveries for it.
    Consumer(String),
    /// The workflow engine: a run is due.
    Workflows,
    /// The agent of a node: there is a task for it, or its identity was revoked.
    Node(Uuid),
    /// Who watches an allocation: it, or a task of it, has moved, or a phase was told.
    Allocation(Uuid),
    /// Who links the audit log: there are entries without a link.
    AuditLog,
    /// Every process: an operator has turned a policy.
    Policies,
    /// Who watches what somebody is told: there is a notification for them.
    User(Uuid),
    /// Who delivers to webhooks: something is due.
    Webhooks,
    /// Who waits for a checkout: it has its address, or somebody has given up asking for it.
    Payment(Uuid),
    /// Who works off what the payment provider has told: something has become due.
    PaymentEvents,
}

/// What is called after a commit, once for each ring.
#[derive(Clone)]
pub struct Bell(Arc<dyn Fn(Ring) + Send + Sync>);

impl Bell {
    /// A bell that calls `ring`, which must not block.
    pub fn new(ring: impl Fn(Ring) + Send + Sync + 'static) -> Bell {
        Bell(Arc::new(ring))
    }

    /// A bell that nobody hears.
    pub fn silent() -> Bell {
        Bell::new(drop)
    }

    pub(crate) fn ring(&self, ring: Ring) {
        (self.0)(ring);
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}
