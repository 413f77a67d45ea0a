//! Rows to begin with: one of every machine, and an allocation with everything around it.

use domain::ids::{
    AccountId, AllocationGroupId, AllocationId, ClaimId, EventId, NodeId, NodeTaskId, OperationId,
    PaymentSessionId, SlotId, StorageAttachmentId, TerminalSessionId, UsageRecordId,
};
use domain::ledger::PostingKind;
use domain::machines::allocation::{Event, Status};
use domain::machines::{Node, node};
use lifecycle::{Outcome, Source};
use store::lifecycle::{Actor, Birth, Report, apply};
use store::placement::{self, Place, Wanted};
use store::{
    Error, Tx, accounts, allocation_groups, allocations, claims, ledger, node_tasks, nodes,
    payment_sessions, storage_attachments, terminal_sessions, usage_records,
};
use uuid::Uuid;

use crate::{Database, new_id};

/// Somebody in that role.
pub fn actor(source: Source) -> Actor {
    Actor::new(source, format!("a {source} of the test"))
}

/// A birth by nobody in particular.
fn birth() -> Birth {
    Birth::new(EventId(new_id()), actor(Source::Worker))
}

/// An allocation at the best place for it, with its claims; none when there is no room. A whole machine has eight GPUs.
///
/// # Errors
/// What the store refuses.
pub async fn place(
    tx: &mut Tx,
    wanted: &Wanted<'_>,
) -> Result<Option<(AllocationId, Place)>, Error> {
    let Some(place) = placement::find(tx, wanted).await? else {
        return Ok(None);
    };
    let id = AllocationId(tx.new_id());
    let new = allocations::NewAllocation {
        id,
        project_id: tx.new_id(),
        member_of: None,
        provision: OperationId(tx.new_id()),
        sku: wanted.sku.to_owned(),
        gpus: wanted.gpus.unwrap_or(8),
        terms: allocations::Terms::default(),
    };
    let birth = Birth::new(EventId(tx.new_id()), actor(Source::User));
    allocations::insert(tx, &new, birth.clone()).await?;
    let slots: Vec<SlotId> = place.slots.iter().map(|slot| slot.id).collect();
    claims::insert_all(tx, id, place.node, &slots, &birth).await?;
    Ok(Some((id, place)))
}

/// A group of nobody in particular.
fn nameless(id: AllocationGroupId) -> allocation_groups::NewGroup {
    allocation_groups::NewGroup { id, project_id: new_id(), name: None, owner_id: None }
}

/// An allocation and what it holds.
#[derive(Clone, Copy, Debug)]
pub struct Fixture {
    /// The allocation.
    pub allocation: AllocationId,
    /// The provision its creation began.
    pub provision: OperationId,
    /// The node it is on.
    pub node: NodeId,
    /// The slot it holds.
    pub slot: SlotId,
    /// Its claim on the slot.
    pub claim: ClaimId,
}

impl Database {
    /// A transaction that is committed if `work` succeeds.
    pub async fn in_transaction<T>(
        &self,
        work: impl AsyncFnOnce(&mut Tx) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut tx = self.store.begin().await?;
        let done = work(&mut tx).await?;
        tx.commit().await?;
        Ok(done)
    }

    /// A node that takes placements, with its slots.
    pub async fn ready_node(&self, slots: u16) -> (NodeId, Vec<SlotId>) {
        let id = NodeId(new_id());
        let new = nodes::NewNode {
            id,
            name: format!("node-{id}"),
            region: "north".to_owned(),
            sku: "h100".to_owned(),
            slots: vec![0; usize::from(slots)],
            whole: false,
        };
        let made = self.in_transaction(async |tx| {
            let slots = nodes::insert(tx, &new, &birth()).await?.expect("its name is its own");
            let report =
                Report::new(node::Event::Enrolled, EventId(new_id()), actor(Source::Agent));
            let outcome = apply::<Node>(tx, id, &report).await?;
            assert!(outcome.landed_on(node::Status::Ready), "{outcome:?}");
            Ok(slots)
        });
        (id, made.await.expect("a node can be made"))
    }

    /// An allocation in `requested` with one claim on a node of its own.
    pub async fn allocation(&self) -> Fixture {
        self.member_of(None).await
    }

    /// The same, as a member of a group.
    pub async fn member_of(&self, member_of: Option<(AllocationGroupId, bool)>) -> Fixture {
        let (node, slots) = self.ready_node(1).await;
        let fixture = Fixture {
            allocation: AllocationId(new_id()),
            provision: OperationId(new_id()),
            node,
            slot: slots[0],
            claim: ClaimId(new_id()),
        };
        let made = self.in_transaction(async |tx| fixture.insert(tx, member_of).await);
        made.await.expect("an allocation can be made");
        fixture
    }

    /// A group without members yet.
    pub async fn group(&self) -> AllocationGroupId {
        let id = AllocationGroupId(new_id());
        let made = self.in_transaction(async |tx| {
            allocation_groups::insert(tx, &nameless(id), &birth()).await
        });
        made.await.expect("a group can be made");
        id
    }

    /// Reports an event to an allocation in a transaction of its own.
    pub async fn report(
        &self,
        id: AllocationId,
        event: Event,
        operation: OperationId,
    ) -> Outcome<Status> {
        let source = match event {
            Event::RestartRequested | Event::ReleaseRequested => Source::User,
            Event::ReleaseAbandoned => Source::Operator,
            Event::ProvisionStarted
            | Event::ProvisionSucceeded
            | Event::ProvisionFailed
            | Event::RestartCompleted
            | Event::RestartFailedToReturn
            | Event::ReleaseCompleted
            | Event::ReleaseExhausted => Source::Worker,
        };
        let report = Report::new(event, EventId(new_id()), actor(source)).about(operation);
        let reported = self.in_transaction(async |tx| allocations::report(tx, id, &report).await);
        reported.await.expect("the database answers")
    }

    /// Where an allocation stands.
    pub async fn status_of(&self, id: AllocationId) -> String {
        let status = sqlx::query_scalar("SELECT status FROM allocations WHERE id = $1");
        status.bind(id.uuid()).fetch_one(&self.sql).await.expect("it is there")
    }

    /// Whether one transaction has written a run and an allocation last.
    pub async fn written_together(&self, run: &str, id: AllocationId) -> bool {
        let same = sqlx::query_scalar(
            "SELECT run.xmin = allocation.xmin
               FROM workflow_runs AS run, allocations AS allocation
              WHERE run.id = $1 AND allocation.id = $2",
        );
        same.bind(run).bind(id.uuid()).fetch_one(&self.sql).await.expect("both are there")
    }

    /// An allocation that is active.
    pub async fn active_allocation(&self) -> Fixture {
        let fixture = self.allocation().await;
        let started =
            self.report(fixture.allocation, Event::ProvisionStarted, fixture.provision).await;
        assert!(started.landed_on(Status::Provisioning), "{started:?}");
        let succeeded =
            self.report(fixture.allocation, Event::ProvisionSucceeded, fixture.provision).await;
        assert!(succeeded.landed_on(Status::Active), "{succeeded:?}");
        fixture
    }

    /// An allocation that is being released; its claim is still as it was.
    pub async fn leaving_allocation(&self) -> Fixture {
        let fixture = self.allocation().await;
        let (id, release) = (fixture.allocation, OperationId(new_id()));
        let leaving = self.report(id, Event::ReleaseRequested, release).await;
        assert!(leaving.landed_on(Status::Releasing), "{leaving:?}");
        fixture
    }

    /// A newborn row of the machine of that name, with whatever it needs around it.
    pub async fn newborn(&self, machine: &str) -> Uuid {
        let id = new_id();
        let made = match machine {
            "allocation" => return self.allocation().await.allocation.uuid(),
            "claim" => return self.leaving_allocation().await.claim.uuid(),
            "usage_record" => {
                let active = self.active_allocation().await.allocation;
                let found =
                    self.in_transaction(async |tx| usage_records::find_open(tx, active).await);
                let open: Option<UsageRecordId> = found.await.expect("the database answers");
                return open.expect("what is active is metered").uuid();
            }
            "node_task" | "terminal_session" | "storage_attachment" => {
                let around = self.active_allocation().await;
                self.in_transaction(async |tx| insert_around(tx, machine, id, &around).await).await
            }
            _ => self.in_transaction(async |tx| insert_alone(tx, machine, id).await).await,
        };
        made.unwrap_or_else(|error| panic!("a {machine} can be made: {error:?}"));
        id
    }
}

impl Fixture {
    async fn insert(
        &self,
        tx: &mut Tx,
        member_of: Option<(AllocationGroupId, bool)>,
    ) -> Result<(), Error> {
        let allocation = allocations::NewAllocation {
            id: self.allocation,
            project_id: new_id(),
            member_of,
            provision: self.provision,
            sku: "h100".to_owned(),
            gpus: 1,
            terms: allocations::Terms::default(),
        };
        allocations::insert(tx, &allocation, birth()).await?;
        let claim = claims::NewClaim {
            id: self.claim,
            allocation: self.allocation,
            node: self.node,
            slot: Some(self.slot),
        };
        assert!(claims::insert(tx, &claim, &birth()).await?, "the node takes placements");
        Ok(())
    }
}

/// A row of a machine that needs nothing around it.
async fn insert_alone(tx: &mut Tx, machine: &str, id: Uuid) -> Result<(), Error> {
    match machine {
        "allocation_group" => {
            allocation_groups::insert(tx, &nameless(AllocationGroupId(id)), &birth()).await
        }
        "node" => {
            let (name, region, sku) = (format!("node-{id}"), "north".to_owned(), "h100".to_owned());
            let (slots, whole) = (Vec::new(), false);
            let node = nodes::NewNode { id: NodeId(id), name, region, sku, slots, whole };
            nodes::insert(tx, &node, &birth()).await.map(drop)
        }
        "payment_session" => {
            let session = payment_sessions::NewSession {
                id: PaymentSessionId(id),
                account: AccountId(new_id()),
                amount_minor: 5_000,
                currency: "EUR".to_owned(),
            };
            payment_sessions::insert(tx, &session, &birth()).await
        }
        "balance" => funded(tx, AccountId(id)).await,
        other => panic!("nobody knows how a {other} is made"),
    }
}

/// An account with more than enough in it.
async fn funded(tx: &mut Tx, id: AccountId) -> Result<(), Error> {
    let new = accounts::NewAccount {
        id,
        owner: None,
        currency: "EUR".to_owned(),
        low_balance_threshold_minor: 1_000,
    };
    assert!(accounts::insert(tx, &new, &birth()).await?, "it has no owner");
    let gift = ledger::NewPosting {
        key: &format!("gift/{id}"),
        kind: PostingKind::Adjustment,
        account: id,
        amount_minor: 1_000_000,
        source_id: None,
        actor: "a test",
        reason: Some("to begin with"),
    };
    assert!(ledger::post(tx, &gift).await?.is_some_and(|posted| posted.fresh));
    Ok(())
}

/// A row of a machine that belongs to an allocation.
async fn insert_around(
    tx: &mut Tx,
    machine: &str,
    id: Uuid,
    around: &Fixture,
) -> Result<(), Error> {
    let (allocation, operation) = (around.allocation, OperationId(new_id()));
    match machine {
        "node_task" => {
            let task = node_tasks::NewTask {
                id: NodeTaskId(id),
                node: around.node,
                allocation,
                operation: around.provision,
                kind: "slice.vm_provision",
                params: serde_json::Value::Null,
                run: None,
                deadline: None,
            };
            let queued = node_tasks::insert(tx, &task, birth()).await?;
            assert!(queued, "the allocation is busy with this operation");
        }
        "terminal_session" => {
            terminal_sessions::insert(tx, TerminalSessionId(id), allocation, operation, birth())
                .await?;
        }
        "storage_attachment" => {
            let attachment = storage_attachments::NewAttachment {
                id: StorageAttachmentId(id),
                allocation,
                namespace_id: new_id(),
                attach: operation,
            };
            storage_attachments::insert(tx, &attachment, birth()).await?;
        }
        other => panic!("nobody knows how a {other} is made"),
    }
    Ok(())
}
