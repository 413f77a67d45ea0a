//! R14 with the real binary: the private Postgres of `berth up` falls while it is at work, and is started again; relay, workers,
//! timers, wake-ups and nodes go on by themselves, and the log says once what happened.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::new_id;

use crate::berth::{Home, Ran};
use crate::whole::{create, json};

const FALLS: usize = 2;

/// An installation with a Postgres of its own. It is taken down whatever becomes of the test.
struct Private {
    home: Home,
    folder: PathBuf,
}

impl Private {
    fn up() -> Private {
        // Not in the home: as root the server runs as somebody who can't look in there.
        let folder = std::env::temp_dir().join(format!("berth-falls-{}", new_id().simple()));
        let whole = Private { home: Home::new(), folder };
        let free = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [api, gateway] = free.map(|held| held.local_addr().expect("it has one").to_string());
        let folder = whole.folder.display().to_string();
        let words = ["up", "--detach", "--data", &folder, "--api", &api, "--gateway", &gateway];
        let up = whole.home.run(&[&words[..], &["--nodes", "2", "--speed", "0"]].concat());
        assert_eq!(up.code, 0, "{}{}", up.out, up.err);
        whole
    }

    fn down(&self) -> Ran {
        self.home.run(&["down", "--data", &self.folder.display().to_string()])
    }

    /// The server of the database.
    fn server(&self) -> Option<u32> {
        let file = self.folder.join("postgres/data/postmaster.pid");
        std::fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
    }

    /// What its log says with some weight.
    fn warnings(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.join("berth.log")).expect("a log");
        // What is said to people is among it.
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let heavy = lines.filter(|line| line["level"] != "INFO");
        heavy
            .map(|line| line["fields"]["message"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = self.down();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn r14_a_private_postgres_that_falls_is_started_again_and_everything_goes_on() {
    let whole = Private::up();
    let ok = |words: &[&str]| {
        let ran = whole.home.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
        ran
    };
    assert_eq!(json(&ok(&create("first")))["status"], "active");
    for fall in 1..=FALLS {
        let server = whole.server().expect("it runs");
        // What `pg_ctl stop -m immediate` sends.
        let fell = Command::new("kill").args(["-QUIT", &server.to_string()]).status();
        assert!(fell.expect("kill runs").success());
        // Whoever asks before it is back is told to ask again; whoever then waits sees it done.
        let again = (1..=200).map(|attempt| {
            let name = format!("after-{fall}-{attempt}");
            whole.home.run(&create(&name))
        });
        let mut last = String::new();
        let made = again.inspect(|ran| last.clone_from(&ran.err)).find(|ran| ran.code == 0);
        let made = made.unwrap_or_else(|| panic!("it does not come back: {last}"));
        assert_eq!(json(&made)["status"], "active");
        assert_ne!(whole.server(), Some(server), "another server");
    }
    ok(&["alloc", "release", "first", "--yes", "--wait"]);
    let audit = whole.home.run(&["--context", "operator", "audit", "--json"]);
    assert_eq!(json(&audit)["clean"], true, "{}", audit.out);
    let warnings = whole.warnings();
    let said = |what: &str| warnings.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("Postgres has ended and is started again"), FALLS, "{warnings:#?}");
    let told = said("the database can't be asked");
    assert!((1..=FALLS).contains(&told), "{warnings:#?}");
    assert_eq!(said("the database answers again"), told, "{warnings:#?}");
    // Nobody goes on about it.
    for tick in ["nothing could be claimed", "could not move facts", "a timer failed", "not heard"]
    {
        assert_eq!(said(tick), 0, "{warnings:#?}");
    }
    assert_eq!(whole.down().code, 0);
    assert_eq!(whole.server(), None, "it is gone with everything else");
}
