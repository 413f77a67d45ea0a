//! How people are told: they are locked, and what they are told is numbered under that lock.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::{Addressed, News};
use crate::company::Question;
use crate::{Error, Ring, Tx};

/// Locks people in the order of their identities, so that two who tell the same people wait for each other instead of both. Who
/// was shut out is told nothing.
///
/// # Errors
/// When the database fails.
pub async fn address(tx: &mut Tx, users: &[Uuid]) -> Result<Addressed, Error> {
    Ok(Addressed(tx.ask(Address(users.to_vec())).await?))
}

/// See [`address`].
struct Address(Vec<Uuid>);

impl Question for Address {
    type Answer = Vec<Uuid>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Address>,
    ) -> Result<Vec<Vec<Uuid>>, Error> {
        let all: Vec<Uuid> = questions.iter().flat_map(|one| one.0.iter().copied()).collect();
        let rows = sqlx::query(
            "SELECT id
               FROM users
              WHERE id = ANY($1) AND disabled_at IS NULL
              ORDER BY id
                FOR NO KEY UPDATE",
        )
        .bind(all)
        .fetch_all(connection)
        .await?;
        let locked: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let of = |one: &Address| locked.iter().copied().filter(|id| one.0.contains(id)).collect();
        Ok(questions.iter().map(of).collect())
    }
}

/// Tells people something, each of them once a cause, and their webhooks with them. Answers the notifications that are new.
///
/// # Errors
/// When the database fails.
pub async fn tell(tx: &mut Tx, to: &Addressed, news: &News<'_>) -> Result<Vec<Uuid>, Error> {
    let letters = to.0.iter().map(|user| Letter::new(tx.new_id(), *user, news)).collect();
    let mut told = Vec::new();
    for sent in tx.ask_all::<Letter>(letters).await?.into_iter().flatten() {
        told.push(sent.id);
        tx.rings(Ring::User(sent.user));
        if sent.due {
            tx.rings(Ring::Webhooks);
        }
    }
    Ok(told)
}

/// What one of them is told.
struct Letter {
    id: Uuid,
    user: Uuid,
    kind: String,
    cause: String,
    title: String,
    body: String,
    project_id: Option<Uuid>,
    allocation_id: Option<Uuid>,
    payment_session_id: Option<Uuid>,
    webhook_id: Option<Uuid>,
    now: Timestamp,
}

impl Letter {
    fn new(id: Uuid, user: Uuid, news: &News<'_>) -> Letter {
        Letter {
            id,
            user,
            kind: news.kind.to_owned(),
            cause: news.cause.to_owned(),
            title: news.title.to_owned(),
            body: news.body.to_owned(),
            project_id: news.project_id,
            allocation_id: news.allocation_id,
            payment_session_id: news.payment_session_id,
            webhook_id: news.webhook_id,
            now: news.now,
        }
    }
}

/// A letter that is new.
struct Sent {
    id: Uuid,
    user: Uuid,
    /// Whether a webhook is to be told.
    due: bool,
}

/// A statement of its own after the lock: it sees the numbers that were given before the lock was. What somebody was told before is left
/// out before the others are numbered, so that no number is left out.
const TELL: &str = "WITH letter AS MATERIALIZED (
        SELECT letter.*
          FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::uuid[], $9::uuid[],
                $10::uuid[], $11::timestamptz[])
               WITH ORDINALITY AS letter (id, user_id, kind, cause, title, body, project_id, allocation_id, payment_session_id,
                webhook_id, now, place)
     ), fresh AS MATERIALIZED (
        SELECT DISTINCT ON (letter.user_id, letter.cause) letter.*
          FROM letter
         WHERE (SELECT true
                  FROM notifications AS known
                 WHERE known.user_id = letter.user_id AND known.cause = letter.cause) IS NULL
         ORDER BY letter.user_id, letter.cause, letter.place
     ), told AS (
        INSERT INTO notifications (id, user_id, number, kind, cause, title, body, project_id, allocation_id, payment_session_id)
        SELECT id, user_id,
               coalesce((SELECT max(number) FROM notifications AS known WHERE known.user_id = fresh.user_id), 0)
               + row_number() OVER (PARTITION BY user_id ORDER BY place),
               kind, cause, title, body, project_id, allocation_id, payment_session_id
          FROM fresh
            ON CONFLICT (user_id, cause) DO NOTHING
        RETURNING id, user_id
     ), due AS (
        INSERT INTO webhook_deliveries (webhook_id, notification_id, queued_at, due_at)
        SELECT webhook.id, told.id, fresh.now, fresh.now
          FROM told
          JOIN fresh ON fresh.id = told.id
          JOIN webhooks AS webhook ON webhook.user_id = told.user_id AND webhook.deleted_at IS NULL
         WHERE fresh.webhook_id IS NULL OR webhook.id = fresh.webhook_id
        RETURNING notification_id
     )
     SELECT told.id, told.user_id, EXISTS (SELECT 1 FROM due WHERE due.notification_id = told.id)
       FROM told";

impl Question for Letter {
    /// None, if they were told before.
    type Answer = Option<Sent>;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        letters: Vec<Letter>,
    ) -> Result<Vec<Option<Sent>>, Error> {
        let mut query = sqlx::query(TELL);
        macro_rules! each {
            ($($value:expr),+ $(,)?) => {
                $(query = query.bind(letters.iter().map($value).collect::<Vec<_>>());)+
            };
        }
        each!(
            |one| one.id,
            |one| one.user,
            |one| one.kind.as_str(),
            |one| one.cause.as_str(),
            |one| one.title.as_str(),
            |one| one.body.as_str(),
            |one| one.project_id,
            |one| one.allocation_id,
            |one| one.payment_session_id,
            |one| one.webhook_id,
            |one| one.now.to_sqlx(),
        );
        let mut sent = Vec::new();
        for row in query.fetch_all(connection).await? {
            sent.push(Sent { id: row.try_get(0)?, user: row.try_get(1)?, due: row.try_get(2)? });
        }
        let mut of = |letter: &Letter| {
            let place = sent.iter().position(|sent| sent.id == letter.id)?;
            Some(sent.swap_remove(place))
        };
        Ok(letters.iter().map(&mut of).collect())
    }
}
