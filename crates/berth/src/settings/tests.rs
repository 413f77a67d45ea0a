//! What is refused, and how it is said; what wins; what is never shown.

use std::io::Write as _;

use super::{Role, Settings, masked};
use crate::exit::{Done, Exit};

const URL: &str = "postgres://berth:hunter2@db.example/berth?sslmode=require&password=hunter3";

fn of(file: &str, variables: &[(&str, &str)], roles: Option<&str>) -> Done<Settings> {
    let mut draft = tempfile::NamedTempFile::new().expect("a file");
    draft.write_all(file.as_bytes()).expect("it is written");
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Settings::of(Some(draft.path()), variables, roles.map(|roles| ("roles", roles.to_owned())))
}

#[test]
fn the_environment_wins_over_the_file_and_the_command_line_over_both() {
    let file =
        format!("roles = [\"api\", \"gateway\"]\n[database]\nurl = \"{URL}\"\nconnections_max = 4");
    let settings = of(&file, &[("BERTH_DATABASE_CONNECTIONS_MAX", "7")], Some("relay,worker"));
    let settings = settings.expect("it can be used");
    assert_eq!(settings.roles, [Role::Relay, Role::Worker]);
    assert_eq!((settings.connections_max, settings.database.as_str()), (7, URL));
    assert!(settings.doors.api.is_none() && settings.doors.gateway.is_none());
    let from = |key: &str| {
        let shown = settings.shown.iter().find(|shown| shown.key == key).expect("it is shown");
        (shown.value.clone(), shown.from.clone())
    };
    assert_eq!(from("roles").1, "command line");
    assert_eq!(
        from("database.connections_max"),
        ("7".to_owned(), "BERTH_DATABASE_CONNECTIONS_MAX".to_owned())
    );
    assert_eq!(from("bus.engine"), ("postgres".to_owned(), "default".to_owned()));
    assert_eq!(from("database.url").1, "file");
    assert!(
        settings.notes.iter().any(|note| note.contains("listen.health")),
        "{:?}",
        settings.notes
    );
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_the_nearest_key() {
    let file = "roles = [\"api\", \"wrker\"]\n[bus]\nengne = \"nats\"\nreplicas = 9\n[workflows]\nengine = \"temporal\"\n[listen]\napi = \"here\"";
    let Err(failure) = of(file, &[("BERTH_LISTEN_HELTH", "127.0.0.1:1")], None) else {
        panic!("it was taken")
    };
    assert_eq!(failure.exit, Exit::Usage);
    let said = failure.lines.iter().map(|(key, what)| format!("{key}: {what}")).collect::<Vec<_>>();
    for expected in [
        "roles: `wrker` is no role; the nearest is worker",
        "bus.engne: there is no such key; the nearest is bus.engine",
        "bus.replicas: 9 is not a whole number from 1 to 5",
        "workflows.address: is needed",
        "listen.api: `here` is not an address like",
        "BERTH_LISTEN_HELTH: there is no such variable; the nearest is BERTH_LISTEN_HEALTH",
        "database.url: is needed",
        "gateway.url: is needed by an API without a gateway",
    ] {
        assert!(
            said.iter().any(|line| line.starts_with(expected)),
            "{expected} is not in {said:#?}"
        );
    }
}

#[test]
fn a_secret_may_be_in_a_file_and_is_never_shown() {
    let mut secret = tempfile::NamedTempFile::new().expect("a file");
    writeln!(secret, "{URL}").expect("it is written");
    let file = format!("[database]\nurl_file = \"{}\"", secret.path().display());
    assert_eq!(of(&file, &[], None).expect("it can be used").database, URL);
    // What is nearer wins: the environment over the file.
    let other = "postgres://other@db/berth";
    assert_eq!(
        of(&file, &[("DATABASE_URL", other)], None).expect("it can be used").database,
        other
    );
    let both = format!("[database]\nurl = \"{URL}\"\nurl_file = \"{}\"", secret.path().display());
    assert!(of(&both, &[], None).is_err(), "which of them is meant?");
    let shown = of(&format!("database.url = \"{URL}\""), &[], None).expect("it can be used").shown;
    let shown = format!("{shown:?}");
    assert!(shown.contains("db.example") && !shown.contains("hunter"), "{shown}");
    assert_eq!(masked("nats://token@a:4222"), "nats://***@a:4222/");
    assert!(!masked("postgres://u:a/b@c@host/db").contains("a/b@c"));
    let Err(failure) = of("[database]\nurl = \"postgres://u:hunter2@", &[], None) else {
        panic!("it was taken")
    };
    assert!(
        !failure.sentence.contains("hunter2") && failure.sentence.contains("line 2"),
        "{}",
        failure.sentence
    );
}

#[test]
fn whom_people_pay_through_is_said_whole_or_not_at_all_and_its_keys_are_never_shown() {
    let mut key = tempfile::NamedTempFile::new().expect("a file");
    writeln!(key, "sk_test_hunter2").expect("it is written");
    let mut secrets = tempfile::NamedTempFile::new().expect("a file");
    writeln!(secrets, "whsec_hunter2\n\n whsec_hunter3 ").expect("it is written");
    let none = of(&format!("database.url = \"{URL}\""), &[], None).expect("it can be used");
    assert!(none.payments.is_none());
    let whole = format!(
        "database.url = \"{URL}\"\n[payments]\nprovider = \"stripe\"\nreturn_url = \"https://berth.test/billing\"\n\
         stripe_key_file = \"{}\"\nwebhook_secrets_file = \"{}\"",
        key.path().display(),
        secrets.path().display()
    );
    let settings = of(&whole, &[], None).expect("it can be used");
    let options = settings.payments.expect("people can pay");
    assert_eq!(
        (options.url.as_str(), options.webhook_secrets.len()),
        ("https://api.stripe.com", 2)
    );
    let shown = format!("{:?} {options:?}", settings.shown);
    assert!(!shown.contains("hunter"), "{shown}");
    let half = format!(
        "database.url = \"{URL}\"\n[payments]\nprovider = \"stripe\"\nstripe_key_file = \"/nowhere\""
    );
    let Err(failure) = of(&half, &[], None) else { panic!("it was taken") };
    for missing in
        ["payments.return_url", "payments.webhook_secrets_file", "payments.stripe_key_file"]
    {
        assert!(failure.lines.iter().any(|(key, _)| key == missing), "{:?}", failure.lines);
    }
}
