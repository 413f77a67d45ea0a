//! What was asked for and what was answered: what the control plane has promised, by the people's own books.

use std::collections::BTreeSet;

use control::Error;
use uuid::Uuid;
use wire::http::allocations::NewAllocation;

/// A request for GPUs.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its idempotency key.
    pub key: String,
    /// What is asked for; it has a name of its own.
    pub body: NewAllocation,
    /// The allocation that was the answer.
    pub answer: Option<Uuid>,
    /// Whether it was refused for good, as far as who asked knows.
    pub refused: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// All requests for GPUs.
    pub requests: Vec<Request>,
    /// The allocations that people know of.
    pub known: Vec<Uuid>,
    /// Those whose release was accepted.
    pub released: BTreeSet<Uuid>,
}

impl Books {
    /// A request was granted.
    ///
    /// # Errors
    /// When it was granted before, by another allocation.
    pub fn created(&mut self, place: usize, id: Uuid) -> Result<(), String> {
        let request = &mut self.requests[place];
        if let Some(before) = request.answer
            && before != id
        {
            return Err(format!("one request was answered by {before} and by {id}"));
        }
        request.answer = Some(id);
        if !self.known.contains(&id) {
            self.known.push(id);
        }
        Ok(())
    }

    /// A request was not granted.
    pub fn refused(&mut self, place: usize, error: &Error) {
        self.requests[place].refused |= matches!(error, Error::SkuUnavailable { .. });
    }

    /// Something was accepted.
    pub fn accepted(&mut self, what: &str, id: Uuid) {
        if what == crate::actions::RELEASE {
            self.released.insert(id);
        }
    }

    /// The requests that nobody has answered.
    pub fn unanswered(&self) -> Vec<usize> {
        let open = |request: &Request| request.answer.is_none() && !request.refused;
        (0..self.requests.len()).filter(|place| open(&self.requests[*place])).collect()
    }
}
