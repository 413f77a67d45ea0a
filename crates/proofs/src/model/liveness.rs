//! Nothing is for ever on its way: from every reachable state a good one can be reached, by a given
//! party's steps alone. A backward search over the explored graph, for a checker's `eventually`
//! says nothing about cycles.

use std::collections::HashMap;

use lifecycle::{Code, Rest, Table};
use stateright::Model;

use super::protocol::{Action, Protocol, Whose};
use super::state::{Allocation, State};

/// The explored graph.
pub struct Graph {
    states: Vec<State>,
    /// From, to, and by whose step.
    steps: Vec<(u32, u32, Whose)>,
}

impl Graph {
    /// Every state that can be reached, and every step between them.
    pub fn of(protocol: &Protocol) -> Self {
        let mut numbers: HashMap<State, u32> = HashMap::new();
        let mut graph = Graph { states: Vec::new(), steps: Vec::new() };
        for state in protocol.init_states() {
            graph.number(&mut numbers, state);
        }
        let mut next = 0;
        let mut actions: Vec<Action> = Vec::new();
        while next < graph.states.len() {
            let state = graph.states[next];
            protocol.actions(&state, &mut actions);
            for action in actions.drain(..) {
                if let Some(after) = protocol.next_state(&state, action) {
                    let to = graph.number(&mut numbers, after);
                    graph.steps.push((next as u32, to, action.whose()));
                }
            }
            next += 1;
        }
        graph
    }

    fn number(&mut self, numbers: &mut HashMap<State, u32>, state: State) -> u32 {
        *numbers.entry(state).or_insert_with(|| {
            self.states.push(state);
            self.states.len() as u32 - 1
        })
    }

    /// How many states there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The states from which no good one can be reached by the steps of `parties` alone.
    pub fn lost(&self, parties: &[Whose], good: impl Fn(&State) -> bool) -> Vec<&State> {
        let steps = self.steps.iter().filter(|(_, _, whose)| parties.contains(whose));
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); self.states.len()];
        for (from, to, _) in steps {
            before[*to as usize].push(*from);
        }
        let mut saved: Vec<bool> = self.states.iter().map(good).collect();
        let mut todo: Vec<usize> = (0..saved.len()).filter(|n| saved[*n]).collect();
        while let Some(n) = todo.pop() {
            for from in &before[n] {
                if !std::mem::replace(&mut saved[*from as usize], true) {
                    todo.push(*from as usize);
                }
            }
        }
        self.states.iter().zip(saved).filter(|(_, saved)| !saved).map(|(state, _)| state).collect()
    }
}

fn rests(table: &Table, status: impl Code) -> bool {
    match table.statuses[status.index()].rest {
        Rest::Terminal | Rest::Restful | Rest::Parked { .. } => true,
        Rest::Transient { .. } | Rest::Derived => false,
    }
}

/// The allocations to which anything happens.
fn moving<'s>(protocol: &Protocol, state: &'s State) -> impl Iterator<Item = &'s Allocation> {
    let members = protocol.config.members;
    (0..members.len())
        .filter(move |i| members[*i].operations > 0)
        .filter_map(|i| state.allocations[i].as_ref())
}

/// Everything is where it may stay, by the tables' own word: nothing waits for a machine.
pub fn at_rest(protocol: &Protocol, state: &State) -> bool {
    let tables = &protocol.tables;
    moving(protocol, state).all(|row| {
        rests(&tables.allocation.table, row.status)
            && row.claims.iter().flatten().all(|claim| rests(&tables.claim.table, claim.status))
            && row.tasks.iter().flatten().all(|task| rests(&tables.task.table, task.status))
    })
}

/// Everything has ended: allocations, claims, tasks and the group.
pub fn settled(protocol: &Protocol, state: &State) -> bool {
    let tables = &protocol.tables;
    let grouped = protocol.config.members.iter().any(|member| member.grouped);
    (tables.group.table.is_terminal(state.group.status.index()) || !grouped)
        && moving(protocol, state).all(|row| {
            row.has_ended()
                && !row.has_live_task()
                && (0..super::config::SLOTS).all(|slot| !row.holds(slot))
        })
}
