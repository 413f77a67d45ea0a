//! Whom people pay through. Keys and secrets are read from files, so that neither the configuration nor the environment has them.

use server::outside::stripe::{Options, Secret};

use super::given::Given;

#[derive(Clone, Copy)]
enum Provider {
    None,
    Stripe,
}

/// The provider, if there is one.
pub(super) fn payments(given: &mut Given) -> Option<Options> {
    let words = [("none", Provider::None), ("stripe", Provider::Stripe)];
    match given.word("payments.provider", &words) {
        Provider::None => None,
        Provider::Stripe => stripe(given),
    }
}

fn stripe(given: &mut Given) -> Option<Options> {
    let url = address(given, "payments.stripe_url");
    let back = address(given, "payments.return_url");
    let key = lines(given, "payments.stripe_key_file");
    let secrets = lines(given, "payments.webhook_secrets_file");
    if key.as_ref().is_some_and(|key| key.len() > 1) {
        given.fault("payments.stripe_key_file", "there is more than one key in it");
    }
    let secrets = secrets?.iter().map(|line| Secret::new(line)).collect();
    Some(Options::new(&url?, Secret::new(key?.first()?), secrets, &back?))
}

fn address(given: &mut Given, key: &str) -> Option<String> {
    match given.text(key).map(str::to_owned) {
        None => {
            given.fault(key, "is needed: payments.provider is stripe");
            None
        }
        Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => {
            given.fault(key, format!("`{url}` is not like https://host/path"));
            None
        }
        Some(url) => Some(url),
    }
}

/// What is in a file, a line each; none of it is ever repeated.
fn lines(given: &mut Given, key: &str) -> Option<Vec<String>> {
    let Some(file) = given.text(key).map(str::to_owned) else {
        given.fault(key, "is needed: payments.provider is stripe");
        return None;
    };
    match std::fs::read_to_string(&file) {
        Ok(text) => {
            let lines = text.lines().map(str::trim);
            let lines: Vec<String> =
                lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
            if lines.is_empty() {
                given.fault(key, format!("there is nothing in {file}"));
                return None;
            }
            Some(lines)
        }
        Err(error) => {
            given.fault(key, format!("{file} can't be read: {error}"));
            None
        }
    }
}
