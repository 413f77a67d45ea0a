//! The control plane: each function is one short transaction. What should follow it is another one,
//! which may come late, twice or, when a process dies, only with the next sweep.

use domain::derived::allocation_group::Status as GroupStatus;
use domain::machines::allocation::{Event, Status};
use domain::machines::claim::{Event as OnClaim, Status as ClaimStatus};
use domain::machines::node_task::{Event as OnTask, Status as TaskStatus};
use lifecycle::Facts;
use lifecycle::Source::{self, Operator, Timer, User, Worker};

use super::config::{Flaw, OPERATIONS, SLOTS};
use super::state::{Allocation, Claim, Kind, Task};
use super::tx::{Tx, about};

impl Tx<'_> {
    fn row(&self, i: usize) -> Option<Allocation> {
        self.state.allocations[i]
    }

    fn claim_status(&self, i: usize, slot: usize) -> Option<ClaimStatus> {
        self.row(i)?.claims[slot].map(|claim| claim.status)
    }

    /// The operation number to give out next, while there is one within the bounds.
    fn next_operation(&self, i: usize) -> Option<u8> {
        let next = self.row(i)?.issued;
        (next < self.config.members[i].operations).then_some(next)
    }

    fn end_live_tasks(&mut self, i: usize, event: OnTask, source: Source) {
        for t in 0..OPERATIONS {
            if self.row(i).and_then(|row| row.tasks[t]).is_some_and(|task| task.is_live()) {
                self.task((i, t), event, (source, Facts::NONE));
            }
        }
    }

    /// Places an allocation on the lowest free slots, if there are enough.
    pub fn create(&mut self, i: usize) {
        let mut wanted = self.config.members[i].slots;
        let slots: [bool; SLOTS] = std::array::from_fn(|slot| {
            let taken = wanted > 0 && self.state.is_free(slot);
            wanted -= usize::from(taken);
            taken
        });
        if wanted == 0 && self.row(i).is_none() {
            self.state.allocations[i] = Some(Allocation::on(slots));
        }
    }

    /// The worker hears of the request.
    pub fn start_provision(&mut self, i: usize) {
        if self.allocation(i, Event::ProvisionStarted, (Worker, Facts::NONE)) {
            self.insert(i, (Kind::Provision, 0));
            self.refold();
        }
    }

    /// The worker gives the agent what the present operation needs: a restart, a release, a
    /// clean-up.
    pub fn queue(&mut self, i: usize) {
        let Some(row) = self.row(i) else { return };
        let cleaning =
            row.claims.iter().flatten().find(|claim| claim.status == ClaimStatus::Cleaning);
        let (kind, operation) = match row.status {
            Status::Restarting => (Kind::Restart, Some(row.operation)),
            Status::Releasing if row.was_dispatched() => (Kind::Release, Some(row.operation)),
            Status::Failed if row.was_dispatched() => {
                (Kind::CleanUp, cleaning.and_then(|claim| claim.operation))
            }
            Status::Requested
            | Status::Provisioning
            | Status::Active
            | Status::RestartFailed
            | Status::Releasing
            | Status::ReleaseFailed
            | Status::Released
            | Status::Failed => return,
        };
        if let Some(operation) = operation {
            self.insert(i, (kind, operation));
        }
    }

    /// A task for the slots that the operation has; the first for an operation is the only one.
    fn insert(&mut self, i: usize, (kind, operation): (Kind, u8)) {
        let everything = !kind.cleans() || self.flawed(Flaw::CleansEverything);
        self.with(i, |row| {
            let its_own = |claim: Claim| everything || claim.operation == Some(operation);
            let slots = row.claims.map(|claim| claim.is_some_and(its_own));
            row.tasks[usize::from(operation)].get_or_insert(Task::queued(kind, slots));
        });
    }

    /// Somebody asks for the release, for the first time or again: running work is called off with
    /// it.
    pub fn request_release(&mut self, i: usize, source: Source) {
        let Some(operation) = self.next_operation(i) else { return };
        if !self.allocation(i, Event::ReleaseRequested, (source, about(operation))) {
            return;
        }
        self.with(i, |row| {
            row.issued += 1;
            row.billed = false;
        });
        self.end_live_tasks(i, OnTask::Cancelling, Worker);
        for slot in 0..SLOTS {
            self.claim((i, slot), OnClaim::CleaningBegan, (Worker, about(operation)));
        }
        self.refold();
    }

    /// The user asks for a restart. One operation is kept back, so that a release is always
    /// possible.
    pub fn request_restart(&mut self, i: usize) {
        let usable =
            |row: &Allocation| matches!(row.status, Status::Active | Status::RestartFailed);
        let Some(operation) =
            self.next_operation(i).filter(|_| self.row(i).as_ref().is_some_and(usable))
        else {
            return;
        };
        if operation + 1 < self.config.members[i].operations
            && self.allocation(i, Event::RestartRequested, (User, about(operation)))
        {
            self.with(i, |row| {
                row.issued += 1;
                row.billed = true;
            });
            self.refold();
        }
    }

    /// The worker hears that a task has ended: perhaps long ago, perhaps not for the first time.
    pub fn task_finished(&mut self, i: usize, t: usize) {
        let Some(task) = self.row(i).and_then(|row| row.tasks[t]) else { return };
        let operation = t as u8;
        let succeeded = match task.status {
            TaskStatus::Succeeded => true,
            TaskStatus::Failed | TaskStatus::Expired => false,
            TaskStatus::Queued | TaskStatus::Dispatched | TaskStatus::Cancelled => return,
        };
        match (task.kind, succeeded) {
            (Kind::Provision, true) => self.provision_succeeded(i, operation),
            (Kind::Provision, false) => self.provision_failed(i, (Worker, operation)),
            (Kind::Restart, true) => {
                if self.allocation(i, Event::RestartCompleted, (Worker, about(operation))) {
                    self.refold();
                }
            }
            (Kind::Restart, false) => self.restart_failed(i, (Worker, operation)),
            (Kind::Release, true) if task.proof => self.release_completed(i, operation),
            (Kind::Release, _) => self.release_exhausted(i, (Worker, operation)),
            (Kind::CleanUp, true) if task.proof => self.free(i, operation),
            (Kind::CleanUp, _) => {
                for slot in 0..SLOTS {
                    self.claim((i, slot), OnClaim::GotStuck, (Worker, about(operation)));
                }
            }
        }
    }

    fn provision_succeeded(&mut self, i: usize, operation: u8) {
        if self.allocation(i, Event::ProvisionSucceeded, (Worker, about(operation))) {
            for slot in 0..SLOTS {
                self.claim((i, slot), OnClaim::Activated, (Worker, Facts::NONE));
            }
            self.with(i, |row| row.billed = true);
            self.refold();
        }
    }

    fn provision_failed(&mut self, i: usize, (source, operation): (Source, u8)) {
        let Some(clean_up) = self.next_operation(i) else { return };
        if !self.allocation(i, Event::ProvisionFailed, (source, about(operation))) {
            return;
        }
        self.with(i, |row| row.issued += 1);
        self.end_live_tasks(i, OnTask::Expiring, Worker);
        for slot in 0..SLOTS {
            self.claim((i, slot), OnClaim::CleaningBegan, (Worker, about(clean_up)));
        }
        self.refold();
    }

    fn restart_failed(&mut self, i: usize, (source, operation): (Source, u8)) {
        if self.allocation(i, Event::RestartFailedToReturn, (source, about(operation))) {
            self.end_live_tasks(i, OnTask::Expiring, Worker);
            self.with(i, |row| row.billed = false);
            self.refold();
        }
    }

    /// Giving up leaves the task alive, for a proof that comes later counts. The claims get stuck
    /// with it, or a later attempt could not make them its own: `claim.cleaning` changes nothing on
    /// a claim that is being cleaned.
    fn release_exhausted(&mut self, i: usize, (source, operation): (Source, u8)) {
        if !self.allocation(i, Event::ReleaseExhausted, (source, about(operation))) {
            return;
        }
        if !self.flawed(Flaw::GaveUpCleaning) {
            for slot in 0..SLOTS {
                self.claim((i, slot), OnClaim::GotStuck, (source, about(operation)));
            }
        }
        self.refold();
    }

    fn release_completed(&mut self, i: usize, operation: u8) {
        let applied = self.allocation(i, Event::ReleaseCompleted, (Worker, about(operation)));
        if applied || self.flawed(Flaw::FreedUngated) {
            for slot in 0..SLOTS {
                // A claim that got stuck meanwhile is taken up again by the operation that has the
                // proof.
                let stuck = self.claim_status(i, slot) == Some(ClaimStatus::Stuck);
                if stuck && !self.flawed(Flaw::StuckDespiteProof) {
                    self.claim((i, slot), OnClaim::CleaningBegan, (Worker, about(operation)));
                }
            }
            self.free(i, operation);
            self.refold();
        }
    }

    fn free(&mut self, i: usize, operation: u8) {
        for slot in 0..SLOTS {
            self.claim((i, slot), OnClaim::Freeing, (Worker, about(operation)));
        }
    }

    /// The worker completes a release for which no agent was ever given anything.
    pub fn complete_untouched(&mut self, i: usize) {
        if let Some(row) = self.row(i).filter(|row| !row.was_dispatched()) {
            self.release_completed(i, row.operation);
        }
    }

    /// A sweep tries to free what a failed provision held; whether that may be is the guard's
    /// business.
    pub fn sweep_failed(&mut self, i: usize) {
        let Some(row) = self.row(i).filter(|row| row.status == Status::Failed) else { return };
        for slot in 0..SLOTS {
            if let Some(operation) = row.claims[slot].and_then(|claim| claim.operation) {
                self.claim((i, slot), OnClaim::Freeing, (Worker, about(operation)));
            }
        }
    }

    /// The deadline of the allocation's status has passed.
    pub fn time_out(&mut self, i: usize) {
        let Some(row) = self.row(i) else { return };
        match row.status {
            Status::Requested | Status::Provisioning => {
                self.provision_failed(i, (Timer, row.operation))
            }
            Status::Restarting => self.restart_failed(i, (Timer, row.operation)),
            Status::Releasing => self.release_exhausted(i, (Timer, row.operation)),
            Status::Active
            | Status::RestartFailed
            | Status::ReleaseFailed
            | Status::Released
            | Status::Failed => {}
        }
    }

    /// The deadline of a claim's status has passed.
    pub fn claim_time_out(&mut self, i: usize, slot: usize) {
        let Some(claim) = self.row(i).and_then(|row| row.claims[slot]) else { return };
        let alone = match claim.status {
            ClaimStatus::Cleaning => {
                if let Some(operation) = claim.operation {
                    self.claim((i, slot), OnClaim::GotStuck, (Timer, about(operation)));
                }
                false
            }
            // The guard is what keeps a claim's own deadline from the slot of a tenant.
            ClaimStatus::Reserved => !self.flawed(Flaw::ClaimTimedLate),
            ClaimStatus::Held => !self.flawed(Flaw::ClaimTimedAlone),
            ClaimStatus::Stuck | ClaimStatus::Quarantined | ClaimStatus::Freed => false,
        };
        let Some(operation) = self.next_operation(i).filter(|_| alone) else { return };
        if self.claim((i, slot), OnClaim::CleaningBegan, (Timer, about(operation))) {
            self.with(i, |row| row.issued += 1);
            self.claim((i, slot), OnClaim::Freeing, (Worker, about(operation)));
        }
    }

    /// An operator has the slots of a failed provision cleaned up once more.
    pub fn clean_again(&mut self, i: usize) {
        let Some(row) = self.row(i).filter(|row| row.status == Status::Failed) else { return };
        let Some(operation) = self.next_operation(i) else { return };
        if !row.claims.iter().flatten().any(|claim| claim.status == ClaimStatus::Stuck) {
            return;
        }
        self.with(i, |row| row.issued += 1);
        self.end_live_tasks(i, OnTask::Cancelling, Operator);
        for slot in 0..SLOTS {
            if let Some(before) = row.claims[slot].and_then(|claim| claim.operation) {
                self.claim((i, slot), OnClaim::GotStuck, (Operator, about(before)));
                self.claim((i, slot), OnClaim::CleaningBegan, (Operator, about(operation)));
            }
        }
    }

    /// An operator calls off what is left of a clean-up that gave up.
    pub fn call_off(&mut self, i: usize) {
        if self
            .row(i)
            .is_some_and(|row| matches!(row.status, Status::ReleaseFailed | Status::Failed))
        {
            self.end_live_tasks(i, OnTask::Cancelling, Operator);
        }
    }

    /// An operator who has seen to the machine answers for the release; the slots are set aside.
    pub fn abandon(&mut self, i: usize) {
        let Some(row) = self.row(i).filter(|row| row.status == Status::ReleaseFailed) else {
            return;
        };
        if self.allocation(i, Event::ReleaseAbandoned, (Operator, Facts::NONE)) {
            for slot in 0..SLOTS {
                self.claim((i, slot), OnClaim::GotStuck, (Operator, about(row.operation)));
                self.claim((i, slot), OnClaim::Quarantining, (Operator, Facts::NONE));
            }
            self.refold();
        }
    }

    /// An operator sets a stuck slot aside.
    pub fn quarantine(&mut self, i: usize, slot: usize) {
        if self.claim_status(i, slot) == Some(ClaimStatus::Stuck) {
            self.claim((i, slot), OnClaim::Quarantining, (Operator, Facts::NONE));
        }
    }

    /// The user gives the whole group back: the intent and the outbox rows, no member yet.
    pub fn release_group(&mut self) {
        let ended = matches!(self.state.group.status, GroupStatus::Released | GroupStatus::Failed);
        if !ended || self.flawed(Flaw::GroupReleasedLate) {
            self.state.group.release_requested = true;
            self.refold();
        }
    }

    /// The group's release reaches a member that is not on its way out yet.
    pub fn fan_out(&mut self, i: usize) {
        let leaving =
            |row: &Allocation| matches!(row.status, Status::Releasing | Status::ReleaseFailed);
        let member = self.row(i).filter(|row| !row.has_ended() && !leaving(row));
        if self.state.group.release_requested && self.config.members[i].grouped && member.is_some()
        {
            self.request_release(i, Worker);
        }
    }
}
