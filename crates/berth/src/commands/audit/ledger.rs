//! The ledger, computed again from usage and payments, to the minor unit.

use anyhow::Context as _;
use clap::Args;
use comfy_table::Cell;
use control::operations::ledger_of;
use store::{Options, Store};
use wire::http::money::LedgerAudit;

use crate::cli::{Json, Session};
use crate::commands::money::amount;
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, count};

/// `berth audit ledger`
#[derive(Args)]
pub(crate) struct Ledger {
    /// Asks this database instead of the API
    #[arg(long, env = "DATABASE_URL", value_name = "URL")]
    database: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Ledger {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let audit = match self.database.as_deref() {
            Some(url) => of_database(url).await?,
            None => session.client()?.audit_ledger().await?,
        };
        if self.output.json {
            say::json(&audit)?;
        } else {
            show(&audit)?;
        }
        if audit.clean {
            return Ok(());
        }
        let sentence = "the ledger is not what usage and payments make of it";
        Err(Failure::new(Exit::Failed, sentence)
            .with("advice", "nothing was changed; the rows above say what differs"))
    }
}

async fn of_database(url: &str) -> Done<LedgerAudit> {
    let store = Store::open(url, Options { connections_max: 1, ..Options::default() }).await;
    let store = store.context("the database can't be asked")?;
    let audit = ledger_of(&store).await.context("the database can't be asked")?;
    store.close().await;
    Ok(audit)
}

fn show(audit: &LedgerAudit) -> Done {
    let mut sheet = Sheet::new(&["what", "of", "ledger", "computed again", "differs by"]);
    for sum in &audit.sums {
        let differs = sum.ledger_minor - sum.computed_minor;
        let news = if differs == 0 { News::Good } else { News::Bad };
        sheet.row([
            Sheet::text(&sum.what),
            Sheet::number(sum.count),
            Sheet::number(amount(&sum.currency, sum.ledger_minor)),
            Sheet::number(amount(&sum.currency, sum.computed_minor)),
            sheet.status(&amount(&sum.currency, differs), news),
        ]);
    }
    if audit.sums.is_empty() {
        say::note("There is nothing in the ledger yet.");
    } else {
        sheet.show()?;
        say::data("")?;
    }
    let mut sheet = Sheet::new(&["invariant", "broken", "must hold"]);
    for each in &audit.invariants {
        let news = if each.count == 0 { News::Good } else { News::Bad };
        let broken = sheet.status(&each.count.to_string(), news);
        sheet.row([Cell::new(&each.name), broken, Sheet::text(&each.holds)]);
        for row in &each.violations {
            sheet.row([Cell::new(""), Cell::new(""), Sheet::text(format!("broken by {row}"))]);
        }
    }
    sheet.show()?;
    if audit.clean {
        let held = count(audit.invariants.len(), "invariant");
        say::note(format!("{} {held} hold, and every sum agrees.", say::good("✓")));
    }
    Ok(())
}
