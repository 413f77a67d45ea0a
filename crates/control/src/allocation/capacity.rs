//! Why there is no room: how many machines each filter of the placement took away, in its order, and what would fit. Counts
//! alone: nobody learns which machines there are.

use domain::policy::Permission;
use jiff::Timestamp;
use store::Tx;
use store::placement::{self, Funnel, Wanted};
use store::terms::{self, SkuTerms};
use uuid::Uuid;
use wire::http::catalogue::{CapacityExplained, CapacityQuestion};
use wire::problem::{Filter, Narrowed};

use super::judge::{self, Ask, alternatives};
use crate::{Caller, Ctx, Error};

/// What each filter took away from what was asked for.
///
/// # Errors
/// When the store fails.
pub(crate) async fn narrowed(
    tx: &mut Tx,
    ask: &Ask<'_>,
    sku: &SkuTerms,
) -> Result<Vec<Narrowed>, Error> {
    Ok(told(&funnel(tx, ask, sku).await?, ask, sku.whole))
}

async fn funnel(tx: &mut Tx, ask: &Ask<'_>, sku: &SkuTerms) -> Result<Funnel, Error> {
    let image = sku.image.as_deref().unwrap_or_default();
    let gpus = (!sku.whole).then_some(ask.gpus);
    let wanted = Wanted { region: ask.region, sku: ask.sku, image, gpus };
    Ok(placement::funnel(tx, &wanted).await?)
}

/// What would become of a request, without making it.
///
/// # Errors
/// [`Error::Forbidden`] for a token that may not read the catalogue.
pub async fn explain(
    ctx: &Ctx,
    caller: &Caller,
    question: &CapacityQuestion,
) -> Result<CapacityExplained, Error> {
    caller.needs(Permission::CatalogueRead)?;
    let ask = Ask {
        project: Uuid::nil(),
        sku: &question.sku,
        gpus: question.gpus,
        region: &question.region,
        image: question.image.as_deref(),
        name: None,
        ssh_keys: &[],
        place: String::new(),
        keys_place: String::new(),
    };
    let mut tx = ctx.store.begin().await?;
    let terms = terms::of(&mut tx, judge::question(caller, &ask, None), Timestamp::MAX).await?;
    let offered = match judge::offer(&ask, &terms) {
        Ok((sku, _)) => Ok(sku),
        Err(unmet) => Err(unmet.told(&mut tx, &ask).await?),
    };
    let explained = match offered {
        Ok(sku) => {
            let funnel = funnel(&mut tx, &ask, &sku).await?;
            let fits = funnel.fitting > 0;
            let would_fit =
                if fits { Vec::new() } else { alternatives(&mut tx, &ask, &sku).await? };
            let detail =
                if fits { "It would be granted now." } else { "There is no room right now." };
            let narrowed = told(&funnel, &ask, sku.whole);
            CapacityExplained { fits, detail: detail.to_owned(), narrowed, would_fit }
        }
        Err(Error::SkuUnavailable { detail, would_fit, narrowed }) => {
            CapacityExplained { fits: false, detail, narrowed, would_fit }
        }
        Err(error) => return Err(error),
    };
    tx.rollback().await?;
    Ok(explained)
}

/// The filters in the order of placement, with what each took away and left.
fn told(funnel: &Funnel, ask: &Ask<'_>, whole: bool) -> Vec<Narrowed> {
    let away: Vec<String> =
        funnel.away.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let away = if away.is_empty() { String::new() } else { format!(" ({})", away.join(", ")) };
    let free = if whole {
        "are in use".to_owned()
    } else {
        let (gpus, most) = (ask.gpus, funnel.most_free);
        format!("have fewer than {gpus} GPUs free on one machine (the most is {most})")
    };
    let steps = [
        (Filter::Sku, funnel.of_sku, format!("are not {}", ask.sku)),
        (Filter::Region, funnel.in_region, format!("are not in {}", ask.region)),
        (Filter::Status, funnel.ready, format!("are not ready{away}")),
        (Filter::Image, funnel.with_image, "do not have the image at hand".to_owned()),
        (Filter::Free, funnel.fitting, free),
    ];
    let mut before = funnel.machines;
    let mut narrowed = Vec::with_capacity(steps.len());
    for (filter, left, why) in steps {
        let removed = before - left;
        let sentence = format!("{removed} of {before} machines {why}, which leaves {left}.");
        narrowed.push(Narrowed { filter: filter.into(), removed, left, sentence });
        before = left;
    }
    narrowed
}
