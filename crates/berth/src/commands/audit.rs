//! What must hold in the database: asked of the API, or of the database itself when there is no API; and who did what.

mod log;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use comfy_table::Cell;
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
        if let Some(AuditCommand::Log(log)) = self.command {
            return log.run(session).await;
        }
        let found = match self.database.as_deref() {
            Some(url) => of_database(url).await?,
            None => session.client()?.invariants().await?,
        };
        if self.output.json {
            say::json(&found)?;
        } else {
            show(&found)?;
        }
        let broken = found.invariants.iter().filter(|each| each.count > 0).count();
        if found.clean && broken == 0 {
            return Ok(());
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

async fn of_database(url: &str) -> Done<Invariants> {
    let store = Store::open(url, Options { connections_max: 1 }).await;
    let store = store.context("the database can't be asked")?;
    let findings = store::audit::run(&store).await.context("the database can't be asked")?;
    store.close().await;
    let invariants = findings.into_iter().map(|(invariant, violations, count)| Invariant {
        name: invariant.name.to_owned(),
        holds: invariant.holds.to_owned(),
        violations,
        count,
    });
    let invariants: Vec<Invariant> = invariants.collect();
    Ok(Invariants { clean: invariants.iter().all(|each| each.count == 0), invariants })
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
