//! TABLE 1: every door with the permission it needs. Method, path and query are read from what documents the door, so
//! that the two can't differ.

use axum::Router;
use axum::routing::get;
use domain::policy::Permission;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, ParameterIn, PathItem, Paths};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;

use super::{
    Door, account, admin, allocation_groups, allocations, app_instances, audit, catalogue, drain,
    events, explain, findings, guard, health, money, notifications, payments, policies, recovery,
    stuck, webhooks,
};
use crate::http::{Front, frame};

type Entry = (Permission, UtoipaMethodRouter<Front>);

/// The table: the doors of everybody, then those of operators.
fn table() -> Vec<Entry> {
    let mut table = for_everybody();
    table.extend(for_oneself());
    table.extend(for_payers());
    table.extend(for_operators());
    table
}

fn for_everybody() -> Vec<Entry> {
    use Permission::{
        AccountRead, AccountWrite, AllocationCreate, AllocationRead, AllocationRelease,
        AllocationRestart, CatalogueRead, ProjectAudit, ProjectManage, ProjectRead, Public,
    };
    vec![
        (Public, routes!(health::healthz)),
        (Public, routes!(health::readyz)),
        (Public, routes!(health::metrics)),
        (Public, routes!(health::openapi)),
        (Public, routes!(account::login)),
        (AccountRead, routes!(account::me)),
        (AccountRead, routes!(account::list_projects)),
        (AccountWrite, routes!(account::create_project)),
        (ProjectRead, routes!(account::list_members)),
        (ProjectManage, routes!(account::put_member)),
        (ProjectManage, routes!(account::remove_member)),
        (AccountRead, routes!(account::list_ssh_keys)),
        (AccountWrite, routes!(account::create_ssh_key)),
        (AccountWrite, routes!(account::delete_ssh_key)),
        (AccountRead, routes!(account::list_tokens)),
        (AccountWrite, routes!(account::create_token)),
        (AccountWrite, routes!(account::revoke_token)),
        (CatalogueRead, routes!(catalogue::list_skus)),
        (CatalogueRead, routes!(catalogue::list_images)),
        (CatalogueRead, routes!(catalogue::list_regions)),
        (CatalogueRead, routes!(catalogue::list_availability)),
        (CatalogueRead, routes!(explain::explain_availability)),
        (AllocationRead, routes!(allocations::list_allocations)),
        (AllocationCreate, routes!(allocations::create_allocation)),
        (AllocationRead, routes!(allocations::show_allocation)),
        (AllocationRestart, routes!(allocations::restart_allocation)),
        (AllocationRelease, routes!(allocations::release_allocation)),
        (AllocationRead, routes!(allocations::show_timeline)),
        (AllocationRead, routes!(events::watch_allocation)),
        (AllocationRead, routes!(explain::explain_allocation)),
        (AllocationRead, routes!(allocations::show_receipt)),
        (AllocationRead, routes!(allocation_groups::list_allocation_groups)),
        (AllocationCreate, routes!(allocation_groups::create_allocation_group)),
        (AllocationRead, routes!(allocation_groups::show_allocation_group)),
        (AllocationRelease, routes!(allocation_groups::release_allocation_group)),
        (AllocationRead, routes!(explain::explain_allocation_group)),
        (AllocationRead, routes!(app_instances::list_app_instances)),
        (AllocationCreate, routes!(app_instances::create_app_instance)),
        (AllocationRead, routes!(app_instances::show_app_instance)),
        (AllocationCreate, routes!(app_instances::put_app_members)),
        (AllocationCreate, routes!(app_instances::end_app_instance)),
        (ProjectAudit, routes!(audit::list_project_audit_entries)),
    ]
}

/// What everybody is told, and where else they want to be.
fn for_oneself() -> Vec<Entry> {
    use Permission::{AccountRead, AccountWrite};
    vec![
        (AccountRead, routes!(notifications::list_notifications)),
        (AccountWrite, routes!(notifications::read_notification)),
        (AccountWrite, routes!(notifications::read_all_notifications)),
        (AccountRead, routes!(events::watch_own)),
        (AccountRead, routes!(webhooks::list_webhooks)),
        (AccountWrite, routes!(webhooks::create_webhook)),
        (AccountWrite, routes!(webhooks::delete_webhook)),
        (AccountWrite, routes!(webhooks::rotate_webhook)),
        (AccountWrite, routes!(webhooks::test_webhook)),
        (AccountRead, routes!(webhooks::list_deliveries)),
        (AccountWrite, routes!(webhooks::redeliver)),
    ]
}

/// What somebody has, what it goes for, and paying in.
fn for_payers() -> Vec<Entry> {
    use Permission::{
        MoneyRead, MoneyWrite, PaymentCreate, PaymentRead, ProjectManage, ProjectRead, Public,
    };
    vec![
        (PaymentCreate, routes!(payments::create_checkout_session)),
        (PaymentRead, routes!(payments::list_payment_sessions)),
        (PaymentRead, routes!(payments::show_payment_session)),
        (Public, routes!(payments::hear_stripe)),
        (MoneyRead, routes!(money::show_balance)),
        (MoneyWrite, routes!(money::set_balance_threshold)),
        (MoneyRead, routes!(money::show_usage)),
        (MoneyRead, routes!(money::list_ledger)),
        (MoneyRead, routes!(money::export_ledger)),
        (MoneyRead, routes!(money::explain_charge)),
        (ProjectRead, routes!(money::show_spending)),
        (ProjectManage, routes!(money::set_spending_cap)),
    ]
}

fn for_operators() -> Vec<Entry> {
    use Permission::{
        AllocationForceRelease, AuditRead, FleetManage, FleetRead, LedgerAdjust, LedgerRead,
        PaymentReconcile, PaymentReview, PolicyManage, PriceManage,
    };
    vec![
        (FleetRead, routes!(admin::list_all_allocations)),
        (AllocationForceRelease, routes!(admin::force_release_allocation)),
        (FleetRead, routes!(admin::show_operator_timeline)),
        (FleetRead, routes!(events::watch_as_operator)),
        (FleetRead, routes!(explain::explain_as_operator)),
        (FleetRead, routes!(allocation_groups::list_all_allocation_groups)),
        (FleetRead, routes!(explain::explain_group_as_operator)),
        (FleetRead, routes!(admin::list_nodes)),
        (FleetManage, routes!(admin::create_node)),
        (FleetRead, routes!(admin::show_node)),
        (FleetManage, routes!(admin::reissue_join_token)),
        (FleetManage, routes!(admin::revoke_node)),
        (FleetManage, routes!(drain::drain_node)),
        (FleetManage, routes!(drain::resume_node)),
        (FleetManage, routes!(drain::retire_node)),
        (FleetManage, routes!(recovery::abandon_allocation)),
        (FleetManage, routes!(recovery::clean_allocation)),
        (FleetRead, routes!(recovery::list_claims)),
        (FleetManage, routes!(recovery::quarantine_claim)),
        (FleetManage, routes!(recovery::clear_claim)),
        (FleetRead, routes!(findings::list_findings)),
        (FleetManage, routes!(findings::look_for_findings)),
        (FleetRead, routes!(admin::list_dead_letters)),
        (FleetManage, routes!(admin::redrive_dead_letter)),
        (FleetRead, routes!(admin::check_invariants)),
        (AuditRead, routes!(audit::list_audit_entries)),
        (AuditRead, routes!(audit::verify_audit_log)),
        (PaymentReview, routes!(payments::list_payment_cases)),
        (PaymentReconcile, routes!(payments::resolve_payment)),
        (PaymentReview, routes!(payments::list_payment_events)),
        (FleetRead, routes!(stuck::list_stuck)),
        (FleetRead, routes!(policies::list_policies)),
        (PolicyManage, routes!(policies::set_policy)),
        (PolicyManage, routes!(policies::reset_policy)),
        (LedgerRead, routes!(money::list_accounts)),
        (LedgerRead, routes!(money::audit_ledger)),
        (LedgerAdjust, routes!(money::adjust_ledger)),
        (PriceManage, routes!(money::set_price)),
    ]
}

/// Every door, in the order of the table.
pub fn doors() -> Vec<Door> {
    table().iter().map(|(permission, (_, paths, _))| door(*permission, paths)).collect()
}

/// The API behind its guards, and in its frame.
pub fn router(front: Front) -> Router {
    let mut router = OpenApiRouter::<Front>::default();
    for (permission, routes) in table() {
        let door = door(permission, &routes.1);
        let front = front.clone();
        router = router.routes(routes.map(|methods| guard::before(door, front, methods)));
    }
    let limits = front.limits;
    frame::around(Router::from(router).with_state(front), &limits, Some(limits.whole))
}

/// The doors through which a process is watched, and no others.
pub fn watched(front: Front) -> Router {
    let limits = front.limits;
    let router = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics));
    frame::around(router.with_state(front), &limits, Some(limits.whole))
}

/// What documents the doors, as their stories have it.
pub(crate) fn described(base: OpenApi) -> OpenApi {
    let with = |router: OpenApiRouter<Front>, (_, routes): Entry| router.routes(routes);
    table().into_iter().fold(OpenApiRouter::with_openapi(base), with).into_openapi()
}

/// The one door that an entry documents.
fn door(permission: Permission, paths: &Paths) -> Door {
    let described = paths.paths.iter().flat_map(|(path, item)| {
        operations(item).into_iter().map(move |(method, operation)| (method, path, operation))
    });
    let mut doors = described.map(|(method, path, operation)| Door {
        method,
        path: path.clone(),
        permission,
        query: query_of(operation),
    });
    let door = doors.next();
    debug_assert!(doors.next().is_none(), "an entry of the table is one door");
    door.unwrap_or(Door { method: "", path: String::new(), permission, query: Vec::new() })
}

/// The operations of a path with their methods.
pub(crate) fn operations(item: &PathItem) -> Vec<(&'static str, &Operation)> {
    let all = [
        ("GET", &item.get),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    all.into_iter().filter_map(|(method, found)| Some((method, found.as_ref()?))).collect()
}

fn query_of(operation: &Operation) -> Vec<String> {
    use utoipa::openapi::RefOr;
    let parameters = operation.parameters.iter().flatten();
    let names = parameters.filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => {
            Some(parameter.name.clone())
        }
        RefOr::T(_) | RefOr::Ref(_) => None,
    });
    names.collect()
}
