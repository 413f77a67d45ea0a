//! What a restart leaves alone, row by row: every table is compared before and after, and what may differ is named here.

use std::collections::{BTreeMap, BTreeSet};

use control::account::ssh_keys;
use control::{allocation_group, app_instance};
use domain::machines::allocation::Status;
use testkit::{Act, Change, House, Snapshot};
use uuid::Uuid;
use wire::http::account::NewSshKey;
use wire::http::allocation_groups::{NewGroup, NewMember};
use wire::http::app_instances::{NewAppInstance, NewAppMember};
use wire::node::FailureReason;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIONoj+DjRgs4ysgCkrssa1Zg1bdxWd8wA2Zl1YfDBlzg";
const SHAPES: [(&str, i16); 2] = [("h100.slice", 2), ("h100.metal", 8)];

/// What a tenant has: these must not differ in a single column, whatever becomes of a restart.
const UNTOUCHED: [&str; 9] = [
    "app_instance_members",
    "app_instances",
    "claims",
    "node_agents",
    "project_members",
    "release_receipts",
    "slots",
    "ssh_keys",
    "storage_attachments",
];

/// Which columns of which row a restart that ended well has moved for good: it has another operation, and two more steps.
const OF_THE_ALLOCATION: [&str; 3] = ["operation_id", "seq", "status_at"];
/// A group is not degraded by a restart, only by one that failed, and then it is active again in the end.
const OF_ITS_GROUP: [&str; 2] = ["seq", "status_at"];

/// Where a restart adds rows: what was ordered, what happened, who wanted it, how it was passed on, who was told.
const RECORDS: [&str; 10] = [
    "audit_entries",
    "audit_unlinked",
    "consumed_events",
    "lifecycle_log",
    "node_task_events",
    "node_tasks",
    "notifications",
    "outbox_events",
    "usage_records",
    "workflow_runs",
];

/// Which columns have moved, of which allocation or group.
type Moved = BTreeMap<Uuid, &'static [&'static str]>;

/// A group of two with everything that hangs on it.
struct Furnished {
    house: House,
    group: Uuid,
    /// The member that is restarted.
    member: Uuid,
}

impl Furnished {
    async fn open((sku, gpus): (&str, i16)) -> Furnished {
        let mut house = House::open().await;
        for _ in 0..2 {
            house.node(sku, &[0, 0, 0, 0, 1, 1, 1, 1]).await;
        }
        for node in house.nodes() {
            house.beat(node).await;
        }
        let new = NewSshKey { name: "laptop".to_owned(), public_key: KEY.to_owned() };
        let key = ssh_keys::create(&house.ctx, &house.tenant, &new, None).await.expect("a key");
        let asked = NewGroup {
            project_id: house.project,
            name: Some("pair".to_owned()),
            ssh_key_ids: vec![key.body.id],
            members: vec![NewMember {
                sku: sku.to_owned(),
                gpus,
                region: "eu-1".to_owned(),
                image: None,
                name: None,
                required: None,
                ssh_key_ids: None,
                count: Some(2),
            }],
        };
        let key = house.key("create_allocation_group");
        let made = allocation_group::create::request(&house.ctx, &house.tenant, &asked, &key).await;
        let group = made.expect("it fits").body;
        house.settle().await;
        let member = group.members[1].id;
        let app = NewAppInstance {
            project_id: house.project,
            name: "cluster".to_owned(),
            app: "ray".to_owned(),
            allocation_id: None,
            group_id: Some(group.id),
            members: vec![NewAppMember { allocation_id: member, role: "head".to_owned() }],
        };
        app_instance::create(&house.ctx, &house.tenant, &app, None).await.expect("an application");
        for member in &group.members {
            assert_eq!(house.status(member.id).await, Status::Active);
            house.mount(member.id).await;
        }
        house.settle().await;
        Furnished { house, group: group.id, member }
    }

    async fn snapshot(&self) -> Snapshot {
        self.house.database.snapshot().await
    }

    /// Restarts the member, and its machine does this; in which status that ends.
    async fn restart(&self, act: Act) -> Status {
        for node in self.house.nodes() {
            node.will(&[act]);
        }
        self.house.restart(self.member).await.expect("asked");
        self.house.settle().await;
        for node in self.house.nodes() {
            node.forget_script();
        }
        self.house.status(self.member).await
    }

    /// Nothing that the tenant has differs, only records are new, and of old rows these columns of these rows have moved.
    fn assert_only(&self, changes: &BTreeSet<Change>, moved: &Moved) {
        let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Added { table, key } => {
                    assert!(RECORDS.contains(&table.as_str()), "{key} was added to {table}");
                }
                Change::Removed { table, key } => panic!("{key} is gone from {table}"),
                // Nobody pays for a machine that did not come back: its stretch ends, and another begins when it has.
                Change::Moved { table, .. } if table == "usage_records" => {
                    assert!(moved.contains_key(&self.group), "a restart goes on in its stretch");
                }
                Change::Moved { table, key, column } => {
                    assert!(!UNTOUCHED.contains(&table.as_str()), "{table} {key}: {column}");
                    found.entry(format!("{table} {key}")).or_default().insert(column);
                }
            }
        }
        let named = |(id, columns): (&Uuid, &&[&'static str])| {
            let table = if *id == self.group { "allocation_groups" } else { "allocations" };
            (format!("{table} [\"{id}\"]"), columns.iter().copied().collect())
        };
        let expected: BTreeMap<String, BTreeSet<&str>> = moved.iter().map(named).collect();
        assert_eq!(found, expected);
    }
}

/// There is something to compare: no table that a tenant's things are in is empty, but for the proof of a release.
fn assert_furnished(before: &Snapshot) {
    for table in UNTOUCHED {
        let rows = before.of(table).len();
        assert!(rows > 0 || table == "release_receipts", "there is nothing in {table}");
    }
    let keyed =
        before.of("allocations").iter().all(|row| row["ssh_keys"] == serde_json::json!([KEY]));
    assert!(keyed, "the machines know the keys");
    let mounted = |row: &&serde_json::Map<_, serde_json::Value>| row["status"] == "mounted";
    assert!(before.of("storage_attachments").iter().all(mounted));
    assert!(before.of("allocations").iter().all(|row| !row["group_id"].is_null()));
}

#[tokio::test]
async fn a_restart_of_either_shape_leaves_every_row_as_it_was_but_for_its_steps() {
    for shape in SHAPES {
        let furnished = Furnished::open(shape).await;
        let before = furnished.snapshot().await;
        assert_furnished(&before);
        assert_eq!(furnished.restart(Act::Succeed).await, Status::Active, "{shape:?}");
        let changes = before.changes_to(&furnished.snapshot().await);
        let moved = BTreeMap::from([(furnished.member, &OF_THE_ALLOCATION[..])]);
        furnished.assert_only(&changes, &moved);
        let tasks = changes.iter().filter(
            |change| matches!(change, Change::Added { table, .. } if table == "node_tasks"),
        );
        assert_eq!(tasks.count(), 1, "one order, for the one that was restarted");
        furnished.house.close().await;
    }
}

#[tokio::test]
async fn a_restart_that_fails_and_one_that_follows_leave_every_row_as_it_was_but_for_their_steps() {
    let acts = [
        Act::KeepBoot,
        Act::Fail(FailureReason::StaleFence),
        Act::ComeUpAndFail(FailureReason::MountsNotReady),
    ];
    for shape in SHAPES {
        let furnished = Furnished::open(shape).await;
        let before = furnished.snapshot().await;
        assert_furnished(&before);
        for act in acts {
            assert_eq!(furnished.restart(act).await, Status::RestartFailed, "{shape:?} {act:?}");
            let changes = before.changes_to(&furnished.snapshot().await);
            let failed: &'static [&'static str] =
                &["operation_id", "reason", "seq", "status", "status_at"];
            let degraded: &'static [&'static str] = &["seq", "status", "status_at"];
            let moved = BTreeMap::from([(furnished.member, failed), (furnished.group, degraded)]);
            furnished.assert_only(&changes, &moved);
        }
        assert_eq!(furnished.restart(Act::Succeed).await, Status::Active, "{shape:?}");
        let changes = before.changes_to(&furnished.snapshot().await);
        let moved = BTreeMap::from([
            (furnished.member, &OF_THE_ALLOCATION[..]),
            (furnished.group, &OF_ITS_GROUP[..]),
        ]);
        furnished.assert_only(&changes, &moved);
        furnished.house.close().await;
    }
}
