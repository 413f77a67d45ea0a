//! TABLE: every key of the configuration of a process, with its default and what it means. File, environment, check and
//! documentation all go by it.

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its section and its name in the file, with a dot between them.
    pub(crate) name: &'static str,
    /// What it is when nobody says.
    pub(crate) default: Option<&'static str>,
    /// What it means.
    pub(crate) means: &'static str,
}

const fn key(name: &'static str, default: Option<&'static str>, means: &'static str) -> Key {
    Key { name, default, means }
}

/// The table.
#[rustfmt::skip]
pub(crate) const TABLE: &[Key] = &[
    key("roles", Some("api,gateway,relay,worker"), "what this process does"),
    key("database.url", None, "the system of record, as postgres://user:password@host/database"),
    key("database.url_file", None, "a file with that URL in it, instead"),
    key("database.connections_max", Some("20"), "how many connections this process may hold"),
    key("listen.api", Some("127.0.0.1:7717"), "where people come in"),
    key("listen.gateway", Some("127.0.0.1:7718"), "where agents come in"),
    key("listen.health", None, "where this process can be asked how it is, whatever its roles"),
    key("listen.share_port", Some("false"), "whether several processes of one machine share these addresses"),
    key("gateway.url", None, "where agents reach the gateway, as https://host:port"),
    key("drain.notice_seconds", Some("5"), "how long a process that ends says so before it lets nobody in"),
    key("drain.requests_seconds", Some("10"), "how long requests may go on after that"),
    key("limits.requests_per_minute", Some("600"), "how often a token may be used; 0 is as often as it likes"),
    key("limits.logins_per_minute", Some("10"), "how often one account may be tried from one place"),
    key("limits.enrolments_per_minute", Some("60"), "how often one place may try to enrol a node"),
    key("limits.handshakes_per_second", Some("400"), "how many agents the gateway lets in a second; the others take their turns"),
    key("limits.connections_max", Some("8192"), "how many connections people may have open"),
    key("limits.in_flight_max", Some("1024"), "how many of their requests may run at a time; fewer are let in while most take long"),
    key("limits.body_bytes_max", Some("1048576"), "how large a body may be"),
    key("limits.streams_per_user_max", Some("64"), "how many streams of events one user may have open"),
    key("limits.streams_open_max", Some("8000"), "how many streams of events may be open"),
    key("bus.engine", Some("postgres"), "what carries word of messages: postgres or nats"),
    key("bus.servers", None, "the NATS servers, as nats://host:4222"),
    key("bus.credentials_file", None, "a file with credentials for NATS"),
    key("bus.name", Some("berth"), "what the stream is called, and what its subjects begin with"),
    key("bus.replicas", Some("1"), "on how many servers of a NATS cluster the stream is kept"),
    key("bus.mebibytes_max", Some("1024"), "how much NATS keeps of it at most, and sets aside for it"),
    key("workflows.engine", Some("postgres"), "what brings runs to workers: postgres or temporal"),
    key("workflows.address", None, "Temporal's front end, as http://host:7233"),
    key("workflows.namespace", Some("default"), "the namespace in Temporal, which must be there"),
    key("workflows.queue", Some("berth"), "the task queue: installations in one namespace differ in it"),
    key("workflows.prefix", Some(""), "what workflow ids begin with"),
    key("webhooks.allow_private", Some("false"), "whether webhooks may be plain HTTP, and lead to this machine or a private network"),
    key("payments.provider", Some("none"), "whom people pay through: none or stripe"),
    key("payments.stripe_url", Some("https://api.stripe.com"), "where Stripe's API is"),
    key("payments.stripe_key_file", None, "a file with the secret key for it"),
    key("payments.webhook_secrets_file", None, "a file with what its webhooks are signed with, one a line: several while they are changed"),
    key("payments.return_url", None, "where payers go when they are done, as https://host/path"),
    key("log.format", Some("json"), "how the log is written: json or text"),
];

impl Key {
    /// The variable of the environment that wins over the file.
    pub(crate) fn variable(&self) -> String {
        format!("BERTH_{}", self.name.replace('.', "_").to_uppercase())
    }
}

/// The key of that name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    TABLE.iter().find(|key| key.name == name)
}

/// Whether a variable looks like one of a key, because it begins like those of a section.
pub(crate) fn resembles(variable: &str) -> bool {
    let sections = TABLE.iter().filter_map(|key| Some(key.name.split_once('.')?.0));
    sections
        .map(|section| format!("BERTH_{}_", section.to_uppercase()))
        .any(|begin| variable.starts_with(&begin))
}

/// Of these, the one that looks most like `asked`: it shares most pairs of letters with it.
pub(crate) fn nearest(asked: &str, names: impl IntoIterator<Item = String>) -> String {
    let pairs = |text: &str| -> Vec<[u8; 2]> {
        text.as_bytes().windows(2).map(|pair| [pair[0], pair[1]]).collect()
    };
    let given = pairs(asked);
    let likeness = |other: &String| {
        let known = pairs(other);
        let shared = known.iter().filter(|pair| given.contains(pair)).count();
        (shared * 1_000) / (known.len() + given.len()).max(1)
    };
    names.into_iter().max_by_key(likeness).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{TABLE, find, nearest, resembles};

    #[test]
    fn every_key_has_a_variable_of_its_own_and_says_what_it_means() {
        let mut seen = std::collections::BTreeSet::new();
        for key in TABLE {
            assert!(seen.insert(key.variable()), "{} is there twice", key.name);
            assert!(!key.means.is_empty() && find(key.name).is_some());
        }
        assert!(seen.contains("BERTH_BUS_ENGINE"));
        assert!(resembles("BERTH_BUS_ENGNE") && !resembles("BERTH_CONTEXT"));
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_key_that_was_meant() {
        let names = || TABLE.iter().map(|key| key.name.to_owned());
        for (slip, meant) in [
            ("bus.engne", "bus.engine"),
            ("database.pool", "database.url"),
            ("listen.shared_port", "listen.share_port"),
            ("workflow.adress", "workflows.address"),
        ] {
            assert_eq!(nearest(slip, names()), meant);
        }
    }
}
