//! What was asked for and what was answered: what the control plane has promised, by the people's own books.

use std::collections::BTreeSet;

use control::Error;
use uuid::Uuid;
use wire::http::allocation_groups::NewGroup;
use wire::http::allocations::NewAllocation;

/// What a request asks for; it has a name of its own.
#[derive(Clone, Debug)]
pub enum Body {
    /// GPUs.
    One(NewAllocation),
    /// Several at once, all or none.
    Group(NewGroup),
}

/// What there is after a request was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The allocation, or the group.
    pub id: Uuid,
    /// The allocations that people have by it.
    pub allocations: Vec<Uuid>,
}

/// A request for GPUs.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its idempotency key.
    pub key: String,
    /// What is asked for.
    pub body: Body,
    /// What the answer was.
    pub answer: Option<Granted>,
    /// Whether it was refused for good, as far as who asked knows.
    pub refused: bool,
}

impl Request {
    /// What was asked for is called this.
    pub fn name(&self) -> &str {
        match &self.body {
            Body::One(body) => body.name.as_deref().unwrap_or_default(),
            Body::Group(body) => body.name.as_deref().unwrap_or_default(),
        }
    }
}

/// What can be asked for about something that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An allocation is given back.
    Release,
    /// An allocation is restarted.
    Restart,
    /// A whole group is given back.
    GroupRelease,
    /// An operator takes an allocation back.
    Force,
    /// An operator ends a release that gave up.
    Abandon,
    /// An operator has a failed allocation cleaned up once more.
    Clean,
    /// An operator sets a claim aside.
    Quarantine,
    /// An operator gives back a claim that was set aside.
    Clear,
    /// An operator empties a node.
    Drain,
    /// An operator gives a node back to the fleet.
    Resume,
    /// An operator takes a node away for good.
    Retire,
    /// An operator has everything compared.
    Look,
    /// An operator turns a policy.
    Turn(&'static str, i64),
    /// An application is bound to an allocation.
    Bind,
}

/// What somebody asks for, and about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What.
    pub what: What,
    /// About what.
    pub id: Uuid,
    /// Which wish of the books it is, if it has a key.
    pub wish: Option<usize>,
}

/// Something that was asked for under a key.
#[derive(Clone, Debug)]
pub struct Wish {
    /// What, and about what.
    pub asked: Asked,
    /// The answer, if one was heard.
    pub answer: Option<String>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// All requests for GPUs.
    pub requests: Vec<Request>,
    /// The allocations that people know of.
    pub known: Vec<Uuid>,
    /// The groups that people know of.
    pub groups: Vec<Uuid>,
    /// Everything that was asked for under a key.
    pub wishes: Vec<Wish>,
    /// Allocations and groups whose release was accepted.
    pub released: BTreeSet<Uuid>,
}

impl Books {
    /// A new request, under a key of its own; answers its place.
    pub fn ask(&mut self, body: Body) -> usize {
        let place = self.requests.len();
        let key = format!("key-{place}");
        self.requests.push(Request { key, body, answer: None, refused: false });
        place
    }

    /// A new wish, under a key of its own.
    pub fn wish(&mut self, what: What, id: Uuid) -> Asked {
        let asked = Asked { what, id, wish: Some(self.wishes.len()) };
        self.wishes.push(Wish { asked, answer: None });
        asked
    }

    /// A request was granted.
    ///
    /// # Errors
    /// When it was granted before, by something else.
    pub fn granted(&mut self, place: usize, granted: Granted) -> Result<(), String> {
        let request = &mut self.requests[place];
        if let Some(before) = &request.answer
            && *before != granted
        {
            return Err(format!("one request was answered by {before:?} and by {granted:?}"));
        }
        if request.answer.is_none() {
            self.known.extend(&granted.allocations);
            if matches!(request.body, Body::Group(_)) {
                self.groups.push(granted.id);
            }
        }
        request.answer = Some(granted);
        Ok(())
    }

    /// A request was not granted.
    pub fn refused(&mut self, place: usize, error: &Error) {
        self.requests[place].refused |= matches!(error, Error::SkuUnavailable { .. });
    }

    /// Something was accepted, with this answer.
    ///
    /// # Errors
    /// When its key was answered otherwise before.
    pub fn accepted(&mut self, asked: Asked, answer: String) -> Result<(), String> {
        match asked.what {
            What::Release | What::Force | What::GroupRelease | What::Abandon => {
                self.released.insert(asked.id);
            }
            What::Restart
            | What::Clean
            | What::Quarantine
            | What::Clear
            | What::Drain
            | What::Resume
            | What::Retire
            | What::Look
            | What::Turn(..)
            | What::Bind => {}
        }
        let Some(place) = asked.wish else { return Ok(()) };
        let known = self.wishes[place].answer.get_or_insert_with(|| answer.clone());
        if *known == answer {
            Ok(())
        } else {
            Err(format!("one key was answered by {known} and by {answer}"))
        }
    }

    /// The requests that nobody has answered.
    pub fn unanswered(&self) -> Vec<usize> {
        let open = |request: &Request| request.answer.is_none() && !request.refused;
        (0..self.requests.len()).filter(|place| open(&self.requests[*place])).collect()
    }
}
