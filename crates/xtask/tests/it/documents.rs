//! The generated documents are what the sources say.

use std::path::Path;

use xtask::documents;

#[test]
fn the_lifecycles_document_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = std::fs::read_to_string(root.join(documents::LIFECYCLES)).unwrap_or_default();
    if let Some(stale) =
        documents::staleness(documents::LIFECYCLES, &committed, &documents::lifecycles())
    {
        panic!("{stale}");
    }
}

#[tokio::test]
async fn the_schema_document_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = std::fs::read_to_string(root.join(documents::SCHEMA)).unwrap_or_default();
    let database = testkit::Database::new().await;
    let schema = database.store.schema().await.expect("the schema can be read");
    let fresh = documents::schema_document(&schema);
    database.remove().await;
    if let Some(stale) = documents::staleness(documents::SCHEMA, &committed, &fresh) {
        panic!("{stale}");
    }
}

#[test]
fn a_stale_document_says_what_differs_and_what_to_do() {
    let said = documents::staleness("docs/x.md", "one\ntwo\n", "one\n2\n").expect("it is stale");
    assert!(said.contains("docs/x.md is stale. Run `cargo xtask gen`"), "{said}");
    assert!(said.contains("-two") && said.contains("+2"), "{said}");
    assert_eq!(documents::staleness("docs/x.md", "same\n", "same\n"), None);
}
