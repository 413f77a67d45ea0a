//! People, what they ask for, and requests that are answered once.

use domain::policy::{ProjectRole, Scope};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::audit_log::{self, Answering, NewEntry};
use store::idempotency::{self, OwnKey, StoredAnswer, Taken};
use store::projects::{self, Change, NewProject};
use store::terms::{self, Asked};
use store::{Error, Store, Tx, api_tokens, catalogue, prune, ssh_keys, users};
use testkit::{Database, new_id};
use uuid::Uuid;
use wire::http::catalogue::{Image, Region, Shape};

use crate::sessions::overtaken;

async fn user(database: &Database, email: &str) -> Uuid {
    let id = new_id();
    let new =
        users::NewUser { id, email, name: "Somebody", operator: false, password_hash: Some("$h") };
    let made = database.in_transaction(async |tx| users::insert(tx, &new).await).await;
    assert!(made.expect("a user can be made"), "{email} is taken");
    id
}

async fn project(database: &Database, admin: Uuid) -> Uuid {
    let new = NewProject { id: new_id(), name: "a project", admin, account: None };
    let made = database.in_transaction(async |tx| projects::insert(tx, new).await).await;
    made.expect("a project can be made").id
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_763_236_800 + seconds).expect("it is a moment")
}

/// A key that was good since the beginning of the test's time.
async fn take(tx: &mut Tx, key: OwnKey, body: u8) -> Result<Taken, Error> {
    idempotency::take(tx, key, &[body; 32], at(0), at(-60)).await
}

/// As a mutation ends: with its entry.
async fn answer(
    tx: &mut Tx,
    key: OwnKey,
    status: u16,
    body: Option<&serde_json::Value>,
) -> Result<bool, Error> {
    let entry = NewEntry { role: "user", action: "test", outcome: "done", ..NewEntry::default() };
    let body = body.cloned();
    audit_log::append_answering(tx, entry, Answering { key, status, body }).await
}

fn key(principal: Uuid) -> OwnKey {
    OwnKey { principal, route: "allocations.create", key: "a key".to_owned() }
}

#[tokio::test]
async fn an_address_is_one_users_whatever_its_case() {
    let database = Database::new().await;
    let id = user(&database, "Ada@example.org").await;
    let found = users::find_by_email(&database.store, "ada@EXAMPLE.org").await;
    let found = found.expect("it answers").expect("she is there");
    assert_eq!((found.user.id, found.password_hash.as_deref()), (id, Some("$h")));
    let again = users::NewUser {
        id: new_id(),
        email: "ADA@example.org",
        name: "Another",
        operator: true,
        password_hash: None,
    };
    let made = database.in_transaction(async |tx| users::insert(tx, &again).await).await;
    assert!(!made.expect("it answers"), "the address is taken");
    assert!(!users::load(&database.store, id).await.expect("she is there").operator);
    assert!(users::load(&database.store, new_id()).await.is_err(), "there is nobody to load");
    database.remove().await;
}

#[tokio::test]
async fn a_second_request_waits_for_the_first_and_gets_its_answer() {
    let database = Database::new().await;
    let principal = new_id();
    let mut first = database.store.begin().await.expect("a transaction begins");
    assert_eq!(take(&mut first, key(principal), 1).await.expect("it answers"), Taken::Free);
    let body = json!({"id": "one", "nothing": null});
    let answered = answer(&mut first, key(principal), 201, Some(&body)).await;
    assert!(answered.expect("it answers"));
    let second = database.in_transaction(async |tx| take(tx, key(principal), 2).await);
    let (known, ended) = overtaken(&database, second, first.commit()).await;
    ended.expect("the first commits");
    let answer = StoredAnswer { fingerprint: vec![1; 32], status: 201, body: Some(body) };
    assert_eq!(known.expect("it answers"), Taken::Answered(answer));
    database.remove().await;
}

#[tokio::test]
async fn a_request_that_was_undone_leaves_its_key_free() {
    let database = Database::new().await;
    let principal = new_id();
    let mut first = database.store.begin().await.expect("a transaction begins");
    assert_eq!(take(&mut first, key(principal), 1).await.expect("it answers"), Taken::Free);
    let second = database.in_transaction(async |tx| take(tx, key(principal), 2).await);
    let (taken, ended) = overtaken(&database, second, first.rollback()).await;
    ended.expect("the first is undone");
    assert_eq!(taken.expect("it answers"), Taken::Free);
    // The second has committed without an answer, as a refusal does.
    let third = database.in_transaction(async |tx| {
        let taken = take(tx, key(principal), 3).await?;
        assert!(answer(tx, key(principal), 204, None).await?, "it is ours");
        Ok(taken)
    });
    assert_eq!(third.await.expect("it answers"), Taken::Free);
    let fourth = database.in_transaction(async |tx| take(tx, key(principal), 3).await).await;
    let answer = StoredAnswer { fingerprint: vec![3; 32], status: 204, body: None };
    assert_eq!(fourth.expect("it answers"), Taken::Answered(answer));
    let others = database.in_transaction(async |tx| take(tx, key(new_id()), 3).await).await;
    assert_eq!(others.expect("it answers"), Taken::Free, "a key is its caller's own");
    database.remove().await;
}

#[tokio::test]
async fn an_expired_key_counts_as_absent_and_is_forgotten() {
    let database = Database::new().await;
    let principal = new_id();
    let names: Vec<String> = (0..5).map(|number| format!("key {number}")).collect();
    let named = |name: &str| OwnKey { principal, route: "r", key: name.to_owned() };
    for name in &names {
        let done = database.in_transaction(async |tx| {
            idempotency::take(tx, named(name), &[1; 32], at(0), at(-60)).await?;
            answer(tx, named(name), 200, Some(&json!(1))).await
        });
        assert!(done.await.expect("it answers"));
    }
    let again = database.in_transaction(async |tx| {
        let early = idempotency::take(tx, named("key 0"), &[2; 32], at(60), at(0)).await?;
        assert!(matches!(early, Taken::Answered(_)), "not yet: {early:?}");
        idempotency::take(tx, named("key 0"), &[2; 32], at(61), at(1)).await
    });
    assert_eq!(again.await.expect("it answers"), Taken::Free);
    let forget =
        async || prune::run(&database.store, &idempotency::PRUNE, at(1)).await.expect("it answers");
    assert_eq!((forget().await, forget().await), (4, 0), "the fifth was taken anew");
    database.remove().await;
}

#[tokio::test]
async fn a_project_never_loses_its_last_admin() {
    let database = Database::new().await;
    let (ada, bob) = (user(&database, "ada@x.org").await, user(&database, "bob@x.org").await);
    let project = project(&database, ada).await;
    let put = async |user, role| {
        let put =
            database.in_transaction(async |tx| projects::put_member(tx, project, user, role).await);
        put.await.expect("it answers")
    };
    let remove = async |user| {
        let gone =
            database.in_transaction(async |tx| projects::remove_member(tx, project, user).await);
        gone.await.expect("it answers")
    };
    assert_eq!(put(ada, ProjectRole::Viewer).await, Change::LastAdmin);
    assert_eq!(remove(ada).await, Change::LastAdmin);
    assert_eq!(remove(bob).await, Change::NoMember);
    assert_eq!(put(bob, ProjectRole::Admin).await, Change::Made);
    // Somebody who is shut out can't manage anything.
    let out = database.in_transaction(async |tx| users::disable(tx, bob).await).await;
    assert!(out.expect("it answers"));
    assert_eq!(remove(ada).await, Change::LastAdmin);
    assert_eq!(put(ada, ProjectRole::Admin).await, Change::Made, "she stays what she is");
    assert_eq!(remove(bob).await, Change::Made);
    let role = projects::role_of(&database.store, project, ada).await.expect("it answers");
    assert_eq!(role, Some(ProjectRole::Admin));
    assert_eq!(projects::role_of(&database.store, project, bob).await.expect("it answers"), None);
    database.remove().await;
}

#[tokio::test]
async fn two_admins_can_not_lower_each_other_at_once() {
    let database = Database::new().await;
    let (ada, bob) = (user(&database, "ada@x.org").await, user(&database, "bob@x.org").await);
    let project = project(&database, ada).await;
    let mut first = database.store.begin().await.expect("a transaction begins");
    let put = projects::put_member(&mut first, project, bob, ProjectRole::Admin).await;
    assert_eq!(put.expect("it answers"), Change::Made);
    first.commit().await.expect("it commits");
    let mut held = database.store.begin().await.expect("a transaction begins");
    let lowered = projects::put_member(&mut held, project, bob, ProjectRole::Member).await;
    assert_eq!(lowered.expect("it answers"), Change::Made);
    let crossing =
        database.in_transaction(async |tx| projects::remove_member(tx, project, ada).await);
    let (crossed, ended) = overtaken(&database, crossing, held.commit()).await;
    ended.expect("the first commits");
    assert_eq!(crossed.expect("it answers"), Change::LastAdmin);
    database.remove().await;
}

async fn token(database: &Database, user: Uuid, hash: u8) -> Uuid {
    let id = new_id();
    let new = api_tokens::NewToken {
        id,
        user,
        name: "a token",
        secret_hash: [hash; 32],
        scopes: &[Scope::Read, Scope::Write],
        created_at: at(0),
        expires_at: at(3_600),
    };
    let made = database.in_transaction(async |tx| api_tokens::insert(tx, &new).await).await;
    made.expect("a token can be made");
    id
}

async fn live(store: &Store, hash: u8) -> Option<api_tokens::Live> {
    let asked = [[0; 32], [hash; 32]];
    let mut found = api_tokens::find_live_by_hash(store, &asked).await.expect("it answers");
    assert_eq!(found.first(), Some(&None), "nobody has that");
    found.pop().flatten()
}

#[tokio::test]
async fn a_token_is_found_until_it_is_revoked_or_its_user_is_shut_out() {
    let database = Database::new().await;
    let (ada, bob) = (user(&database, "ada@x.org").await, user(&database, "bob@x.org").await);
    let (first, _second) = (token(&database, ada, 1).await, token(&database, ada, 2).await);
    let found = live(&database.store, 1).await.expect("it is live");
    assert_eq!((found.id, found.user.id, found.expires_at), (first, ada, at(3_600)));
    assert_eq!(found.scopes, [Scope::Read, Scope::Write]);
    let revoke = async |by, when| {
        let revoke =
            database.in_transaction(async |tx| api_tokens::revoke(tx, by, first, when).await);
        revoke.await.expect("it answers")
    };
    assert!(!revoke(bob, at(1)).await, "it is not his");
    assert!(live(&database.store, 1).await.is_some());
    assert!(revoke(ada, at(2)).await && revoke(ada, at(3)).await);
    assert!(live(&database.store, 1).await.is_none());
    let listed = api_tokens::list(&database.store, ada, 10, None).await.expect("it answers");
    assert_eq!(listed.len(), 2, "a revoked one is still shown");
    assert_eq!(listed[1].revoked_at, Some(at(2)), "the first time counts");
    let out = database.in_transaction(async |tx| users::disable(tx, ada).await).await;
    assert!(out.expect("it answers"));
    assert!(live(&database.store, 2).await.is_none());
    database.remove().await;
}

#[tokio::test]
async fn a_use_is_never_written_down_as_earlier_than_it_is_known() {
    let database = Database::new().await;
    let ada = user(&database, "ada@x.org").await;
    let id = token(&database, ada, 1).await;
    let touch = async |when| {
        let uses = [(id, when), (new_id(), when)];
        api_tokens::touch(&database.store, &uses).await.expect("it answers")
    };
    let later = at(120) + SignedDuration::from_micros(5);
    assert_eq!((touch(later).await, touch(at(60)).await), (1, 0));
    let used = live(&database.store, 1).await.expect("it is live").last_used_at;
    assert_eq!(used, Some(later));
    database.remove().await;
}

#[tokio::test]
async fn keys_that_are_asked_for_are_found_or_named_as_unknown() {
    let database = Database::new().await;
    let (ada, bob) = (user(&database, "ada@x.org").await, user(&database, "bob@x.org").await);
    let add = async |user, fingerprint: &'static str| {
        let new = ssh_keys::NewSshKey {
            id: new_id(),
            user,
            name: "laptop",
            public_key: "ssh-ed25519 AAAA",
            algorithm: "ssh-ed25519",
            fingerprint,
        };
        let added = database.in_transaction(async |tx| ssh_keys::insert(tx, new).await).await;
        added.expect("it answers").map(|key| key.id)
    };
    let first = add(ada, "SHA256:1").await.expect("it is new");
    assert_eq!(add(ada, "SHA256:1").await, None, "she has it already");
    let second = add(ada, "SHA256:2").await.expect("it is new");
    let foreign = add(bob, "SHA256:1").await.expect("it may be two people's");
    let nobodys = new_id();
    let asked = [second, foreign, first, nobodys, second];
    // What a request for GPUs is judged by: her own keys, and nobody else's.
    let question = Asked {
        user: ada,
        project: new_id(),
        sku: String::new(),
        gpus: 1,
        image: None,
        region: String::new(),
        ssh_keys: asked.to_vec(),
        key: None,
    };
    let terms =
        database.in_transaction(async |tx| terms::of(tx, question, Timestamp::MAX).await).await;
    let ids: Vec<Uuid> = terms.expect("it answers").ssh_keys.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [first, second]);
    let deleted = async |id| {
        let gone = database.in_transaction(async |tx| ssh_keys::delete(tx, ada, id).await).await;
        gone.expect("it answers")
    };
    assert_eq!(
        (deleted(foreign).await, deleted(first).await, deleted(first).await),
        (false, true, false)
    );
    database.remove().await;
}

fn sku(price: i64, images: &[&str]) -> catalogue::Sku {
    let image = |code: &&str| Image {
        code: (*code).to_owned(),
        name: format!("{code}!"),
        sha256: "0".repeat(64),
    };
    catalogue::Sku {
        code: "h100".to_owned(),
        name: "H100".to_owned(),
        shape: Shape::GpuSlice,
        gpu_model: "H100".to_owned(),
        gpus_allowed: vec![1, 2, 4],
        price_micros_per_gpu_second: price,
        currency: "USD".to_owned(),
        provision_timeout_seconds: 600,
        images: images.iter().map(image).collect(),
    }
}

#[tokio::test]
async fn the_catalogue_is_what_was_said_last() {
    let database = Database::new().await;
    for (price, images) in [(831, ["b", "a"]), (900, ["a", "b"])] {
        let sku = sku(price, &images);
        let said = database.in_transaction(async |tx| {
            for image in &sku.images {
                catalogue::upsert_image(tx, image).await?;
            }
            for code in ["north", "south"] {
                let region = Region { code: code.to_owned(), name: code.to_owned() };
                catalogue::upsert_region(tx, &region).await?;
            }
            catalogue::upsert_sku(tx, &sku).await
        });
        said.await.expect("it is written");
        let found = catalogue::find_sku(&database.store, "h100").await.expect("it answers");
        assert_eq!(found, Some(sku), "with its images in order");
    }
    assert_eq!(catalogue::list_skus(&database.store).await.expect("it answers").len(), 1);
    assert_eq!(catalogue::list_images(&database.store).await.expect("it answers").len(), 2);
    assert_eq!(catalogue::list_regions(&database.store).await.expect("it answers").len(), 2);
    assert_eq!(catalogue::find_sku(&database.store, "none").await.expect("it answers"), None);
    database.ready_node(2).await;
    database.ready_node(4).await;
    let free = catalogue::availability(&database.store).await.expect("it answers");
    let free: Vec<(&str, i16)> =
        free.iter().map(|free| (free.region.as_str(), free.slots_max)).collect();
    assert_eq!(free, [("north", 4), ("south", 0)]);
    database.remove().await;
}

/// What is free is found by one look into an index a region, not by reading the fleet.
#[tokio::test]
async fn availability_does_not_read_the_fleet() {
    let database = Database::new().await;
    let said = database.in_transaction(async |tx| {
        for code in ["north", "south", "east"] {
            let region = Region { code: code.to_owned(), name: code.to_owned() };
            catalogue::upsert_region(tx, &region).await?;
        }
        catalogue::upsert_sku(tx, &sku(831, &[])).await
    });
    said.await.expect("it is written");
    for statement in [
        "ALTER TABLE nodes DISABLE TRIGGER USER",
        // tidy: a forbidden write, on purpose
        "INSERT INTO nodes (id, name, region, sku, status, seq, free_slots, free_numa_max)
         SELECT gen_random_uuid(), 'n' || n, CASE WHEN n % 2 = 0 THEN 'north' ELSE 'south' END, 'h100', 'ready', 2,
                n % 9, n % 5
           FROM generate_series(1, 20000) AS n",
        "ALTER TABLE nodes ENABLE TRIGGER USER",
        "VACUUM ANALYZE nodes",
        "SELECT pg_stat_reset()",
    ] {
        sqlx::query(statement).execute(&database.sql).await.expect("an owner may do this");
    }
    for _ in 0..10 {
        let free = catalogue::availability(&database.store).await.expect("it answers");
        assert_eq!(free.iter().map(|free| free.slots_max).collect::<Vec<_>>(), [0, 8, 8]);
    }
    // A connection hands its counts in when it ends at the latest.
    database.store.close().await;
    let (scans, read): (i64, i64) = sqlx::query_as(
        "SELECT seq_scan, idx_tup_read
           FROM pg_stat_user_tables
           JOIN pg_stat_user_indexes USING (relid)
          WHERE indexrelname = 'nodes_free'",
    )
    .fetch_one(&database.sql)
    .await
    .expect("the database counts");
    assert_eq!(scans, 0, "the fleet was read");
    assert!(read <= 40, "{read} entries of the index were read");
    database.remove().await;
}
