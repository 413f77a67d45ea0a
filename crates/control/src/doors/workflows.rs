//! TABLE: every workflow and the story whose steps it takes.

use std::sync::Arc;

use futures::future::BoxFuture;
use spine::workflow::{Definition, Happened, Run, StepError, Stepped};

use crate::allocation::{clean, provision, release, restart};
use crate::allocation_group;
use crate::{Ctx, Error};

type Story = for<'a> fn(&'a Ctx, &'a Run, &'a Happened) -> BoxFuture<'a, Result<Stepped, Error>>;

/// Every workflow.
pub fn table(ctx: &Ctx) -> Vec<Definition> {
    vec![
        definition(ctx, provision::WORKFLOW, |ctx, run, happened| {
            Box::pin(provision::step(ctx, run, happened))
        }),
        definition(ctx, restart::WORKFLOW, |ctx, run, happened| {
            Box::pin(restart::step(ctx, run, happened))
        }),
        definition(ctx, clean::WORKFLOW, |ctx, run, happened| {
            Box::pin(clean::step(ctx, run, happened))
        }),
        definition(ctx, release::WORKFLOW, |ctx, run, happened| {
            Box::pin(release::step(ctx, run, happened))
        }),
        definition(ctx, allocation_group::release::WORKFLOW, |ctx, run, happened| {
            Box::pin(allocation_group::release::step(ctx, run, happened))
        }),
    ]
}

fn definition(ctx: &Ctx, name: &'static str, story: Story) -> Definition {
    let ctx = ctx.clone();
    let step =
        move |run: Run, happened: Happened| -> BoxFuture<'static, Result<Stepped, StepError>> {
            let ctx = ctx.clone();
            Box::pin(async move {
                let stepped = story(&ctx, &run, &happened).await;
                stepped.map_err(|error| StepError {
                    reason: error.chain(),
                    in_company: error.is_company(),
                })
            })
        };
    Definition { name, step: Arc::new(step) }
}
