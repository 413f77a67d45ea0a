//! The audit log: every deed has its entry, every entry a link, and whoever changes the past is found out.

// tidy: statements behind the store's back, on purpose

use control::audit_log::{chain, read};
use control::{Caller, Error};
use domain::policy::ProjectRole;
use jiff::SignedDuration;
use lifecycle::Code as _;
use store::audit_log::list::Filter;
use testkit::{House, new_id};
use uuid::Uuid;
use wire::http::account::NewMember;
use wire::http::admin::Because;
use wire::http::audit::{AuditHead, AuditVerdict};

/// A house in which some things were done, and linked.
async fn lived_in() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    for _ in 0..4 {
        let id = house.active("h100.slice", 1).await.id;
        house.release(id).await.expect("it is released");
        house.settle().await;
    }
    assert!(chain::link(&house.ctx).await.expect("it links") > 8);
    house
}

async fn verified(house: &House, kept: Option<&AuditHead>) -> AuditVerdict {
    chain::verify(&house.ctx.store, kept).await.expect("it is walked")
}

#[tokio::test]
async fn a_chain_that_nobody_touched_is_sound_and_has_no_gap() {
    let house = lived_in().await;
    let verdict = verified(&house, None).await;
    assert!(verdict.sound && verdict.breaks.is_empty(), "{verdict:?}");
    let head = verdict.head.clone().expect("there are links");
    assert_eq!((verdict.unlinked, head.position), (0, verdict.links));
    // What is done later comes behind it, and the head that was kept still stands.
    house.active("h100.slice", 1).await;
    assert_eq!(verified(&house, Some(&head)).await.unlinked, 1, "it is not linked yet");
    assert_eq!(chain::link(&house.ctx).await.expect("it links"), 1);
    assert_eq!(chain::link(&house.ctx).await.expect("it links"), 0, "there is nothing left");
    let later = verified(&house, Some(&head)).await;
    assert!(later.sound && later.links == head.position + 1, "{later:?}");
    house.close().await;
}

#[tokio::test]
async fn nobody_can_change_or_delete_an_entry_or_a_link_without_switching_triggers_off() {
    let house = lived_in().await;
    for statement in [
        "UPDATE audit_entries SET outcome = 'denied'",
        "DELETE FROM audit_entries",
        "TRUNCATE audit_entries",
        "UPDATE audit_links SET hash = 'x'",
        "DELETE FROM audit_links",
        "TRUNCATE audit_links",
    ] {
        assert!(!house.database.lets(statement).await, "{statement} was let through");
    }
    house.close().await;
}

#[tokio::test]
async fn every_field_that_is_changed_by_hand_is_found_at_its_position() {
    let house = lived_in().await;
    let fields = [
        "at = at + interval '1 microsecond'",
        "user_id = gen_random_uuid()",
        "token_id = NULL",
        "role = 'system'",
        "action = 'allocation.restart'",
        "target_kind = 'node'",
        "target = 'another'",
        "project_id = NULL",
        "outcome = 'denied'",
        "reason = 'because'",
        "detail = detail || '{\"gpus\": 8}'",
        "request_id = gen_random_uuid()",
        "source = '192.0.2.77'",
    ];
    let position = house.database.number("SELECT min(l.position) FROM audit_links l JOIN audit_entries e ON e.id = l.entry_id WHERE e.action = 'allocation.create'").await;
    let of_it = format!("(SELECT entry_id FROM audit_links WHERE position = {position})");
    for field in fields {
        let keep = format!("CREATE TABLE kept AS SELECT * FROM audit_entries WHERE id = {of_it}");
        assert!(house.database.lets(&keep).await);
        let change = format!("UPDATE audit_entries SET {field} WHERE id = {of_it}");
        house.database.tamper(&[change]).await;
        let verdict = verified(&house, None).await;
        assert!(!verdict.sound, "{field} was not noticed");
        assert_eq!(verdict.breaks.len(), 1, "{field}: {verdict:?}");
        assert_eq!(verdict.breaks[0].position, Some(position), "{field}: {verdict:?}");
        let back = [
            "DELETE FROM audit_entries WHERE id IN (SELECT id FROM kept)",
            "INSERT INTO audit_entries SELECT * FROM kept",
        ];
        house.database.tamper(&back).await;
        assert!(house.database.lets("DROP TABLE kept").await);
    }
    assert!(verified(&house, None).await.sound, "everything is as it was");
    house.close().await;
}

#[tokio::test]
async fn an_entry_taken_out_put_in_or_exchanged_is_found() {
    let taken = [
        "DELETE FROM audit_entries WHERE id = (SELECT entry_id FROM audit_links WHERE position = 5)",
    ];
    let put_in = [
        "INSERT INTO audit_entries (id, role, action, target_kind, target, outcome) VALUES (gen_random_uuid(), 'user', 'x', 'y', 'z', 'done')",
    ];
    let link_out = ["DELETE FROM audit_links WHERE position = 5"];
    let both_out = [
        "DELETE FROM audit_entries WHERE id = (SELECT entry_id FROM audit_links WHERE position = 5)",
        "DELETE FROM audit_links WHERE position = 5",
    ];
    // Taken out, with everything behind it moved up so that there is no gap.
    let closed_up = [
        "DELETE FROM audit_entries WHERE id = (SELECT entry_id FROM audit_links WHERE position = 5)",
        "DELETE FROM audit_links WHERE position = 5",
        "UPDATE audit_links SET position = -position WHERE position > 5",
        "UPDATE audit_links SET position = -position - 1 WHERE position < 0",
    ];
    let exchanged = [
        "UPDATE audit_links SET position = -5 WHERE position = 5",
        "UPDATE audit_links SET position = 5 WHERE position = 6",
        "UPDATE audit_links SET position = 6 WHERE position = -5",
    ];
    let hash = ["UPDATE audit_links SET hash = sha256(hash) WHERE position = 5"];
    let cases: [(&[&'static str], Option<i64>); 7] = [
        (&taken, Some(5)),
        (&put_in, None),
        (&link_out, Some(5)),
        (&both_out, Some(5)),
        (&closed_up, Some(5)),
        (&exchanged, Some(5)),
        (&hash, Some(5)),
    ];
    for (statements, position) in cases {
        let house = lived_in().await;
        assert!(
            house
                .database
                .lets("ALTER TABLE audit_links DROP CONSTRAINT audit_links_position_check")
                .await
        );
        house.database.tamper(statements).await;
        let verdict = verified(&house, None).await;
        assert!(!verdict.sound, "{statements:?}");
        assert_eq!(verdict.breaks[0].position, position, "{statements:?}: {verdict:?}");
        house.database.remove().await;
    }
}

#[tokio::test]
async fn a_tail_that_was_cut_off_with_its_links_is_found_by_a_head_that_was_kept() {
    let house = lived_in().await;
    let head = verified(&house, None).await.head.expect("there are links");
    let cut = [
        "DELETE FROM audit_entries WHERE id IN (SELECT entry_id FROM audit_links WHERE position > 6)",
        "DELETE FROM audit_links WHERE position > 6",
    ];
    house.database.tamper(&cut).await;
    assert!(verified(&house, None).await.sound, "by itself it looks whole");
    let verdict = verified(&house, Some(&head)).await;
    assert!(!verdict.sound, "{verdict:?}");
    assert_eq!(verdict.breaks[0].position, Some(head.position));
    // The end grows again, made anew: its hash is another.
    for _ in 0..12 {
        let id = house.active("h100.slice", 1).await.id;
        house.release(id).await.expect("released");
        house.settle().await;
    }
    chain::link(&house.ctx).await.expect("it links");
    let verdict = verified(&house, Some(&head)).await;
    assert!(!verdict.sound && verdict.links > head.position, "{verdict:?}");
    assert_eq!(verdict.breaks[0].position, Some(head.position), "{verdict:?}");
    house.database.remove().await;
}

#[tokio::test]
async fn an_entry_that_waits_too_long_for_its_link_is_told() {
    let house = lived_in().await;
    house.create("h100.slice", 1).await.expect("it fits");
    let verdict = verified(&house, None).await;
    assert!(verdict.sound && verdict.unlinked == 1, "a moment is fine: {verdict:?}");
    let old = "UPDATE audit_entries SET at = at - interval '61 seconds' WHERE id IN (SELECT entry_id FROM audit_unlinked)";
    house.database.tamper(&[old]).await;
    let verdict = verified(&house, None).await;
    assert!(!verdict.sound && verdict.breaks[0].position.is_none(), "{verdict:?}");
    house.settle().await;
    house.close().await;
}

#[tokio::test]
async fn many_who_link_at_once_make_one_chain() {
    let house = lived_in().await;
    let linkers = async {
        let mut linked = 0;
        for _ in 0..40 {
            let all = tokio::join!(
                chain::link(&house.ctx),
                chain::link(&house.ctx),
                chain::link(&house.ctx)
            );
            let (one, two, three) =
                (all.0.expect("links"), all.1.expect("links"), all.2.expect("links"));
            linked += one + two + three;
        }
        linked
    };
    let doers = async {
        for number in 0..30 {
            let new = wire::http::account::NewProject { name: format!("project {number}") };
            let made = control::account::projects::create(&house.ctx, &house.tenant, &new, None);
            made.await.expect("a project");
        }
    };
    let (linked, ()) = tokio::join!(linkers, doers);
    let linked = linked + chain::link(&house.ctx).await.expect("it links");
    assert_eq!(linked, 30);
    assert!(verified(&house, None).await.sound);
    house.close().await;
}

#[tokio::test]
async fn a_head_is_a_position_and_a_hash_and_nothing_else() {
    let hash = "0f".repeat(32);
    let good = read::head(&format!(" 12:{} ", hash.to_uppercase())).expect("it is one");
    assert_eq!((good.position, good.hash.as_str()), (12, hash.as_str()));
    for bad in ["", "12", "12:", "0:", "x:00", &format!("0:{hash}"), &format!("12:{hash}0")] {
        assert!(matches!(read::head(bad), Err(Error::Invalid(_))), "{bad}");
    }
}

async fn log(house: &House, filter: &Filter) -> Vec<(String, String, String)> {
    let page = read::all(&house.ctx, &house.operator, filter, read::Part::default()).await;
    let items = page.expect("the log").items.into_iter();
    items.map(|entry| (entry.role, entry.action, entry.target)).collect()
}

#[tokio::test]
async fn operators_find_entries_by_who_what_to_what_where_and_when() {
    let house = lived_in().await;
    let id = house.active("h100.slice", 1).await.id;
    let because = Because { reason: "stolen".to_owned() };
    let node = house.first_node().identity.node_id.uuid();
    let revoked = control::node::admin::revoke(&house.ctx, &house.operator, node, &because, None);
    revoked.await.expect("it is revoked");

    let of_target = Filter { target: Some(id.to_string()), ..Filter::default() };
    let words = |role: &str, action: &str, target: Uuid| {
        (role.to_owned(), action.to_owned(), target.to_string())
    };
    assert_eq!(log(&house, &of_target).await, [words("user", "allocation.create", id)]);
    let of_operator = Filter { user_id: Some(house.operator.user_id), ..Filter::default() };
    let found = log(&house, &of_operator).await;
    assert_eq!(
        found,
        [words("operator", "node.revoke", node), words("operator", "node.create", node)]
    );
    let of_action = Filter { action: Some("allocation.release".to_owned()), ..Filter::default() };
    assert_eq!(log(&house, &of_action).await.len(), 4);
    let of_project = Filter { project_id: Some(house.project), ..Filter::default() };
    assert_eq!(log(&house, &of_project).await.len(), 9);
    let agents = Filter { action: Some("node.enrol".to_owned()), ..Filter::default() };
    assert_eq!(log(&house, &agents).await, [words("agent", "node.enrol", node)]);

    // Page after page it is the same, and nothing twice.
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let part = read::Part { limit: Some(3), cursor: cursor.as_deref() };
        let page = read::all(&house.ctx, &house.operator, &Filter::default(), part).await;
        let page = page.expect("a page");
        seen.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let all = log(&house, &Filter::default()).await;
    assert_eq!(seen.len(), all.len());
    assert!(seen.is_sorted_by(|one, next| (one.at, one.id) > (next.at, next.id)), "newest first");
    let middle = seen[seen.len() / 2].at;
    let after = Filter { from: Some(middle), ..Filter::default() };
    let before = Filter { to: Some(middle), ..Filter::default() };
    let parts = log(&house, &after).await.len() + log(&house, &before).await.len();
    assert_eq!(parts, all.len(), "from is in, to is not");
    let nobody = Filter { from: Some(middle + SignedDuration::from_hours(9)), ..Filter::default() };
    assert!(log(&house, &nobody).await.is_empty());
    let (nothing, part) = (Filter::default(), read::Part::default());
    let refused = read::all(&house.ctx, &house.tenant, &nothing, part).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))));
    house.close().await;
}

#[tokio::test]
async fn admins_of_a_project_see_what_was_done_there_and_operators_as_operators() {
    let house = lived_in().await;
    let id = house.active("h100.slice", 1).await.id;
    let why = wire::http::allocations::ForceRelease { reason: "the rack burns".to_owned() };
    let forced = control::allocation::release::force(
        &house.ctx,
        &house.operator,
        domain::ids::AllocationId(id),
        &why,
        None,
    );
    forced.await.expect("it is taken back");
    let see = async |who: &Caller| {
        read::of_project(&house.ctx, who, house.project, read::Part::default()).await
    };
    let page = see(&house.tenant).await.expect("it is theirs");
    let newest = &page.items[0];
    assert_eq!(
        (newest.role.as_str(), newest.action.as_str()),
        ("operator", "allocation.force_release")
    );
    assert_eq!(newest.reason.as_deref(), Some("the rack burns"));
    let hidden = (newest.user_id, &newest.user, newest.token_id, newest.request_id, &newest.source);
    assert_eq!(hidden, (None, &None, None, None, &None));
    assert_eq!(page.items[1].user.as_deref(), Some(house.tenant.email.as_str()));
    assert!(page.items.iter().all(|entry| entry.project_id == Some(house.project)));

    let stranger = Caller { user_id: new_id(), ..house.tenant.clone() };
    assert!(matches!(see(&stranger).await, Err(Error::NotFound("project"))));
    // Operators are no members, and have a door of their own.
    assert!(matches!(see(&house.operator).await, Err(Error::NotFound("project"))));
    for role in ProjectRole::ALL {
        let new = NewMember { email: house.operator.email.clone(), role: (*role).into() };
        let put =
            control::account::members::put(&house.ctx, &house.tenant, house.project, &new, None);
        put.await.expect("a member");
        assert_eq!(see(&house.operator).await.is_ok(), *role == ProjectRole::Admin, "{role}");
    }
    house.settle().await;
    house.close().await;
}
