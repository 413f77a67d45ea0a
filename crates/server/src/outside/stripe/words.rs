//! What Stripe says, read strictly as far as it matters and ignored where it does not. What is about a person is not read.

use std::collections::HashMap;
use std::fmt::Write as _;

use control::payment::provider::{About, CheckoutFacts, ProviderError, RefundFacts, Told};
use reqwest::StatusCode;
use serde::Deserialize;
use uuid::Uuid;

/// The longest name that Stripe gives anything.
const NAME_CHARS_MAX: usize = 255;
/// The longest address.
const ADDRESS_CHARS_MAX: usize = 4_096;

/// An error, as Stripe tells it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Trouble {
    #[serde(default)]
    pub(super) error: Wrong,
}

/// What went wrong.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wrong {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    param: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

impl Wrong {
    /// The same for people, not too long and without anything that a terminal would obey.
    pub(super) fn sentence(&self, status: StatusCode, chars_max: usize) -> String {
        let mut text = status.to_string();
        for (name, said) in [("type", &self.kind), ("code", &self.code), ("param", &self.param)] {
            if let Some(said) = said {
                // Writing to a text does not fail.
                let _ = write!(text, ", {name} {said}");
            }
        }
        if let Some(message) = &self.message {
            let _ = write!(text, ": {message}");
        }
        text.chars().filter(|c| !c.is_control()).take(chars_max).collect()
    }
}

/// What is named, or told whole.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Id(String),
    Whole { id: String },
}

impl Named {
    fn id(self) -> String {
        match self {
            Named::Id(id) | Named::Whole { id } => id,
        }
    }
}

/// A Checkout session.
#[derive(Debug, Deserialize)]
pub(super) struct Session {
    pub(super) id: String,
    #[serde(default)]
    pub(super) url: Option<String>,
    #[serde(default)]
    status: Option<String>,
    payment_status: String,
    #[serde(default)]
    client_reference_id: Option<String>,
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
    #[serde(default)]
    amount_total: Option<i64>,
    #[serde(default)]
    currency: Option<String>,
    #[serde(default)]
    payment_intent: Option<Named>,
}

/// Whether money has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Money {
    Here,
    Missing,
}

impl Session {
    /// Our session. The reference alone could be anybody's: it can be written into the address of a payment link.
    pub(super) fn session(&self) -> Option<Uuid> {
        let reference: Uuid = self.client_reference_id.as_ref()?.parse().ok()?;
        (noted(self.metadata.as_ref()) == Some(reference)).then_some(reference)
    }

    fn money(&self) -> Result<Money, ProviderError> {
        match self.payment_status.as_str() {
            "paid" | "no_payment_required" => Ok(Money::Here),
            "unpaid" => Ok(Money::Missing),
            _ => Err(nonsense("a payment status that is new to us")),
        }
    }

    /// How it stands, in the words in which it would be told of.
    pub(super) fn stands(self) -> Result<About, ProviderError> {
        let money = self.money()?;
        match (self.status.as_deref(), money) {
            (Some("open"), _) => Ok(About::Nothing),
            (Some("complete"), Money::Here) => Ok(About::Paid(self.facts()?)),
            (Some("complete"), Money::Missing) => Ok(About::Awaiting(self.facts()?)),
            (Some("expired"), _) => Ok(About::Ended(self.facts()?)),
            (_, _) => Err(nonsense("a session status that is new to us")),
        }
    }

    fn facts(self) -> Result<CheckoutFacts, ProviderError> {
        let session = self.session();
        Ok(CheckoutFacts {
            session,
            provider_id: fitting(self.id)?,
            amount_minor: self.amount_total,
            currency: self.currency.map(capital).transpose()?,
            payment: self.payment_intent.map(Named::id).map(fitting).transpose()?,
        })
    }
}

/// A charge of which something was given back.
#[derive(Debug, Deserialize)]
struct Charge {
    amount_refunded: i64,
    currency: String,
    #[serde(default)]
    payment_intent: Option<Named>,
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Envelope {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    /// Read when it is known what it is.
    data: Luggage,
}

#[derive(Debug, Deserialize)]
struct Luggage {
    object: Box<serde_json::value::RawValue>,
}

/// What a webhook says. What is no concern of ours is not read any further.
pub(super) fn told(body: &[u8]) -> Result<Told, ProviderError> {
    let envelope: Envelope = serde_json::from_slice(body).map_err(|_| nonsense("no event"))?;
    let object = envelope.data.object.get();
    let session = || {
        serde_json::from_str::<Session>(object).map_err(|_| nonsense("no Checkout session in it"))
    };
    let about = match envelope.kind.as_str() {
        "checkout.session.completed" => {
            let session = session()?;
            match session.money()? {
                Money::Here => About::Paid(session.facts()?),
                Money::Missing => About::Awaiting(session.facts()?),
            }
        }
        "checkout.session.async_payment_succeeded" => {
            let session = session()?;
            match session.money()? {
                Money::Here => About::Paid(session.facts()?),
                Money::Missing => return Err(nonsense("a payment that succeeded and is unpaid")),
            }
        }
        "checkout.session.async_payment_failed" | "checkout.session.expired" => {
            About::Ended(session()?.facts()?)
        }
        "charge.refunded" => {
            let charge: Charge =
                serde_json::from_str(object).map_err(|_| nonsense("no charge in it"))?;
            About::Refunded(RefundFacts {
                session: noted(charge.metadata.as_ref()),
                payment: charge.payment_intent.map(Named::id).map(fitting).transpose()?,
                total_minor: charge.amount_refunded,
                currency: capital(charge.currency)?,
            })
        }
        _ => About::Nothing,
    };
    Ok(Told { id: fitting(envelope.id)?, kind: fitting(envelope.kind)?, about })
}

/// The session that we gave along.
fn noted(metadata: Option<&HashMap<String, String>>) -> Option<Uuid> {
    metadata?.get("session")?.parse().ok()
}

/// A name that can be kept: short and visible.
pub(super) fn fitting(text: String) -> Result<String, ProviderError> {
    let fits = (1..=NAME_CHARS_MAX).contains(&text.len());
    if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text);
    }
    Err(nonsense("a name that is none"))
}

/// An address that can be shown to who pays.
pub(super) fn address(text: String) -> Result<String, ProviderError> {
    let web = text.starts_with("https://") || text.starts_with("http://");
    if web && text.len() <= ADDRESS_CHARS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text);
    }
    Err(nonsense("an address that is none"))
}

/// A currency, as everybody but Stripe spells it.
fn capital(currency: String) -> Result<String, ProviderError> {
    let currency = currency.to_ascii_uppercase();
    let fits = currency.len() == 3 && currency.bytes().all(|byte| byte.is_ascii_uppercase());
    if fits { Ok(currency) } else { Err(nonsense("a currency that is none")) }
}

fn nonsense(what: &str) -> ProviderError {
    ProviderError::Nonsense(what.to_owned())
}

#[cfg(test)]
mod tests {
    use control::payment::provider::About;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::told;

    const OURS: Uuid = Uuid::from_u128(9);

    fn session(more: Value) -> Value {
        let mut session = json!({
            "id": "cs_1", "object": "checkout.session", "status": "complete", "payment_status": "paid",
            "client_reference_id": OURS, "metadata": {"session": OURS}, "amount_total": 2_500,
            "currency": "usd", "payment_intent": "pi_1", "customer_details": {"email": "payer@example.test"}
        });
        let more = more.as_object().expect("fields").clone();
        session.as_object_mut().expect("fields").extend(more);
        session
    }

    fn about(kind: &str, object: &Value) -> Option<About> {
        let event = json!({"id": "evt_1", "type": kind, "data": {"object": object}});
        told(event.to_string().as_bytes()).ok().map(|told| told.about)
    }

    #[test]
    fn what_was_paid_is_read_without_who_paid_it() {
        let Some(About::Paid(facts)) = about("checkout.session.completed", &session(json!({})))
        else {
            panic!("it was paid")
        };
        assert_eq!((facts.session, facts.amount_minor), (Some(OURS), Some(2_500)));
        assert_eq!(facts.currency.as_deref(), Some("USD"));
        let kept = serde_json::to_string(&About::Paid(facts)).expect("JSON");
        assert!(!kept.contains("payer"), "{kept}");
    }

    #[test]
    fn a_reference_that_anybody_could_have_written_is_not_enough() {
        for more in [
            json!({"metadata": {}}),
            json!({"metadata": null}),
            json!({"metadata": {"session": Uuid::nil()}}),
        ] {
            let Some(About::Paid(facts)) = about("checkout.session.completed", &session(more))
            else {
                panic!("it was paid")
            };
            assert_eq!(facts.session, None);
        }
    }

    #[test]
    fn each_kind_says_what_it_says_and_what_is_of_no_concern_is_not_read() {
        let unpaid = session(json!({"payment_status": "unpaid", "payment_intent": {"id": "pi_2"}}));
        assert!(
            matches!(about("checkout.session.completed", &unpaid), Some(About::Awaiting(facts)) if facts.payment.as_deref() == Some("pi_2"))
        );
        let open = session(json!({"payment_status": "unpaid", "amount_total": null}));
        assert!(matches!(about("checkout.session.expired", &open), Some(About::Ended(_))));
        assert!(matches!(
            about("checkout.session.async_payment_failed", &open),
            Some(About::Ended(_))
        ));
        assert!(matches!(
            about("checkout.session.async_payment_succeeded", &session(json!({}))),
            Some(About::Paid(_))
        ));
        assert_eq!(about("checkout.session.async_payment_succeeded", &unpaid), None);
        assert_eq!(about("customer.created", &json!({"anything": 1})), Some(About::Nothing));
        let charge = json!({"id": "ch_1", "payment_intent": "pi_1", "amount_refunded": 300, "currency": "usd", "metadata": {"session": OURS}});
        assert!(
            matches!(about("charge.refunded", &charge), Some(About::Refunded(facts)) if facts.session == Some(OURS) && facts.total_minor == 300)
        );
    }

    #[test]
    fn what_can_not_be_meant_is_not_understood() {
        for more in [
            json!({"payment_status": "maybe"}),
            json!({"currency": "dollars"}),
            json!({"id": "cs\u{0}1"}),
            json!({"id": ""}),
            json!({"amount_total": "2500"}),
            json!({"amount_total": 25.5}),
        ] {
            assert_eq!(about("checkout.session.completed", &session(more.clone())), None, "{more}");
        }
        for body in ["", "null", "{}", "[]", "{\"id\":1}"] {
            assert!(told(body.as_bytes()).is_err(), "{body}");
        }
    }
}
