//! What can break in the store. A report that changes nothing is not among it: that is an outcome.

use uuid::Uuid;

use crate::company::is_gone;
use crate::fall;

/// A fault of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transaction lost to another one. Run the whole of it again.
    #[error("the transaction lost to another one and must be run again")]
    Conflict,
    /// The transaction was shared, and nothing of it has happened. Run it again, alone.
    #[error("others were in the same transaction, and it failed: it must be run again alone")]
    Company,
    /// A row is in a status that this binary has never heard of.
    #[error("{machine} {id} is in status {status:?}, which this binary does not know")]
    UnknownStatus {
        /// The machine.
        machine: &'static str,
        /// The row.
        id: Uuid,
        /// What it says.
        status: String,
    },
    /// A birth was recorded of a row that is not there, or not newborn.
    #[error("{machine} {id} can't be born: insert the row first, in the same transaction")]
    Unborn {
        /// The machine.
        machine: &'static str,
        /// The row.
        id: Uuid,
    },
    /// The database has yet to be migrated.
    #[error(
        "the database is at step {at} of its schema and this binary needs step {needed}; run `berth migrate`"
    )]
    Outdated {
        /// How far it is; 0 when there is nothing in it.
        at: i64,
        /// How far it must be.
        needed: i64,
    },
    /// The database does not enforce the machines of this binary.
    #[error("the database does not enforce the lifecycles of this binary ({}); run `berth migrate`", .0.join("; "))]
    NotEnforced(Vec<String>),
    /// Transactions would run at a level at which guards do not see what they waited for.
    #[error(
        "transactions of this database are REPEATABLE READ by default: set default_transaction_isolation to READ COMMITTED (or SERIALIZABLE)"
    )]
    Isolation,
    /// A migration failed.
    #[error("the database could not be migrated")]
    Migration(#[source] Box<sqlx::migrate::MigrateError>),
    /// The database failed.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if is_gone(&error) {
            return Error::Company;
        }
        fall::met(&error);
        if is_conflict(&error) { Error::Conflict } else { Error::Database(error) }
    }
}

/// Whether the database says that somebody else was faster: a serialization failure, a deadlock, a second live claim of one slot or
/// machine, or a second record of one fact, which only a writer that bypassed the lock can cause.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else {
        return false;
    };
    matches!(error.code().as_deref(), Some("40001" | "40P01"))
        || matches!(
            error.constraint(),
            Some(
                "lifecycle_log_event"
                    | "lifecycle_log_step"
                    | "claims_live_slot"
                    | "claims_live_node"
            )
        )
}
