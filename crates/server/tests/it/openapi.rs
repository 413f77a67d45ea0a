//! The documents are fresh, and say of the doors what is so.

use std::collections::BTreeSet;
use std::path::Path;

use domain::policy::Permission;
use server::documents;
use server::doors::routes;

use crate::api::{Api, described, document, example, told};

#[test]
fn the_documents_of_the_doors_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated");
    let fresh = [
        ("openapi.json", documents::openapi()),
        ("permissions.txt", documents::permissions()),
        ("problems.md", documents::problems()),
    ];
    for (name, text) in fresh {
        let place = folder.join(name);
        if std::env::var_os("BERTH_WRITE_DOCUMENTS").is_some() {
            std::fs::write(&place, &text).expect("it can be written");
        }
        let committed = std::fs::read_to_string(&place).unwrap_or_default();
        assert!(committed == text, "docs/generated/{name} is stale: run `cargo xtask gen`");
    }
}

#[test]
fn every_door_is_described_once_with_who_may_go_through_it() {
    let document = document();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")));
    let mut names = BTreeSet::new();
    let doors = routes::doors();
    for door in &doors {
        let described = described(&document, door);
        let name = described["operationId"].as_str().expect("it has a name").to_owned();
        assert!(names.insert(name), "{door:?} has the name of another");
        assert!(described["summary"].as_str().is_some_and(|text| text.len() > 8), "{door:?}");
        assert_eq!(described["tags"].as_array().map(Vec::len), Some(1), "{door:?}");
        let public = door.permission == Permission::Public;
        assert_eq!(described.get("security").is_none(), public, "{door:?}");
        let takes_body = described.get("requestBody").is_some();
        assert_eq!(takes_body, example(&document, door).is_some(), "{door:?} has no example");
        let parts = door.path.matches('{').count();
        let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
        let of_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
        assert_eq!(of_path.count(), parts, "{door:?} does not say what stands in its path");
    }
    let paths = document["paths"].as_object().expect("paths");
    let methods: usize = paths.values().map(|item| item.as_object().map_or(0, |m| m.len())).sum();
    assert_eq!(methods, doors.len(), "the document and the table differ");
}

#[test]
fn everything_that_the_document_refers_to_is_in_it() {
    let document = document();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(document.pointer(pointer).is_some(), "{pointer} is missing");
    }
}

#[tokio::test]
async fn the_examples_are_understood_and_the_document_is_served() {
    let api = Api::open().await;
    let document = document();
    let served = told(api.request("GET", "/api/v1/openapi.json", None)).await;
    assert_eq!(served.json(), document);
    for door in routes::doors() {
        let Some(example) = example(&document, &door) else { continue };
        let path = door.path.replace("{id}", &api.house.project.to_string());
        let told = api.send(door.method, &path, &api.operator, &example).await;
        assert!(![400, 415].contains(&told.status.as_u16()), "{door:?}: {told:?}");
        if told.status == 422 {
            let problem = told.problem();
            let misread = |detail: &str| {
                ["unknown field", "is missing", "the type", "the value"]
                    .iter()
                    .any(|start| detail.starts_with(start))
            };
            assert!(
                !problem.errors.iter().any(|fault| misread(&fault.detail)),
                "{door:?}: {problem:?}"
            );
        }
    }
    api.close().await;
}

#[tokio::test]
async fn what_is_alive_and_what_is_ready_can_be_asked_by_anybody() {
    let api = Api::open().await;
    for path in ["/healthz", "/readyz"] {
        let told = told(api.request("GET", path, None)).await;
        assert_eq!((told.status.as_u16(), told.json()["status"].as_str()), (200, Some("ok")));
    }
    let metrics = told(api.request("GET", "/metrics", None)).await;
    assert!(metrics.header("content-type").starts_with("text/plain"), "{metrics:?}");
    assert!(metrics.text.contains("berth_http_request_seconds"), "{metrics:?}");
    api.house.ctx.store.close().await;
    let told = told(api.request("GET", "/readyz", None)).await;
    assert_eq!(told.refusal(), (503, "unavailable".to_owned()));
    assert!(told.problem().detail.contains("database"), "{told:?}");
    api.close().await;
}
