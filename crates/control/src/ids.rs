//! Identities of facts. A step of a workflow makes them from its run and a label, so that a step that is done twice says
//! the same thing twice, and the writer recognises it.

use domain::ids::EventId;
use store::Tx;
use uuid::Uuid;

/// The name space of derived identities: any constant will do, as long as it stays.
const DERIVED: Uuid = Uuid::from_u128(0x6265_7274_682d_7275_6e2d_6c61_6265_6c73);

/// The identity that `label` has in a run.
pub fn derived(run: &str, label: &str) -> Uuid {
    Uuid::new_v5(&DERIVED, format!("{run}\n{label}").as_bytes())
}

/// The identity of a fact that nobody will tell twice in other words.
pub fn new_event(tx: &Tx) -> EventId {
    EventId(tx.new_id())
}
