//! Money as it is read: balances with what they go for, usage by whatever it is summed by, the ledger line by line.

use domain::ids::AccountId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::http::money::{Account, ChargedWindow, LedgerLine, Spending, UsageBy, UsageSum};

use crate::ledger::{LINE, at, coded, may_be_at, read_line};
use crate::{Error, Store};

/// How many windows of a posting are told.
const WINDOWS_TOLD: i64 = 200;

/// What an account has, and what it spends at present.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The account.
    pub account: Account,
    /// At or under this its owner is warned.
    pub low_balance_threshold_minor: i64,
    /// Millionths of the currency's unit a second, over everything that runs.
    pub burn_micros_per_second: i64,
    /// How many allocations run.
    pub running: i64,
}

const ACCOUNT: &str = "account.id, owner.email, account.currency, account.balance_minor, account.status, account.status_at";

/// What an account has, and what it spends.
///
/// # Errors
/// When the database fails.
pub async fn standing(store: &Store, account: AccountId) -> Result<Option<Standing>, Error> {
    let statement = format!(
        "SELECT {ACCOUNT}, account.low_balance_threshold_minor, burning.rate, burning.records
           FROM accounts AS account
           LEFT JOIN users AS owner ON owner.id = account.owner_id
          CROSS JOIN LATERAL (
                SELECT coalesce(sum(record.gpus * coalesce(changed.price, record.price_micros_per_gpu_second)), 0)::bigint AS rate,
                       count(*) AS records
                  FROM usage_records AS record
                  LEFT JOIN LATERAL (
                       SELECT price_micros_per_gpu_second AS price
                         FROM allocation_prices
                        WHERE record.repriced AND allocation_id = record.allocation_id AND from_at <= clock_timestamp()
                        ORDER BY from_at DESC
                        LIMIT 1
                       ) AS changed ON true
                 WHERE record.account_id = account.id AND record.settled_at IS NULL AND record.status = 'open'
                ) AS burning
          WHERE account.id = $1"
    );
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(account.uuid())
        .fetch_optional(store.pool())
        .await?;
    let standing = |row: PgRow| {
        Ok(Standing {
            account: read_account(&row)?,
            low_balance_threshold_minor: row.try_get(6)?,
            burn_micros_per_second: row.try_get(7)?,
            running: row.try_get(8)?,
        })
    };
    row.map(standing).transpose()
}

/// Accounts after this one in the order of their identities, in that status or in any.
///
/// # Errors
/// When the database fails.
pub async fn list_accounts(
    store: &Store,
    status: Option<&str>,
    after: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Account>, Error> {
    let statement = format!(
        "SELECT {ACCOUNT}
           FROM accounts AS account
           LEFT JOIN users AS owner ON owner.id = account.owner_id
          WHERE ($1::text IS NULL OR account.status = $1) AND ($2::uuid IS NULL OR account.id > $2)
          ORDER BY account.id
          LIMIT $3"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(status)
        .bind(after)
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read_account).collect()
}

fn read_account(row: &PgRow) -> Result<Account, Error> {
    Ok(Account {
        id: row.try_get(0)?,
        owner: row.try_get(1)?,
        currency: row.try_get(2)?,
        balance_minor: row.try_get(3)?,
        status: coded(row, 4)?,
        status_at: at(row, 5)?,
    })
}

/// The account that pays for a project.
///
/// # Errors
/// When the database fails.
pub async fn payer_of(store: &Store, project: Uuid) -> Result<Option<AccountId>, Error> {
    let row = sqlx::query("SELECT account_id FROM projects WHERE id = $1")
        .bind(project)
        .fetch_optional(store.pool())
        .await?;
    let id: Option<Uuid> = row.map(|row| row.try_get(0)).transpose()?.flatten();
    Ok(id.map(AccountId))
}

/// Which usage is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whose.
    pub account: AccountId,
    /// Of which project alone.
    pub project: Option<Uuid>,
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Summed by what.
    pub by: UsageBy,
}

/// What was used, and what it cost; days in their order, everything else the dearest first.
///
/// # Errors
/// When the database fails.
pub async fn usage(store: &Store, asked: &Asked) -> Result<Vec<UsageSum>, Error> {
    let (key, name, order) = match asked.by {
        UsageBy::Day => {
            let day = "to_char(charged.window_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')";
            (day, day, "1")
        }
        UsageBy::Sku => ("record.sku", "coalesce(max(sku.name), record.sku)", "4 DESC, 1"),
        UsageBy::Project => {
            ("record.project_id::text", "coalesce(max(project.name), '')", "4 DESC, 1")
        }
        UsageBy::Allocation => {
            ("record.allocation_id::text", "coalesce(max(allocation.name), '')", "4 DESC, 1")
        }
    };
    let statement = format!(
        "SELECT {key}, {name}, (sum(charged.micros::bigint * record.gpus) / 1000000)::bigint,
                sum(charged.amount_minor)::bigint, coalesce(sum(given.amount_minor), 0)::bigint
           FROM usage_records AS record
           JOIN usage_windows AS charged
                ON charged.usage_record_id = record.id AND charged.window_at >= $2 AND charged.window_at < $3
           LEFT JOIN usage_credits AS given
                ON given.usage_record_id = charged.usage_record_id AND given.window_at = charged.window_at
           LEFT JOIN skus AS sku ON sku.code = record.sku
           LEFT JOIN projects AS project ON project.id = record.project_id
           LEFT JOIN allocations AS allocation ON allocation.id = record.allocation_id
          WHERE record.account_id = $1
            AND record.started_at < $3 AND coalesce(record.ended_at, 'infinity') >= $2
            AND ($4::uuid IS NULL OR record.project_id = $4)
          GROUP BY {key}
          ORDER BY {order}
          LIMIT 1000"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(asked.account.uuid())
        .bind(asked.from.to_sqlx())
        .bind(asked.until.to_sqlx())
        .bind(asked.project)
        .fetch_all(store.pool())
        .await?;
    let sum = |row: &PgRow| {
        Ok(UsageSum {
            key: row.try_get(0)?,
            name: row.try_get(1)?,
            gpu_seconds: row.try_get(2)?,
            charged_minor: row.try_get(3)?,
            given_back_minor: row.try_get(4)?,
        })
    };
    rows.iter().map(sum).collect()
}

/// The lines of an account before this number, the newest first, of that kind or of any.
///
/// # Errors
/// When the database fails.
pub async fn list_lines(
    store: &Store,
    account: AccountId,
    kind: Option<&str>,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<LedgerLine>, Error> {
    let statement = format!(
        "SELECT {LINE}
           FROM ledger_entries AS entry
           JOIN ledger_postings AS posting ON posting.id = entry.posting_id
          WHERE entry.account_id = $1
            AND ($2::text IS NULL OR posting.kind = $2)
            AND ($3::bigint IS NULL OR entry.number < $3)
          ORDER BY entry.number DESC
          LIMIT $4"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(account.uuid())
        .bind(kind)
        .bind(before)
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read_line).collect()
}

/// One line, if it is of this account.
///
/// # Errors
/// When the database fails.
pub async fn find_line(
    store: &Store,
    account: AccountId,
    posting: Uuid,
) -> Result<Option<LedgerLine>, Error> {
    let statement = format!(
        "SELECT {LINE}
           FROM ledger_entries AS entry
           JOIN ledger_postings AS posting ON posting.id = entry.posting_id
          WHERE entry.posting_id = $2 AND entry.account_id = $1"
    );
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(account.uuid())
        .bind(posting)
        .fetch_optional(store.pool())
        .await?;
    row.as_ref().map(read_line).transpose()
}

/// The windows behind a posting, of a charge or of what was given back, and how many there are. None when they are older than what is
/// kept.
///
/// # Errors
/// When the database fails.
pub async fn windows_of(store: &Store, posting: Uuid) -> Result<(Vec<ChargedWindow>, i64), Error> {
    let rows = sqlx::query(
        "SELECT record.allocation_id, allocation.name, record.sku, record.gpus, record.price_micros_per_gpu_second,
                charged.window_at, charged.micros::bigint, charged.amount_minor,
                EXISTS (SELECT 1
                          FROM usage_credits AS back
                         WHERE back.usage_record_id = charged.usage_record_id AND back.window_at = charged.window_at),
                record.started_at, record.opened_seq, node.name, charged.heartbeat_at, count(*) OVER ()
           FROM ledger_postings AS posting
          CROSS JOIN LATERAL (
                -- By its time as well, which tells the days apart.
                SELECT usage_record_id, window_at
                  FROM usage_windows
                 WHERE posting_id = posting.id
                   AND window_at >= date_trunc('minute', posting.from_at, 'UTC') AND window_at < posting.until_at
                UNION ALL
                SELECT usage_record_id, window_at FROM usage_credits WHERE posting_id = posting.id
                OFFSET 0
                ) AS named
          CROSS JOIN LATERAL (
                SELECT usage_record_id, window_at, micros, amount_minor, heartbeat_at
                  FROM usage_windows
                 WHERE usage_record_id = named.usage_record_id AND window_at = named.window_at
                OFFSET 0
                ) AS charged
           JOIN usage_records AS record ON record.id = charged.usage_record_id
           LEFT JOIN allocations AS allocation ON allocation.id = record.allocation_id
           LEFT JOIN nodes AS node ON node.id = record.node_id
          WHERE posting.id = $1
          ORDER BY charged.window_at, record.id
          LIMIT $2",
    )
    .bind(posting)
    .bind(WINDOWS_TOLD)
    .fetch_all(store.pool())
    .await?;
    let total = rows.first().map_or(Ok(0), |row| row.try_get(13))?;
    let window = |row: &PgRow| {
        Ok(ChargedWindow {
            allocation_id: row.try_get(0)?,
            allocation: row.try_get(1)?,
            sku: row.try_get::<Option<String>, _>(2)?.unwrap_or_default(),
            gpus: row.try_get(3)?,
            price_micros_per_gpu_second: row.try_get(4)?,
            window_at: at(row, 5)?,
            micros: row.try_get(6)?,
            amount_minor: row.try_get(7)?,
            given_back: row.try_get(8)?,
            opened_at: at(row, 9)?,
            opened_seq: row.try_get(10)?,
            node: row.try_get(11)?,
            heartbeat_at: may_be_at(row, 12)?,
        })
    };
    Ok((rows.iter().map(window).collect::<Result<_, Error>>()?, total))
}

/// What a project has cost this month, and may.
///
/// # Errors
/// When the database fails.
pub async fn spending(store: &Store, project: Uuid) -> Result<Option<Spending>, Error> {
    let row = sqlx::query(
        "SELECT project.id, account.currency, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM'),
                coalesce(spent.spent_minor, 0), project.spend_cap_minor
           FROM projects AS project
           LEFT JOIN accounts AS account ON account.id = project.account_id
           LEFT JOIN project_spending AS spent
                ON spent.project_id = project.id
               AND spent.month = (date_trunc('month', clock_timestamp(), 'UTC') AT TIME ZONE 'UTC')::date
          WHERE project.id = $1",
    )
    .bind(project)
    .fetch_optional(store.pool())
    .await?;
    let read = |row: PgRow| {
        Ok(Spending {
            project_id: row.try_get(0)?,
            currency: row.try_get(1)?,
            month: row.try_get(2)?,
            spent_minor: row.try_get(3)?,
            spend_cap_minor: row.try_get(4)?,
        })
    };
    row.map(read).transpose()
}
