//! How Stripe is asked: forms, with brackets for what is inside of what.

use control::payment::provider::NewCheckout;
use reqwest::Url;

/// The fields that make a Checkout session. They follow from the session alone, so that asking again is asking the same.
pub(super) fn checkout(
    new: &NewCheckout,
    return_url: &str,
    product: &str,
) -> Vec<(&'static str, String)> {
    let session = new.session.to_string();
    let sign = if return_url.contains('?') { '&' } else { '?' };
    let back = format!("{return_url}{sign}payment_session={session}");
    vec![
        ("mode", "payment".to_owned()),
        ("client_reference_id", session.clone()),
        // Nobody who pays can write these: they prove that the session is one that we have made.
        ("metadata[session]", session.clone()),
        ("payment_intent_data[metadata][session]", session),
        ("expires_at", new.expires_at.as_second().to_string()),
        ("success_url", back.clone()),
        ("cancel_url", format!("{back}&cancelled=true")),
        ("line_items[0][quantity]", "1".to_owned()),
        ("line_items[0][price_data][currency]", new.currency.to_lowercase()),
        ("line_items[0][price_data][unit_amount]", new.amount_minor.to_string()),
        ("line_items[0][price_data][product_data][name]", product.to_owned()),
    ]
}

/// The fields, as `application/x-www-form-urlencoded`.
pub(super) fn encoded(fields: &[(&'static str, String)]) -> String {
    // What stands behind the question mark of an address is spelled in the same way.
    let Ok(mut url) = Url::parse("http://form.invalid/") else { return String::new() };
    url.query_pairs_mut().extend_pairs(fields);
    url.query().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use control::payment::provider::NewCheckout;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::{checkout, encoded};

    #[test]
    fn a_checkout_is_asked_for_in_the_spelling_of_stripe_and_the_same_each_time() {
        let new = NewCheckout {
            session: Uuid::from_u128(7),
            amount_minor: 2_500,
            currency: "USD".to_owned(),
            expires_at: Timestamp::constant(1_800_000_000, 0),
        };
        let text = encoded(&checkout(&new, "https://berth.test/back?a=1", "Balance & more"));
        for part in [
            "mode=payment",
            "client_reference_id=00000000-0000-0000-0000-000000000007",
            "metadata%5Bsession%5D=00000000-0000-0000-0000-000000000007",
            "expires_at=1800000000",
            "line_items%5B0%5D%5Bprice_data%5D%5Bcurrency%5D=usd",
            "line_items%5B0%5D%5Bprice_data%5D%5Bunit_amount%5D=2500",
            "Balance+%26+more",
            "success_url=https%3A%2F%2Fberth.test%2Fback%3Fa%3D1%26payment_session%3D0",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text, encoded(&checkout(&new, "https://berth.test/back?a=1", "Balance & more")));
    }
}
