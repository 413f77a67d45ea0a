//! The list of machines. Laws, documents, triggers and proofs iterate it; a machine that is not on it does not exist.

use lifecycle::{Column, Kind, Lawful, Table};

pub mod allocation;
pub mod claim;
pub mod node;
pub mod node_task;
pub mod payment_session;
pub mod storage_attachment;
pub mod terminal_session;
pub mod usage_record;

pub use crate::derived::allocation_group::AllocationGroup;
pub use crate::derived::balance::Balance;
pub use allocation::Allocation;
pub use claim::Claim;
pub use node::Node;
pub use node_task::NodeTask;
pub use payment_session::PaymentSession;
pub use storage_attachment::StorageAttachment;
pub use terminal_session::TerminalSession;
pub use usage_record::UsageRecord;

/// Why it came to this, in a word that an interface can explain.
pub const REASON: Column = Column::new("reason", Kind::Text);
/// When it ended for good.
pub const ENDED_AT: Column = Column::new("ended_at", Kind::Time);

macro_rules! list {
    ($($machine:ident),+ $(,)?) => {
        /// The tables of all machines, in the order of the contract.
        pub fn tables() -> Vec<&'static Table> {
            vec![$(<$machine as Lawful>::table()),+]
        }

        /// Calls `$visit!(Machine)` for every machine of the list, for code that needs the types.
        #[macro_export]
        macro_rules! each_machine {
            ($visit:ident) => { $($visit!($crate::machines::$machine);)+ };
        }
    };
}

list![
    Allocation,
    AllocationGroup,
    Claim,
    Node,
    NodeTask,
    PaymentSession,
    TerminalSession,
    StorageAttachment,
    UsageRecord,
    Balance,
];
