//! The whole product with the real binary: up, an allocation through its life, an audit, kill, up again, down.

use std::net::TcpListener;

use serde_json::Value;
use testkit::Database;

use crate::berth::{Home, Ran, ran};

/// An installation on a database and ports of its own. It is taken down whatever becomes of the test.
pub(crate) struct Installation {
    pub(crate) home: Home,
    folder: String,
    url: String,
    api: String,
    gateway: String,
}

impl Installation {
    pub(crate) fn new(url: String) -> Installation {
        // Both are held at once, so that they differ.
        let free = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [api, gateway] = free.map(|held| held.local_addr().expect("it has one").to_string());
        let home = Home::new();
        let folder = home.path().join("place").display().to_string();
        Installation { home, folder, url, api, gateway }
    }

    pub(crate) fn folder(&self) -> String {
        self.folder.clone()
    }

    pub(crate) fn up(&self) -> Ran {
        self.up_with(&[])
    }

    /// [`Installation::up`], with these variables in its environment.
    pub(crate) fn up_with(&self, variables: &[(&str, &str)]) -> Ran {
        let mut command = self.home.command(&self.words());
        ran(command.envs(variables.iter().copied()).output().expect("the binary runs"))
    }

    /// What starts it.
    pub(crate) fn words(&self) -> [&str; 14] {
        [
            "up",
            "--detach",
            "--data",
            &self.folder,
            "--database",
            &self.url,
            "--api",
            &self.api,
            "--gateway",
            &self.gateway,
            "--nodes",
            "3",
            "--speed",
            "0",
        ]
    }

    pub(crate) fn ok(&self, words: &[&str]) -> Ran {
        let ran = self.home.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
        ran
    }

    pub(crate) fn down(&self) -> Ran {
        self.home.run(&["down", "--data", &self.folder()])
    }

    /// The process that runs, by what the status says.
    pub(crate) fn process(&self) -> String {
        let status = self.ok(&["status", "--data", &self.folder()]).out;
        let line = status.lines().find(|line| line.starts_with("process")).expect("it is named");
        line.split_whitespace().last().expect("it has a number").to_owned()
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

pub(crate) fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).expect("it is JSON and nothing else")
}

const CREATE: [&str; 8] =
    ["alloc", "create", "--sku", "h100.slice", "--gpus", "2", "--region", "eu-1"];

pub(crate) fn create(name: &str) -> Vec<&str> {
    CREATE.iter().copied().chain(["--name", name, "--wait", "--json"]).collect()
}

#[tokio::test]
async fn an_allocation_lives_and_ends_in_what_one_command_started() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    for said in
        [whole.api.as_str(), "demo@berth.local", "alloc create", "alloc timeline", "alloc release"]
    {
        assert!(up.out.contains(said), "{said} is not in {}", up.out);
    }
    assert_eq!(whole.up().code, 6, "a second one is told who was first");

    let made = json(&whole.ok(&create("first")));
    assert_eq!(made["status"], "active");
    assert!(made["access"]["port"].is_u64() && made["node"].is_string());
    let timeline = json(&whole.ok(&["alloc", "timeline", "first", "--json"]));
    assert!(timeline["items"].as_array().is_some_and(|items| items.len() >= 4), "{timeline}");
    assert!(whole.ok(&["alloc", "ssh", "first", "--print"]).out.starts_with("ssh -p "));

    // A process that is killed has lost nothing that it has answered.
    let killed = std::process::Command::new("kill").args(["-9", &whole.process()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(whole.down().code, 0, "this waits until it is gone");
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    assert_eq!(json(&whole.ok(&["alloc", "show", "first", "--json"]))["status"], "active");

    let released = json(&whole.ok(&["alloc", "release", "first", "--yes", "--wait", "--json"]));
    assert_eq!(released["status"], "released");
    let receipt = whole.ok(&["alloc", "receipt", "first", "--verify"]);
    assert!(receipt.err.contains("signature"), "{}", receipt.err);

    let audit = json(&whole.ok(&["--context", "operator", "audit", "--json"]));
    assert_eq!(audit["clean"], true);
    assert_eq!(whole.home.run(&["audit"]).code, 1, "a tenant may not");
    assert_eq!(whole.down().code, 0);
    assert_eq!(whole.home.run(&["whoami"]).code, 1, "nobody is there any more");
    let audit = json(&whole.ok(&["audit", "--database", &database.url(), "--json"]));
    assert_eq!(audit["clean"], true, "it can be asked without the API, too");
    database.remove().await;
}

#[tokio::test]
async fn a_fault_that_is_ordered_strikes_and_is_explained() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    let folder = whole.folder();
    let at = |words: &[&str]| whole.ok(&[words, &["--data", &folder]].concat());
    at(&["sim", "fault", "--fault", "fail", "--phase", "ssh_reachable", "--times", "1"]);
    let ran = whole.home.run(&create("sad"));
    assert_eq!(ran.code, 10, "{}{}", ran.out, ran.err);
    assert_eq!(json(&ran)["status_reason"], "ssh_not_ready");
    assert!(ran.err.contains("cloud-init"), "{}", ran.err);
    at(&["sim", "clear"]);
    // An agent that dies in the middle is started again, and goes on with what it had begun.
    at(&["sim", "fault", "--fault", "crash", "--phase", "vm_started", "--times", "1", "--after"]);
    let made = json(&whole.ok(&create("lucky")));
    assert_eq!(made["status"], "active");
    // An operator wipes a machine by hand, and is told what was there.
    let strange = whole.home.run(&["sim", "wipe", "nobody", "--data", &folder]);
    assert_eq!(strange.code, 5, "{}", strange.err);
    assert!(strange.err.contains("eu-1-h100-1"), "{}", strange.err);
    let wiped = at(&["sim", "wipe", "eu-1-h100-1"]).err;
    assert!(wiped.contains("is gone") && wiped.contains("is wiped"), "{wiped}");
    assert!(at(&["sim", "wipe", "eu-1-h100-1"]).err.contains("nothing of anybody"));
    assert_eq!(whole.down().code, 0);
    database.remove().await;
}

/// Everybody finds out why the group `training` of that id is as it is, and what belongs to it.
fn is_explained(whole: &Installation, group: &str) {
    let members = json(&whole.ok(&["alloc", "list", "--group", "training", "--json"]));
    assert_eq!(members.as_array().map(Vec::len), Some(3));
    assert!(whole.ok(&["alloc", "show", "training-1"]).out.contains(group));
    for words in [["explain", "training"], ["explain", group]] {
        let told = whole.ok(&words).out;
        assert!(
            told.contains("training is active") && told.contains("training-3, optional"),
            "{told}"
        );
    }
    assert!(whole.ok(&["explain", "training-2"]).out.starts_with("active since"), "one of them");
    assert_eq!(whole.ok(&["group", "explain", "training"]).out, whole.ok(&["explain", group]).out);
    assert_eq!(whole.home.run(&["explain", "nobody"]).code, 5);
    let admin = |words: &[&str]| whole.ok(&[&["--context", "operator", "admin"], words].concat());
    assert!(admin(&["groups"]).out.contains("training"));
    let told = admin(&["explain", "training-1"]).out;
    assert!(told.contains("Machine") && told.contains("eu-1-"), "{told}");
    assert!(admin(&["explain", group]).out.contains("Last steps"), "{told}");
}

#[tokio::test]
async fn a_group_is_had_used_and_given_back_by_its_commands() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    for empty in [["group", "list"], ["app", "list"]] {
        assert!(whole.ok(&empty).err.contains("create"), "an empty list teaches nothing");
    }
    let group = ["group", "create", "--name", "training", "--region", "eu-1"];
    let members = ["--member", "h100.slice:2:2", "--optional", "h100.slice:1@eu-1"];
    let made = whole.ok(&[&group[..], &members, &["--wait", "--json"]].concat());
    assert!(made.err.contains("training-2: 2 × h100.slice, active"), "{}", made.err);
    let made = json(&made);
    assert_eq!(
        (&made["status"], made["members"].as_array().map(Vec::len)),
        (&"active".into(), Some(3))
    );
    assert_eq!(made["members"][2]["required"], false);
    assert!(whole.ok(&["group", "list"]).out.contains("training"));
    let shown = whole.ok(&["group", "show", "training"]).out;
    assert!(shown.contains("training-3") && shown.contains("ssh -p "), "{shown}");

    let app = ["app", "create", "cluster", "--app", "ray", "--group", "training"];
    let app = whole.ok(&[&app[..], &["--role", "training-1=head", "--json"]].concat());
    assert_eq!(json(&app)["members"][0]["role"], "head");
    assert!(whole.ok(&["app", "list"]).out.contains("active"));
    assert!(whole.ok(&["app", "show", "cluster"]).out.contains("training-1, which is active"));

    let roles = ["app", "roles", "cluster", "--role", "training-2=head", "--json"];
    let changed = json(&whole.ok(&roles));
    assert_eq!(changed["members"].as_array().map(Vec::len), Some(1), "who is not named has none");
    assert_eq!(changed["members"][0]["name"], "training-2");

    is_explained(&whole, made["id"].as_str().expect("an id"));

    let much = whole.home.run(&["group", "create", "--member", "h100.slice:8:32@eu-1"]);
    assert_eq!(much.code, 7, "{}", much.err);
    assert!(much.err.contains("ll 32 members"), "{}", much.err);
    assert_eq!(whole.home.run(&["group", "create", "--member", "h100.slice:8"]).code, 2, "where?");
    assert_eq!(whole.home.run(&["group", "show", "nobody"]).code, 5);

    let release = ["group", "release", "training", "--yes"];
    let released = json(&whole.ok(&[&release[..], &["--wait", "--json"]].concat()));
    assert_eq!(released["status"], "released");
    assert_eq!(whole.home.run(&release).code, 6, "there is nothing left");
    assert!(whole.ok(&["app", "end", "cluster"]).out.contains("which is released"));
    let audit = json(&whole.ok(&["--context", "operator", "audit", "--json"]));
    assert_eq!(audit["clean"], true);
    assert_eq!(whole.down().code, 0);
    database.remove().await;
}

#[tokio::test]
async fn both_shapes_are_restarted_and_a_machine_that_did_not_reboot_is_told_of() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    let folder = whole.folder();
    let at = |words: &[&str]| whole.ok(&[words, &["--data", &folder]].concat());
    let restart =
        |name: &str| whole.home.run(&["alloc", "restart", name, "--yes", "--wait", "--json"]);
    whole.ok(&create("slice"));
    let metal = ["alloc", "create", "--sku", "h100.metal", "--gpus", "8", "--region", "eu-1"];
    whole.ok(&[&metal[..], &["--name", "metal", "--wait", "--json"]].concat());
    for name in ["slice", "metal"] {
        let ran = restart(name);
        assert_eq!(ran.code, 0, "{name}: {}{}", ran.out, ran.err);
        assert_eq!(json(&ran)["status"], "active", "{name}");
    }
    at(&["sim", "fault", "--fault", "same_boot"]);
    let ran = restart("metal");
    assert_ne!(ran.code, 0);
    let shown = json(&whole.ok(&["alloc", "show", "metal", "--json"]));
    assert_eq!(
        (&shown["status"], &shown["status_reason"]),
        (&"restart_failed".into(), &"node_did_not_return".into())
    );
    at(&["sim", "clear"]);
    assert_eq!(json(&restart("metal"))["status"], "active", "a retry works");
    assert_eq!(whole.down().code, 0);
    database.remove().await;
}
