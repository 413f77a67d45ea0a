//! The Postgres of one run: started in a directory of its own, with a migrated template that tests copy, gone at the end.

use std::future::Future;
use std::path::PathBuf;

use anyhow::Context as _;
use store::cluster::{Cluster, Durability};
use tokio::runtime::Runtime;

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
        let directory = std::env::temp_dir().join(format!("berth-test-{}", std::process::id()));
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
        testkit::make_template(&self.url("{database}")).await.context("the migrations do not run")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.cluster.take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
