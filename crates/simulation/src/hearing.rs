//! What is heard of a story: a line of the trace, an entry in the books, work for a node; and what no story may answer.

use control::Error;
use wire::node::SignedTask;

use crate::sim::{Sim, short};
use crate::story::{Fate, Heard};

impl Sim<'_> {
    /// Takes in what a story said.
    pub(crate) fn hear(&mut self, number: usize, heard: Heard, fate: Fate) {
        let line = match &heard {
            Heard::Created(_, answer) => told(answer.as_ref().map(|granted| short(&granted.id))),
            Heard::Asked(_, answer) => told(answer.as_ref().map(|_| "done".to_owned())),
            Heard::Given(_, answer) => told(answer.as_ref().map(|given| {
                let one = |task: &SignedTask| {
                    format!("task {} dispatch {}", short(&task.task_id), task.dispatch)
                };
                given.iter().map(one).collect::<Vec<_>>().join(", ")
            })),
            Heard::Acknowledged(_, _, answer) => told(answer.as_ref().cloned()),
            Heard::Beat(_, answer) => told(answer.as_ref().map(|beat| beat.status.clone())),
            Heard::Moved(answer) => match answer {
                Ok(count) => format!("{count} moved"),
                Err(reason) => reason.clone(),
            },
        };
        self.say(format!("#{number} → {line}"));
        if let Some(fault) = fault_in(&heard)
            && !matches!(fate, Fate::Cut(_))
        {
            self.broken(format!("a story failed: {fault}"));
        }
        self.settle_books(heard);
    }

    fn settle_books(&mut self, heard: Heard) {
        match heard {
            Heard::Created(place, Ok(granted)) => {
                if let Err(broken) = self.books.granted(place, granted) {
                    self.broken(broken);
                }
            }
            Heard::Created(place, Err(error)) => self.books.refused(place, &error),
            Heard::Asked(asked, Ok(answer)) => {
                if let Err(broken) = self.books.accepted(asked, answer) {
                    self.broken(broken);
                }
            }
            Heard::Given(node, Ok(tasks)) => self.nodes[node].inbox.extend(tasks),
            Heard::Acknowledged(node, task, Ok(_)) => {
                for entry in &mut self.nodes[node].journal {
                    entry.acknowledged |= entry.task == task;
                }
            }
            Heard::Beat(node, Ok(answer)) => self.nodes[node].forget(&answer.over),
            Heard::Asked(_, Err(_))
            | Heard::Given(_, Err(_))
            | Heard::Acknowledged(..)
            | Heard::Beat(..)
            | Heard::Moved(_) => {}
        }
    }
}

fn told(answer: Result<String, &Error>) -> String {
    answer.unwrap_or_else(|error| error.chain())
}

/// What no story may answer.
fn fault_in(heard: &Heard) -> Option<String> {
    let error = match heard {
        Heard::Created(_, answer) => answer.as_ref().err(),
        Heard::Asked(_, answer) => answer.as_ref().err(),
        Heard::Given(_, answer) => answer.as_ref().err(),
        Heard::Acknowledged(_, _, answer) => answer.as_ref().err(),
        Heard::Beat(_, answer) => answer.as_ref().err(),
        Heard::Moved(Ok(_)) => return None,
        Heard::Moved(Err(reason)) => {
            let lost = reason.contains("lost to another");
            return (!lost).then(|| reason.clone());
        }
    }?;
    let is_fault = match error {
        Error::Broken(_) | Error::Spine(_) => true,
        Error::Store(store::Error::Conflict) => false,
        Error::Store(_) => true,
        Error::NotFound(_)
        | Error::NoSuch(_)
        | Error::Forbidden(_)
        | Error::Unauthenticated(_)
        | Error::Invalid(_)
        | Error::Conflict(_)
        | Error::SkuUnavailable { .. }
        | Error::BalanceDepleted(_)
        | Error::SpendingCapReached(_)
        | Error::IdempotencyMismatch
        | Error::Unavailable { .. }
        | Error::Unproven(_)
        | Error::IdempotencyInFlight => false,
    };
    is_fault.then(|| error.chain())
}
