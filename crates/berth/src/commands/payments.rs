//! Paying in: `berth topup` makes a checkout and says where to pay, `berth payments` shows what became of it.

mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::money::Currency;
use uuid::Uuid;
use wire::http::payments::{NewCheckoutSession, PaymentProgress, PaymentSession};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::{Named, pick};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, parse_span, short};
use wait::Ended;

/// `berth topup`
#[derive(Args)]
pub(crate) struct Topup {
    /// How much, in the currency that things are sold in: 25 or 25.00
    amount: String,
    /// Waits until it is in the balance
    #[arg(long)]
    wait: bool,
    /// Waits no longer than this, such as 15m
    #[arg(long, value_parser = parse_span, requires = "wait")]
    timeout: Option<Duration>,
    #[command(flatten)]
    output: Json,
}

/// `berth payments …`
#[derive(Subcommand)]
pub(crate) enum PaymentsCommand {
    /// Your checkouts, the newest first
    #[command(after_help = "Example:\n  berth payments list")]
    List(Json),
    /// One of them: where it stands, and what to do
    #[command(after_help = "Example:\n  berth payments show 0198c0de-0000-7000-8000-0000000000aa")]
    Show {
        /// Which: an id, or how an id begins
        session: String,
        #[command(flatten)]
        output: Json,
    },
}

impl Topup {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let amount_minor = self.minor(client).await?;
        let made = client.checkout(&NewCheckoutSession { amount_minor }).await?;
        let url = made.url.as_deref().unwrap_or_default().to_owned();
        let asked = shown(&made.currency, made.amount_minor);
        say::note(format!("Pay {asked} here; it is in the balance moments later:"));
        if !self.wait {
            if self.output.json {
                return say::json(&made);
            }
            say::data(say::clean(&url))?;
            teach("To see what became of it:", &format!("payments show {}", made.id));
            return Ok(());
        }
        // Who waits has to know where to pay before anything is over.
        match self.output.json {
            true => say::note(say::clean(&url)),
            false => say::data(say::clean(&url))?,
        }
        let (ended, seen) = wait::wait(client, &made, (self.timeout, self.output)).await?;
        if self.output.json {
            say::json(&seen)?;
        }
        match ended {
            Ended::Credited => {
                say::note(format!("{} {}", say::good("✓"), say::clean(&seen.status_text)));
                Ok(())
            }
            Ended::Missed | Ended::TimedOut => Err(wait::failure(ended, &seen, self.timeout)),
            Ended::Interrupted => {
                let sentence = "it goes on without us: who has paid is credited";
                let next = format!("payments show {}", made.id);
                Err(Failure::new(Exit::Interrupted, sentence).next(&next))
            }
        }
    }

    /// The amount in the minor unit of the currency that things are sold in.
    async fn minor(&self, client: &Client) -> Done<i64> {
        let skus = client.skus().await?;
        let code = skus.first().map_or("USD", |sku| sku.currency.as_str());
        let digits = Currency::parse(code).map_or(2, |currency| currency.digits());
        minor_of(&self.amount, digits).ok_or_else(|| {
            let written = format!("`{}` is no amount of {code}", say::clean(&self.amount));
            let like = Currency::parse(code).map(|currency| currency.shown(2_500));
            let like = like.unwrap_or_else(|| "25".to_owned());
            let like = like.split(' ').next().unwrap_or_default().to_owned();
            Failure::new(Exit::Usage, written).with("advice", format!("write it like {like}"))
        })
    }
}

/// An amount that somebody wrote, in minor units: no more digits behind the point than the currency has.
fn minor_of(text: &str, digits: u32) -> Option<i64> {
    let (units, rest) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let behind = u32::try_from(rest.len()).ok()?;
    if units.is_empty() || !number(units) || !number(rest) || behind > digits {
        return None;
    }
    if text.contains('.') && rest.is_empty() {
        return None;
    }
    let units: i64 = units.parse().ok()?;
    let rest: i64 = if rest.is_empty() { 0 } else { rest.parse().ok()? };
    let rest = rest * 10_i64.pow(digits - behind);
    units.checked_mul(10_i64.pow(digits))?.checked_add(rest)
}

/// An amount as people write it.
pub(super) fn shown(currency: &str, minor: i64) -> String {
    let known = Currency::parse(currency);
    known.map_or_else(|| format!("{minor} {}", say::clean(currency)), |known| known.shown(minor))
}

impl Named for PaymentSession {
    fn id(&self) -> Uuid {
        self.id
    }

    /// They have no name but their id.
    fn name(&self) -> &str {
        ""
    }

    fn is_current(&self) -> bool {
        self.ended_at.is_none()
    }
}

impl PaymentsCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            PaymentsCommand::List(output) => {
                let all = client.payment_sessions().await?;
                if output.json {
                    return say::json(&all);
                }
                if all.is_empty() {
                    teach("You have paid nothing in yet. To begin:", "topup 25.00");
                    return Ok(());
                }
                table(&all)
            }
            PaymentsCommand::Show { session, output } => {
                let found = match Uuid::try_parse(&session) {
                    Ok(id) => client.payment_session(id).await,
                    Err(_) => {
                        let all = client.payment_sessions().await?;
                        pick(&session, "payment session", &all, "payments list").cloned()
                    }
                };
                let found = found.map_err(|failure| failure.look_at("payments list"))?;
                if output.json { say::json(&found) } else { show(&found) }
            }
        }
    }
}

/// What sort of news it is.
pub(super) const fn news(progress: PaymentProgress) -> News {
    match progress {
        PaymentProgress::AwaitingPayment | PaymentProgress::Processing => News::Pending,
        PaymentProgress::Credited => News::Good,
        PaymentProgress::Expired => News::Past,
        PaymentProgress::UnderReview => News::Bad,
    }
}

fn table(all: &[PaymentSession]) -> Done {
    let mut sheet = Sheet::new(&["id", "amount", "progress", "credited", "given back", "age"]);
    for each in all {
        let money = |minor: i64| shown(&each.currency, minor);
        sheet.row([
            Cell::new(short(each.id)),
            Sheet::number(money(each.amount_minor)),
            sheet.status(&each.progress.to_string(), news(each.progress.0)),
            Sheet::number(each.credited_amount_minor.map(money).unwrap_or_default()),
            Sheet::number(
                Some(each.refunded_minor).filter(|back| *back > 0).map(money).unwrap_or_default(),
            ),
            Cell::new(age(now(), each.created_at)),
        ]);
    }
    sheet.show()
}

fn show(session: &PaymentSession) -> Done {
    let money = |minor: i64| shown(&session.currency, minor);
    let mut sheet = Sheet::of_one();
    sheet.line("id", session.id.to_string());
    sheet.line("progress", session.progress.to_string());
    sheet.line("what", session.status_text.clone());
    sheet.line("do", session.advice.clone());
    sheet.line("pay at", session.url.clone());
    sheet.line("amount", money(session.amount_minor));
    sheet.line("credited", session.credited_amount_minor.map(money));
    sheet.line("given back", Some(session.refunded_minor).filter(|back| *back > 0).map(money));
    sheet.line("asked for", age(now(), session.created_at));
    sheet.line("open until", session.url.as_ref().and(session.expires_at).map(|at| age(now(), at)));
    sheet.show()
}

#[cfg(test)]
mod tests {
    use super::minor_of;

    #[test]
    fn amounts_are_read_as_people_write_them_and_nothing_is_guessed() {
        for (text, digits, minor) in [
            ("25", 2, 2_500),
            ("25.5", 2, 2_550),
            (" 25.00 ", 2, 2_500),
            ("0.01", 2, 1),
            ("25", 0, 25),
            ("1.234", 3, 1_234),
        ] {
            assert_eq!(minor_of(text, digits), Some(minor), "{text}");
        }
        for (text, digits) in [
            ("", 2),
            (".5", 2),
            ("5.", 2),
            ("-5", 2),
            ("+5", 2),
            ("25.001", 2),
            ("25.0", 0),
            ("1e3", 2),
            ("1,000", 2),
            ("25 USD", 2),
            ("92233720368547758.08", 2),
        ] {
            assert_eq!(minor_of(text, digits), None, "{text}");
        }
    }
}
