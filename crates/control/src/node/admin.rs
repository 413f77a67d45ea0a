//! What operators do with nodes: add one, look at the fleet, hand out a new join token, cut an agent off.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::ids::{EventId, NodeId};
use domain::policy::Permission;
use serde_json::json;
use store::lifecycle::Birth;
use store::node_agents::{self, NewJoinToken};
use store::views::fleet;
use store::{Tx, catalogue, nodes};
use uuid::Uuid;
use wire::http::Page;
use wire::http::admin::{Because, FreshNode, NewNode, Node};
use wire::http::catalogue::Shape;
use wire::node::JoinToken;
use wire::problem::Fault;

use super::{enrol, task};
use crate::account::secret::{fill, sha256};
use crate::audit_log::{self, Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, finish_secret};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

const SLOTS_MAX: usize = 64;
const NUMA_MAX: i16 = 63;
const NAME_MAX: usize = 64;

/// Adds a node, which then waits for its agent. The join token is shown this once.
///
/// # Errors
/// [`Error::Invalid`] with everything that is wrong with it, [`Error::Conflict`] when the name is taken.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    new: &NewNode,
    key: Option<&Key>,
) -> Result<Answer<FreshNode>, Error> {
    caller.needs(Permission::FleetManage)?;
    check(new)?;
    let whole = offered(ctx, new).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let id = NodeId(tx.new_id());
    let node = nodes::NewNode {
        id,
        name: new.name.clone(),
        region: new.region.clone(),
        sku: new.sku.clone(),
        slots: new.slots.clone(),
        whole,
    };
    let mut birth = Birth::new(EventId(tx.new_id()), caller.operator_actor());
    birth.cause = Some(caller.cause());
    if nodes::insert(&mut tx, &node, &birth).await?.is_none() {
        return Err(Error::Conflict(format!("there is a node called {} already", new.name)));
    }
    let fresh = fresh(ctx, &mut tx, id).await?;
    let deed = Deed::new(caller, Action::NodeCreate, "node", id)
        .with(json!({ "name": new.name, "region": new.region, "sku": new.sku }));
    finish_secret(tx, &deed, key, 201, fresh).await
}

/// The fleet, in the order in which it was added.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Node>, Error> {
    caller.needs(Permission::FleetRead)?;
    let paging = Paging::read(ctx, &"nodes", limit, cursor)?;
    let after = paging.after().map(NodeId);
    let found = fleet::list(&ctx.store, after, paging.rows()).await?;
    Ok(paging.page(ctx, found, |node| node.id))
}

/// One node, with its slots and who has them.
///
/// # Errors
/// [`Error::NotFound`] when there is none.
pub async fn show(ctx: &Ctx, caller: &Caller, id: Uuid) -> Result<Node, Error> {
    caller.needs(Permission::FleetRead)?;
    fleet::find(&ctx.store, NodeId(id)).await?.ok_or(Error::NotFound("node"))
}

/// A new join token for a node; those before it that were not used can't be any more. The agent that the node has stays
/// until another one enrols.
///
/// # Errors
/// [`Error::NotFound`] when there is no such node, [`Error::Conflict`] when it is retired.
pub async fn reissue(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<FreshNode>, Error> {
    caller.needs(Permission::FleetManage)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let node = living(&mut tx, NodeId(id)).await?;
    node_agents::withdraw_tokens(&mut tx, node, ctx.clock.now()).await?;
    let fresh = fresh(ctx, &mut tx, node).await?;
    tracing::info!(%node, operator = %caller.user_id, "a join token was issued anew");
    let deed = Deed::new(caller, Action::NodeJoinToken, "node", node);
    finish_secret(tx, &deed, key, 201, fresh).await
}

/// Cuts the node's agent off, and calls off whatever it was given. The node's status follows when it is missed.
///
/// # Errors
/// [`Error::NotFound`] when there is no such node.
pub async fn revoke(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    because: &Because,
    key: Option<&Key>,
) -> Result<Answer<Node>, Error> {
    caller.needs(Permission::FleetManage)?;
    let reason = audit_log::because(&because.reason)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let node = NodeId(id);
    // Tasks before the node: whoever ends a task and frees something takes the locks in this order.
    let called_off = task::call_off_node(&mut tx, node, &caller.operator_actor()).await?;
    if !nodes::lock(&mut tx, node).await? {
        return Err(Error::NotFound("node"));
    }
    let revoked = enrol::revoke(&mut tx, node).await?;
    tracing::warn!(%node, operator = %caller.user_id, revoked, reason, security = true, "an agent was cut off");
    let shown = fleet::find_in(&mut tx, node).await?.ok_or(Error::NotFound("node"))?;
    let deed = Deed::new(caller, Action::NodeRevoke, "node", node).because(reason);
    let answer = finish(tx, &deed, key, 200, shown).await?;
    task::tell_called_off(ctx, called_off).await;
    Ok(answer)
}

/// The node, locked, if it is one that may have an agent.
async fn living(tx: &mut Tx, node: NodeId) -> Result<NodeId, Error> {
    use domain::machines::node::Status;
    use lifecycle::Code as _;
    if !nodes::lock(tx, node).await? {
        return Err(Error::NotFound("node"));
    }
    if nodes::find_status(tx, node).await?.as_deref() == Some(Status::Retired.code()) {
        return Err(Error::Conflict("the node is retired".to_owned()));
    }
    Ok(node)
}

/// The node with a join token of its own.
async fn fresh(ctx: &Ctx, tx: &mut Tx, node: NodeId) -> Result<FreshNode, Error> {
    let gateway = ctx.keys.gateway_url.get().cloned();
    let gateway =
        gateway.ok_or_else(|| Error::Broken("no gateway listens for agents".to_owned()))?;
    let mut random = [0_u8; 32];
    fill(&mut random)?;
    let secret = URL_SAFE_NO_PAD.encode(random);
    let expires_at = ctx.after_seconds(ctx.policies().join_token_ttl_seconds);
    let secret_hash = sha256(secret.as_bytes());
    node_agents::insert_token(tx, &NewJoinToken { node, secret_hash, expires_at }).await?;
    let authority = ctx.keys.authority_pem().to_owned();
    let token = JoinToken { node_id: node.uuid(), secret, gateway, authority };
    let unwritable = |_| Error::Broken("a join token can't be written".to_owned());
    Ok(FreshNode {
        node: fleet::find_in(tx, node).await?.ok_or(Error::NotFound("node"))?,
        join_token: token.text().map_err(unwritable)?,
        join_token_expires_at: expires_at,
    })
}

/// Whether what it is sold as is a whole machine; the region and the SKU must be in the catalogue.
async fn offered(ctx: &Ctx, new: &NewNode) -> Result<bool, Error> {
    let regions = catalogue::list_regions(&ctx.store).await?;
    let sku = catalogue::find_sku(&ctx.store, &new.sku).await?;
    let mut faults = Vec::new();
    if !regions.iter().any(|region| region.code == new.region) {
        faults.push(fault("/region", "there is no such region in the catalogue"));
    }
    if sku.is_none() {
        faults.push(fault("/sku", "there is no such SKU in the catalogue"));
    }
    match sku {
        Some(sku) if faults.is_empty() => Ok(sku.shape == Shape::Baremetal),
        Some(_) | None => Err(Error::Invalid(faults)),
    }
}

fn check(new: &NewNode) -> Result<(), Error> {
    let mut faults = Vec::new();
    if !is_text(&new.name, NAME_MAX) {
        faults.push(fault("/name", &format!("1 to {NAME_MAX} characters are expected")));
    }
    if !(1..=SLOTS_MAX).contains(&new.slots.len()) {
        faults.push(fault("/slots", &format!("1 to {SLOTS_MAX} slots are expected")));
    }
    if new.slots.iter().any(|numa| !(0..=NUMA_MAX).contains(numa)) {
        faults.push(fault("/slots", &format!("NUMA nodes go from 0 to {NUMA_MAX}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

fn is_text(text: &str, characters_max: usize) -> bool {
    let printed = !text.chars().any(char::is_control) && text.trim() == text;
    printed && (1..=characters_max).contains(&text.chars().count())
}

fn fault(pointer: &str, detail: &str) -> Fault {
    Fault { pointer: pointer.to_owned(), detail: detail.to_owned() }
}
