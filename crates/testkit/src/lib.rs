//! What tests stand on: a database of their own from a template, rows to begin with, and the whole house.

#![expect(clippy::expect_used, reason = "a test that can't be set up has failed, and says why")]
#![expect(
    clippy::missing_panics_doc,
    reason = "everything here panics when it can't do what it says"
)]

mod behind;
mod house;
mod money;
mod nats;
pub mod packing;
mod payments;
mod plans;
mod pulse;
mod redelivery;
mod rows;
mod snapshot;
mod statements;
mod tamper;
mod temporal;
mod turnstile;
mod worker;

use std::env;

use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgPool};
use store::{Options, Store};
use uuid::Uuid;

pub use house::{
    Act, CLEAN, Charging, FUNDS_MINOR, House, Ordered, ScriptedNode, Step, envelope_of,
};
pub use nats::NatsServer;
pub use payments::PaymentEvent;
pub use plans::{Explained, Plans};
pub use pulse::Inventory;
pub use rows::{Fixture, actor, place};
pub use snapshot::{Change, Snapshot};
pub use statements::Statements;
pub use temporal::TemporalServer;
pub use turnstile::{Death, Process, Turnstile};
pub use worker::{DATABASE_VARIABLE, POLICIES_VARIABLE, WORKER_VARIABLE};

/// Names the server whose template every test's database is made from. `cargo xtask test` sets it.
pub const SERVER_VARIABLE: &str = "BERTH_TEST_SERVER";
/// The migrated database that is copied for every test; `cargo xtask test` makes it.
pub const TEMPLATE: &str = "berth_template";

/// A program that tests run beside the product: on the path, or where `scripts/install-missing` puts it.
pub fn tool(name: &str) -> std::path::PathBuf {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = here.ancestors().nth(2).map(|root| root.join(".tools/bin").join(name));
    installed.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

/// A fresh identity.
#[expect(clippy::disallowed_methods, reason = "tests make identities too")]
pub fn new_id() -> Uuid {
    Uuid::now_v7()
}

/// A database of one test's own, migrated, with nothing in it.
pub struct Database {
    /// As the product sees it.
    pub store: Store,
    /// As somebody with a terminal sees it.
    pub sql: PgPool,
    server: String,
    name: String,
}

impl Database {
    /// Makes one.
    pub async fn new() -> Database {
        let server = env::var(SERVER_VARIABLE).unwrap_or_else(|_| {
            panic!(
                "{SERVER_VARIABLE} is not set: run the tests with `make test` or `cargo xtask test`"
            )
        });
        let name = format!("t_{}", new_id().simple());
        let mut admin = PgConnection::connect(&url(&server, "postgres"))
            .await
            .expect("the test server answers");
        // The name is ours, made of hexadecimal digits. Files are copied in a fifth of the time in which they are logged.
        let create = format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut admin)
            .await
            .expect("the template can be copied");
        admin.close().await.expect("the connection closes");
        let store =
            Store::open(&url(&server, &name), Options::default()).await.expect("the store opens");
        let sql = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy(&url(&server, &name))
            .expect("the address is well-formed");
        Database { store, sql, server, name }
    }

    /// The same database opened once more, with a setting of Postgres that differs.
    pub async fn reopened(&self, setting: &str, value: &str) -> Store {
        let address = format!("{}&options=-c%20{setting}%3D{value}", self.url());
        Store::open(&address, Options::default()).await.expect("the store opens")
    }

    /// Its address.
    pub fn url(&self) -> String {
        url(&self.server, &self.name)
    }

    /// Ends every connection that the product has to it, as an operator can; answers how many there were.
    pub async fn end_connections(&self) -> i64 {
        sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid))
               FROM pg_stat_activity
              WHERE application_name = 'berth' AND datname = current_database()",
        )
        .fetch_one(&self.sql)
        .await
        .expect("they are ended")
    }

    /// Ends every connection and drops the database.
    pub async fn remove(self) {
        self.store.close().await;
        self.sql.close().await;
        let mut admin = PgConnection::connect(&url(&self.server, "postgres"))
            .await
            .expect("the server answers");
        sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)))
            .execute(&mut admin)
            .await
            .expect("the database can be dropped");
    }
}

/// `server` is an address with `{database}` where the name of the database goes.
fn url(server: &str, database: &str) -> String {
    server.replace("{database}", database)
}
