//! Paying in: `berth topup` makes a checkout and says where to pay, `berth payments` shows what became of it.

mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use uuid::Uuid;
use wire::http::payments::{NewCheckoutSession, PaymentProgress, PaymentSession};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::commands::money::{amount, minor};
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
    /// How much, in the currency of your balance: 25 or 25.00
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
        let currency = client.balance(None).await?.currency;
        let amount_minor = minor(&self.amount, &currency)?;
        if amount_minor < 1 {
            let sentence = "a top-up is more than nothing";
            let advice = "To get back what was paid, ask those who run this.";
            return Err(Failure::new(Exit::Usage, sentence).with("advice", advice.to_owned()));
        }
        let made = client.checkout(&NewCheckoutSession { amount_minor }).await?;
        let url = made.url.as_deref().unwrap_or_default().to_owned();
        let asked = amount(&made.currency, made.amount_minor);
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
        let money = |minor: i64| amount(&each.currency, minor);
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
    let money = |minor: i64| amount(&session.currency, minor);
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
