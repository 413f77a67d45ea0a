//! A node as the simulation has it: an agent that believes its journal, and a world of guests that nobody can lie about.
//! The journal survives the agent; the world is what really is on the slots.

use std::collections::{BTreeMap, BTreeSet};

use control::node::enrol::AgentIdentity;
use jiff::Timestamp;
use lifecycle::Code as _;
use uuid::Uuid;
use wire::Coded;
use wire::node::{
    Access, CleanupProof, Envelope, FailureReason, Gpu, Guest, Heartbeat, Lease, PROTOCOL,
    SignedTask, SlotRef, TaskKind, TaskOutcome, Work,
};

/// Stands for the whole machine among the slots.
const MACHINE: i16 = -1;

/// How a piece of work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    /// As it was asked for.
    Good,
    /// It fails, and leaves what it did.
    Fails(FailureReason),
    /// It cleans up, but not all of it.
    Residue,
}

/// What the journal has of one task.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The task.
    pub task: Uuid,
    /// The allocation it is for.
    pub allocation: Uuid,
    operation: Uuid,
    /// Under which numbers it was handed out.
    pub dispatches: Vec<i64>,
    work: Work,
    places: Vec<i16>,
    /// How it ended, if it has.
    pub outcome: Option<TaskOutcome>,
    /// Whether the control plane knows.
    pub acknowledged: bool,
    /// Whether it takes long, so that other things happen meanwhile.
    pub slow: bool,
}

impl Entry {
    /// Whether it restarts something.
    pub fn is_restart(&self) -> bool {
        match self.work {
            Work::SliceRestart(_) | Work::NodeReboot(_) => true,
            Work::SliceProvision(_)
            | Work::UserProvision(_)
            | Work::SliceRelease(_)
            | Work::UserDeprovision(_) => false,
        }
    }

    fn is_open_for(&self, allocation: Uuid) -> bool {
        self.allocation == allocation && self.outcome.is_none()
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Who it is.
    pub identity: AgentIdentity,
    slots: Vec<i16>,
    whole: bool,
    model: String,
    images: Vec<String>,
    boots: u128,
    /// What was handed out and not yet looked at; gone when the agent dies.
    pub inbox: Vec<SignedTask>,
    /// Everything it has begun.
    pub journal: Vec<Entry>,
    marks: BTreeMap<Uuid, (i64, Uuid)>,
    leases: BTreeMap<i16, (Uuid, Uuid)>,
    /// Allocations that are over, and of which nothing was here: nothing begins for them any more.
    closed: BTreeSet<Uuid>,
    /// Who is on which slot.
    pub world: BTreeMap<i16, Uuid>,
    /// It says nothing for so many more events.
    pub silent: usize,
}

/// Something that must never happen on a node.
pub type Violation = String;

impl Node {
    /// An empty node.
    pub fn new(identity: AgentIdentity, slots: &[i16], whole: bool, images: &[String]) -> Node {
        Node {
            identity,
            slots: slots.to_vec(),
            whole,
            model: "simulated".to_owned(),
            images: images.to_vec(),
            boots: 1,
            inbox: Vec::new(),
            journal: Vec::new(),
            marks: BTreeMap::new(),
            leases: BTreeMap::new(),
            closed: BTreeSet::new(),
            world: BTreeMap::new(),
            silent: 0,
        }
    }

    /// What it says of itself.
    pub fn heartbeat(&self) -> Heartbeat {
        let of = |places: Vec<i16>| places.into_iter().filter(|place| *place != MACHINE).collect();
        let gathered = |on: &BTreeMap<i16, Uuid>| {
            let mut by: BTreeMap<Uuid, Vec<i16>> = BTreeMap::new();
            for (place, allocation) in on {
                by.entry(*allocation).or_default().push(*place);
            }
            by
        };
        let guests = gathered(&self.world)
            .into_iter()
            .map(|(allocation_id, places)| Guest { allocation_id, slots: of(places) })
            .collect();
        let mut leases: BTreeMap<(Uuid, Uuid), Vec<i16>> = BTreeMap::new();
        for (place, held) in &self.leases {
            leases.entry(*held).or_default().push(*place);
        }
        let gpu = |(index, numa): (usize, &i16)| Gpu {
            index: i16::try_from(index).unwrap_or(0),
            model: self.model.clone(),
            numa: *numa,
        };
        Heartbeat {
            protocol: PROTOCOL,
            agent_version: "simulated".to_owned(),
            boot_id: self.boot(),
            gpus: self.slots.iter().enumerate().map(gpu).collect(),
            images: self.images.clone(),
            guests,
            leases: leases
                .into_iter()
                .map(|((allocation_id, operation_id), places)| Lease {
                    allocation_id,
                    operation_id,
                    slots: of(places),
                })
                .collect(),
            running: self.open().iter().map(|place| self.journal[*place].task).collect(),
            refused: 0,
        }
    }

    /// These allocations are over: the books are closed on those of which nothing is here.
    pub fn forget(&mut self, over: &[Uuid]) {
        for allocation in over {
            let here = self.world.values().any(|guest| guest == allocation);
            let busy = self.journal.iter().any(|entry| entry.is_open_for(*allocation));
            if !here && !busy {
                self.leases.retain(|_, (holder, _)| holder != allocation);
                self.closed.insert(*allocation);
            }
        }
    }

    /// Somebody has been at the machine, and ended whatever was there of an allocation.
    pub fn see_to(&mut self, allocation: Uuid) {
        self.inbox.clear();
        self.world.retain(|_, guest| *guest != allocation);
        for entry in self.journal.iter_mut().filter(|entry| entry.is_open_for(allocation)) {
            entry.outcome = Some(failed(FailureReason::Interrupted));
        }
    }

    /// The machine goes down and comes up again, with all that is on it.
    pub fn reboots(&mut self) {
        self.inbox.clear();
        self.boots += 1;
    }

    fn boot(&self) -> Uuid {
        Uuid::from_u128(self.identity.node_id.uuid().as_u128() ^ (self.boots << 4))
    }

    /// The agent dies and comes back: what it had not begun is gone.
    pub fn restart(&mut self) {
        self.inbox.clear();
    }

    /// What was begun and has not ended.
    pub fn open(&self) -> Vec<usize> {
        self.places_of(|entry| entry.outcome.is_none())
    }

    /// What has ended, and the control plane does not know.
    pub fn untold(&self) -> Vec<usize> {
        self.places_of(|entry| entry.outcome.is_some() && !entry.acknowledged)
    }

    /// What has ended.
    pub fn ended(&self) -> Vec<usize> {
        self.places_of(|entry| entry.outcome.is_some())
    }

    fn places_of(&self, holds: impl Fn(&Entry) -> bool) -> Vec<usize> {
        (0..self.journal.len()).filter(|place| holds(&self.journal[*place])).collect()
    }

    /// Looks at a task that was handed out, and begins it if the journal allows.
    pub fn begin(&mut self, given: &SignedTask, now: Timestamp) -> Result<(), Violation> {
        let envelope: Envelope = serde_json::from_str(&given.envelope)
            .map_err(|error| format!("an envelope that nobody can read: {error}"))?;
        if envelope.node_id != self.identity.node_id.uuid() {
            return Err(format!("task {} was handed to another node", envelope.task_id));
        }
        let known = self.journal.iter_mut().find(|entry| entry.task == envelope.task_id);
        if let Some(entry) = known {
            if !entry.dispatches.contains(&given.dispatch) {
                entry.dispatches.push(given.dispatch);
                entry.acknowledged = false;
            }
            return Ok(());
        }
        let kind = TaskKind::parse(&envelope.kind).ok_or("a kind that nobody knows")?;
        let work = Work::read(kind, envelope.params.clone())
            .map_err(|error| format!("parameters that nobody can read: {error}"))?;
        let mut entry = Entry {
            task: envelope.task_id,
            allocation: envelope.allocation_id,
            operation: envelope.operation_id,
            dispatches: vec![given.dispatch],
            places: places(&work),
            work,
            outcome: None,
            acknowledged: false,
            slow: false,
        };
        let mark = self.marks.get(&entry.allocation);
        if envelope.expires_at < now {
            entry.outcome = Some(failed(FailureReason::TaskExpired));
        } else if self.closed.contains(&entry.allocation)
            || mark.is_some_and(|(fence, _)| envelope.fence < *fence)
        {
            entry.outcome = Some(failed(FailureReason::StaleFence));
        } else {
            self.take_up(&mut entry, envelope.fence);
        }
        self.journal.push(entry);
        Ok(())
    }

    fn take_up(&mut self, entry: &mut Entry, fence: i64) {
        let allocation = entry.allocation;
        // Newer work stops older.
        for older in &mut self.journal {
            if older.is_open_for(allocation) {
                older.outcome = Some(failed(FailureReason::Interrupted));
            }
        }
        self.marks.insert(allocation, (fence, entry.task));
        let leases = &self.leases;
        let foreign =
            |place: &i16| leases.get(place).is_some_and(|(other, _)| *other != allocation);
        if is_cleanup(&entry.work) {
            entry.places.retain(|place| !foreign(place));
        } else if entry.places.iter().any(foreign) {
            entry.outcome = Some(failed(FailureReason::LeaseConflict));
            return;
        }
        for place in &entry.places {
            self.leases.insert(*place, (allocation, entry.operation));
        }
    }

    /// Ends a piece of work that was begun, with its effect on the world.
    pub fn work(&mut self, place: usize, luck: Luck) -> Result<(), Violation> {
        let Some(entry) = self.journal.get(place).cloned().filter(|entry| entry.outcome.is_none())
        else {
            return Ok(());
        };
        let outcome = match &entry.work {
            Work::SliceProvision(_) | Work::UserProvision(_) => self.provide(&entry, luck)?,
            Work::SliceRelease(_) | Work::UserDeprovision(_) => self.clean(&entry, luck)?,
            Work::SliceRestart(_) | Work::NodeReboot(_) => self.reboot(&entry, luck),
        };
        self.journal[place].outcome = Some(outcome);
        Ok(())
    }

    fn provide(&mut self, entry: &Entry, luck: Luck) -> Result<TaskOutcome, Violation> {
        for place in &entry.places {
            if let Some(guest) = self.world.get(place)
                && *guest != entry.allocation
            {
                return Err(format!(
                    "slot {place} was given to {} while {guest} is still on it",
                    entry.allocation
                ));
            }
            self.world.insert(*place, entry.allocation);
        }
        Ok(match luck {
            Luck::Fails(reason) => failed(reason),
            Luck::Good | Luck::Residue => TaskOutcome::Provisioned {
                access: Access {
                    host: "192.0.2.1".to_owned(),
                    port: 22,
                    user: "tenant".to_owned(),
                },
            },
        })
    }

    fn clean(&mut self, entry: &Entry, luck: Luck) -> Result<TaskOutcome, Violation> {
        if let Luck::Fails(reason) = luck {
            return Ok(failed(reason));
        }
        let kept = usize::from(luck == Luck::Residue);
        for place in entry.places.iter().skip(kept) {
            if let Some(guest) = self.world.get(place)
                && *guest != entry.allocation
            {
                return Err(format!("slot {place} of {guest} was wiped for {}", entry.allocation));
            }
            self.world.remove(place);
        }
        let wiped = luck == Luck::Good;
        if wiped {
            let allocation = entry.allocation;
            self.leases
                .retain(|place, (other, _)| *other != allocation || !entry.places.contains(place));
        }
        let proof = CleanupProof {
            released: true,
            hard_stopped: luck == Luck::Residue,
            wiped,
            leases_released: wiped,
        };
        Ok(TaskOutcome::Cleaned { proof })
    }

    fn reboot(&mut self, entry: &Entry, luck: Luck) -> TaskOutcome {
        let there = |place: &i16| self.world.get(place) == Some(&entry.allocation);
        if !entry.places.iter().all(there) {
            return failed(FailureReason::GuestMissing);
        }
        let boot_id_before = self.boot();
        match luck {
            Luck::Fails(reason) => failed(reason),
            // It says that it was restarted, and was not.
            Luck::Residue => TaskOutcome::Restarted { boot_id_before, boot_id: boot_id_before },
            Luck::Good => {
                self.boots += 1;
                TaskOutcome::Restarted { boot_id_before, boot_id: self.boot() }
            }
        }
    }

    /// Whether an allocation is on all of these slots; on the machine, if there are none.
    pub fn hosts(&self, allocation: Uuid, slots: &[i16]) -> bool {
        let on = |place: i16| self.world.get(&place) == Some(&allocation);
        if self.whole { on(MACHINE) } else { slots.iter().all(|slot| on(*slot)) }
    }
}

fn is_cleanup(work: &Work) -> bool {
    match work {
        Work::SliceRelease(_) | Work::UserDeprovision(_) => true,
        Work::SliceProvision(_)
        | Work::UserProvision(_)
        | Work::SliceRestart(_)
        | Work::NodeReboot(_) => false,
    }
}

fn places(work: &Work) -> Vec<i16> {
    let slots: &[SlotRef] = match work {
        Work::SliceProvision(provision) | Work::UserProvision(provision) => &provision.slots,
        Work::SliceRelease(cleanup) | Work::UserDeprovision(cleanup) => &cleanup.slots,
        Work::SliceRestart(restart) | Work::NodeReboot(restart) => &restart.slots,
    };
    if slots.is_empty() { vec![MACHINE] } else { slots.iter().map(|slot| slot.index).collect() }
}

fn failed(reason: FailureReason) -> TaskOutcome {
    TaskOutcome::Failed {
        reason: Coded(reason),
        phase: None,
        message: "as the dice fell".to_owned(),
    }
}
