//! What is written of the doors for others: the OpenAPI document, the table of permissions, the catalogue of problems. All
//! of it is made from the table and the types, so nothing has to be kept in step by hand.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::OnceLock;

use domain::policy::{Bearer, Permission};
use lifecycle::Code as _;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::info::InfoBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Content, Header, OpenApi, OpenApiBuilder, Ref, RefOr, Response, ResponseBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};
use wire::problem::{Problem, ProblemCode};

use crate::doors::{Door, routes};
use crate::http::problem::MEDIA_TYPE;

const SECURITY: &str = "token";
const TAGS: [(&str, &str); 11] = [
    ("allocations", "Ask for GPUs, look at them, give them back."),
    ("allocation groups", "Several allocations, all of them or none."),
    ("apps", "Applications that are bound to an allocation or a group."),
    ("catalogue", "What can be asked for, and what is free."),
    ("account", "Login, tokens, SSH keys."),
    ("payments", "Paying in."),
    ("projects", "Projects and their members."),
    ("money", "What you have, what it goes for, and every line behind it."),
    ("notifications", "What you are told, and the webhooks that are told it, too."),
    ("admin", "For those who run the platform."),
    ("health", "For whatever watches the installation."),
];

/// The OpenAPI document, as it is served.
pub fn openapi_text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(openapi)
}

/// The OpenAPI document.
pub fn openapi() -> String {
    let mut document = routes::described(base());
    for door in routes::doors() {
        if let Some(operation) = operation(&mut document, &door) {
            complete(operation, &door);
        }
    }
    // It is made of maps with text as keys, which JSON can always say.
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Every door with the permission it needs and whom that asks for.
pub fn permissions() -> String {
    let mut lines = routes::doors().iter().map(line).collect::<Vec<String>>();
    lines.sort();
    lines.join("")
}

fn line(door: &Door) -> String {
    let whom = match door.permission.bearer() {
        Bearer::Anybody => "anybody".to_owned(),
        Bearer::User => "user".to_owned(),
        Bearer::Member(role) => format!("member:{role}"),
        Bearer::Operator => "operator".to_owned(),
    };
    let scope = door.permission.scope().map_or("-", |scope| scope.code());
    let Door { method, path, permission, .. } = door;
    format!("{path} {method} {permission} scope={scope} bearer={whom}\n")
}

/// Every problem that an answer can be.
pub fn problems() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/wire/src/problem.rs by `cargo xtask gen`. Do not edit. -->\n\n\
         # Problems\n\n\
         Every answer that is an error is an RFC 9457 problem: `application/problem+json`, with a `code` that does not\n\
         change, a sentence for people, the `request_id`, and `errors` that point into the body where there is something\n\
         to point at.\n\n\
         | status | code | title | what to do |\n|---|---|---|---|\n",
    );
    let mut codes = ProblemCode::ALL.to_vec();
    codes.sort_by_key(|code| code.status());
    for code in codes {
        let (status, title, advice) = (code.status(), code.title(), code.advice());
        // Writing to a text does not fail.
        let _ = writeln!(page, "| {status} | `{code}` | {title} | {advice} |");
    }
    page
}

fn base() -> OpenApi {
    let about = InfoBuilder::new()
        .title("Berth")
        .version("1")
        .description(Some(
            "The control plane of a GPU cloud. Errors are RFC 9457 problems with a stable `code`. Mutations take an \
             `Idempotency-Key`. Lists are pages with a cursor. Unknown fields and parameters are refused by name.",
        ))
        .build();
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `POST /api/v1/login` or `POST /api/v1/tokens`."))
        .build();
    let components = ComponentsBuilder::new()
        .schema(Problem::name(), Problem::schema())
        .security_scheme(SECURITY, SecurityScheme::Http(token));
    let statuses: BTreeSet<u16> = ProblemCode::ALL.iter().map(|code| code.status()).collect();
    let with = |components: ComponentsBuilder, status| {
        components.response(shared(status), with_id(problem(status, None)))
    };
    let components = statuses.into_iter().fold(components, with).build();
    let tags =
        TAGS.map(|(name, what)| TagBuilder::new().name(name).description(Some(what)).build());
    let mut document =
        OpenApiBuilder::new().info(about).components(Some(components)).tags(Some(tags)).build();
    let mut schemas = Vec::new();
    Problem::schemas(&mut schemas);
    if let Some(components) = document.components.as_mut() {
        components.schemas.extend(schemas);
    }
    document
}

fn operation<'d>(document: &'d mut OpenApi, door: &Door) -> Option<&'d mut Operation> {
    let item = document.paths.paths.get_mut(&door.path)?;
    let operation = match door.method {
        "GET" => &mut item.get,
        "POST" => &mut item.post,
        "PUT" => &mut item.put,
        "PATCH" => &mut item.patch,
        "DELETE" => &mut item.delete,
        _ => return None,
    };
    operation.as_mut()
}

/// Adds what follows from the door and from what it takes: who may, which problems there are, the headers of every
/// answer.
fn complete(operation: &mut Operation, door: &Door) {
    if let Some(scope) = door.permission.scope() {
        let needs: [&str; 0] = [];
        operation.security = Some(vec![SecurityRequirement::new(SECURITY, needs)]);
        let said = operation.description.take().or_else(|| operation.summary.clone());
        let needs = format!("Needs `{}`: a token with the scope `{scope}`.", door.permission);
        operation.description = Some(format!("{}\n\n{needs}", said.unwrap_or_default()));
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            *response = with_id(std::mem::take(response));
        }
    }
    for status in statuses(operation, door) {
        let told = operation.responses.responses.remove(&status.to_string());
        let told = match told {
            Some(RefOr::T(told)) => RefOr::T(with_id(problem(status, Some(told.description)))),
            Some(RefOr::Ref(_)) | None => RefOr::Ref(Ref::from_response_name(shared(status))),
        };
        operation.responses.responses.insert(status.to_string(), told);
    }
}

/// What the answer of a status that many doors have is called.
fn shared(status: u16) -> String {
    format!("Problem{status}")
}

fn with_id(mut response: Response) -> Response {
    let id = plain(Type::String, "Names the request, as the caller did, or as we do.");
    response.headers.insert("X-Request-Id".to_owned(), RefOr::T(id));
    response
}

/// The problems that a door can answer with.
fn statuses(operation: &Operation, door: &Door) -> BTreeSet<u16> {
    let mut statuses = BTreeSet::from([400, 431, 500, 503]);
    let documented = operation.responses.responses.keys().filter_map(|status| status.parse().ok());
    statuses.extend(documented.filter(|status: &u16| *status >= 400));
    if door.permission != Permission::Public {
        statuses.extend([401, 403, 429]);
    }
    if door.path.ends_with("/login") {
        statuses.extend([401, 429]);
    }
    // What belongs to a project is not found by who is no member of it.
    let of_project = matches!(door.permission.bearer(), Bearer::Member(_));
    if door.path.contains('{') || door.path.ends_with("/allocations") || of_project {
        statuses.insert(404);
    }
    if !door.query.is_empty() {
        statuses.insert(422);
    }
    if operation.request_body.is_some() {
        statuses.extend([408, 413, 415, 422]);
    }
    if door.method != "GET" && door.permission != Permission::Public {
        // A body may be sent where none is needed, and a key may be of another request.
        statuses.extend([408, 409, 413, 415, 422]);
    }
    statuses
}

/// What stands behind a status: all codes that travel with it.
fn problem(status: u16, description: Option<String>) -> Response {
    let codes = ProblemCode::ALL.iter().filter(|code| code.status() == status);
    let codes: Vec<String> = codes.map(|code| format!("`{code}`: {}", code.title())).collect();
    let told = description.filter(|told| !told.is_empty());
    let told = told.map_or(codes.join("; "), |told| format!("{told} ({})", codes.join("; ")));
    let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name(Problem::name()))));
    let response = ResponseBuilder::new().description(told).content(MEDIA_TYPE, content);
    let response = match status {
        401 => response.header("WWW-Authenticate", plain(Type::String, "How to say who one is.")),
        409 | 429 | 503 => response
            .header("Retry-After", plain(Type::Integer, "In how many seconds to ask again.")),
        _ => response,
    };
    response.build()
}

fn plain(kind: Type, description: &str) -> Header {
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(kind).build()))
        .description(Some(description))
        .build()
}
