//! What one allocation is asked for: judged, placed, written. Shared by a request for one and by the members of a group; each
//! step is a part of the caller's transaction.

use domain::ids::{AllocationGroupId, AllocationId, EventId, OperationId};
use domain::policy::{Permission, ProjectRole};
use jiff::Timestamp;
use store::Tx;
use store::allocations::{NewAllocation, Terms as Agreed};
use store::idempotency::OwnKey;
use store::lifecycle::Birth;
use store::placement::{self, Place, Wanted};
use store::terms::{self, Asked, Payer, SkuTerms, Terms};
use uuid::Uuid;
use wire::problem::{Alternative, Fault};

use super::capacity;
use crate::billing::shown;
use crate::policies::Policies;
use crate::{Caller, Ctx, Error};

const SSH_KEYS_MAX: usize = 16;
const NAME_CHARS_MAX: usize = 64;

/// What somebody asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    /// For which project.
    pub(crate) project: Uuid,
    /// What.
    pub(crate) sku: &'a str,
    /// How many GPUs.
    pub(crate) gpus: i16,
    /// Where.
    pub(crate) region: &'a str,
    /// Which image; the SKU's first when nobody says.
    pub(crate) image: Option<&'a str>,
    /// What it is called; made up when nobody says.
    pub(crate) name: Option<&'a str>,
    /// Who may log in.
    pub(crate) ssh_keys: &'a [Uuid],
    /// Where in the body it stands: the beginning of a JSON pointer.
    pub(crate) place: String,
    /// The same for its keys.
    pub(crate) keys_place: String,
}

/// What is agreed, if there is room.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// The caller's role in the project.
    pub(crate) role: ProjectRole,
    /// What the SKU is.
    pub(crate) sku: SkuTerms,
    /// The image that it will run.
    pub(crate) image: String,
    /// Who may log in: public keys.
    keys: Vec<String>,
}

/// What can be said of a request without looking anything up.
pub(crate) fn faults(ask: &Ask<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |pointer: String, detail: String| faults.push(Fault { pointer, detail });
    if ask.gpus < 1 {
        fault(format!("{}/gpus", ask.place), "ask for at least 1".to_owned());
    }
    if ask.ssh_keys.len() > SSH_KEYS_MAX {
        fault(format!("{}/ssh_key_ids", ask.keys_place), format!("at most {SSH_KEYS_MAX} keys"));
    }
    let mut named = ask.ssh_keys.to_vec();
    named.sort_unstable();
    named.dedup();
    if named.len() < ask.ssh_keys.len() {
        fault(format!("{}/ssh_key_ids", ask.keys_place), "each key once".to_owned());
    }
    if let Some(detail) = ask.name.and_then(name_fault) {
        fault(format!("{}/name", ask.place), detail);
    }
    faults
}

/// What is wrong with a name.
pub(crate) fn name_fault(name: &str) -> Option<String> {
    let fits = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    let fine = fits && !name.chars().any(char::is_control);
    (!fine).then(|| format!("1 to {NAME_CHARS_MAX} characters, none of them control characters"))
}

/// What has to be looked up before a request is judged.
pub(crate) fn question(caller: &Caller, ask: &Ask<'_>, key: Option<OwnKey>) -> Asked {
    Asked {
        user: caller.user_id,
        project: ask.project,
        sku: ask.sku.to_owned(),
        gpus: ask.gpus,
        image: ask.image.map(str::to_owned),
        region: ask.region.to_owned(),
        ssh_keys: ask.ssh_keys.to_vec(),
        key,
    }
}

/// Whether they may have it, and on what terms: one statement, unless it is refused.
///
/// # Errors
/// What is wrong with it.
pub(crate) async fn judge(
    ctx: &Ctx,
    tx: &mut Tx,
    caller: &Caller,
    ask: &Ask<'_>,
) -> Result<Judged, Error> {
    let terms = terms::of(tx, question(caller, ask, None), Timestamp::MAX).await?;
    match judged(&ctx.policies(), ask, &terms) {
        Ok(judged) => Ok(judged),
        Err(unmet) => Err(unmet.told(tx, ask).await?),
    }
}

/// The same on terms that are known.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn judged(policies: &Policies, ask: &Ask<'_>, terms: &Terms) -> Result<Judged, Unmet> {
    let role = may_create(terms)?;
    let keys = named_keys(ask, terms)?;
    let (sku, image) = offer(ask, terms)?;
    can_pay(policies, ask, (&sku, terms.payer.as_ref()))?;
    Ok(Judged { role, sku, image, keys })
}

/// Why somebody can't have what they ask for.
#[derive(Debug)]
pub(crate) enum Unmet {
    /// As this says.
    Said(Error),
    /// There is no such SKU.
    NoSku,
    /// There is no such region.
    NoRegion(SkuTerms),
    /// The SKU does not come with so many GPUs.
    NoCount(SkuTerms),
    /// The SKU does not run that image.
    NoImage,
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Unmet {
        Unmet::Said(error)
    }
}

impl Unmet {
    /// The same as people are told it, with what there is instead.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn told(self, tx: &mut Tx, ask: &Ask<'_>) -> Result<Error, Error> {
        let (detail, would_fit) = match self {
            Unmet::Said(error) => return Ok(error),
            Unmet::NoSku => {
                let known = placement::sku_codes(tx).await?.join(", ");
                (format!("there is no SKU {:?}; there are {known}", ask.sku), Vec::new())
            }
            Unmet::NoRegion(sku) => {
                let fits = alternatives(tx, ask, &sku).await?;
                (format!("there is no region {:?}", ask.region), fits)
            }
            Unmet::NoCount(sku) => {
                let counts: Vec<String> = sku.gpus_allowed.iter().map(i16::to_string).collect();
                let (of, counts) = (ask.sku, counts.join(", "));
                let fits = alternatives(tx, ask, &sku).await?;
                (format!("the SKU {of} comes with {counts} GPUs, not {}", ask.gpus), fits)
            }
            Unmet::NoImage => {
                let image = ask.image.unwrap_or_default();
                (format!("the SKU {} does not run the image {image:?}", ask.sku), Vec::new())
            }
        };
        Ok(Error::SkuUnavailable { detail, would_fit, narrowed: Vec::new() })
    }
}

/// The best place for it, locked; none only if it truly does not fit.
///
/// # Errors
/// When the store fails.
pub(crate) async fn find(
    tx: &mut Tx,
    ask: &Ask<'_>,
    judged: &Judged,
) -> Result<Option<Place>, Error> {
    let gpus = (!judged.sku.whole).then_some(ask.gpus);
    let wanted = Wanted { region: ask.region, sku: ask.sku, image: &judged.image, gpus };
    Ok(placement::find(tx, &wanted).await?)
}

/// The allocation that comes of it, as a member of a group or on its own.
pub(crate) fn agreed(
    new_id: impl Fn() -> Uuid,
    caller: &Caller,
    id: AllocationId,
    (ask, judged): (&Ask<'_>, Judged),
    member_of: Option<(AllocationGroupId, bool)>,
) -> (NewAllocation, Birth) {
    let terms = Agreed {
        name: Some(ask.name.map_or_else(|| made_up(ask.sku, id), str::to_owned)),
        owner_id: Some(caller.user_id),
        region: ask.region.to_owned(),
        image: judged.image,
        whole: judged.sku.whole,
        price_micros_per_gpu_second: judged.sku.price_micros_per_gpu_second,
        currency: judged.sku.currency,
        ssh_keys: judged.keys,
    };
    let new = NewAllocation {
        id,
        project_id: ask.project,
        member_of,
        provision: OperationId(new_id()),
        sku: ask.sku.to_owned(),
        gpus: ask.gpus,
        terms,
    };
    let mut birth = Birth::new(EventId(new_id()), caller.actor());
    birth.cause = Some(caller.cause());
    (new, birth)
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

/// Whether there is money for it. A project without an account costs nobody anything.
fn can_pay(
    policies: &Policies,
    ask: &Ask<'_>,
    (sku, payer): (&SkuTerms, Option<&Payer>),
) -> Result<(), Error> {
    let Some(payer) = payer.filter(|_| sku.price_micros_per_gpu_second > 0) else {
        return Ok(());
    };
    if payer.currency != sku.currency {
        let detail = format!(
            "the SKU {} is sold in {}, and the account that pays for this project is kept in {}",
            ask.sku, sku.currency, payer.currency
        );
        return Err(Error::invalid(format!("{}/sku", ask.place), detail));
    }
    if policies.billing_enforced == 0 {
        return Ok(());
    }
    if payer.balance_minor <= 0 {
        return Err(Error::BalanceDepleted(format!(
            "the balance of the account that pays for this project is {}",
            shown(&payer.currency, payer.balance_minor)
        )));
    }
    match payer.cap_and_spent_minor {
        Some((cap, spent)) if spent >= cap => Err(Error::SpendingCapReached(format!(
            "this project has cost {} this month, and may cost {}",
            shown(&payer.currency, spent),
            shown(&payer.currency, cap)
        ))),
        Some(_) | None => Ok(()),
    }
}

fn named_keys(ask: &Ask<'_>, terms: &Terms) -> Result<Vec<String>, Error> {
    let known = |id: &Uuid| terms.ssh_keys.iter().any(|(known, _)| known == id);
    let unknown = ask.ssh_keys.iter().enumerate().filter(|(_, id)| !known(id));
    let faults: Vec<Fault> = unknown
        .map(|(place, id)| Fault {
            pointer: format!("{}/ssh_key_ids/{place}", ask.keys_place),
            detail: format!("{id} is none of your SSH keys"),
        })
        .collect();
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    Ok(terms.ssh_keys.iter().map(|(_, key)| key.clone()).collect())
}

/// The SKU and the image, if there are such and they go together.
pub(crate) fn offer(ask: &Ask<'_>, terms: &Terms) -> Result<(SkuTerms, String), Unmet> {
    let Some(sku) = terms.sku.clone() else {
        return Err(Unmet::NoSku);
    };
    if !terms.region_known {
        return Err(Unmet::NoRegion(sku));
    }
    if !sku.gpus_allowed.contains(&ask.gpus) {
        return Err(Unmet::NoCount(sku));
    }
    let image = sku.image.clone().ok_or(Unmet::NoImage)?;
    Ok((sku, image))
}

/// What is said when there is no room: with what would fit.
///
/// # Errors
/// When the store fails.
pub(crate) async fn no_capacity(
    tx: &mut Tx,
    ask: &Ask<'_>,
    sku: &SkuTerms,
) -> Result<Error, Error> {
    let would_fit = alternatives(tx, ask, sku).await?;
    let what =
        if sku.whole { "machine".to_owned() } else { format!("{} GPUs on one machine", ask.gpus) };
    let detail = format!("no {} in {} has {what} free right now", ask.sku, ask.region);
    let narrowed = capacity::narrowed(tx, ask, sku).await?;
    Ok(Error::SkuUnavailable { detail, would_fit, narrowed })
}

/// What would fit, in each region: the count that was asked for, or the next smaller one; and the next larger one when
/// there is no such count at all.
pub(crate) async fn alternatives(
    tx: &mut Tx,
    ask: &Ask<'_>,
    sku: &SkuTerms,
) -> Result<Vec<Alternative>, Error> {
    let mut found = Vec::new();
    for (region, free) in placement::largest_fits(tx, ask.sku).await? {
        let fits = |count: &i16| sku.whole || *count <= free;
        let counts: Vec<i16> = sku.gpus_allowed.iter().copied().filter(fits).collect();
        let here = region == ask.region;
        let smaller = counts
            .iter()
            .filter(|count| if here { **count < ask.gpus } else { **count <= ask.gpus });
        let larger = counts.iter().filter(|count| **count > ask.gpus);
        let no_such = !sku.gpus_allowed.contains(&ask.gpus);
        let next = [smaller.max(), larger.min().filter(|_| no_such)];
        found.extend(next.into_iter().flatten().map(|gpus| Alternative {
            sku: ask.sku.to_owned(),
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
