//! Typed identifiers, so that no id is ever taken for another. This is the one registry of them.

use uuid::Uuid;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The bare identifier.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

ids! {
    /// A tenant's hold on GPUs.
    AllocationId,
    /// Several allocations that belong together.
    AllocationGroupId,
    /// An application that is bound to an allocation or a group.
    AppInstanceId,
    /// One slot or node held by an allocation.
    ClaimId,
    /// A machine of the fleet.
    NodeId,
    /// One GPU's worth of a node.
    SlotId,
    /// One piece of work for a node's agent.
    NodeTaskId,
    /// One checkout.
    PaymentSessionId,
    /// One browser terminal.
    TerminalSessionId,
    /// One namespace attached to one allocation.
    StorageAttachmentId,
    /// One stretch of billable time.
    UsageRecordId,
    /// Whose balance it is.
    AccountId,
    /// One asynchronous operation: a provision, a restart, a release, an attach.
    OperationId,
    /// One fact, wherever it is told.
    EventId,
}
