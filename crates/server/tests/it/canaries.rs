//! Secrets that were planted appear in their own column and nowhere else: not in another column, a log, an answer, a
//! timeline, an error, a metric.

use std::io;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::json;
use testkit::Act;
use tracing_subscriber::fmt::MakeWriter;
use wire::node::{FailureReason, JoinToken};

use crate::api::{Api, told};

/// Everything that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// A key that was never used anywhere: its comment is one canary, the key itself another.
const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIBcanaryCanaryCanaryCanaryCanaryCanaryCanary";
const COMMENT: &str = "canary-comment-4711@home";

#[tokio::test]
async fn planted_secrets_are_in_their_own_column_and_nowhere_else() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    // This test has a process of its own, or at least nobody else's log is worse for being heard here.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let api = Api::open().await;
    let mut seen: Vec<String> = Vec::new();

    let key = json!({"name": "mine", "public_key": format!("ssh-ed25519 {KEY} {COMMENT}")});
    let made = api.send("POST", "/api/v1/ssh-keys", &api.tenant, &key).await;
    assert_eq!(made.status, 201, "{made:?}");
    seen.push(made.text.clone());
    let node = json!({"name": "canary", "region": "eu-1", "sku": "h100.slice", "slots": [0]});
    let fresh = api.send("POST", "/api/v1/admin/nodes", &api.operator, &node).await.json();
    let token = fresh["join_token"].as_str().expect("a token");
    let join = JoinToken::parse(token).expect("it is one").secret;

    let mut wish = api.wish(1);
    wish["ssh_key_ids"] = json!([made.json()["id"]]);
    for act in [Act::Succeed, Act::Fail(FailureReason::SshNotReady)] {
        api.house.first_node().will(&[act]);
        let made = api.send("POST", "/api/v1/allocations", &api.tenant, &wish).await;
        assert_eq!(made.status, 201, "{made:?}");
        api.house.settle().await;
        let id = made.json()["id"].as_str().expect("an id").to_owned();
        for path in
            [format!("/api/v1/allocations/{id}"), format!("/api/v1/allocations/{id}/timeline")]
        {
            seen.push(api.get(&path, &api.tenant).await.text);
        }
        let path = format!("/api/v1/admin/allocations/{id}/timeline");
        seen.push(api.get(&path, &api.operator).await.text);
        let path = format!("/api/v1/allocations/{id}/release");
        seen.push(api.send("POST", &path, &api.tenant, &json!({})).await.text);
        api.house.settle().await;
    }
    // Errors: the secrets in places where they do not belong.
    for body in [json!({"name": KEY, "public_key": COMMENT}), json!({"nmae": join})] {
        seen.push(api.send("POST", "/api/v1/ssh-keys", &api.tenant, &body).await.text);
    }
    seen.push(api.get(&format!("/api/v1/allocations?cursor={join}"), &api.tenant).await.text);
    seen.push(api.get("/api/v1/me", &format!("berth_{join}")).await.text);
    seen.push(api.all().await.to_string());
    seen.push(told(api.request("GET", "/metrics", None)).await.text);
    seen.push(String::from_utf8_lossy(&log.0.lock().expect("nobody panicked")).into_owned());

    let secrets = [("comment", COMMENT), ("key", KEY), ("join", &join), ("token", &api.tenant)];
    for (name, secret) in secrets {
        for text in &seen {
            assert!(!text.contains(secret), "the {name} is in {}", excerpt(text, secret));
        }
    }
    no_private_key_is_shown(&api, &seen).await;
    let found = |secret: &str| api.house.columns_with(secret.to_owned());
    assert_eq!(found(COMMENT).await, [""; 0]);
    assert_eq!(found(&join).await, [""; 0]);
    assert_eq!(found(&api.tenant).await, [""; 0]);
    let of_key =
        ["allocations.ssh_keys", "node_tasks.envelope", "node_tasks.params", "ssh_keys.public_key"];
    assert_eq!(found(KEY).await, of_key);
    api.close().await;
}

/// The keys of the installation are in their column, and were said nowhere.
async fn no_private_key_is_shown(api: &Api, seen: &[String]) {
    let keys = api.house.private_keys().await;
    assert!(keys.len() >= 4, "authority, tasks, receipts, cursors");
    for key in &keys {
        // As it would be written: in hexadecimal, or in either base64.
        let bytes: Vec<u8> = (0..key.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&key[at..at + 2], 16).expect("hex"))
            .collect();
        for spelt in [key.clone(), STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            assert!(seen.iter().all(|text| !text.contains(&spelt)), "a private key is shown");
        }
        assert_eq!(api.house.columns_with(key.clone()).await, ["installation_keys.private"]);
    }
}

fn excerpt(text: &str, secret: &str) -> String {
    let at = text.find(secret).unwrap_or(0);
    text.chars().skip(at.saturating_sub(200)).take(400).collect()
}
