//! One short transaction: reports go through `lifecycle::decide` on the product's tables, guards
//! look at the rows as they are now, and what the tables stamp is what the rows keep.

use domain::derived::allocation_group::{self as group, MemberView, derive};
use domain::machines::node_task::{AGENT_ID, CLEANUP_COMPLETE, DISPATCH, DISPATCHES_MAX, NODE_ID};
use domain::machines::{allocation, claim, node_task};
use lifecycle::writer::{assign, raised};
use lifecycle::{
    Assign, Code, Column, Facts, Guard, OPERATION_ID, Reason, Said, Source, Value, Verdict, Why,
    decide, stamps_of,
};

use super::config::{ALLOCATIONS, Config, Flaw};
use super::state::{Kind, State};
use super::tables::{Tables, Walked};

/// What stands for the one node and for its agent.
const THE_NODE: Value = Value::Id(1);

fn id(operation: u8) -> Value {
    Value::Id(u128::from(operation))
}

/// A payload that names an operation.
pub fn about(operation: u8) -> Facts {
    Facts::NONE.with(OPERATION_ID, id(operation))
}

/// What the agent of the node says of one dispatch.
pub fn by_agent(dispatch: u8) -> Facts {
    Facts::NONE
        .with(NODE_ID, THE_NODE)
        .with(AGENT_ID, THE_NODE)
        .with(DISPATCH, Value::Int(i64::from(dispatch)))
}

/// A report as the evaluator takes it, with its event as a number.
struct Report {
    event: usize,
    source: Source,
    payload: Facts,
}

/// A transaction at work on a copy of the state.
pub struct Tx<'m> {
    /// The scenario.
    pub config: &'m Config,
    tables: &'m Tables,
    /// The state as it will be.
    pub state: State,
}

impl<'m> Tx<'m> {
    /// Begins one.
    pub fn on(state: State, config: &'m Config, tables: &'m Tables) -> Self {
        Self { config, tables, state }
    }

    /// Whether this is what is wrong.
    pub fn flawed(&self, flaw: Flaw) -> bool {
        self.config.flaw == Some(flaw)
    }

    /// Evaluates a report of a row: where it leads, and what that stamps. Nothing is written.
    fn evaluate(
        &mut self,
        walked: &Walked,
        (status, row): (usize, &Facts),
        report: &Report,
        guard: impl Fn(&State, Guard) -> bool,
    ) -> Option<(usize, Vec<(Column, Value)>)> {
        let table = &walked.table;
        let said = Said { event: report.event, source: report.source, payload: &report.payload };
        let to = match decide(table, status, row, &said) {
            Verdict::Move(to) => to,
            Verdict::Duplicate => return None,
            Verdict::Refuse(reason) => {
                self.state.breaches.bug_reported |= reason == Reason::Illegal(Why::Bug);
                return None;
            }
        };
        if !table.events[report.event].guards.iter().all(|each| guard(&self.state, *each)) {
            return None;
        }
        self.state.breaches.left_terminal |= table.is_terminal(status);
        walked.take((report.event, status, to));
        let stamps = stamps_of(table, (status, to), row, &said);
        let values = stamps.iter().filter_map(|stamp| {
            match assign(stamp.column, stamp.set, &report.payload) {
                Assign::Value(column, value) => Some((column, value)),
                Assign::Raise(column) => Some((column, raised(row.get(column)))),
                // There is no clock here.
                Assign::Now(_) => None,
            }
        });
        Some((to, values.collect()))
    }

    /// Reports to an allocation; whether it moved.
    pub fn allocation(&mut self, i: usize, event: allocation::Event, by: (Source, Facts)) -> bool {
        let Some(mut row) = self.state.allocations[i] else { return false };
        let report = Report { event: event.index(), source: by.0, payload: by.1 };
        let facts = about(row.operation);
        let place = (row.status.index(), &facts);
        let guards =
            |state: &State, guard| guard == allocation::NO_LIVE_TASKS && no_live_tasks(state, i);
        let Some((to, stamps)) = self.evaluate(&self.tables.allocation, place, &report, guards)
        else {
            return false;
        };
        row.status = allocation::Status::ALL[to];
        for (column, value) in stamps {
            if let (OPERATION_ID, Value::Id(operation)) = (column, value) {
                row.operation = operation as u8;
            }
        }
        self.state.allocations[i] = Some(row);
        true
    }

    /// Reports to a claim; whether it moved.
    pub fn claim(
        &mut self,
        (i, slot): (usize, usize),
        event: claim::Event,
        by: (Source, Facts),
    ) -> bool {
        let Some(mut row) = self.state.allocations[i].and_then(|row| row.claims[slot]) else {
            return false;
        };
        let report = Report { event: event.index(), source: by.0, payload: by.1 };
        let facts = row.operation.map_or(Facts::NONE, about);
        let place = (row.status.index(), &facts);
        let guards = |state: &State, guard| {
            (guard == claim::CLEANUP_PROVEN && cleanup_proven(state, i, row.operation))
                || (guard == claim::ALLOCATION_LEAVING && leaving(state, i))
        };
        let Some((to, stamps)) = self.evaluate(&self.tables.claim, place, &report, guards) else {
            return false;
        };
        row.status = claim::Status::ALL[to];
        for (column, value) in stamps {
            if let (OPERATION_ID, Value::Id(operation)) = (column, value) {
                row.operation = Some(operation as u8);
            }
        }
        if event == claim::Event::Freeing {
            let dirty = self.state.residue[slot] == Some(i as u8) || self.state.touches(i, slot);
            self.state.breaches.freed_unclean |= dirty;
        }
        self.with(i, |allocation| allocation.claims[slot] = Some(row));
        true
    }

    /// Reports to a task; whether it moved.
    pub fn task(
        &mut self,
        (i, t): (usize, usize),
        event: node_task::Event,
        by: (Source, Facts),
    ) -> bool {
        let Some(mut row) = self.state.allocations[i].and_then(|row| row.tasks[t]) else {
            return false;
        };
        let report = Report { event: event.index(), source: by.0, payload: by.1 };
        let mut facts = Facts::NONE
            .with(NODE_ID, THE_NODE)
            .with(DISPATCH, Value::Int(i64::from(row.dispatch)))
            .with(DISPATCHES_MAX, Value::Int(i64::from(self.config.dispatches)));
        if row.held {
            facts.set(AGENT_ID, THE_NODE);
        }
        let place = (row.status.index(), &facts);
        let Some((to, stamps)) = self.evaluate(&self.tables.task, place, &report, |_, _| false)
        else {
            return false;
        };
        row.status = node_task::Status::ALL[to];
        for (column, value) in stamps {
            match (column, value) {
                (DISPATCH, Value::Int(dispatch)) => row.dispatch = dispatch as u8,
                (AGENT_ID, agent) => row.held = !agent.is_null(),
                (CLEANUP_COMPLETE, proof) => row.proof = proof == Value::Bool(true),
                // The others say nothing that a rule reads.
                _ => {}
            }
        }
        if !row.is_live() {
            row.end();
        }
        self.with(i, |allocation| allocation.tasks[t] = Some(row));
        true
    }

    /// Folds the group anew, through the same evaluator.
    pub fn refold(&mut self) {
        let derived = folded(self.config, &self.state);
        if self.flawed(Flaw::GroupNotFolded) || derived == self.state.group.status {
            return;
        }
        let event = match derived {
            // Nothing leads there: a group that seems to go back is seen by the property, not
            // hidden here.
            group::Status::Requested => return,
            group::Status::Provisioning => group::Event::MembersProvisioning,
            group::Status::Active => group::Event::MembersActive,
            group::Status::Degraded => group::Event::MembersDegraded,
            group::Status::Releasing => group::Event::MembersReleasing,
            group::Status::ReleaseFailed => group::Event::MembersReleaseFailed,
            group::Status::Released => group::Event::MembersReleased,
            group::Status::Failed => group::Event::MembersFailed,
        };
        let report = Report { event: event.index(), source: Source::Derived, payload: Facts::NONE };
        let place = (self.state.group.status.index(), &Facts::NONE);
        if let Some((to, _)) = self.evaluate(&self.tables.group, place, &report, |_, _| false) {
            self.state.group.status = group::Status::ALL[to];
        }
    }

    /// Changes the allocation's own row.
    pub fn with(&mut self, i: usize, change: impl FnOnce(&mut super::state::Allocation)) {
        if let Some(row) = &mut self.state.allocations[i] {
            change(row);
        }
    }
}

/// No task of the allocation is queued or dispatched.
fn no_live_tasks(state: &State, i: usize) -> bool {
    state.allocations[i].is_some_and(|row| !row.has_live_task())
}

/// The allocation has begun to leave.
fn leaving(state: &State, i: usize) -> bool {
    use allocation::Status::{Failed, ReleaseFailed, Released, Releasing};
    let status = state.allocations[i].map(|row| row.status);
    status.is_some_and(|status| [Releasing, ReleaseFailed, Released, Failed].contains(&status))
}

/// A clean-up of this operation was proven complete, or nothing was ever handed to an agent, nor can be any more.
fn cleanup_proven(state: &State, i: usize, operation: Option<u8>) -> bool {
    let Some(row) = state.allocations[i] else { return false };
    let cleaned =
        operation.and_then(|operation| row.tasks[usize::from(operation)]).is_some_and(|task| {
            matches!(task.kind, Kind::Release | Kind::CleanUp)
                && task.status == node_task::Status::Succeeded
                && task.proof
        });
    cleaned || !(row.was_dispatched() || row.has_live_task())
}

/// What the group's status should be.
pub fn folded(config: &Config, state: &State) -> group::Status {
    let members: Vec<MemberView> = (0..ALLOCATIONS)
        .filter(|i| config.members[*i].grouped)
        .filter_map(|i| {
            let required = config.members[i].required;
            state.allocations[i].map(|row| MemberView { status: row.status, required })
        })
        .collect();
    derive(state.group.release_requested, &members)
}
