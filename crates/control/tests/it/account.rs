//! People: who is let in, what they may give away, and requests that are answered once.

use std::time::Duration;

use control::account::{self, install, members, password, projects, ssh_keys, tokens};
use control::allocation::{timeline, view};
use control::audit_log::{Action, Deed};
use control::idempotency::{Answer, Begun, Key, begin, finish, prune};
use control::{Caller, Error};
use domain::ids::AllocationId;
use domain::policy::{ProjectRole, Scope};
use testkit::{House, new_id};
use uuid::Uuid;
use wire::Coded;
use wire::http::account::{FreshToken, Login, NewMember, NewProject, NewSshKey, NewToken, Project};

const PASSWORD: &str = "correct horse battery staple";
const ED25519: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIONoj+DjRgs4ysgCkrssa1Zg1bdxWd8wA2Zl1YfDBlzg";

fn login(email: &str, password: &str) -> Login {
    Login { email: email.to_owned(), password: password.to_owned(), token_name: None }
}

fn new_token(scopes: &[Scope], ttl_seconds: Option<u32>) -> NewToken {
    let scopes = scopes.iter().copied().map(Coded).collect();
    NewToken { name: "script".to_owned(), scopes, ttl_seconds }
}

fn new_project(name: &str) -> NewProject {
    NewProject { name: name.to_owned() }
}

fn pointers(error: &Error) -> Vec<&str> {
    let Error::Invalid(faults) = error else {
        panic!("nothing is invalid: {error:?}");
    };
    faults.iter().map(|fault| fault.pointer.as_str()).collect()
}

fn is_refused(answer: &Result<Caller, Error>) -> bool {
    matches!(answer, Err(Error::Unauthenticated("this token is not valid")))
}

fn request() -> account::Request {
    account::Request { id: new_id(), source: Some("192.0.2.9".to_owned()) }
}

async fn by_token(house: &House, secret: &str) -> Result<Caller, Error> {
    account::authenticate(&house.ctx, secret, request()).await
}

#[tokio::test]
async fn a_token_lets_its_user_in_until_it_expires_or_is_revoked() {
    let house = House::open().await;
    let asked = new_token(&[Scope::Read, Scope::Write], Some(3_600));
    let fresh = tokens::create(&house.ctx, &house.tenant, &asked, None).await.expect("a token");
    assert_eq!((fresh.status, fresh.replayed), (201, false));
    let FreshToken { token, secret } = fresh.body;
    let caller = by_token(&house, &secret).await.expect("it is good");
    assert_eq!((caller.user_id, caller.token_id), (house.tenant.user_id, token.id));
    assert!(!caller.operator);

    let page = tokens::list(&house.ctx, &caller, None, None).await.expect("a list");
    let listed = serde_json::to_string(&page).expect("it can be written");
    assert!(listed.contains(&token.id.to_string()) && !listed.contains(&secret[6..]));
    assert!(is_refused(&by_token(&house, &format!("{secret}x")).await));
    assert!(
        is_refused(&by_token(&house, "berth_").await) && is_refused(&by_token(&house, "").await)
    );

    house.ctx.clock.advance(Duration::from_secs(3_601));
    assert!(is_refused(&by_token(&house, &secret).await), "it has expired");
    let other = tokens::create(&house.ctx, &house.tenant, &asked, None).await.expect("a token");
    let FreshToken { token, secret } = other.body;
    assert!(by_token(&house, &secret).await.is_ok());
    let foreign = tokens::revoke(&house.ctx, &house.operator, token.id, None).await;
    let unknown = tokens::revoke(&house.ctx, &house.tenant, new_id(), None).await;
    assert!(matches!(foreign, Err(Error::NotFound("token"))), "{foreign:?}");
    assert!(matches!(unknown, Err(Error::NotFound("token"))), "{unknown:?}");
    let gone = tokens::revoke(&house.ctx, &house.tenant, token.id, None).await.expect("revoked");
    assert_eq!(gone.status, 204);
    assert!(is_refused(&by_token(&house, &secret).await), "it was revoked");
    house.close().await;
}

#[tokio::test]
async fn a_token_gives_no_more_than_it_has() {
    let house = House::open().await;
    let asked = new_token(&[Scope::Read], None);
    let fresh = tokens::create(&house.ctx, &house.tenant, &asked, None).await.expect("a token");
    let reader = by_token(&house, &fresh.body.secret).await.expect("it is good");
    let write = tokens::create(&house.ctx, &reader, &asked, None).await;
    assert!(matches!(write, Err(Error::Forbidden(_))), "it may only read");
    assert!(matches!(
        projects::create(&house.ctx, &reader, &new_project("p"), None).await,
        Err(Error::Forbidden(_))
    ));
    assert!(account::me(&house.ctx, &reader).await.is_ok());

    let mut greedy = new_token(&[Scope::Read, Scope::Admin], Some(59));
    greedy.name = " \u{7} ".to_owned();
    let refused = tokens::create(&house.ctx, &house.tenant, &greedy, None).await;
    let error = refused.err().expect("the tenant is no operator");
    assert_eq!(pointers(&error), ["/name", "/scopes/1", "/ttl_seconds"], "all faults at once");
    let empty = tokens::create(&house.ctx, &house.tenant, &new_token(&[], None), None).await;
    assert_eq!(pointers(&empty.err().expect("it is for nothing")), ["/scopes"]);
    house.close().await;
}

#[tokio::test]
async fn a_use_is_written_down_later_and_at_most_once_a_minute() {
    let house = House::open().await;
    let asked = new_token(&[Scope::Read], None);
    let fresh = tokens::create(&house.ctx, &house.tenant, &asked, None).await.expect("a token");
    let used_at = async || {
        let page = tokens::list(&house.ctx, &house.tenant, None, None).await.expect("a list");
        page.items[0].last_used_at
    };
    by_token(&house, &fresh.body.secret).await.expect("it is good");
    assert_eq!(used_at().await, None, "no request waits for it");
    assert_eq!(tokens::record_uses(&house.ctx).await.expect("written"), 1);
    let first = used_at().await;
    assert!(first.is_some());
    house.ctx.clock.advance(Duration::from_secs(30));
    by_token(&house, &fresh.body.secret).await.expect("it is good");
    assert_eq!(tokens::record_uses(&house.ctx).await.expect("nothing to do"), 0);
    house.ctx.clock.advance(Duration::from_secs(31));
    by_token(&house, &fresh.body.secret).await.expect("it is good");
    assert_eq!(tokens::record_uses(&house.ctx).await.expect("written"), 1);
    assert!(used_at().await > first);
    house.close().await;
}

#[tokio::test]
async fn a_login_costs_the_same_whether_or_not_there_is_such_an_account() {
    let house = House::open().await;
    let (email, name) = ("ada@example.test", "Ada");
    let ada = install::ensure_user(&house.ctx, email, name, true, Some(PASSWORD)).await;
    let ada = ada.expect("an account");
    let again = install::ensure_user(&house.ctx, "ADA@example.test", "x", false, Some("y")).await;
    assert_eq!(again.expect("the same account"), ada);
    let attempt = async |email: &str, password: &str| {
        let before = password::hashed();
        let answer = account::login(&house.ctx, &login(email, password), &request()).await;
        (answer, password::hashed() - before)
    };
    for (email, password) in [
        (email, "wrong"),
        ("nobody@example.test", PASSWORD),
        // An account that has no password.
        ("tenant@example.test", PASSWORD),
        ("", ""),
    ] {
        let (answer, hashed) = attempt(email, password).await;
        let refused = answer.err().expect("not let in");
        assert!(matches!(refused, Error::Unauthenticated("the address or the password is wrong")));
        assert_eq!(hashed, 1, "{email}");
    }
    let (fresh, hashed) = attempt(" Ada@Example.test ", PASSWORD).await;
    let fresh = fresh.expect("let in");
    assert_eq!(hashed, 1);
    let caller = by_token(&house, &fresh.secret).await.expect("the token is good");
    assert_eq!((caller.user_id, caller.operator), (ada, true));
    assert_eq!(caller.scopes, [Scope::Read, Scope::Write, Scope::Admin]);
    house.ctx.clock.advance(Duration::from_secs(30 * 86_400 + 1));
    assert!(is_refused(&by_token(&house, &fresh.secret).await), "after 30 days");
    house.close().await;
}

#[tokio::test]
async fn a_request_is_done_once_and_its_answer_repeated() {
    let house = House::open().await;
    let owner = house.tenant.user_id;
    let key = |body: &str| Key::of(owner, "POST /projects", "k1", body.as_bytes());
    let create = async |key: &Key| {
        projects::create(&house.ctx, &house.tenant, &new_project("once"), Some(key)).await
    };
    let first = create(&key("a")).await.expect("made");
    let again = create(&key("a")).await.expect("made before");
    assert_eq!(again, Answer { replayed: true, ..first.clone() });
    let other = create(&key("b")).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch)), "{other:?}");
    let theirs = Key::of(house.operator.user_id, "POST /projects", "k1", b"a");
    let x = new_project("x");
    let foreign = projects::create(&house.ctx, &house.operator, &x, Some(&theirs)).await;
    assert!(!foreign.expect("it is their own key").replayed);
    let page = projects::list(&house.ctx, &house.tenant, None, None).await.expect("a list");
    assert_eq!(page.items.iter().filter(|project| project.name == "once").count(), 1);

    house.ctx.clock.advance(Duration::from_secs(86_401));
    let expired = create(&key("b")).await.expect("the key is free again");
    assert!(!expired.replayed && expired.body.id != first.body.id);
    house.ctx.clock.advance(Duration::from_secs(86_401));
    assert_eq!(prune(&house.ctx).await.expect("forgotten"), 2);
    house.close().await;
}

#[tokio::test]
async fn of_two_at_once_one_is_done_and_the_other_told_to_wait() {
    let house = House::open().await;
    let key = || Key::of(house.tenant.user_id, "POST /projects", "k", b"");
    let (first, second) = (key(), key());
    let Begun::Fresh(tx) = begin::<Project>(&house.ctx, Some(&first)).await.expect("it begins")
    else {
        panic!("nobody has asked before");
    };
    let at_once = begin::<Project>(&house.ctx, Some(&second)).await;
    assert!(matches!(at_once, Err(Error::IdempotencyInFlight)));
    // A story that lost a race begins again with the key it has.
    drop(tx);
    let Begun::Fresh(tx) = begin::<u8>(&house.ctx, Some(&first)).await.expect("it begins again")
    else {
        panic!("it was undone");
    };
    let deed = Deed::new(&house.tenant, Action::ProjectCreate, "project", house.project);
    finish(tx, &deed, Some(&first), 200, 7_u8).await.expect("it is answered");
    let known = begin::<u8>(&house.ctx, Some(&second)).await.expect("it was answered");
    assert!(matches!(known, Begun::Known(Answer { status: 200, body: 7, replayed: true })));
    // Who goes away without an answer leaves the key free.
    let (third, fourth) = (
        Key::of(house.tenant.user_id, "r", "k", b""),
        Key::of(house.tenant.user_id, "r", "k", b"other"),
    );
    let begun = begin::<u8>(&house.ctx, Some(&third)).await.expect("it begins");
    drop((begun, third));
    let fresh = begin::<u8>(&house.ctx, Some(&fourth)).await.expect("it is free");
    assert!(matches!(fresh, Begun::Fresh(_)));
    drop(fresh);
    house.close().await;
}

#[tokio::test]
async fn a_secret_is_shown_once_even_to_who_asks_again() {
    let house = House::open().await;
    let asked = new_token(&[Scope::Read], None);
    let key = || Key::of(house.tenant.user_id, "POST /tokens", "k", b"{}");
    let first = tokens::create(&house.ctx, &house.tenant, &asked, Some(&key())).await;
    assert!(first.is_ok_and(|answer| answer.body.secret.starts_with("berth_")));
    let again = tokens::create(&house.ctx, &house.tenant, &asked, Some(&key())).await;
    let Some(Error::Conflict(detail)) = again.err() else {
        panic!("it was answered again");
    };
    assert!(detail.contains("once") && !detail.contains("berth_"), "{detail}");
    let page = tokens::list(&house.ctx, &house.tenant, None, None).await.expect("a list");
    assert_eq!(page.items.len(), 1);
    house.close().await;
}

#[tokio::test]
async fn the_comment_of_a_key_is_nowhere() {
    const CANARY: &str = "canary-7f3a@laptop";
    let house = House::open().await;
    let add = async |name: &str, text: &str, key: Option<&Key>| {
        let new = NewSshKey { name: name.to_owned(), public_key: text.to_owned() };
        ssh_keys::create(&house.ctx, &house.tenant, &new, key).await
    };
    let text = format!("{ED25519} {CANARY}");
    let key = Key::of(house.tenant.user_id, "POST /ssh-keys", "k", text.as_bytes());
    let added = add(" laptop ", &text, Some(&key)).await.expect("it is a key").body;
    assert_eq!((added.name.as_str(), added.algorithm.as_str()), ("laptop", "ssh-ed25519"));
    assert!(added.fingerprint.starts_with("SHA256:"));
    let owner = house.tenant.user_id;
    let stored = store::ssh_keys::list(&house.ctx.store, owner, 10, None).await.expect("keys");
    assert_eq!(stored[0].public_key, ED25519);
    let replayed = add(" laptop ", &text, Some(&key)).await.expect("it was answered");
    assert!(replayed.replayed);
    let twice = add("again", &text, None).await;
    let Some(Error::Conflict(detail)) = twice.err() else {
        panic!("it is there already");
    };
    assert!(!detail.contains(CANARY), "{detail}");
    let wrong = add("", &format!("ssh-ed25519 AAAA {CANARY}"), None).await;
    let error = wrong.expect_err("it is none");
    assert_eq!(pointers(&error), ["/name", "/public_key"]);
    assert!(!format!("{error:?}").contains(CANARY));
    let page = ssh_keys::list(&house.ctx, &house.tenant, None, None).await.expect("a list");
    assert!(!format!("{page:?}{stored:?}").contains(CANARY));
    let foreign = ssh_keys::delete(&house.ctx, &house.operator, added.id, None).await;
    assert!(matches!(foreign, Err(Error::NotFound("SSH key"))));
    let gone = ssh_keys::delete(&house.ctx, &house.tenant, added.id, None).await;
    assert_eq!(gone.expect("it was theirs").status, 204);
    house.close().await;
}

#[tokio::test]
async fn members_come_and_go_but_one_admin_stays() {
    let house = House::open().await;
    let (ctx, tenant, operator) = (&house.ctx, &house.tenant, &house.operator);
    let put = async |by: &Caller, email: &str, role| {
        let new = NewMember { email: email.to_owned(), role: Coded(role) };
        members::put(ctx, by, house.project, &new, None).await
    };
    // To who is no member, a project does not exist.
    let stranger = members::list(ctx, operator, house.project, None, None).await;
    let nowhere = members::list(ctx, operator, new_id(), None, None).await;
    assert!(matches!(stranger, Err(Error::NotFound("project"))));
    assert!(matches!(nowhere, Err(Error::NotFound("project"))));
    let last = put(tenant, "tenant@example.test", ProjectRole::Viewer).await;
    assert!(matches!(last, Err(Error::Conflict(_))), "{last:?}");
    let nobody = put(tenant, "nobody@example.test", ProjectRole::Viewer).await;
    assert_eq!(pointers(&nobody.expect_err("nobody has it")), ["/email"]);
    let added = put(tenant, "Operator@example.test", ProjectRole::Member).await.expect("added");
    assert_eq!(added.body.user_id, operator.user_id);
    let may_not = put(operator, "tenant@example.test", ProjectRole::Viewer).await;
    assert!(matches!(may_not, Err(Error::Forbidden(_))), "a member manages nobody");
    let page = members::list(ctx, operator, house.project, Some(1), None).await.expect("a list");
    let cursor = page.next_cursor.as_deref();
    let rest = members::list(ctx, operator, house.project, None, cursor).await.expect("a list");
    assert_eq!((page.items.len(), rest.items.len(), rest.next_cursor), (1, 1, None));

    let remove = async |by: &Caller, user: Uuid, key: Option<&Key>| {
        members::remove(ctx, by, house.project, user, key).await
    };
    let others = remove(operator, tenant.user_id, None).await;
    assert!(matches!(others, Err(Error::Forbidden(_))), "{others:?}");
    let leaves = remove(tenant, tenant.user_id, None).await;
    assert!(matches!(leaves, Err(Error::Conflict(_))), "the last admin stays: {leaves:?}");
    let key = Key::of(operator.user_id, "DELETE member", "k", b"");
    let left = remove(operator, operator.user_id, Some(&key)).await.expect("anybody may leave");
    let again = remove(operator, operator.user_id, Some(&key)).await.expect("told so once more");
    assert!(!left.replayed && again.replayed);
    let gone = remove(operator, operator.user_id, None).await;
    assert!(matches!(gone, Err(Error::NotFound("project"))), "{gone:?}");
    house.close().await;
}

#[tokio::test]
async fn a_cursor_is_good_for_the_list_and_the_caller_it_was_given_to() {
    let house = House::open().await;
    for name in ["one", "two"] {
        let new = new_project(name);
        projects::create(&house.ctx, &house.tenant, &new, None).await.expect("made");
    }
    let (ctx, tenant) = (&house.ctx, &house.tenant);
    let page = projects::list(ctx, tenant, Some(2), None).await.expect("a list");
    let cursor = page.next_cursor.expect("there is a third");
    let rest = projects::list(ctx, tenant, Some(2), Some(&cursor)).await.expect("the rest");
    assert_eq!((page.items.len(), rest.items.len(), rest.next_cursor), (2, 1, None));
    let (text, signature) = cursor.split_once('.').expect("two parts");
    let forged = [
        format!("{text}.{}", signature.replace(&signature[..4], "AAAA")),
        format!("A{text}.{signature}"),
        text.to_owned(),
        String::new(),
    ];
    for forged in forged {
        let refused = projects::list(ctx, tenant, None, Some(&forged)).await;
        assert_eq!(pointers(&refused.expect_err("it is no cursor")), ["/cursor"], "{forged}");
    }
    let elsewhere = tokens::list(ctx, tenant, None, Some(&cursor)).await;
    assert_eq!(pointers(&elsewhere.expect_err("another list")), ["/cursor"]);
    let foreign = projects::list(ctx, &house.operator, None, Some(&cursor)).await;
    assert_eq!(pointers(&foreign.expect_err("another caller")), ["/cursor"]);
    for limit in [0, 201] {
        let refused = projects::list(ctx, tenant, Some(limit), None).await;
        assert_eq!(pointers(&refused.expect_err("out of bounds")), ["/limit"]);
    }
    house.close().await;
}

#[tokio::test]
async fn somebody_elses_allocation_is_refused_like_one_that_is_not_there() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let stranger = install::ensure_user(&house.ctx, "eve@example.test", "Eve", false, None).await;
    let eve = Caller { user_id: stranger.expect("an account"), ..house.tenant.clone() };
    let (foreign, unknown) = (AllocationId(id), AllocationId(new_id()));
    let mut told = Vec::new();
    for id in [foreign, unknown] {
        let shown = view::show(&house.ctx, &eve, id).await.expect_err("not hers");
        let line = timeline::for_tenant(&house.ctx, &eve, id).await.expect_err("not hers");
        let admins = timeline::for_operator(&house.ctx, &eve, id).await.expect_err("no operator");
        told.push(format!("{shown:?} {line:?} {admins:?}"));
    }
    assert_eq!(told[0], told[1]);
    let filter = view::Filter::default();
    let hers = view::list(&house.ctx, &eve, &filter, None, None).await.expect("a list");
    assert!(hers.items.is_empty());
    let project = view::Filter { project_id: Some(house.project), ..view::Filter::default() };
    let theirs = view::list(&house.ctx, &eve, &project, None, None).await;
    assert!(matches!(theirs, Err(Error::NotFound("project"))));
    let all = view::admin_list(&house.ctx, &eve, &filter, None, None).await;
    assert!(matches!(all, Err(Error::Forbidden(_))));
    house.close().await;
}
