//! The identities of agents: join tokens, enrolments, certificates. A node has at most one agent that is not revoked, and
//! a join token makes at most one.

use domain::ids::NodeId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Ring, Store, Tx};

/// For how long the look for revocations reaches back behind the last one: a revocation gets its time a little before it
/// can be seen.
const OVERLAP_SECONDS: f64 = 10.0;

/// A join token to be.
#[derive(Clone, Copy, Debug)]
pub struct NewJoinToken {
    /// The node it is for.
    pub node: NodeId,
    /// The SHA-256 of its secret.
    pub secret_hash: [u8; 32],
    /// Until when it can be used.
    pub expires_at: Timestamp,
}

/// Adds a join token.
///
/// # Errors
/// When the database fails.
pub async fn insert_token(tx: &mut Tx, token: &NewJoinToken) -> Result<(), Error> {
    let id = tx.new_id();
    sqlx::query(
        "INSERT INTO join_tokens (id, node_id, secret_hash, expires_at)
         VALUES ($1, $2, $3, $4)",
    )
    .bind(id)
    .bind(token.node.uuid())
    .bind(token.secret_hash)
    .bind(token.expires_at.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// What became of an attempt to use a join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// It is used now, by this.
    Now,
    /// It was used before.
    Before,
    /// It has expired.
    Expired,
    /// There is none such for this node, or the node is retired.
    Unknown,
}

/// Uses a join token, if it is this node's, unused and not expired. The node is locked until the transaction ends, so that
/// its enrolments come one after the other.
///
/// # Errors
/// When the database fails.
pub async fn spend_token(
    tx: &mut Tx,
    node: NodeId,
    secret_hash: &[u8; 32],
    now: Timestamp,
) -> Result<Spent, Error> {
    let locked = sqlx::query(
        "SELECT 1
           FROM nodes
          WHERE id = $1 AND status <> 'retired'
            FOR NO KEY UPDATE",
    )
    .bind(node.uuid())
    .fetch_optional(tx.connection())
    .await?;
    if locked.is_none() {
        return Ok(Spent::Unknown);
    }
    let used = sqlx::query(
        "UPDATE join_tokens
            SET used_at = $3
          WHERE secret_hash = $1 AND node_id = $2 AND used_at IS NULL AND expires_at > $3
         RETURNING id",
    )
    .bind(secret_hash)
    .bind(node.uuid())
    .bind(now.to_sqlx())
    .fetch_optional(tx.connection())
    .await?;
    if used.is_some() {
        return Ok(Spent::Now);
    }
    let row = sqlx::query(
        "SELECT used_at IS NOT NULL
           FROM join_tokens
          WHERE secret_hash = $1 AND node_id = $2",
    )
    .bind(secret_hash)
    .bind(node.uuid())
    .fetch_optional(tx.connection())
    .await?;
    Ok(match row.map(|row| row.try_get(0)).transpose()? {
        Some(true) => Spent::Before,
        Some(false) => Spent::Expired,
        None => Spent::Unknown,
    })
}

/// Makes what is left of a node's unused join tokens useless: the newest is the only one.
///
/// # Errors
/// When the database fails.
pub async fn withdraw_tokens(tx: &mut Tx, node: NodeId, now: Timestamp) -> Result<(), Error> {
    sqlx::query(
        "UPDATE join_tokens
            SET expires_at = $2
          WHERE node_id = $1 AND used_at IS NULL AND expires_at > $2",
    )
    .bind(node.uuid())
    .bind(now.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A certificate that was issued.
#[derive(Clone, Copy, Debug)]
pub struct NewCertificate {
    /// The agent it is for.
    pub agent_id: Uuid,
    /// The SHA-256 of it.
    pub fingerprint: [u8; 32],
    /// When it ends.
    pub not_after: Timestamp,
}

/// Adds an agent of a node. The one before must have been revoked.
///
/// # Errors
/// When the database fails, or refuses a second agent.
pub async fn insert(tx: &mut Tx, agent_id: Uuid, node: NodeId) -> Result<(), Error> {
    sqlx::query("INSERT INTO node_agents (id, node_id) VALUES ($1, $2)")
        .bind(agent_id)
        .bind(node.uuid())
        .execute(tx.connection())
        .await?;
    Ok(())
}

/// Adds a certificate, if its agent was not revoked meanwhile; says whether.
///
/// # Errors
/// When the database fails.
pub async fn insert_certificate(tx: &mut Tx, new: &NewCertificate) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "WITH agent AS MATERIALIZED (
            SELECT id
              FROM node_agents
             WHERE id = $2 AND revoked_at IS NULL
               FOR SHARE
         )
         INSERT INTO node_certificates (fingerprint, agent_id, not_after)
         SELECT $1, id, $3
           FROM agent",
    )
    .bind(new.fingerprint)
    .bind(new.agent_id)
    .bind(new.not_after.to_sqlx())
    .execute(tx.connection())
    .await?
    .rows_affected();
    Ok(inserted == 1)
}

/// Revokes the agent of a node, if it has one; says which. Whoever waits for work in its name is told.
///
/// # Errors
/// When the database fails.
pub async fn revoke(tx: &mut Tx, node: NodeId) -> Result<Option<Uuid>, Error> {
    let row = sqlx::query(
        "UPDATE node_agents
            SET revoked_at = clock_timestamp()
          WHERE node_id = $1 AND revoked_at IS NULL
         RETURNING id",
    )
    .bind(node.uuid())
    .fetch_optional(tx.connection())
    .await?;
    tx.rings(Ring::Node(node.uuid()));
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Who shows a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The agent.
    pub agent_id: Uuid,
    /// Its node.
    pub node: NodeId,
    /// When the certificate ends.
    pub not_after: Timestamp,
    /// Whether an older certificate of the agent is still good for longer than `grace_until`.
    pub outlived_by_older: bool,
}

/// Who shows these certificates, in their order: none for one whose agent was revoked, or its node retired, or that has ended
/// itself. The one statement by which agents are known, of one request or of many together.
///
/// # Errors
/// When the database fails.
pub async fn find(
    store: &Store,
    fingerprints: &[[u8; 32]],
    now: Timestamp,
    grace_until: Timestamp,
) -> Result<Vec<Option<Shown>>, Error> {
    let asked: Vec<&[u8]> = fingerprints.iter().map(<[u8; 32]>::as_slice).collect();
    let rows = sqlx::query(
        "SELECT agent.id, agent.node_id, certificate.not_after,
                EXISTS (
                    SELECT 1
                      FROM node_certificates AS older
                     WHERE older.agent_id = agent.id
                       AND older.not_after > $3
                       AND older.created_at < certificate.created_at
                ),
                asked.place
           FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (fingerprint, place)
          CROSS JOIN LATERAL (
                SELECT agent_id, not_after, created_at
                  FROM node_certificates
                 WHERE fingerprint = asked.fingerprint AND not_after > $2
                 LIMIT 1) AS certificate
          CROSS JOIN LATERAL (
                SELECT id, node_id
                  FROM node_agents
                 WHERE id = certificate.agent_id AND revoked_at IS NULL
                 LIMIT 1) AS agent
          CROSS JOIN LATERAL (
                SELECT 1
                  FROM nodes
                 WHERE id = agent.node_id AND status <> 'retired'
                 LIMIT 1) AS node",
    )
    .bind(&asked)
    .bind(now.to_sqlx())
    .bind(grace_until.to_sqlx())
    .fetch_all(store.pool())
    .await?;
    let mut found = vec![None; asked.len()];
    for row in &rows {
        let place: i64 = row.try_get(4)?;
        let here = usize::try_from(place - 1).ok().and_then(|place| found.get_mut(place));
        if let Some(here) = here {
            *here = Some(Shown {
                agent_id: row.try_get(0)?,
                node: NodeId(row.try_get(1)?),
                not_after: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
                outlived_by_older: row.try_get(3)?,
            });
        }
    }
    Ok(found)
}

/// Ends the certificates that came before this one of the same agent, at `not_after` at the latest.
///
/// # Errors
/// When the database fails.
pub async fn end_older(
    store: &Store,
    fingerprint: &[u8; 32],
    not_after: Timestamp,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE node_certificates AS older
            SET not_after = $2
           FROM node_certificates AS newer
          WHERE newer.fingerprint = $1
            AND older.agent_id = newer.agent_id
            AND older.created_at < newer.created_at
            AND older.not_after > $2",
    )
    .bind(fingerprint)
    .bind(not_after.to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(())
}

/// Whose agents were revoked lately, and from when on to ask the next time.
#[derive(Clone, Debug)]
pub struct Revocations {
    /// The nodes. One may be named again the next time.
    pub nodes: Vec<NodeId>,
    /// The time of the look, by the database's clock.
    pub asked_at: Timestamp,
}

/// The nodes whose agents were revoked since the look at `since`; none means just now.
///
/// # Errors
/// When the database fails.
pub async fn revoked_since(store: &Store, since: Option<Timestamp>) -> Result<Revocations, Error> {
    let row = sqlx::query(
        "SELECT clock_timestamp(),
                ARRAY(
                    SELECT DISTINCT node_id
                      FROM node_agents
                     WHERE revoked_at > coalesce($1, clock_timestamp()) - make_interval(secs => $2)
                )",
    )
    .bind(since.map(|since| since.to_sqlx()))
    .bind(OVERLAP_SECONDS)
    .fetch_one(store.pool())
    .await?;
    let nodes: Vec<Uuid> = row.try_get(1)?;
    Ok(Revocations {
        nodes: nodes.into_iter().map(NodeId).collect(),
        asked_at: row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff(),
    })
}

/// Certificates that ended long ago: nobody is let in with one from its end on.
pub const PRUNE_CERTIFICATES: Prune =
    Prune::new("node_certificates", pruning!("node_certificates", "not_after", "", "true"));
