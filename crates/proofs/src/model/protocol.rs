//! The protocol as `stateright` takes it: what can happen next, and what then is.

use domain::machines::allocation::Status;
use domain::machines::node_task::{Event as OnTask, Status as TaskStatus};
use lifecycle::{Facts, Source};
use stateright::{Model, Property};

use super::config::{ALLOCATIONS, Config, OPERATIONS, SLOTS};
use super::properties;
use super::state::{Said, State};
use super::tables::Tables;
use super::tx::{Tx, by_agent};

/// One thing that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A second tenant is placed.
    Create(usize),
    /// The request reaches the worker, again perhaps.
    StartProvision(usize),
    /// The worker queues the task of the present operation.
    Queue(usize),
    /// An agent takes a task.
    Dispatch(usize, usize),
    /// The lease of a task ends.
    LeaseExpires(usize, usize),
    /// A task is over its deadline.
    TaskExpires(usize, usize),
    /// The task of a dispatch reaches the agent.
    Begin(usize, usize, u8),
    /// The agent ends the work of a dispatch and sends a result.
    Finish(usize, usize, u8, Said),
    /// The agent dies and comes back.
    Crash,
    /// A result reaches the control plane.
    Deliver(usize, usize, u8, Said),
    /// The notice that a task has ended reaches the worker.
    TaskFinished(usize, usize),
    /// A release that no agent has to do with is completed.
    CompleteUntouched(usize),
    /// The claims of a failed provision are swept.
    SweepFailed(usize),
    /// The allocation is over its deadline.
    TimeOut(usize),
    /// A claim is over its deadline.
    ClaimTimeOut(usize, usize),
    /// The user gives the allocation back, or tries again.
    Release(usize),
    /// The user restarts the allocation.
    Restart(usize),
    /// The user gives the group back.
    ReleaseGroup,
    /// The group's release reaches a member.
    FanOut(usize),
    /// An operator has a failed provision cleaned up again.
    CleanAgain(usize),
    /// An operator calls off a clean-up.
    CallOff(usize),
    /// An operator abandons a release.
    Abandon(usize),
    /// An operator sets a slot aside.
    Quarantine(usize, usize),
    /// An operator clears the slots of an allocation.
    Clear(usize),
}

/// Whose step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The agent's, its results included.
    Agent,
    /// The control plane's own: workers, deadlines, sweeps.
    Control,
    /// A user's or an operator's.
    People,
}

impl Action {
    /// Whose step this is.
    pub fn whose(self) -> Whose {
        match self {
            Action::Dispatch(..)
            | Action::Begin(..)
            | Action::Finish(..)
            | Action::Crash
            | Action::Deliver(..) => Whose::Agent,
            Action::StartProvision(_)
            | Action::Queue(_)
            | Action::LeaseExpires(..)
            | Action::TaskExpires(..)
            | Action::TaskFinished(..)
            | Action::CompleteUntouched(_)
            | Action::SweepFailed(_)
            | Action::TimeOut(_)
            | Action::ClaimTimeOut(..)
            | Action::FanOut(_) => Whose::Control,
            Action::Create(_)
            | Action::Release(_)
            | Action::Restart(_)
            | Action::ReleaseGroup
            | Action::CleanAgain(_)
            | Action::CallOff(_)
            | Action::Abandon(_)
            | Action::Quarantine(..)
            | Action::Clear(_) => Whose::People,
        }
    }
}

/// A scenario on the tables.
#[derive(Debug)]
pub struct Protocol {
    /// The scenario.
    pub config: Config,
    /// The tables, which remember the edges taken.
    pub tables: Tables,
}

impl Protocol {
    /// The protocol of a scenario.
    pub fn new(config: Config) -> Self {
        Self { config, tables: Tables::new(config.flaw) }
    }

    fn of_allocation(&self, state: &State, i: usize, actions: &mut Vec<Action>) {
        let Some(row) = state.allocations[i] else {
            actions.push(Action::Create(i));
            return;
        };
        if self.config.members[i].operations == 0 {
            return;
        }
        actions.extend([
            Action::StartProvision(i),
            Action::Queue(i),
            Action::TimeOut(i),
            Action::Release(i),
            Action::Restart(i),
            Action::FanOut(i),
            Action::SweepFailed(i),
            Action::CleanAgain(i),
            Action::CallOff(i),
            Action::Abandon(i),
            Action::Clear(i),
        ]);
        if matches!(row.status, Status::Releasing | Status::ReleaseFailed) {
            actions.push(Action::CompleteUntouched(i));
        }
        // Of what failed, only the claims are left, and their deadline is all that is left to wait
        // for.
        let claims = !self.config.members[i].sketched || row.status == Status::Failed;
        for slot in (0..SLOTS).filter(|slot| claims && row.claims[*slot].is_some()) {
            actions.extend([Action::ClaimTimeOut(i, slot), Action::Quarantine(i, slot)]);
        }
        for t in (0..OPERATIONS).filter(|t| row.tasks[*t].is_some()) {
            self.of_task(state, (i, t), actions);
        }
    }

    fn of_task(&self, state: &State, (i, t): (usize, usize), actions: &mut Vec<Action>) {
        let Some(task) = state.allocations[i].and_then(|row| row.tasks[t]) else { return };
        if task.is_live() {
            let queued = task.status == TaskStatus::Queued;
            let next = if queued { Action::Dispatch(i, t) } else { Action::LeaseExpires(i, t) };
            actions.extend([next, Action::TaskExpires(i, t)]);
        } else {
            actions.push(Action::TaskFinished(i, t));
        }
        let sketched = self.config.members[i].sketched;
        for dispatch in 1..=task.dispatch {
            if !sketched {
                actions.push(Action::Begin(i, t, dispatch));
            }
            let incomplete = task.kind.cleans() && !sketched;
            for said in Said::ALL.into_iter().filter(|s| *s != Said::Incomplete || incomplete) {
                if state.agents[i].works_on(t, dispatch) {
                    actions.push(Action::Finish(i, t, dispatch, said));
                }
                if task.results & said.bit(dispatch) != 0 || (sketched && task.is_live()) {
                    actions.push(Action::Deliver(i, t, dispatch, said));
                }
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut tx = Tx::on(State::empty(), &self.config, &self.tables);
        for i in (0..ALLOCATIONS).filter(|i| self.config.members[*i].from_start) {
            tx.create(i);
        }
        vec![tx.state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for i in 0..ALLOCATIONS {
            self.of_allocation(state, i, actions);
        }
        actions.push(Action::Crash);
        if self.config.members.iter().any(|member| member.grouped) {
            actions.push(Action::ReleaseGroup);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut tx = Tx::on(*last, &self.config, &self.tables);
        tx.step(action);
        (tx.state != *last).then_some(tx.state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}

impl Tx<'_> {
    fn dispatched(&self, i: usize, t: usize) -> u8 {
        self.state.allocations[i].and_then(|row| row.tasks[t]).map_or(0, |task| task.dispatch)
    }

    fn step(&mut self, action: Action) {
        let timer = Source::Timer;
        match action {
            Action::Create(i) => self.create(i),
            Action::StartProvision(i) => self.start_provision(i),
            Action::Queue(i) => self.queue(i),
            Action::Dispatch(i, t) => self.dispatch(i, t),
            Action::LeaseExpires(i, t) => {
                let dispatch = self.dispatched(i, t);
                self.task((i, t), OnTask::LeaseExpired, (timer, by_agent(dispatch)));
            }
            Action::TaskExpires(i, t) => {
                self.task((i, t), OnTask::Expiring, (timer, Facts::NONE));
            }
            Action::Begin(i, t, dispatch) => self.begin(i, (t, dispatch)),
            Action::Finish(i, t, dispatch, said) => self.finish(i, (t, dispatch), said),
            Action::Crash => self.crash(),
            Action::Deliver(i, t, dispatch, said) => self.deliver(i, (t, dispatch), said),
            Action::TaskFinished(i, t) => self.task_finished(i, t),
            Action::CompleteUntouched(i) => self.complete_untouched(i),
            Action::SweepFailed(i) => self.sweep_failed(i),
            Action::TimeOut(i) => self.time_out(i),
            Action::ClaimTimeOut(i, slot) => self.claim_time_out(i, slot),
            Action::Release(i) => self.request_release(i, Source::User),
            Action::Restart(i) => self.request_restart(i),
            Action::ReleaseGroup => self.release_group(),
            Action::FanOut(i) => self.fan_out(i),
            Action::CleanAgain(i) => self.clean_again(i),
            Action::CallOff(i) => self.call_off(i),
            Action::Abandon(i) => self.abandon(i),
            Action::Quarantine(i, slot) => self.quarantine(i, slot),
            Action::Clear(i) => self.clear(i),
        }
    }
}
