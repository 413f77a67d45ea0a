//! What operators do about payments: who has not paid, what does not add up, and what the provider told that nobody understood.

use clap::Subcommand;
use comfy_table::Cell;
use uuid::Uuid;
use wire::http::payments::{PaymentCase, PaymentCases, PaymentEvent, ResolvePayment};

use super::super::money::amount;
use super::super::payments::news;
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, count};

/// `berth admin payments …`
#[derive(Subcommand)]
pub(crate) enum PaymentsCommand {
    /// Everybody's checkouts: what was asked for beside what was paid
    #[command(after_help = "Example:\n  berth --context operator admin payments list --stuck")]
    List {
        /// Only those that somebody should look at
        #[arg(long)]
        stuck: bool,
        #[command(flatten)]
        output: Json,
    },
    /// What the payment provider has told us
    #[command(
        after_help = "Example:\n  berth --context operator admin payments events --unmatched"
    )]
    Events {
        /// Only what nothing came of
        #[arg(long)]
        unmatched: bool,
        #[command(flatten)]
        output: Json,
    },
    /// Credits what was paid, for a checkout that does not add up
    #[command(
        after_help = "Example:\n  berth --context operator admin payments resolve 0198c0de-0000-7000-8000-0000000000aa --amount-minor 2499 --reason \"fee\""
    )]
    Resolve {
        /// Which: its id
        session: Uuid,
        /// How much is credited, in the currency's minor unit; 0 when the payer has it back
        #[arg(long, value_name = "AMOUNT")]
        amount_minor: i64,
        /// Why; it is kept in the audit log and in the ledger
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        output: Json,
    },
}

impl PaymentsCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            PaymentsCommand::List { stuck, output } => {
                let cases = client.payment_cases(stuck).await?;
                if output.json { say::json(&cases) } else { list(&cases) }
            }
            PaymentsCommand::Events { unmatched, output } => {
                let events = client.payment_events(unmatched).await?;
                if output.json { say::json(&events) } else { told(&events) }
            }
            PaymentsCommand::Resolve { session, amount_minor, reason, output } => {
                let how = ResolvePayment { amount_minor, reason };
                let resolved = client.resolve_payment(session, &how).await;
                let case =
                    resolved.map_err(|failure| failure.look_at("admin payments list --stuck"))?;
                if output.json {
                    return say::json(&case);
                }
                let text = say::clean(&case.session.status_text);
                say::note(format!("{} {text}", say::good("✓")));
                Ok(())
            }
        }
    }
}

fn list(cases: &PaymentCases) -> Done {
    if cases.items.is_empty() {
        say::note("There are none.");
    } else {
        let mut sheet = Sheet::new(&["id", "asked for", "paid", "status", "age", "why", "do"]);
        for case in &cases.items {
            sheet.row(row(&sheet, case));
        }
        sheet.show()?;
    }
    if cases.unmatched_events > 0 {
        let events = usize::try_from(cases.unmatched_events).unwrap_or_default();
        let said =
            format!("Nothing came of {} of the provider. To see them:", count(events, "word"));
        teach(&said, "admin payments events --unmatched");
    }
    Ok(())
}

fn row(sheet: &Sheet, case: &PaymentCase) -> [Cell; 7] {
    let session = &case.session;
    let paid = case
        .paid_amount_minor
        .map(|minor| amount(case.paid_currency.as_deref().unwrap_or(&session.currency), minor));
    [
        // Whole: it is what `resolve` takes.
        Cell::new(session.id),
        Sheet::number(amount(&session.currency, session.amount_minor)),
        Sheet::number(paid.unwrap_or_default()),
        sheet.status(&session.status.to_string(), news(session.progress.0)),
        Cell::new(age(now(), session.created_at)),
        Sheet::text(case.reason.as_deref().unwrap_or_default()),
        Sheet::text(case.operator_advice.as_deref().unwrap_or_default()),
    ]
}

fn told(events: &[PaymentEvent]) -> Done {
    if events.is_empty() {
        say::note("There are none.");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["id", "about", "session", "outcome", "attempts", "age", "why"]);
    for event in events {
        let outcome = event.outcome.map_or_else(|| "open".to_owned(), |it| it.to_string());
        let news = if event.due_at.is_some() { News::Pending } else { News::Past };
        sheet.row([
            Sheet::text(&event.id),
            Sheet::text(&event.kind),
            Cell::new(event.session_id.map(|id| id.to_string()).unwrap_or_default()),
            sheet.status(&outcome, news),
            Sheet::number(event.attempts),
            Cell::new(age(now(), event.received_at)),
            Sheet::text(event.reason.as_deref().unwrap_or_default()),
        ]);
    }
    sheet.show()
}
