//! The port to whoever takes the money. How it speaks, signs and spells is the business of whoever implements it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Error;

/// A page to pay at, to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCheckout {
    /// Our session: what makes asking twice asking once.
    pub session: Uuid,
    /// How much, in the currency's minor unit.
    pub amount_minor: i64,
    /// In which currency, by its code of three capital letters.
    pub currency: String,
    /// When the page closes.
    pub expires_at: Timestamp,
}

/// A page to pay at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkout {
    /// What the provider calls it.
    pub id: String,
    /// Where it is.
    pub url: String,
}

/// What is known of a page to pay at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckoutFacts {
    /// What the provider calls it.
    pub provider_id: String,
    /// Our session, as the provider was told when we asked for the page; none when somebody else made it.
    pub session: Option<Uuid>,
    /// How much is paid there.
    pub amount_minor: Option<i64>,
    /// In which currency, in capital letters.
    pub currency: Option<String>,
    /// The payment, as the provider calls it.
    pub payment: Option<String>,
}

/// What is known of money that was given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundFacts {
    /// The payment, as the provider calls it.
    pub payment: Option<String>,
    /// Our session, as the provider was told.
    pub session: Option<Uuid>,
    /// How much was given back of it in all.
    pub total_minor: i64,
    /// In which currency, in capital letters.
    pub currency: String,
}

/// What the provider tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum About {
    /// It was paid.
    Paid(CheckoutFacts),
    /// The payer is done, the money is on its way.
    Awaiting(CheckoutFacts),
    /// It will not be paid there any more.
    Ended(CheckoutFacts),
    /// Money was given back.
    Refunded(RefundFacts),
    /// Nothing that concerns us.
    Nothing,
}

/// Something that the provider told, and proved that it was the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// What the provider calls it: the same however often it is told.
    pub id: String,
    /// Of which sort it is, in the provider's words.
    pub kind: String,
    /// What it says.
    pub about: About,
}

/// Why the provider could not be asked, or did not answer as it should. Has no secret in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// It can't be reached, takes too long, or has a fault of its own: asking the same again makes sense.
    #[error("the payment provider can't be asked now: {0}")]
    Unavailable(String),
    /// It will say the same again: what we ask for, or who we are, is not to its liking.
    #[error("the payment provider refuses: {0}")]
    Refused(String),
    /// What it answers is not what it should be.
    #[error("the payment provider's answer can't be understood: {0}")]
    Nonsense(String),
}

/// Whoever takes the money.
pub trait Provider: Send + Sync {
    /// Makes a page to pay at. Asked again for the same session it answers with the same page.
    fn create_session<'a>(
        &'a self,
        new: &'a NewCheckout,
    ) -> BoxFuture<'a, Result<Checkout, ProviderError>>;

    /// How a page stands, in the words in which it would be told of: [`About::Nothing`] while it is open.
    fn retrieve_session<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<About, ProviderError>>;

    /// Reads what somebody says they are the provider and tells us.
    ///
    /// # Errors
    /// [`Error::Unproven`] when it is not proved, or not now.
    fn hear(&self, proof: Option<&str>, body: &[u8], now: Timestamp) -> Result<Told, Error>;
}

/// Whom people pay through in this process. Set once it is known; clones share it.
#[derive(Clone, Default)]
pub struct Payments(Arc<OnceLock<Arc<dyn Provider>>>);

impl Payments {
    /// People pay through `provider` from now on. Answers `false` when somebody was named before.
    pub fn take_through(&self, provider: Arc<dyn Provider>) -> bool {
        self.0.set(provider).is_ok()
    }

    /// Whom people pay through, if they can.
    pub fn find(&self) -> Option<&dyn Provider> {
        self.0.get().map(AsRef::as_ref)
    }

    /// Whom people pay through.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when payments are not set up.
    pub fn load(&self) -> Result<&dyn Provider, Error> {
        self.find().ok_or_else(|| Error::Unavailable {
            detail: "payments are not set up here: an operator has to name a provider".to_owned(),
            retry_after_seconds: 60,
        })
    }
}

impl fmt::Debug for Payments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Payments").field(&self.0.get().is_some()).finish()
    }
}
