//! What stands longer than it may.

use std::time::Duration;

use clap::Args;
use comfy_table::Cell;
use wire::http::stuck::{Stuck, StuckItem};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, count, span};

/// `berth admin stuck`
#[derive(Args)]
pub(crate) struct StuckList {
    /// Ends with 1 when there is anything on the list, for scripts
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    output: Json,
}

impl StuckList {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let found = client.stuck().await?;
        if self.output.json {
            say::json(&found)?;
        } else {
            show(&found)?;
        }
        if !self.check || found.total + found.findings_open == 0 {
            return Ok(());
        }
        let sentence = match found.total {
            0 => "nothing stands longer than it may, but there are open findings".to_owned(),
            _ => format!("{} longer than it may", stands(found.total)),
        };
        Err(Failure::new(Exit::Failed, sentence).next("admin stuck"))
    }
}

fn stands(total: i64) -> String {
    let things = count(usize::try_from(total).unwrap_or_default(), "thing");
    format!("{things} {}", if total == 1 { "stands" } else { "stand" })
}

fn show(found: &Stuck) -> Done {
    if found.items.is_empty() {
        say::note(format!("{} Nothing stands longer than it may.", say::good("✓")));
    } else {
        let columns = ["what", "which", "status", "overdue", "owner", "why"];
        let mut sheet = Sheet::new(&columns);
        for item in &found.items {
            let news = if item.stuck { News::Bad } else { News::Pending };
            sheet.row([
                Sheet::text(&item.machine),
                Sheet::text(item.name.as_deref().unwrap_or(&item.id)),
                sheet.status(&item.status, news),
                Cell::new(overdue(item)),
                Sheet::text(&item.owner),
                Sheet::text(&item.reason),
            ]);
            let commands = std::iter::once(&item.command).chain(&item.otherwise);
            for (word, command) in ["do", "or"].into_iter().zip(commands) {
                let nothing = || Cell::new("");
                let cells = [nothing(), nothing(), nothing(), nothing()];
                sheet.row(
                    cells.into_iter().chain([Cell::new(word), Sheet::text(say::typed(command))]),
                );
            }
        }
        sheet.show()?;
        let more = found.total - i64::try_from(found.items.len()).unwrap_or_default();
        if more > 0 {
            say::note(format!("… and {more} more."));
        }
    }
    within_time(found);
    if found.findings_open > 0 {
        let findings = usize::try_from(found.findings_open).unwrap_or_default();
        teach(&format!("{} open. To see them:", count(findings, "finding")), "audit");
    }
    Ok(())
}

/// What may still stand there: somebody may want to see to it before its time is up.
fn within_time(found: &Stuck) {
    let seconds = |seconds: i64| span(Duration::from_secs(seconds.unsigned_abs()));
    let mut heading = Some("Not done yet, and within its time:");
    for each in found.statuses.iter().filter(|each| each.overdue == 0) {
        let Some(since) = each.oldest_since else { continue };
        if let Some(heading) = heading.take() {
            say::note(heading);
        }
        let (stands, may) = (found.at.duration_since(since).as_secs(), i64::from(each.seconds));
        let what = say::clean(&format!("{} {}", each.machine, each.status));
        say::note(format!("  {what}, the oldest for {} of {}", seconds(stands), seconds(may)));
    }
}

/// For how long, and how many times as long as it may.
fn overdue(item: &StuckItem) -> String {
    let by = span(Duration::from_secs(u64::try_from(item.overdue_seconds).unwrap_or_default()));
    item.factor.map_or(by.clone(), |factor| format!("{by} ({factor:.1}×)"))
}
