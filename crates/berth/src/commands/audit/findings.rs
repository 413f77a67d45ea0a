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

/// What does not agree, and with what it was compared.
pub(super) struct Compared {
    pub(super) found: Vec<Found>,
    /// Whether anybody was ever charged: before that there is no usage to compare with.
    pub(super) metered: bool,
}

/// Has everything compared now, and asks what does not agree.
pub(super) async fn of_api(client: &Client) -> Done<Compared> {
    let metered = client.look_for_findings().await?.metered;
    let found = |finding: Finding| Found {
        kind: finding.kind.to_string(),
        detail: finding.detail,
        owner: finding.owner.to_string(),
        advice: finding.advice,
        first_seen_at: Some(finding.first_seen_at),
    };
    let found = client.findings(false).await?.into_iter().map(found).collect();
    Ok(Compared { found, metered })
}

/// Compares now, and writes nothing down.
pub(super) async fn of_store(store: &Store) -> Done<Compared> {
    let terms = Terms { now: now(), grace_seconds: grace_seconds(&Policies::default()) };
    let seen = store::findings::look(store, terms).await;
    let seen = seen.context("the database can't be asked")?;
    let mut tx = store.begin().await.context("the database can't be asked")?;
    let metered = store::findings::is_metered(&mut tx).await;
    let metered = metered.context("the database can't be asked")?;
    tx.rollback().await.context("the database can't be asked")?;
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
    Ok(Compared { found: seen.into_iter().filter_map(found).collect(), metered })
}

/// Every disagreement, with who sees to it and what they do.
pub(super) fn show(compared: &Compared) -> Done {
    let Compared { found, metered } = compared;
    if !metered {
        say::note("Nobody has been charged yet, so there is no usage to compare with.");
    }
    if found.is_empty() {
        let with = if *metered { "The nodes, the bill and" } else { "The nodes and" };
        say::note(format!("{} {with} the database agree.", say::good("✓")));
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
