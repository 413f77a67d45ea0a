//! Everything that notifications say: one function a kind, of typed values, so that nothing gets in that was not meant to. Names
//! that tenants gave are shown as text, and as one line.

use std::time::Duration;

use domain::money::{Currency, runway_minutes};
use jiff::Timestamp;
use lifecycle::{Code as _, codes};
use store::notifications::about::{OfAccount, OfAllocation, OfPayment};
use uuid::Uuid;
use wire::http::notifications::NotificationKind as Kind;

use crate::allocation::reason::Reason;
use crate::billing::shown;

/// The longest name that is shown whole.
const NAME_CHARS_MAX: usize = 64;
const HOUR_SECONDS: i64 = 3_600;

codes! {
    /// Who took a machine back, when it was not its owner.
    pub(super) enum TakenBy {
        Balance = "balance_depleted",
        Cap = "spending_cap",
        Operator = "force_released",
    }
}

/// What somebody is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) kind: Kind,
    pub(crate) title: String,
    pub(crate) body: String,
}

fn words(kind: Kind, title: String, body: String) -> Words {
    Words { kind, title, body }
}

/// A name as text: one line, of bounded length, and nothing in it that moves or hides what stands around it.
pub(super) fn plain(name: &str) -> String {
    let seen = |c: &char| !c.is_control() && !is_invisible(*c);
    let mut text: String = name.chars().filter(seen).take(NAME_CHARS_MAX + 1).collect();
    if text.chars().count() > NAME_CHARS_MAX {
        text = text.chars().take(NAME_CHARS_MAX - 1).collect();
        text.push('…');
    }
    text
}

/// Marks that change the direction or the joining of text, and separators of lines.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{061c}' | '\u{feff}')
}

fn named(id: Uuid, of: &OfAllocation) -> String {
    let name = of.name.as_deref().map(plain).filter(|name| !name.trim().is_empty());
    name.unwrap_or_else(|| format!("{}-{}", plain(&of.sku), id.simple()))
}

/// What so many millionths a second are in an hour, as people write it.
fn hourly(currency: &str, micros_per_second: i64) -> String {
    let per_minor = Currency::parse(currency).map_or(10_000, |known| known.micros_per_minor());
    let minor = i128::from(micros_per_second) * i128::from(HOUR_SECONDS) / i128::from(per_minor);
    format!("{}/h", shown(currency, i64::try_from(minor).unwrap_or(i64::MAX)))
}

pub(super) fn active(id: Uuid, of: &OfAllocation) -> Words {
    let name = named(id, of);
    let rate = hourly(&of.currency, of.price_micros_per_gpu_second * i64::from(of.gpus));
    let (gpus, sku, region) = (of.gpus, plain(&of.sku), plain(&of.region));
    let body =
        format!("{gpus} × {sku} in {region} is ready to use, and billed from now on ({rate}).");
    words(Kind::AllocationActive, format!("{name} is ready"), body)
}

pub(super) fn failed(id: Uuid, of: &OfAllocation) -> Words {
    let name = named(id, of);
    let why = why(of);
    let body = format!("{why} Nothing was charged for it. You can ask for another one.");
    words(Kind::AllocationFailed, format!("{name} could not be prepared"), body)
}

pub(super) fn restarted(id: Uuid, of: &OfAllocation) -> Words {
    let body =
        "It is back in working order. Terminals and SSH have to be connected anew.".to_owned();
    words(Kind::AllocationRestarted, format!("{} has restarted", named(id, of)), body)
}

pub(super) fn restart_failed(id: Uuid, of: &OfAllocation) -> Words {
    let why = why(of);
    let body = format!(
        "{why} You are not being charged while it is like this. Restart it once more, or release it."
    );
    words(Kind::AllocationRestartFailed, format!("{} did not restart", named(id, of)), body)
}

/// Nothing, when its owner gave it back.
pub(super) fn taken_back(id: Uuid, of: &OfAllocation) -> Option<Words> {
    let by = TakenBy::parse(of.reason.as_deref()?)?;
    let why = match by {
        TakenBy::Balance => "The balance that pays for it is used up.",
        TakenBy::Cap => "Its project has reached what it may cost this month.",
        TakenBy::Operator => "An operator took the machine back.",
    };
    let body = format!(
        "{why} The machine and its local disk are erased. You are not charged for it any more."
    );
    Some(words(Kind::AllocationTakenBack, format!("{} is being released", named(id, of)), body))
}

pub(super) fn release_failed(id: Uuid, of: &OfAllocation) -> Words {
    let since =
        of.release_requested_at.map_or_else(String::new, |at| format!(" since {}", minute(at)));
    let body = format!(
        "We could not finish cleaning this machine. You are not being charged{since}. Your data is not visible to anyone else; \
         the machine stays locked until cleaning succeeds. Try again, or leave it to us."
    );
    words(
        Kind::AllocationReleaseFailed,
        format!("{} could not be cleaned yet", named(id, of)),
        body,
    )
}

/// Nothing, unless they were told before that it did not work: who gave it back waits for no word of it.
pub(super) fn released(id: Uuid, of: &OfAllocation) -> Option<Words> {
    let body = "The machine that could not be cleaned is out of your hands for good. There is nothing left to do.";
    let title = format!("{} is released after all", named(id, of));
    of.failed_before.then(|| words(Kind::AllocationReleased, title, body.to_owned()))
}

/// What happens to an account that has nothing left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consequences {
    pub(super) enforced: bool,
    pub(super) grace: Duration,
}

pub(super) fn low(of: &OfAccount, then: Consequences) -> Words {
    let mut body = match runway(of) {
        Some(minutes) => format!(
            "At the current rate ({}) your balance lasts about {}.",
            hourly(&of.currency, of.burn_micros_per_second),
            lasting(minutes)
        ),
        None => "Nothing of yours is running now.".to_owned(),
    };
    if then.enforced {
        body.push_str(" At zero, running machines are released.");
    }
    let left = shown(&of.currency, of.balance_minor);
    words(Kind::BalanceLow, format!("Your balance is low: {left}"), body)
}

pub(super) fn depleted(of: &OfAccount, then: Consequences) -> Words {
    let running = of.burn_micros_per_second > 0;
    let body = match (then.enforced, running, then.grace.as_secs()) {
        (false, ..) => "Top up soon: nothing is taken from you yet.".to_owned(),
        (true, false, _) => "Nothing new can be started until you top up.".to_owned(),
        (true, true, 0) => {
            "Running machines are being released. Nothing new can be started until you top up."
                .to_owned()
        }
        (true, true, grace) => format!(
            "Running machines are released in {}, unless you top up before. Nothing new can be started until then.",
            lasting(i64::try_from(grace / 60).unwrap_or(i64::MAX))
        ),
    };
    let left = shown(&of.currency, of.balance_minor);
    words(Kind::BalanceDepleted, format!("Your balance is used up: {left}"), body)
}

pub(super) fn recovered(of: &OfAccount) -> Words {
    let body = match runway(of) {
        Some(minutes) => format!("At the current rate it lasts about {}.", lasting(minutes)),
        None => "You can start machines again.".to_owned(),
    };
    let left = shown(&of.currency, of.balance_minor);
    words(Kind::BalanceRecovered, format!("Your balance is {left} again"), body)
}

pub(super) fn credited(of: &OfPayment) -> Words {
    let amount = shown(&of.currency, of.credited_minor.unwrap_or(of.amount_minor));
    let body = format!("Your balance is {} now.", shown(&of.currency, of.balance_minor));
    words(Kind::PaymentCredited, format!("{amount} was credited"), body)
}

pub(super) fn in_review(of: &OfPayment) -> Words {
    let amount = shown(&of.currency, of.amount_minor);
    let body = "It is not in your balance yet: what arrived is not what was asked for, or could not be credited. An operator \
                looks into it; there is nothing you have to do.";
    words(
        Kind::PaymentInReview,
        format!("Your payment of {amount} is being looked into"),
        body.to_owned(),
    )
}

pub(super) fn failed_reconcile(id: Uuid, of: &OfPayment) -> Words {
    let amount = shown(&of.currency, of.amount_minor);
    let body = format!(
        "The session {id} waits for you: compare it with what the provider has, and resolve it."
    );
    words(Kind::PaymentFailedReconcile, format!("A payment of {amount} could not be matched"), body)
}

pub(crate) fn webhook_test() -> Words {
    let body = "Somebody asked for it. If you can read this where it was sent, deliveries arrive.";
    words(Kind::WebhookTest, "A test of a webhook".to_owned(), body.to_owned())
}

fn why(of: &OfAllocation) -> &'static str {
    of.reason.as_deref().map_or(Reason::Other, Reason::read).sentence()
}

fn runway(of: &OfAccount) -> Option<i64> {
    let per_minor = Currency::parse(&of.currency).map_or(10_000, |known| known.micros_per_minor());
    runway_minutes(of.balance_minor, of.burn_micros_per_second, per_minor)
}

/// A stretch of time in its two greatest units.
fn lasting(minutes: i64) -> String {
    const HOUR: i64 = 60;
    const DAY: i64 = 24 * HOUR;
    match minutes {
        ..HOUR => format!("{minutes} min"),
        HOUR..DAY => format!("{} h {} min", minutes / HOUR, minutes % HOUR),
        DAY.. => format!("{} d {} h", minutes / DAY, minutes % DAY / HOUR),
    }
}

fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use store::notifications::about::{OfAccount, OfAllocation};
    use uuid::Uuid;

    use super::{Consequences, active, depleted, lasting, low, plain, released, taken_back};

    const ENFORCED: Consequences = Consequences { enforced: true, grace: Duration::ZERO };

    fn account(balance_minor: i64, burn_micros_per_second: i64) -> OfAccount {
        OfAccount { owner: None, balance_minor, currency: "USD".to_owned(), burn_micros_per_second }
    }

    fn allocation(name: &str) -> OfAllocation {
        OfAllocation {
            owner: None,
            project: Uuid::nil(),
            name: Some(name.to_owned()),
            sku: "h100.slice".to_owned(),
            gpus: 4,
            region: "eu-1".to_owned(),
            price_micros_per_gpu_second: 831,
            currency: "USD".to_owned(),
            release_requested_at: None,
            reason: None,
            failed_before: false,
        }
    }

    #[test]
    fn a_low_balance_says_for_how_long_it_lasts_and_what_happens_then() {
        // 3.20 an hour: 10.00 last for 187 minutes and a half.
        let told = low(&account(1_000, 889), ENFORCED);
        assert_eq!(told.title, "Your balance is low: 10.00 USD");
        assert_eq!(
            told.body,
            "At the current rate (3.20 USD/h) your balance lasts about 3 h 7 min. At zero, running machines are released."
        );
        let idle = low(&account(1_000, 0), Consequences { enforced: false, ..ENFORCED });
        assert_eq!(idle.body, "Nothing of yours is running now.", "and nothing is threatened");
    }

    #[test]
    fn a_balance_that_is_used_up_threatens_what_will_happen_and_nothing_else() {
        let (running, idle) = (account(-3, 831), account(0, 0));
        assert!(depleted(&running, ENFORCED).body.contains("are being released"));
        assert!(depleted(&running, ENFORCED).title.ends_with("-0.03 USD"));
        let grace = Consequences { grace: Duration::from_secs(5_400), ..ENFORCED };
        assert!(depleted(&running, grace).body.contains("in 1 h 30 min, unless"));
        assert!(!depleted(&idle, ENFORCED).body.contains("machines"));
        let off = Consequences { enforced: false, ..ENFORCED };
        assert!(!depleted(&running, off).body.contains("released"));
    }

    #[test]
    fn a_name_is_one_line_of_text_whatever_a_tenant_put_into_it() {
        assert_eq!(plain("train\r\n\u{1b}[31m\u{7}ing"), "train[31ming");
        assert_eq!(plain("a\u{202e}b\u{2066}c\u{200b}d\u{2028}e\u{feff}"), "abcde");
        let long = plain(&"x".repeat(500));
        assert_eq!((long.chars().count(), long.ends_with('…')), (64, true));
        assert_eq!(plain(&"é".repeat(64)).chars().count(), 64);
        let told = active(Uuid::nil(), &allocation("<b>\nname</b>"));
        assert_eq!(told.title, "<b>name</b> is ready", "it is text, and shown as text");
        assert!(told.body.contains("(11.96 USD/h)"), "{}", told.body);
        let nameless = active(Uuid::nil(), &allocation("\u{200b} \n"));
        assert!(nameless.title.starts_with("h100.slice-0000"), "{}", nameless.title);
    }

    #[test]
    fn only_what_somebody_else_did_is_told_as_taken_back() {
        let with = |reason: Option<&str>| {
            taken_back(
                Uuid::nil(),
                &OfAllocation { reason: reason.map(str::to_owned), ..allocation("a") },
            )
        };
        for reason in ["balance_depleted", "spending_cap", "force_released"] {
            assert!(with(Some(reason)).is_some(), "{reason}");
        }
        for reason in [None, Some("timeout"), Some("whatever a column says")] {
            assert_eq!(with(reason), None, "{reason:?}");
        }
        assert_eq!(released(Uuid::nil(), &allocation("a")), None, "they gave it back themselves");
        let failed = OfAllocation { failed_before: true, ..allocation("a") };
        assert!(released(Uuid::nil(), &failed).is_some());
    }

    #[test]
    fn a_stretch_of_time_is_said_in_its_two_greatest_units() {
        for (minutes, said) in [
            (0, "0 min"),
            (59, "59 min"),
            (60, "1 h 0 min"),
            (187, "3 h 7 min"),
            (4_560, "3 d 4 h"),
        ] {
            assert_eq!(lasting(minutes), said);
        }
    }
}
