//! What must hold in the database, and what does not agree with the nodes: asked of the API, or of the database itself
//! when there is no API; and who did what.

mod findings;
mod ledger;
mod log;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use comfy_table::Cell;
use control::operations::told;
use serde::Serialize;
use store::{Options, Store};
use wire::http::admin::{Invariant, Invariants};

use crate::cli::{Json, Session};
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, count};

/// `berth audit …`
#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Who did what, newest first; or whether the record of it is whole
    #[command(
        after_help = "Examples:\n  berth --context operator audit log --action allocation.force_release\n  berth --context operator audit log --verify\n  berth audit log --project demo"
    )]
    Log(log::Log),
    /// Computes the ledger again from usage and payments, to the minor unit
    #[command(after_help = "Example:\n  berth --context operator audit ledger")]
    Ledger(ledger::Ledger),
}

/// `berth audit`
#[derive(Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    /// Asks this database instead of the API
    #[arg(long, env = "DATABASE_URL", value_name = "URL")]
    database: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Audit {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self.command {
            Some(AuditCommand::Log(log)) => return log.run(session).await,
            Some(AuditCommand::Ledger(ledger)) => return ledger.run(session).await,
            None => {}
        }
        let (found, disagreements) = match self.database.as_deref() {
            Some(url) => of_database(url).await?,
            None => {
                let client = session.client()?;
                (client.invariants().await?, findings::of_api(&client).await?)
            }
        };
        let clean = found.clean && disagreements.is_empty();
        if self.output.json {
            let invariants = &found.invariants;
            say::json(&Audited { clean, invariants, findings: &disagreements })?;
        } else {
            show(&found)?;
            findings::show(&disagreements)?;
        }
        let broken = found.invariants.iter().filter(|each| each.count > 0).count();
        if clean && broken == 0 {
            return Ok(());
        }
        if broken == 0 {
            let sentence = format!("{} open", count(disagreements.len(), "finding"));
            return Err(Failure::new(Exit::Failed, sentence)
                .with("advice", "each says who sees to it, and what they do")
                .next("audit --json"));
        }
        let sentence = format!(
            "{} {} broken",
            count(broken, "invariant"),
            if broken == 1 { "is" } else { "are" }
        );
        Err(Failure::new(Exit::Failed, sentence)
            .with(
                "advice",
                "nothing was changed; this is a bug, and the rows above are what it left",
            )
            .next("audit --json"))
    }
}

/// Everything that was asked, for programs.
#[derive(Serialize)]
struct Audited<'a> {
    clean: bool,
    invariants: &'a [Invariant],
    findings: &'a [findings::Found],
}

async fn of_database(url: &str) -> Done<(Invariants, Vec<findings::Found>)> {
    let store = Store::open(url, Options { connections_max: 1, ..Options::default() }).await;
    let store = store.context("the database can't be asked")?;
    let asked = store::audit::run(&store).await.context("the database can't be asked")?;
    let compared = findings::of_store(&store).await?;
    store.close().await;
    let invariants: Vec<Invariant> = asked.into_iter().map(told).collect();
    let clean = invariants.iter().all(|each| each.count == 0);
    Ok((Invariants { clean, invariants }, compared))
}

/// Every invariant, also those that hold.
fn show(found: &Invariants) -> Done {
    let mut sheet = Sheet::new(&["invariant", "broken", "must hold"]);
    for each in &found.invariants {
        let news = if each.count == 0 { News::Good } else { News::Bad };
        let broken = sheet.status(&each.count.to_string(), news);
        sheet.row([Cell::new(&each.name), broken, Sheet::text(&each.holds)]);
        for row in &each.violations {
            sheet.row([Cell::new(""), Cell::new(""), Sheet::text(format!("broken by {row}"))]);
        }
    }
    sheet.show()?;
    if found.clean {
        say::note(format!(
            "{} {} hold.",
            say::good("✓"),
            count(found.invariants.len(), "invariant")
        ));
    }
    Ok(())
}
