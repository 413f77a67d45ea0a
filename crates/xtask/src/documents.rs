//! The generated documents: what each of them is called, and its text. A test compares them with what is committed.

use lifecycle::render;
use store::{Options, Store};

use crate::server::{Server, TEMPLATE};

/// The lifecycles of all machines.
pub const LIFECYCLES: &str = "docs/generated/lifecycles.md";
/// The schema of the database.
pub const SCHEMA: &str = "docs/generated/schema.sql";

/// Tells the tests of these documents to write them anew instead of comparing them. They stand in the crates that make them,
/// so that a chore does not have to build the whole product.
pub const WRITE_VARIABLE: &str = "BERTH_WRITE_DOCUMENTS";
/// The crates with such tests, whose names all have [`WRITTEN_BY`] in them.
pub const WRITERS: [&str; 2] = ["control", "server"];
/// See [`WRITERS`].
pub const WRITTEN_BY: &str = "documents";

/// The generated documents of this crate with their text.
///
/// # Errors
/// When the database can't be asked for its schema.
pub fn all(server: &Server) -> anyhow::Result<Vec<(&'static str, String)>> {
    let schema = server.block_on(async {
        let store = Store::open(&server.url(TEMPLATE), Options::default()).await?;
        let schema = store.schema().await?;
        store.close().await;
        Ok::<_, store::Error>(schema)
    })?;
    Ok(vec![(LIFECYCLES, lifecycles()), (SCHEMA, schema_document(&schema))])
}

/// The pictures and matrices of all machines.
pub fn lifecycles() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/domain/src by `cargo xtask gen`. Do not edit. -->\n\n\
         # Lifecycles\n\n\
         How to read it. An arrow is an event that moves a row; several events between the same two statuses share one\n\
         arrow. In a matrix a cell in bold is where the event leads; a cell in italics leads nowhere and says why:\n\
         _duplicate_ (already so), _late_ (the world moved on), _bug_ (nobody should have said this). Checks are tried\n\
         in the order in which they stand, before the matrix; a report that fails one is superseded. Guards are\n\
         conditions on other rows, asked under the row's lock. Every move raises `seq` by one, sets `status_at`, and\n\
         adds a record to `lifecycle_log`.\n",
    );
    for table in domain::machines::tables() {
        page.push('\n');
        page.push_str(&render::machine(table));
    }
    page
}

/// The schema with its heading.
pub fn schema_document(schema: &str) -> String {
    format!(
        "-- Generated from the migrations and the machines by `cargo xtask gen`. Do not edit.\n\n{schema}"
    )
}

/// Says how `committed` differs from `fresh`, and what to do; nothing when it does not.
pub fn staleness(path: &str, committed: &str, fresh: &str) -> Option<String> {
    if committed == fresh {
        return None;
    }
    let difference = similar::TextDiff::from_lines(committed, fresh);
    let hunks = difference.unified_diff().header("committed", "fresh").to_string();
    Some(format!("{path} is stale. Run `cargo xtask gen` and commit it.\n{hunks}"))
}
