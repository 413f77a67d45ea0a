//! What follows from the journal: how every task stands, the newest work of every allocation, who has which slot.
//! A pure fold over records; nothing here touches a disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use uuid::Uuid;
use wire::Coded;
use wire::node::{
    Cleanup, Phase, PhaseReport, PhaseStatus, Provision, Restart, SlotRef, TaskOutcome, Work,
};

use super::record::{Lease, Mark, Place, Record, Span};
use crate::verify::{Accepted, LEEWAY};

/// How a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was begun and has not ended.
    Begun,
    /// It has ended.
    Finished(TaskOutcome),
    /// It was stopped for newer work.
    Superseded(TaskOutcome),
}

/// All that the journal knows of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was accepted, with the highest dispatch that was heard of.
    pub accepted: Accepted,
    /// What it holds.
    pub leases: Vec<Place>,
    /// The phases that are done.
    pub done: Vec<Span>,
    /// The phase it ended in, when that did not succeed.
    pub failed: Option<Span>,
    /// How it stands.
    pub standing: Standing,
    /// Whether the control plane knows.
    pub acknowledged: bool,
    /// For a restart: the boot that it is to end.
    pub boot: Option<Uuid>,
    /// How often the machine was told to reboot, and since when.
    pub reboots: Option<(u32, Timestamp)>,
    /// So many agents are known to have died in the phase that is not done.
    died: u32,
    /// Whether an agent has entered that phase and was not heard of since.
    entered: bool,
}

impl Entry {
    /// Whether a phase is done.
    pub fn has_done(&self, phase: Phase) -> bool {
        self.done.iter().any(|span| span.phase.0 == phase)
    }

    /// How many agents have died in the phase that is not done, if none is at work on it.
    pub fn deaths(&self) -> u32 {
        self.died + u32::from(self.entered)
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<&TaskOutcome> {
        match &self.standing {
            Standing::Begun => None,
            Standing::Finished(outcome) | Standing::Superseded(outcome) => Some(outcome),
        }
    }

    /// What was there to report so far, from the first. The numbers are the same whenever it is asked.
    pub fn reports(&self) -> Vec<PhaseReport> {
        let done = self.done.iter().map(|span| (span, PhaseStatus::Succeeded));
        let failed = self.failed.iter().map(|span| (span, PhaseStatus::Failed));
        let moments = done.chain(failed).flat_map(|(span, end)| {
            let begun = (span.phase, PhaseStatus::Running, span.started_at);
            [begun, (span.phase, end, span.ended_at)]
        });
        let report =
            |(seq, (phase, status, at))| PhaseReport { seq, phase, status: Coded(status), at };
        (1..).zip(moments).map(report).collect()
    }
}

/// Whether work could begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// It has begun.
    Begun(Box<Entry>),
    /// It has begun, and failed at once: somebody else has the place.
    Conflict(Place, Lease),
    /// It has not begun: newer work was begun before, or this very task.
    Stale(Mark),
    /// It has not begun: the control plane has said that its allocation is over.
    Over,
}

/// The fold.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) entries: BTreeMap<Uuid, Entry>,
    pub(crate) marks: HashMap<Uuid, Mark>,
    pub(crate) leases: BTreeMap<Place, Lease>,
    /// The allocations that are over, by the control plane's word. For ever, like marks: nothing may begin for them.
    pub(crate) closed: BTreeSet<Uuid>,
}

impl State {
    /// What one more record changes; why it can't be, otherwise.
    pub(crate) fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Began { dispatch, leases, envelope, boot, .. } => {
                let mut accepted = Accepted::read(&envelope)
                    .map_err(|refusal| format!("its envelope: {}", refusal.message))?;
                accepted.dispatch = dispatch;
                self.began(accepted, leases, boot);
            }
            Record::PhaseDone { task, span } => {
                let entry = self.entry(task)?;
                entry.done.push(span);
                (entry.died, entry.entered) = (0, true);
            }
            Record::Resumed { task, deaths } => {
                let entry = self.entry(task)?;
                (entry.died, entry.entered) = (deaths, true);
            }
            Record::Rested { task } => self.entry(task)?.entered = false,
            Record::RebootAsked { task, times, since } => {
                let entry = self.entry(task)?;
                entry.reboots = Some((times, since));
                // The end that follows is the one that was asked for.
                entry.entered = false;
            }
            Record::Closed { allocation } => {
                self.closed.insert(allocation);
                self.marks.remove(&allocation);
                self.leases.retain(|_, lease| lease.allocation != allocation);
            }
            Record::Redispatched { task, dispatch } => self.redispatched(task, dispatch)?,
            Record::Finished { task, outcome, failed } => {
                let entry = self.entry(task)?;
                entry.failed = failed;
                entry.standing = Standing::Finished(outcome);
                self.give_back(task);
            }
            Record::Superseded { task, outcome, failed } => {
                let entry = self.entry(task)?;
                entry.failed = failed;
                entry.standing = Standing::Superseded(outcome);
            }
            Record::Acknowledged { task } => self.entry(task)?.acknowledged = true,
            Record::Mark { allocation, mark } => {
                self.marks.insert(allocation, mark);
            }
            Record::Lease { place, lease } => {
                self.leases.insert(place, lease);
            }
        }
        Ok(())
    }

    fn entry(&mut self, task: Uuid) -> Result<&mut Entry, String> {
        self.entries.get_mut(&task).ok_or_else(|| format!("task {task} was never begun"))
    }

    fn began(&mut self, accepted: Accepted, leases: Vec<Place>, boot: Option<Uuid>) {
        let Accepted { task, dispatch, fence, allocation, operation, .. } = accepted;
        let mark = self.marks.entry(allocation).or_insert(Mark { fence, dispatch, task });
        if mark.fence <= fence {
            *mark = Mark { fence, dispatch, task };
        }
        for place in &leases {
            self.leases.insert(*place, Lease { allocation, operation });
        }
        let entry = Entry {
            accepted,
            leases,
            done: Vec::new(),
            failed: None,
            standing: Standing::Begun,
            acknowledged: false,
            boot,
            reboots: None,
            died: 0,
            entered: true,
        };
        self.entries.insert(task, entry);
    }

    fn redispatched(&mut self, task: Uuid, dispatch: i64) -> Result<(), String> {
        let entry = self.entry(task)?;
        entry.accepted.dispatch = dispatch;
        entry.acknowledged = false;
        let allocation = entry.accepted.allocation;
        if let Some(mark) = self.marks.get_mut(&allocation).filter(|mark| mark.task == task) {
            mark.dispatch = mark.dispatch.max(dispatch);
        }
        Ok(())
    }

    /// A complete clean-up returns what it held; everything else keeps it, since nobody knows what is there.
    fn give_back(&mut self, task: Uuid) {
        let Some(entry) = self.entries.get(&task) else { return };
        if let Standing::Finished(TaskOutcome::Cleaned { proof }) = &entry.standing
            && proof.is_complete()
        {
            let allocation = entry.accepted.allocation;
            let held = entry.leases.clone();
            self.leases
                .retain(|place, lease| lease.allocation != allocation || !held.contains(place));
        }
    }

    /// What beginning a task would write down, unless the fence is against it.
    pub(crate) fn consider(&self, accepted: &Accepted) -> Result<Consideration, Objection> {
        if self.closed.contains(&accepted.allocation) {
            return Err(Objection::Over);
        }
        if let Some(mark) = self.marks.get(&accepted.allocation)
            && (accepted.fence < mark.fence || accepted.task == mark.task)
        {
            return Err(Objection::Newer(*mark));
        }
        let wanted = places(&accepted.work);
        let conflict = |place: &Place| self.holder(*place, accepted.allocation);
        Ok(match &accepted.work {
            Work::SliceProvision(_)
            | Work::UserProvision(_)
            | Work::SliceRestart(_)
            | Work::NodeReboot(_) => match wanted.iter().find_map(conflict) {
                None => Consideration { leases: wanted, conflict: None },
                conflict => Consideration { leases: Vec::new(), conflict },
            },
            // What somebody else has by now was given back before, and must not be touched.
            Work::SliceRelease(_) | Work::UserDeprovision(_) => {
                let free = |place: &Place| conflict(place).is_none();
                Consideration { leases: wanted.into_iter().filter(free).collect(), conflict: None }
            }
        })
    }

    /// Who but `allocation` has something of the place.
    fn holder(&self, place: Place, allocation: Uuid) -> Option<(Place, Lease)> {
        let overlaps = |other: Place| match (place, other) {
            (Place::Machine, _) | (_, Place::Machine) => true,
            (Place::Slot(one), Place::Slot(other)) => one == other,
        };
        let mut held = self.leases.iter().map(|(place, lease)| (*place, *lease));
        held.find(|(other, lease)| lease.allocation != allocation && overlaps(*other))
    }

    /// The fewest records that say the same. Gone is only what can never matter again: a task whose end is known to the
    /// control plane and whose envelope can't be begun any more.
    pub(crate) fn snapshot(&self, now: Timestamp) -> Vec<Record> {
        let over = |entry: &Entry| {
            let expires_at = entry.accepted.expires_at;
            entry.acknowledged
                && entry.outcome().is_some()
                && expires_at.saturating_add(LEEWAY).unwrap_or(Timestamp::MAX) < now
        };
        let mut records = Vec::new();
        for entry in self.entries.values().filter(|entry| !over(entry)) {
            records.extend(retell(entry));
        }
        // After the tasks, which are not told again in the order in which they happened.
        let marks = self.marks.iter();
        records.extend(
            marks.map(|(allocation, mark)| Record::Mark { allocation: *allocation, mark: *mark }),
        );
        let leases = self.leases.iter();
        records.extend(leases.map(|(place, lease)| Record::Lease { place: *place, lease: *lease }));
        // Last: a task of it that is still remembered would mark it anew.
        records.extend(self.closed.iter().map(|id| Record::Closed { allocation: *id }));
        records
    }

    /// Whether a task of the allocation has begun and not ended.
    pub(crate) fn works_for(&self, allocation: Uuid) -> bool {
        let mut entries = self.entries.values();
        entries.any(|entry| {
            entry.accepted.allocation == allocation && entry.standing == Standing::Begun
        })
    }
}

/// Why work can't begin.
pub(crate) enum Objection {
    /// Newer work was begun before.
    Newer(Mark),
    /// Its allocation is over.
    Over,
}

/// What beginning would write down.
pub(crate) struct Consideration {
    pub(crate) leases: Vec<Place>,
    pub(crate) conflict: Option<(Place, Lease)>,
}

/// The record with which a task begins.
pub(crate) fn beginning(accepted: &Accepted, leases: Vec<Place>, boot: Option<Uuid>) -> Record {
    Record::Began {
        task: accepted.task,
        dispatch: accepted.dispatch,
        allocation: accepted.allocation,
        operation: accepted.operation,
        fence: accepted.fence,
        kind: Coded(accepted.work.kind()),
        leases,
        envelope: accepted.envelope.clone(),
        boot,
    }
}

fn places(work: &Work) -> Vec<Place> {
    let slots: &[SlotRef] = match work {
        Work::SliceProvision(Provision { slots, .. })
        | Work::UserProvision(Provision { slots, .. })
        | Work::SliceRelease(Cleanup { slots })
        | Work::UserDeprovision(Cleanup { slots })
        | Work::SliceRestart(Restart { slots })
        | Work::NodeReboot(Restart { slots }) => slots,
    };
    match slots {
        [] => vec![Place::Machine],
        slots => slots.iter().map(|slot| Place::Slot(slot.index)).collect(),
    }
}

fn retell(entry: &Entry) -> Vec<Record> {
    let task = entry.accepted.task;
    // What a task that has ended once held may be somebody else's by now.
    let leases = match entry.standing {
        Standing::Begun => entry.leases.clone(),
        Standing::Finished(_) | Standing::Superseded(_) => Vec::new(),
    };
    let mut records = vec![beginning(&entry.accepted, leases, entry.boot)];
    records.extend(entry.done.iter().map(|span| Record::PhaseDone { task, span: *span }));
    let asked = entry.reboots.map(|(times, since)| Record::RebootAsked { task, times, since });
    records.extend(asked);
    if entry.standing == Standing::Begun {
        records.push(Record::Resumed { task, deaths: entry.died });
        if !entry.entered {
            records.push(Record::Rested { task });
        }
    }
    let failed = entry.failed;
    match &entry.standing {
        Standing::Begun => {}
        Standing::Finished(outcome) => {
            records.push(Record::Finished { task, outcome: outcome.clone(), failed });
        }
        Standing::Superseded(outcome) => {
            records.push(Record::Superseded { task, outcome: outcome.clone(), failed });
        }
    }
    if entry.acknowledged {
        records.push(Record::Acknowledged { task });
    }
    records
}
