//! What the whole control plane takes while nobody asks for anything: the one binary, and its Postgres beside it.

use std::time::Duration;

use anyhow::Context as _;

use crate::Plan;
use crate::figure::Figure;
use crate::machine::{Mood, family_memory, usage};
use crate::product::{Product, pause};

/// How often it is looked: what the product does by itself every few seconds is seen as often as it is so.
const LOOKS: usize = 15;

/// The memory of `berth up` without nodes. Pages that Postgres's processes share are counted once.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let product = Product::start("footprint", 0, "0").await?;
    product.until_announced().await?;
    pause(Duration::from_secs(if plan.quick { 5 } else { 60 })).await;
    let mut whole = Figure::less("P20", "footprint.whole", "MB").goal(80.0, 40.0);
    let mut ours = Figure::less("P20", "footprint.berth", "MB");
    let mut theirs = Figure::less("P20", "footprint.postgres", "MB");
    for _ in 0..LOOKS {
        // It takes a second, in which the next timers come.
        let mood = Mood::look().await;
        let (berth, _) = usage(product.process().context("it runs")?)?;
        let postgres = family_memory(product.postmaster().context("Postgres does not run")?)?;
        whole.push(berth + postgres, None, mood);
        ours.push(berth, None, mood);
        theirs.push(postgres, None, mood);
    }
    product.check().await?;
    let note = format!("the median of {LOOKS} seconds; berth's RSS and Postgres's PSS");
    Ok(vec![whole.note(note), ours.note("RSS"), theirs.note("PSS")])
}
