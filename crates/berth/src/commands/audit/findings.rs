//! What does not agree between the database, the nodes and the bill: looked at anew, through the API or without it.

use anyhow::Context as _;
use comfy_table::Cell;
use control::findings::{advice, grace_seconds, owner};
use control::policies::Policies;
use jiff::Timestamp;
use lifecycle::Code as _;
use serde::Serialize;
use store::Store;
use store::findings::Terms;
use wire::http::findings::{Finding, FindingKind};

use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, count};

/// One disagreement.
#[derive(Serialize)]
pub(super) struct Found {
    kind: String,
    detail: String,
    owner: String,
    advice: String,
    /// Since when it is known; not known to who asks the database alone.
    first_seen_at: Option<Timestamp>,
}

/// Has everything compared now, and asks what does not agree.
pub(super) async fn of_api(client: &Client) -> Done<Vec<Found>> {
    client.look_for_findings().await?;
    let found = |finding: Finding| Found {
        kind: finding.kind.to_string(),
        detail: finding.detail,
        owner: finding.owner.to_string(),
        advice: finding.advice,
        first_seen_at: Some(finding.first_seen_at),
    };
    Ok(client.findings(false).await?.into_iter().map(found).collect())
}

/// Compares now, and writes nothing down.
pub(super) async fn of_store(store: &Store) -> Done<Vec<Found>> {
    let terms = Terms { now: now(), grace_seconds: grace_seconds(&Policies::default()) };
    let seen = store::findings::look(store, terms).await;
    let seen = seen.context("the database can't be asked")?;
    let found = |seen: store::findings::Seen| {
        let kind = FindingKind::parse(&seen.kind)?;
        Some(Found {
            kind: seen.kind,
            detail: seen.detail,
            owner: owner(kind).to_string(),
            advice: advice(kind).to_owned(),
            first_seen_at: None,
        })
    };
    Ok(seen.into_iter().filter_map(found).collect())
}

/// Every disagreement, with who sees to it and what they do.
pub(super) fn show(found: &[Found]) -> Done {
    if found.is_empty() {
        say::note(format!("{} The nodes, the bill and the database agree.", say::good("✓")));
        return Ok(());
    }
    let mut sheet = Sheet::new(&["finding", "since", "owner", "what", "advice"]);
    for each in found {
        let since = each.first_seen_at.map_or_else(String::new, |at| age(now(), at));
        sheet.row([
            sheet.status(&each.kind, News::Bad),
            Cell::new(since),
            Cell::new(&each.owner),
            Sheet::text(&each.detail),
            Sheet::text(&each.advice),
        ]);
    }
    sheet.show()?;
    say::note(format!("{}; nothing was changed.", count(found.len(), "finding")));
    Ok(())
}
