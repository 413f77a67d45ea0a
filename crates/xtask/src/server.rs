//! The Postgres of one run: started in a directory of its own, with a migrated template that tests copy, gone at the end.

use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::Store;
use store::cluster::{Cluster, Durability};
use tokio::runtime::Runtime;

/// Names the server to the tests. `testkit` reads it.
pub const SERVER_VARIABLE: &str = "BERTH_TEST_SERVER";
/// The migrated database that `testkit` copies for every test.
pub const TEMPLATE: &str = "berth_template";
/// The directory of a run is called this and the number of its process.
const PREFIX: &str = "berth-test-";

/// Removes what runs that were killed have left behind. Numbers of processes come back, and a run that found the cluster
/// of another would find its template too.
fn sweep(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let process: Option<u32> = process.parse().ok();
        let lives = |process: u32| {
            process != std::process::id() && Path::new(&format!("/proc/{process}")).exists()
        };
        if process.is_some_and(|process| !lives(process)) {
            // Somebody else's can't be removed, and is none of our business.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A running server with the template in it.
pub struct Server {
    cluster: Option<Cluster>,
    directory: PathBuf,
    runtime: Runtime,
}

impl Server {
    /// Starts one, not durable: nobody looks at it again.
    ///
    /// # Errors
    /// What is missing, in a sentence that says what to do.
    pub fn start() -> anyhow::Result<Server> {
        // Not below the checkout: as root the server runs as somebody who may not be able to look in there.
        sweep(&std::env::temp_dir());
        let directory = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        let cluster = Cluster::start(&directory, Durability::None)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = Server { cluster: Some(cluster), directory, runtime };
        server.block_on(server.make_template())?;
        Ok(server)
    }

    /// The address of one of its databases.
    pub fn url(&self, database: &str) -> String {
        self.cluster.as_ref().map(|cluster| cluster.url(database)).unwrap_or_default()
    }

    /// Waits for `work`.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    async fn make_template(&self) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect(&self.url("postgres")).await?;
        let create = format!("CREATE DATABASE {TEMPLATE}");
        sqlx::query(AssertSqlSafe(create)).execute(&mut admin).await?;
        admin.close().await?;
        Store::migrate(&self.url(TEMPLATE)).await.context("the migrations do not run")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.cluster.take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::{PREFIX, sweep};

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_a_live_one_uses_is_not() {
        let place = std::env::temp_dir().join(format!("berth-sweep-{}", std::process::id()));
        // Process 1 always lives; no process has the largest number; ours is about to begin anew.
        let names = ["1", &u32::MAX.to_string(), &std::process::id().to_string(), "notes"];
        let made = names.map(|name| place.join(format!("{PREFIX}{name}")));
        for directory in &made {
            std::fs::create_dir_all(directory.join("data")).expect("a directory");
        }
        sweep(&place);
        assert_eq!(made.map(|directory| directory.exists()), [true, false, false, true]);
        std::fs::remove_dir_all(place).expect("it is ours");
    }
}
