//! What only the owner of a database can do to it: look at anything, and change it with every trigger off.

use sqlx::AssertSqlSafe;

use crate::Database;

impl Database {
    /// Does these as somebody who has switched every trigger off. Each must find something.
    ///
    /// # Panics
    /// When the database refuses one, or one finds nothing.
    pub async fn tamper<S: AsRef<str>>(&self, statements: &[S]) {
        let mut sql = self.sql.acquire().await.expect("it connects");
        let off = "SET session_replication_role = replica";
        sqlx::query(off).execute(&mut *sql).await.expect("an owner may do this");
        for statement in statements.iter().map(AsRef::as_ref) {
            // Written by a test.
            let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut *sql).await;
            let rows = done.unwrap_or_else(|error| panic!("{statement}: {error}")).rows_affected();
            assert!(rows > 0, "{statement} found nothing");
        }
        let on = "SET session_replication_role = origin";
        sqlx::query(on).execute(&mut *sql).await.expect("an owner may do this");
    }

    /// Whether the database lets this be done, with its triggers on.
    pub async fn lets(&self, statement: &str) -> bool {
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&self.sql).await.is_ok()
    }

    /// The one number that a query answers.
    ///
    /// # Panics
    /// When it answers none.
    pub async fn number(&self, query: &str) -> i64 {
        let asked = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&self.sql).await;
        asked.unwrap_or_else(|error| panic!("{query}: {error}"))
    }
}
