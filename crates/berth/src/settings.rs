//! The configuration of one process of a scaled-out installation: typed, complete before anything starts, and never printed
//! with a secret in it.

mod given;
pub(crate) mod keys;
mod payments;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use server::Limits;

use crate::exit::{Done, Exit, Failure};
use given::Given;
use keys::{TABLE, nearest};

/// What a process can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Serves people.
    Api,
    /// Serves agents.
    Gateway,
    /// Moves facts out of the outbox.
    Relay,
    /// Handles messages, steps workflows, runs timers.
    Worker,
    /// Charges what is metered, and takes back what nobody pays for. Workers do it too.
    Billing,
    /// Tells people, and delivers to their webhooks. Workers do it too.
    Notifier,
}

/// Every role, by its name.
const ROLES: [(&str, Role); 6] = [
    ("api", Role::Api),
    ("gateway", Role::Gateway),
    ("relay", Role::Relay),
    ("worker", Role::Worker),
    ("billing", Role::Billing),
    ("notifier", Role::Notifier),
];

impl Role {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        ROLES.iter().find(|(_, role)| *role == self).map_or("", |(name, _)| name)
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A JSON object a line, for programs.
    Json,
    /// A line of text, for people.
    Text,
}

#[derive(Clone, Copy)]
enum Engine {
    Postgres,
    Other,
}

/// Where the configuration of a process is.
#[derive(Args, Clone, Default)]
pub(crate) struct Configured {
    /// A TOML file; the environment wins over it. See docs/howto/run-scaled-out.md
    #[arg(long, env = "BERTH_SERVER_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl Configured {
    /// What the file and the environment say, with what the command line says on top.
    pub(crate) fn settings(&self, roles: Option<&str>) -> Done<Settings> {
        let file = self.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        let flags = roles.map(|roles| ("roles", roles.to_owned()));
        // The flag has a variable, too; said there, it is not from the command line.
        let flags =
            flags.filter(|(_, roles)| std::env::var("BERTH_ROLES").ok().as_ref() != Some(roles));
        Settings::of(file, std::env::vars(), flags)
    }
}

/// One key as it stands, for people. Secrets are left out.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Shown {
    /// The key.
    pub(crate) key: &'static str,
    /// What it is.
    pub(crate) value: String,
    /// Where that is from.
    pub(crate) from: String,
    /// What it means.
    pub(crate) means: &'static str,
}

/// See the module. It has a secret in it, and so no `Debug`.
pub(crate) struct Settings {
    /// What the process does.
    pub(crate) roles: Vec<Role>,
    /// The address of the database, with its password.
    pub(crate) database: String,
    /// How many connections to it.
    pub(crate) connections_max: u32,
    /// Its doors, as its roles have them.
    pub(crate) doors: server::Config,
    /// Where agents reach the gateway.
    pub(crate) gateway_url: Option<String>,
    /// Whether webhooks may lead to this machine and to networks of one's own.
    pub(crate) webhooks_allow_private: bool,
    /// NATS, if that carries word of messages.
    pub(crate) nats: Option<engines::nats::Options>,
    /// Temporal, if that brings runs to workers.
    pub(crate) temporal: Option<engines::temporal::Options>,
    /// Whom people pay through.
    pub(crate) payments: Option<server::outside::stripe::Options>,
    /// How the log is written.
    pub(crate) log: LogFormat,
    /// Everything, for people.
    pub(crate) shown: Vec<Shown>,
    /// What is worth knowing and no fault.
    pub(crate) notes: Vec<String>,
}

impl Settings {
    /// What these say.
    ///
    /// All that is wrong is said at once.
    fn of(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Done<Settings> {
        let mut given = Given::gather(file, environment, flags)?;
        let shown = shown(&given);
        let roles = roles(&mut given);
        let has = |role| roles.contains(&role);
        let database = database(&mut given);
        let doors = doors(&mut given, &roles);
        let gateway_url = gateway_url(&mut given, &roles, doors.gateway);
        let mut settings = Settings {
            database,
            connections_max: given.number("database.connections_max", 2..=1_000),
            doors,
            gateway_url,
            webhooks_allow_private: given
                .word("webhooks.allow_private", &[("false", false), ("true", true)]),
            nats: nats(&mut given),
            temporal: temporal(&mut given),
            payments: payments::payments(&mut given),
            log: given.word("log.format", &[("json", LogFormat::Json), ("text", LogFormat::Text)]),
            shown,
            notes: Vec::new(),
            roles: Vec::new(),
        };
        if !has(Role::Api) && !has(Role::Gateway) && settings.doors.health.is_none() {
            let note = "nobody can ask this process how it is: set listen.health";
            settings.notes.push(note.to_owned());
        }
        for (engine, key) in
            [("bus.engine", "bus.servers"), ("workflows.engine", "workflows.address")]
        {
            if given.text(engine) == Some("postgres") && given.text(key).is_some() {
                settings.notes.push(format!("{key} is set and not used: {engine} is postgres"));
            }
        }
        settings.roles = roles;
        if given.faults.is_empty() {
            return Ok(settings);
        }
        let failure = Failure::new(Exit::Usage, "the configuration can't be used");
        let failure =
            given.faults.into_iter().fold(failure, |failure, (key, what)| failure.with(&key, what));
        Err(failure.next("config keys"))
    }

    /// Whether the process has the role.
    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

fn shown(given: &Given) -> Vec<Shown> {
    let show = |key: &'static keys::Key| {
        let value = given.text(key.name).unwrap_or("-");
        let value = match key.name {
            "database.url" | "bus.servers" => {
                value.split(',').map(masked).collect::<Vec<_>>().join(",")
            }
            _ => value.to_owned(),
        };
        let from = if value == "-" { String::new() } else { given.origin(key.name).to_string() };
        Shown { key: key.name, value, from, means: key.means }
    };
    TABLE.iter().map(show).collect()
}

/// A URL without its password, wherever in it that may be.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return if url == "-" { url.to_owned() } else { "(hidden: it is no URL)".to_owned() };
    };
    let (rest, query) =
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (place, path) = rest.split_once('/').map_or((rest, ""), |(place, path)| (place, path));
    let place = match place.rsplit_once('@') {
        Some((who, host)) => match who.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            // Alone, it may be a token.
            None if scheme == "nats" || scheme == "tls" => format!("***@{host}"),
            None => place.to_owned(),
        },
        None => place.to_owned(),
    };
    let path = if path.contains('@') { "***" } else { path };
    // Of what is behind it only the names are told.
    let query = query.map_or_else(String::new, |query| {
        let shown = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name @ ("host" | "sslmode"), value)) => format!("{name}={value}"),
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        });
        format!("?{}", shown.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{place}/{path}{query}")
}

fn roles(given: &mut Given) -> Vec<Role> {
    let text = given.text("roles").unwrap_or_default().to_owned();
    let mut roles = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match ROLES.iter().find(|(name, _)| *name == word) {
            Some((_, role)) if roles.contains(role) => {}
            Some((_, role)) => roles.push(*role),
            None => {
                let near = nearest(word, ROLES.iter().map(|(name, _)| (*name).to_owned()));
                given.fault("roles", format!("`{word}` is no role; the nearest is {near}"));
            }
        }
    }
    if roles.is_empty() && given.faults.is_empty() {
        let all: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
        given.fault("roles", format!("at least one is needed, of: {}", all.join(", ")));
    }
    roles
}

fn database(given: &mut Given) -> String {
    let url = given.text("database.url").map(str::to_owned);
    let file = given.text("database.url_file").map(str::to_owned);
    let (said, filed) = (given.origin("database.url"), given.origin("database.url_file"));
    match (url, file) {
        (None, None) => {
            given.fault(
                "database.url",
                "is needed: set it in the file, or BERTH_DATABASE_URL, or database.url_file",
            );
            String::new()
        }
        (Some(_), Some(_)) if said == filed => {
            given.fault("database.url", "is given twice: leave out either it or database.url_file");
            String::new()
        }
        (Some(url), Some(_)) if said > filed => url,
        (Some(url), None) => url,
        (_, Some(file)) => match std::fs::read_to_string(&file) {
            Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
            Ok(_) => {
                given.fault("database.url_file", format!("there is nothing in {file}"));
                String::new()
            }
            Err(error) => {
                given.fault("database.url_file", format!("{file} can't be read: {error}"));
                String::new()
            }
        },
    }
}

fn doors(given: &mut Given, roles: &[Role]) -> server::Config {
    const ADDRESS: &str = "an address like 127.0.0.1:7717 or [::]:7717";
    let api: Option<SocketAddr> = given.parsed("listen.api", ADDRESS);
    let gateway: Option<SocketAddr> = given.parsed("listen.gateway", ADDRESS);
    let health: Option<SocketAddr> = given.parsed("listen.health", ADDRESS);
    let share_port = given.word("listen.share_port", &[("false", false), ("true", true)]);
    let seconds =
        |given: &mut Given, key: &str| Duration::from_secs(u64::from(given.number(key, 0..=3_600)));
    let notice = seconds(given, "drain.notice_seconds");
    let drain = seconds(given, "drain.requests_seconds");
    let most = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX);
    let count = |given: &mut Given, key: &str| given.number(key, 1..=u32::MAX) as usize;
    let per_minute = most(given.number("limits.requests_per_minute", 0..=u32::MAX));
    let limits = Limits {
        token_per_minute: per_minute,
        token_burst: NonZeroU32::new(per_minute.get() / 3).unwrap_or(per_minute),
        login_per_minute: most(given.number("limits.logins_per_minute", 1..=u32::MAX)),
        connections_max: count(given, "limits.connections_max"),
        in_flight_max: count(given, "limits.in_flight_max"),
        body_bytes_max: count(given, "limits.body_bytes_max"),
        streams_per_user_max: count(given, "limits.streams_per_user_max"),
        streams_open_max: count(given, "limits.streams_open_max"),
        drain,
        ..Limits::default()
    };
    let enrolments = most(given.number("limits.enrolments_per_minute", 1..=u32::MAX));
    let gateway_limits = Limits {
        enrolments_per_peer_per_minute: enrolments,
        handshakes_per_second: most(given.number("limits.handshakes_per_second", 1..=u32::MAX)),
        drain,
        ..server::gateway::limits()
    };
    let (api, gateway) = (
        api.filter(|_| roles.contains(&Role::Api)),
        gateway.filter(|_| roles.contains(&Role::Gateway)),
    );
    // Where nobody comes in, nobody has to be told.
    let notice = if api.is_some() || gateway.is_some() { notice } else { Duration::ZERO };
    server::Config { api, gateway, health, share_port, notice, limits, gateway_limits }
}

fn gateway_url(given: &mut Given, roles: &[Role], listens: Option<SocketAddr>) -> Option<String> {
    let url = given.text("gateway.url").map(|url| url.trim_end_matches('/').to_owned());
    match (&url, listens) {
        (Some(url), _) if !url.starts_with("https://") => {
            given.fault("gateway.url", format!("`{url}` is not like https://host:port"));
        }
        (None, None) if roles.contains(&Role::Api) => given.fault(
            "gateway.url",
            "is needed by an API without a gateway in the same process: operators who add nodes are told where agents go",
        ),
        (None, Some(address)) if address.ip().is_unspecified() => {
            given.fault("gateway.url", format!("is needed: agents can't be sent to {address}"));
        }
        (Some(_) | None, _) => {}
    }
    url
}

fn nats(given: &mut Given) -> Option<engines::nats::Options> {
    let replicas = given.number("bus.replicas", 1..=5) as usize;
    let bytes_max = (given.number("bus.mebibytes_max", 1..=1_048_576) as i64) << 20;
    match given.word("bus.engine", &[("postgres", Engine::Postgres), ("nats", Engine::Other)]) {
        Engine::Postgres => None,
        Engine::Other => {
            let servers = given.text("bus.servers").map(str::to_owned);
            if servers.is_none() {
                given.fault("bus.servers", "is needed: bus.engine is nats");
            }
            let name = given.text("bus.name").unwrap_or_default().to_owned();
            if name.is_empty()
                || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
            {
                given.fault("bus.name", "letters, digits, hyphens and underscores are expected");
            }
            let credentials = given.text("bus.credentials_file").map(PathBuf::from);
            Some(engines::nats::Options {
                servers: servers?,
                credentials,
                name,
                replicas,
                bytes_max,
            })
        }
    }
}

fn temporal(given: &mut Given) -> Option<engines::temporal::Options> {
    match given
        .word("workflows.engine", &[("postgres", Engine::Postgres), ("temporal", Engine::Other)])
    {
        Engine::Postgres => None,
        Engine::Other => {
            let address = given.text("workflows.address").map(str::to_owned);
            match &address {
                None => given.fault("workflows.address", "is needed: workflows.engine is temporal"),
                Some(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
                    given.fault(
                        "workflows.address",
                        format!("`{url}` is not like http://host:7233"),
                    );
                }
                Some(_) => {}
            }
            let text = |key: &str| given.text(key).unwrap_or_default().to_owned();
            let (namespace, queue) = (text("workflows.namespace"), text("workflows.queue"));
            let prefix = text("workflows.prefix");
            Some(engines::temporal::Options { address: address?, namespace, queue, prefix })
        }
    }
}

#[cfg(test)]
mod tests;
