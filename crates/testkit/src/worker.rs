//! Another process that moves a house, on whatever engines: `cargo xtask stories` names it. It does nothing but when it is told
//! to settle, so that a story finds everything as it left it.

use std::process::Stdio;
use std::time::Duration;

use control::policies::{Policies, TABLE};
use spine::Clock;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

/// Names the program. Without it a house is moved in the test's own process, by the engines in Postgres.
pub const WORKER_VARIABLE: &str = "BERTH_TEST_WORKER";
/// Tells the program which database.
pub const DATABASE_VARIABLE: &str = "BERTH_TEST_DATABASE";
/// Tells the program which policies, as `key=value` with commas between them.
pub const POLICIES_VARIABLE: &str = "BERTH_TEST_POLICIES";

/// Longer than anything that still moves.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process. It ends with the house.
pub(crate) struct Worker {
    line: Mutex<Line>,
}

struct Line {
    _child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts it, if one is named.
    pub(crate) fn start(database: &str, policies: Policies) -> Option<Worker> {
        let program = std::env::var_os(WORKER_VARIABLE)?;
        let told = |policy: &control::policies::Policy| {
            format!("{}={}", policy.key, (policy.read)(&policies))
        };
        let policies: Vec<String> = TABLE.iter().map(told).collect();
        let mut child = Command::new(program)
            .env(DATABASE_VARIABLE, database)
            .env(POLICIES_VARIABLE, policies.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the worker starts");
        let to = child.stdin.take().expect("it listens");
        let from = BufReader::new(child.stdout.take().expect("it answers")).lines();
        Some(Worker { line: Mutex::new(Line { _child: child, to, from }) })
    }

    /// Has it move everything that is due by this clock; how much that was.
    pub(crate) async fn settle(&self, clock: &Clock) -> usize {
        let mut line = self.line.lock().await;
        let asked = format!("{}\n", clock.ahead());
        line.to.write_all(asked.as_bytes()).await.expect("the worker listens");
        let answer = tokio::time::timeout(PATIENCE, line.from.next_line()).await;
        let answer = answer.expect("the worker settles").expect("it answers");
        answer.expect("the worker lives").parse().expect("a number")
    }
}
