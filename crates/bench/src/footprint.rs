//! What the whole control plane takes while nobody asks for anything: the one binary, and its Postgres beside it.

use std::time::Duration;

use anyhow::Context as _;

use crate::Plan;
use crate::figure::Figure;
use crate::machine::{Mood, family_memory, usage};
use crate::product::{Product, pause};

/// The memory of `berth up` without nodes. Pages that Postgres's processes share are counted once.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let product = Product::start("footprint", 0, "0").await?;
    product.until_announced().await?;
    pause(Duration::from_secs(if plan.quick { 5 } else { 60 })).await;
    let mood = Mood::look().await;
    let (berth, _) = usage(product.process().context("it runs")?)?;
    let postgres = family_memory(product.postmaster().context("Postgres does not run")?)?;
    product.check().await?;
    let whole = Figure::less("P20", "footprint.whole", "MB").goal(80.0, 40.0);
    Ok(vec![
        whole.note("berth's RSS and Postgres's PSS").once(berth + postgres, None, mood),
        Figure::less("P20", "footprint.berth", "MB").note("RSS").once(berth, None, mood),
        Figure::less("P20", "footprint.postgres", "MB").note("PSS").once(postgres, None, mood),
    ])
}
