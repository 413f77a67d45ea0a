//! What the sandbox remembers: sessions, answers to keys, and what there is to tell. What happens to a session, and what is told
//! of it, happen together.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use crate::{Sandbox, Trouble};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Open,
    Complete,
    Expired,
}

impl Status {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Status::Open => "open",
            Status::Complete => "complete",
            Status::Expired => "expired",
        }
    }
}

/// One Checkout session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) reference: Option<String>,
    pub(crate) metadata: HashMap<String, String>,
    pub(crate) payment_metadata: HashMap<String, String>,
    pub(crate) product: String,
    pub(crate) amount: i64,
    /// In small letters, as Stripe has it.
    pub(crate) currency: String,
    pub(crate) success_url: String,
    pub(crate) cancel_url: String,
    pub(crate) created: i64,
    pub(crate) expires_at: i64,
    pub(crate) status: Status,
    pub(crate) paid: bool,
    pub(crate) payment: Option<String>,
    pub(crate) refunded: i64,
}

impl Session {
    /// As Stripe tells it.
    pub(crate) fn told(&self) -> Value {
        let payment_status = if self.paid { "paid" } else { "unpaid" };
        let url = (self.status == Status::Open).then_some(&self.url);
        json!({
            "id": self.id, "object": "checkout.session", "mode": "payment", "livemode": false,
            "url": url, "status": self.status.word(), "payment_status": payment_status,
            "client_reference_id": self.reference, "metadata": self.metadata,
            "amount_subtotal": self.amount, "amount_total": self.amount, "currency": self.currency,
            "payment_intent": self.payment, "created": self.created, "expires_at": self.expires_at,
            "success_url": self.success_url, "cancel_url": self.cancel_url,
            "customer_details": {"email": "payer@example.test"},
        })
    }

    fn charge(&self) -> Value {
        json!({
            "id": format!("ch_{}", self.id), "object": "charge", "amount": self.amount,
            "amount_refunded": self.refunded, "currency": self.currency, "livemode": false,
            "payment_intent": self.payment, "metadata": self.payment_metadata,
            "paid": self.paid, "refunded": self.refunded >= self.amount,
        })
    }
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub kind: String,
    /// Its body, byte by byte as it is told each time.
    pub body: String,
}

/// An answer that was given for a key.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) form: String,
    pub(crate) body: Value,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) sessions: HashMap<String, Session>,
    pub(crate) order: Vec<String>,
    pub(crate) answers: HashMap<String, Answered>,
    pub(crate) events: Vec<Event>,
    /// Those of them that nobody has begun to tell.
    pub(crate) queue: VecDeque<Event>,
    /// How many are being told and were not heard.
    pub(crate) underway: usize,
    pub(crate) troubles: VecDeque<Trouble>,
    pub(crate) held: bool,
    pub(crate) asked: usize,
    counted: u64,
}

impl Book {
    /// A number that was never given out.
    pub(crate) fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    /// How much is not heard yet.
    pub(crate) fn unheard(&self) -> usize {
        self.queue.len() + self.underway
    }
}

impl Sandbox {
    /// Something has happened, and is told to whoever wants to know.
    fn emit(&self, book: &mut Book, id: String, kind: &str, object: &Value) {
        let body = json!({
            "id": id, "object": "event", "type": kind, "created": self.now(), "livemode": false,
            "api_version": "2024-06-20", "data": {"object": object},
        });
        let event = Event { id, kind: kind.to_owned(), body: body.to_string() };
        book.events.push(event.clone());
        if !book.held {
            book.queue.push_back(event);
            self.0.told.notify_one();
        }
    }

    /// Does something with a session, and tells what came of it; whether there was anything to do.
    fn happens(
        &self,
        id: &str,
        change: impl FnOnce(&mut Session) -> Option<(&'static str, Value)>,
    ) -> bool {
        let event = self.name("evt");
        let mut book = self.book();
        let happened = book.sessions.get_mut(id).and_then(change);
        let Some((kind, object)) = happened else { return false };
        self.emit(&mut book, event, kind, &object);
        true
    }

    /// The payer is done: the money is there, or on its way.
    pub(crate) fn complete(&self, id: &str, paid: bool) -> bool {
        let payment = self.name("pi");
        self.happens(id, |session| {
            if session.status != Status::Open {
                return None;
            }
            (session.status, session.paid, session.payment) =
                (Status::Complete, paid, Some(payment));
            Some(("checkout.session.completed", session.told()))
        })
    }

    /// Money that was on its way has come, or will not.
    pub fn arrives(&self, id: &str, comes: bool) -> bool {
        self.happens(id, |session| {
            if session.status != Status::Complete || session.paid {
                return None;
            }
            session.paid = comes;
            let kind = match comes {
                true => "checkout.session.async_payment_succeeded",
                false => "checkout.session.async_payment_failed",
            };
            Some((kind, session.told()))
        })
    }

    /// Nobody paid in time, or somebody has closed it.
    pub fn expire(&self, id: &str) -> bool {
        self.happens(id, |session| {
            if session.status != Status::Open {
                return None;
            }
            session.status = Status::Expired;
            Some(("checkout.session.expired", session.told()))
        })
    }

    /// Gives so much back.
    pub fn refund(&self, id: &str, amount: i64) -> bool {
        self.happens(id, |session| {
            let left = session.amount - session.refunded;
            if !session.paid || !(1..=left).contains(&amount) {
                return None;
            }
            session.refunded += amount;
            Some(("charge.refunded", session.charge()))
        })
    }

    /// Expires what nobody has paid in time.
    pub(crate) fn sweep(&self) {
        let now = self.now();
        let over = |session: &&Session| session.status == Status::Open && session.expires_at <= now;
        let over: Vec<String> =
            self.book().sessions.values().filter(over).map(|session| session.id.clone()).collect();
        for id in over {
            self.expire(&id);
        }
    }
}
