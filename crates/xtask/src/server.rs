//! The Postgres of one run: started in a directory of its own, with a migrated template that tests copy, gone at the end.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::Store;
use store::cluster::{Cluster, Durability};
use tokio::runtime::Runtime;

/// Names the server to the tests. `testkit` reads it.
pub const SERVER_VARIABLE: &str = "BERTH_TEST_SERVER";
/// The migrated database that `testkit` copies for every test.
pub const TEMPLATE: &str = "berth_template";
/// Several times what a run has needed.
const ROOM_MIB: u64 = 6 * 1_024;
/// The directory of a run is called this and the number of its process.
const PREFIX: &str = "berth-test-";

/// Where a run's server is: in memory if there is room, because a database for every test is hundreds of files made and removed
/// (40 ms of processor time there, 150 ms on ext4), else where temporary files are. Whoever sets `TMPDIR` decides.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = std::env::var_os("TMPDIR").is_none() && room_mib(memory) >= ROOM_MIB;
    if room { memory.to_owned() } else { std::env::temp_dir() }
}

/// How much may be written there; nothing if that can't be told.
fn room_mib(place: &Path) -> u64 {
    let df = Command::new("df").args(["--output=avail", "--block-size=1M"]).arg(place).output();
    let told = df.ok().and_then(|df| String::from_utf8(df.stdout).ok()).unwrap_or_default();
    let room = told.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    // A file in memory is taken from what everybody needs.
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|free| free.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    free.map_or(0, |kib| room.min(kib / 1_024))
}

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
        let place = place();
        sweep(&place);
        let directory = place.join(format!("{PREFIX}{}", std::process::id()));
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
