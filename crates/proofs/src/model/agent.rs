//! The agent's world: what is really on the slots, and who is at work there, whatever the control
//! plane believes.

use domain::machines::claim::{Event as OnClaim, Status as ClaimStatus};
use domain::machines::node_task::{CLEANUP_COMPLETE, Event as OnTask};
use lifecycle::Source::{self, Operator};
use lifecycle::{Facts, Value};

use super::config::{Flaw, SLOTS};
use super::state::{Agent, Kind, Said};
use super::tx::{Tx, by_agent};

impl Tx<'_> {
    /// An agent's poll takes a queued task.
    pub fn dispatch(&mut self, i: usize, t: usize) {
        self.task((i, t), OnTask::Dispatching, (Source::Agent, by_agent(0)));
    }

    /// The answer to a poll reaches the agent, now or much later: it begins the work.
    ///
    /// The fence is what makes a clean-up final. An agent begins only what is newer (by operation,
    /// then by dispatch) than everything it has begun for the allocation, and beginning it ends the
    /// older work first.
    pub fn begin(&mut self, i: usize, (t, dispatch): (usize, u8)) {
        let fence = (t as u8 + 1, dispatch);
        let agent = &mut self.state.agents[i];
        if self.config.flaw == Some(Flaw::AgentUnfenced) {
            agent.working |= Agent::bit(t, dispatch);
        } else if fence > agent.fence {
            *agent = Agent { fence, working: Agent::bit(t, dispatch) };
        } else {
            return;
        }
        self.mark(i, t);
    }

    /// Puts the allocation's things on the task's slots, if that is what the task does.
    fn mark(&mut self, i: usize, t: usize) {
        let Some(task) = self.state.allocations[i].and_then(|row| row.tasks[t]) else { return };
        for slot in (0..SLOTS).filter(|slot| task.slots[*slot] && !task.kind.cleans()) {
            self.state.residue[slot] = Some(i as u8);
        }
    }

    /// The agent ends a piece of work and sends what it has to say. A clean-up that is not complete
    /// leaves something on every slot but the first.
    pub fn finish(&mut self, i: usize, (t, dispatch): (usize, u8), said: Said) {
        let Some(task) = self.state.allocations[i].and_then(|row| row.tasks[t]) else { return };
        self.state.agents[i].working &= !Agent::bit(t, dispatch);
        let cleaned = match (task.kind, said) {
            (Kind::Provision | Kind::Restart, Said::Done | Said::Failed) => {
                self.mark(i, t);
                0
            }
            (Kind::Provision | Kind::Restart, Said::Incomplete) => 0,
            (Kind::Release | Kind::CleanUp, Said::Done) => SLOTS,
            (Kind::Release | Kind::CleanUp, Said::Incomplete) => 1,
            (Kind::Release | Kind::CleanUp, Said::Failed) => 0,
        };
        self.wipe(i, (0..cleaned).filter(|slot| task.slots[*slot]));
        self.with(i, |row| {
            if let Some(task) = row.tasks[t].as_mut().filter(|task| task.is_live()) {
                task.results |= said.bit(dispatch);
            }
        });
    }

    /// Takes the allocation's things off the slots.
    fn wipe(&mut self, i: usize, slots: impl Iterator<Item = usize>) {
        for slot in slots {
            self.state.residue[slot].take_if(|owner| usize::from(*owner) == i);
        }
    }

    /// The agent dies in the middle of everything: what it put on the slots stays, what it was
    /// about to say is lost.
    pub fn crash(&mut self) {
        let forgets = self.flawed(Flaw::AgentForgets);
        for agent in &mut self.state.agents {
            agent.working = 0;
            agent.fence = if forgets { (0, 0) } else { agent.fence };
        }
    }

    /// A result reaches the control plane.
    pub fn deliver(&mut self, i: usize, (t, dispatch): (usize, u8), said: Said) {
        let proof = Value::Bool(said == Said::Done);
        let (event, payload) = match said {
            Said::Done | Said::Incomplete => {
                (OnTask::Success, by_agent(dispatch).with(CLEANUP_COMPLETE, proof))
            }
            Said::Failed => (OnTask::Failure, by_agent(dispatch)),
        };
        self.task((i, t), event, (Source::Agent, payload));
    }

    /// An operator has cleaned the slots by hand, and has told the agent that the allocation is
    /// over.
    pub fn clear(&mut self, i: usize) {
        let Some(row) = self.state.allocations[i] else { return };
        let set_aside = |status| matches!(status, ClaimStatus::Quarantined | ClaimStatus::Freed);
        if !row.every_claim(set_aside) || !row.has_ended() {
            return;
        }
        for slot in 0..SLOTS {
            if row.holds(slot) && self.claim((i, slot), OnClaim::Cleared, (Operator, Facts::NONE)) {
                self.wipe(i, [slot].into_iter());
                let agent = &mut self.state.agents[i];
                agent.working = 0;
                if self.config.flaw != Some(Flaw::ClearedUnfenced) {
                    agent.fence = Agent::CLOSED;
                }
            }
        }
    }
}
