//! How an agent gets its identity, keeps it and loses it. The identity is the certificate it shows: nothing it says in a
//! body is believed about who it is, and every request is looked up anew.

use domain::ids::{EventId, NodeId};
use domain::machines::{Node, node};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Code as _, Source};
use spine::Clock;
use store::lifecycle::{Actor, Report, apply};
use store::node_agents::{self, NewCertificate, Shown, Spent};
use store::{Ring, Store, Tx, nodes};
use uuid::Uuid;
use wire::node::{Certificate, Enrolment, PROTOCOL, PROTOCOL_OLDEST, Renewal, is_understood};
use wire::seal::Purpose;

use crate::account::secret::sha256;
use crate::audit_log::{Action, by_agent};
use crate::keys::Issued;
use crate::{Ctx, Error};

/// An agent's older certificates are good for so long after a newer one was first used. Until it is used they all are: an
/// answer that got lost must not cost a node its identity.
pub const RENEWAL_GRACE: SignedDuration = SignedDuration::from_mins(10);

/// A certificate is good from a little before it was made, for machines whose clocks differ.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Every refused token gets the same words: they do not say which part of it was wrong.
const REFUSED_TOKEN: Error =
    Error::Unauthenticated("this join token can't be used; ask for a new one");
pub(super) const REFUSED_CERTIFICATE: Error =
    Error::Unauthenticated("this certificate is not good, or not any more");

/// An agent whose certificate was looked up for this very request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    /// The agent: one enrolment of the node.
    pub agent_id: Uuid,
    /// The only node it may speak for.
    pub node_id: NodeId,
    /// When the certificate ends.
    pub not_after: Timestamp,
    /// The version of the protocol that it speaks, and is spoken to in.
    pub protocol: u16,
}

impl AgentIdentity {
    /// As the log will name it.
    pub fn actor(&self) -> Actor {
        Actor::new(Source::Agent, format!("agent {}", self.agent_id))
    }
}

/// Gives a certificate for a join token, once. The agent that the node had before is cut off.
///
/// # Errors
/// [`Error::Unauthenticated`] for whatever is wrong with the token; [`Error::Invalid`] for a request that can't be certified,
/// or another protocol. The token stays unused then.
pub async fn enrol(ctx: &Ctx, enrolment: &Enrolment) -> Result<Certificate, Error> {
    understood(enrolment.protocol)?;
    let (node, now) = (NodeId(enrolment.node_id), ctx.clock.now());
    let secret_hash = sha256(enrolment.secret.as_bytes());
    let mut tx = ctx.store.begin().await?;
    let spent = node_agents::spend_token(&mut tx, node, &secret_hash, now).await?;
    if spent != Spent::Now {
        tx.rollback().await?;
        note_refusal(node, spent);
        return Err(REFUSED_TOKEN);
    }
    let (issued, not_after) = issue(ctx, node, &enrolment.csr)?;
    let agent_id = tx.new_id();
    let replaced = node_agents::revoke(&mut tx, node).await?;
    node_agents::insert(&mut tx, agent_id, node).await?;
    let fingerprint = sha256(&issued.der);
    let new = NewCertificate { agent_id, fingerprint, not_after };
    node_agents::insert_certificate(&mut tx, &new).await?;
    // It was heard of just now. Without this a node whose agent never reports would take placements for ever.
    nodes::heard_at(&mut tx, node, now).await?;
    let identity =
        AgentIdentity { agent_id, node_id: node, not_after, protocol: enrolment.protocol };
    join_fleet(&mut tx, &identity).await?;
    by_agent(&mut tx, &identity, Action::NodeEnrol).await?;
    tx.commit().await?;
    metrics::counter!("berth_enrolments_total", "outcome" => "enrolled").increment(1);
    tracing::info!(%node, %agent_id, ?replaced, until = %not_after, "a node was enrolled");
    Ok(handed_out(ctx, issued, not_after))
}

/// A node that waited for its agent is ready; one that gets a new agent stands as it stood.
async fn join_fleet(tx: &mut Tx, identity: &AgentIdentity) -> Result<(), Error> {
    let status = nodes::find_status(tx, identity.node_id).await?;
    if status.as_deref() != Some(node::Status::Enrolling.code()) {
        return Ok(());
    }
    let report = Report::new(node::Event::Enrolled, EventId(tx.new_id()), identity.actor());
    // The node is locked and was looked at under the lock: only a lost race is left, and the commit fails for it.
    let _outcome = apply::<Node>(tx, identity.node_id, &report).await?;
    Ok(())
}

fn note_refusal(node: NodeId, spent: Spent) {
    let outcome = match spent {
        Spent::Now => "enrolled",
        Spent::Before => {
            tracing::warn!(%node, security = true, "a join token was used a second time, and refused");
            "used_before"
        }
        Spent::Expired => {
            tracing::info!(%node, "a join token was used after its time, and refused");
            "expired"
        }
        Spent::Unknown => {
            tracing::warn!(%node, security = true, "a join token that nobody issued was refused");
            "unknown"
        }
    };
    metrics::counter!("berth_enrolments_total", "outcome" => outcome).increment(1);
}

/// Gives an agent another certificate, for another key. The one it has stays good: see [`RENEWAL_GRACE`].
///
/// # Errors
/// [`Error::Unauthenticated`] when the agent was revoked meanwhile; [`Error::Invalid`] for a request that can't be certified.
pub async fn renew(
    ctx: &Ctx,
    identity: &AgentIdentity,
    renewal: &Renewal,
) -> Result<Certificate, Error> {
    let (issued, not_after) = issue(ctx, identity.node_id, &renewal.csr)?;
    let agent_id = identity.agent_id;
    let new = NewCertificate { agent_id, fingerprint: sha256(&issued.der), not_after };
    let mut tx = ctx.store.begin().await?;
    if !node_agents::insert_certificate(&mut tx, &new).await? {
        return Err(REFUSED_CERTIFICATE);
    }
    by_agent(&mut tx, &AgentIdentity { not_after, ..*identity }, Action::CertificateRenew).await?;
    tx.commit().await?;
    tracing::info!(node = %identity.node_id, %agent_id, until = %not_after, "a certificate was renewed");
    Ok(handed_out(ctx, issued, not_after))
}

/// Who shows the certificate with this SHA-256. One look by key, shared with those who come at the same time; asked for every request, so
/// that whoever is revoked is out at once.
///
/// # Errors
/// [`Error::Unauthenticated`] when nobody does who may still speak; [`Error::Invalid`] in a version that is not understood.
pub async fn identify(
    ctx: &Ctx,
    fingerprint: &[u8; 32],
    protocol: u16,
) -> Result<AgentIdentity, Error> {
    let shown = ctx.desks.certificate(*fingerprint).await?.ok_or(REFUSED_CERTIFICATE)?;
    if shown.outlived_by_older {
        node_agents::end_older(&ctx.store, fingerprint, grace_until(ctx.clock.now())).await?;
    }
    let Shown { agent_id, node: node_id, not_after, .. } = shown;
    understood(protocol)?;
    Ok(AgentIdentity { agent_id, node_id, not_after, protocol })
}

/// Who shows these certificates, as the database says it now.
pub(crate) async fn look_up(
    store: &Store,
    clock: &Clock,
    fingerprints: &[[u8; 32]],
) -> Result<Vec<Option<Shown>>, store::Error> {
    let now = clock.now();
    node_agents::find(store, fingerprints, now, grace_until(now)).await
}

fn grace_until(now: Timestamp) -> Timestamp {
    now.saturating_add(RENEWAL_GRACE).unwrap_or(Timestamp::MAX)
}

/// Cuts a node's agent off; says whether it had one. Its polls are woken to find out.
///
/// # Errors
/// When the store fails.
pub async fn revoke(tx: &mut Tx, node: NodeId) -> Result<bool, Error> {
    Ok(node_agents::revoke(tx, node).await?.is_some())
}

/// Wakes the polls of agents that were revoked since the look at `since`, in whatever process; answers what to ask with the
/// next time. Called every few seconds, it bounds how long a revoked agent can wait for work.
///
/// # Errors
/// When the store fails.
pub async fn wake_revoked(ctx: &Ctx, since: Option<Timestamp>) -> Result<Timestamp, Error> {
    let revocations = node_agents::revoked_since(&ctx.store, since).await?;
    for node in revocations.nodes {
        ctx.wake.ring(&Ring::Node(node.uuid()));
    }
    Ok(revocations.asked_at)
}

/// Whether an agent speaks a version of the protocol that this gateway understands.
///
/// # Errors
/// [`Error::Invalid`] when it does not, with what to do.
pub fn understood(protocol: u16) -> Result<(), Error> {
    if is_understood(protocol) {
        return Ok(());
    }
    let upgrade =
        if protocol < PROTOCOL { "the agent" } else { "the control plane, then its agents" };
    let detail = format!(
        "this gateway understands versions {PROTOCOL_OLDEST} to {PROTOCOL}, not {protocol}: upgrade {upgrade}"
    );
    Err(Error::invalid("/protocol", detail))
}

fn issue(ctx: &Ctx, node: NodeId, csr: &str) -> Result<(Issued, Timestamp), Error> {
    let now = ctx.clock.now();
    let ttl = SignedDuration::from_secs(i64::from(ctx.policies().certificate_ttl_seconds));
    let not_before = now.saturating_sub(SKEW).unwrap_or(Timestamp::MIN);
    let not_after = now.saturating_add(ttl).unwrap_or(Timestamp::MAX);
    // Certificates count whole seconds, and the record says what the certificate says.
    let not_after = not_after.round(jiff::Unit::Second).unwrap_or(not_after);
    Ok((ctx.keys.issue_node_certificate(node, csr, not_before, not_after)?, not_after))
}

fn handed_out(ctx: &Ctx, issued: Issued, not_after: Timestamp) -> Certificate {
    Certificate {
        certificate: issued.pem,
        not_after,
        authority: ctx.keys.authority_pem().to_owned(),
        task_keys: vec![ctx.keys.verifying(Purpose::Task).text()],
    }
}
