//! Create: the request is judged, placed and written in one transaction; what follows is the provision's story.
//! Door: POST /allocations.

use domain::ids::{AllocationId, EventId, OperationId, SlotId};
use domain::policy::{Permission, ProjectRole};
use serde_json::json;
use store::allocations::Terms as Agreed;
use store::lifecycle::Birth;
use store::placement::{self, Asked, SkuTerms, Terms, Wanted};
use store::{Tx, allocations, claims};
use uuid::Uuid;
use wire::http::allocations::{Allocation, NewAllocation};
use wire::problem::{Alternative, Fault};

use super::view::{self, Viewer};
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::{Caller, Ctx, Error};

const SSH_KEYS_MAX: usize = 16;
const NAME_CHARS_MAX: usize = 64;

/// Somebody asks for GPUs. Either they are theirs when this answers, or it says why not and what would fit.
///
/// # Errors
/// What is wrong with the request; [`Error::SkuUnavailable`] when it can't be had.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewAllocation,
    key: &Key,
) -> Result<Answer<Allocation>, Error> {
    well_formed(asked)?;
    let mut tx = match begin(ctx, Some(key)).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let question = Asked {
        user: caller.user_id,
        project: asked.project_id,
        sku: &asked.sku,
        image: asked.image.as_deref(),
        region: &asked.region,
        ssh_keys: &asked.ssh_key_ids,
    };
    let terms = placement::terms(&mut tx, &question).await?;
    let role = may_create(&terms)?;
    let keys = named_keys(asked, &terms)?;
    let (sku, image) = offered(&mut tx, asked, &terms).await?;
    let gpus = (!sku.whole).then_some(asked.gpus);
    let wanted = Wanted { region: &asked.region, sku: &asked.sku, image: &image, gpus };
    let Some(place) = placement::find(&mut tx, &wanted).await? else {
        return Err(no_capacity(&mut tx, asked, &sku).await?);
    };

    let id = AllocationId(tx.new_id());
    let agreed = Agreed {
        name: Some(asked.name.clone().unwrap_or_else(|| made_up(&asked.sku, id))),
        owner_id: Some(caller.user_id),
        region: asked.region.clone(),
        image,
        whole: sku.whole,
        price_micros_per_gpu_second: sku.price_micros_per_gpu_second,
        currency: sku.currency,
        ssh_keys: keys,
    };
    let new = allocations::NewAllocation {
        id,
        project_id: asked.project_id,
        member_of: None,
        provision: OperationId(tx.new_id()),
        sku: asked.sku.clone(),
        gpus: asked.gpus,
        terms: agreed,
    };
    let mut birth = Birth::new(EventId(tx.new_id()), caller.actor());
    birth.cause = Some(caller.cause());
    allocations::insert(&mut tx, &new, birth.clone()).await?;
    let slots: Vec<SlotId> = place.slots.iter().map(|slot| slot.id).collect();
    claims::insert_all(&mut tx, id, place.node, &slots, &birth).await?;

    let viewer = Viewer { role: Some(role), operator: caller.operator };
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    let deed = Deed::new(caller, Action::AllocationCreate, "allocation", id)
        .in_project(asked.project_id)
        .with(json!({ "sku": asked.sku, "gpus": asked.gpus, "region": asked.region }));
    finish(tx, &deed, Some(key), 201, shown).await
}

/// What can be said of a request without looking anything up.
fn well_formed(asked: &NewAllocation) -> Result<(), Error> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, detail: String| {
        faults.push(Fault { pointer: pointer.to_owned(), detail });
    };
    if asked.gpus < 1 {
        fault("/gpus", "ask for at least 1".to_owned());
    }
    if asked.ssh_key_ids.len() > SSH_KEYS_MAX {
        fault("/ssh_key_ids", format!("at most {SSH_KEYS_MAX} keys"));
    }
    let mut named = asked.ssh_key_ids.clone();
    named.sort_unstable();
    named.dedup();
    if named.len() < asked.ssh_key_ids.len() {
        fault("/ssh_key_ids", "each key once".to_owned());
    }
    if let Some(name) = &asked.name {
        let fits = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
        if !fits || name.chars().any(char::is_control) {
            fault(
                "/name",
                format!("1 to {NAME_CHARS_MAX} characters, none of them control characters"),
            );
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

fn may_create(terms: &Terms) -> Result<ProjectRole, Error> {
    let role = terms.role.ok_or(Error::NotFound("project"))?;
    if !Permission::AllocationCreate.allows(role) {
        return Err(Error::Forbidden(format!(
            "your role in this project is {role}, which may not create allocations"
        )));
    }
    Ok(role)
}

fn named_keys(asked: &NewAllocation, terms: &Terms) -> Result<Vec<String>, Error> {
    let known = |id: &Uuid| terms.ssh_keys.iter().any(|(known, _)| known == id);
    let unknown = asked.ssh_key_ids.iter().enumerate().filter(|(_, id)| !known(id));
    let faults: Vec<Fault> = unknown
        .map(|(place, id)| Fault {
            pointer: format!("/ssh_key_ids/{place}"),
            detail: format!("{id} is none of your SSH keys"),
        })
        .collect();
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    Ok(terms.ssh_keys.iter().map(|(_, key)| key.clone()).collect())
}

/// The SKU and the image, if there are such and they go together.
async fn offered(
    tx: &mut Tx,
    asked: &NewAllocation,
    terms: &Terms,
) -> Result<(SkuTerms, String), Error> {
    let unavailable = |detail: String, would_fit| Err(Error::SkuUnavailable { detail, would_fit });
    let Some(sku) = terms.sku.clone() else {
        let known = placement::sku_codes(tx).await?.join(", ");
        return unavailable(
            format!("there is no SKU {:?}; there are {known}", asked.sku),
            Vec::new(),
        );
    };
    if !terms.region_known {
        let fits = alternatives(tx, asked, &sku).await?;
        return unavailable(format!("there is no region {:?}", asked.region), fits);
    }
    if !sku.gpus_allowed.contains(&asked.gpus) {
        let counts: Vec<String> = sku.gpus_allowed.iter().map(i16::to_string).collect();
        let detail = format!(
            "the SKU {} comes with {} GPUs, not {}",
            asked.sku,
            counts.join(", "),
            asked.gpus
        );
        let fits = alternatives(tx, asked, &sku).await?;
        return unavailable(detail, fits);
    }
    let Some(image) = sku.image.clone() else {
        let image = asked.image.as_deref().unwrap_or_default();
        return unavailable(
            format!("the SKU {} does not run the image {image:?}", asked.sku),
            Vec::new(),
        );
    };
    Ok((sku, image))
}

async fn no_capacity(tx: &mut Tx, asked: &NewAllocation, sku: &SkuTerms) -> Result<Error, Error> {
    let would_fit = alternatives(tx, asked, sku).await?;
    let what = if sku.whole {
        "machine".to_owned()
    } else {
        format!("{} GPUs on one machine", asked.gpus)
    };
    let detail = format!("no {} in {} has {what} free right now", asked.sku, asked.region);
    Ok(Error::SkuUnavailable { detail, would_fit })
}

/// What would fit, in each region: the count that was asked for, or the next smaller one; and the next larger one when
/// there is no such count at all.
async fn alternatives(
    tx: &mut Tx,
    asked: &NewAllocation,
    sku: &SkuTerms,
) -> Result<Vec<Alternative>, Error> {
    let mut found = Vec::new();
    for (region, free) in placement::largest_fits(tx, &asked.sku).await? {
        let fits = |count: &i16| sku.whole || *count <= free;
        let counts: Vec<i16> = sku.gpus_allowed.iter().copied().filter(fits).collect();
        let here = region == asked.region;
        let smaller = counts
            .iter()
            .filter(|count| if here { **count < asked.gpus } else { **count <= asked.gpus });
        let larger = counts.iter().filter(|count| **count > asked.gpus);
        let no_such = !sku.gpus_allowed.contains(&asked.gpus);
        let next = [smaller.max(), larger.min().filter(|_| no_such)];
        found.extend(next.into_iter().flatten().map(|gpus| Alternative {
            sku: asked.sku.clone(),
            region: region.clone(),
            gpus: *gpus,
        }));
    }
    Ok(found)
}

/// A name for what nobody has named.
fn made_up(sku: &str, id: AllocationId) -> String {
    let text = id.uuid().simple().to_string();
    let family = sku.split('.').next().unwrap_or(sku);
    // The end of an identity is its random part.
    format!("{family}-{}", &text[text.len() - 6..])
}
