//! A NATS server of a test's own, with JetStream on, in a directory that is gone at the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::new_id;

/// Longer than any start.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. It ends with the test, however that ends.
pub struct NatsServer {
    child: Child,
    place: PathBuf,
    port: u16,
}

impl NatsServer {
    /// Starts one on a free port.
    pub async fn start() -> NatsServer {
        let place = std::env::temp_dir().join(format!("berth-nats-{}", new_id().simple()));
        std::fs::create_dir_all(&place).expect("a directory");
        NatsServer::at(place, None).await
    }

    async fn at(place: PathBuf, port: Option<u16>) -> NatsServer {
        let port = port.map_or("-1".to_owned(), |port| port.to_string());
        for old in ports_files(&place) {
            std::fs::remove_file(old).expect("it is removed");
        }
        let child = spawn(&place, &port);
        let mut server = NatsServer { child, place, port: 0 };
        let reached = async {
            loop {
                if let Some(port) = server.told_port() {
                    break port;
                }
                // While it was away somebody may have got its port for a moment: whoever connects to nobody, over and over, can
                // even meet themselves there.
                if server.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                    server.child = spawn(&server.place, &port);
                }
                let _ =
                    tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>())
                        .await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        server.port = reached.expect("nats-server says its port");
        server
    }

    fn told_port(&self) -> Option<u16> {
        let told = std::fs::read_to_string(ports_files(&self.place).first()?).ok()?;
        let told: serde_json::Value = serde_json::from_str(&told).ok()?;
        told["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends it without warning.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it, and starts it again at the same place; with nothing in it, if it is to forget.
    pub async fn restart(mut self, forget: bool) -> NatsServer {
        self.kill();
        if forget {
            std::fs::remove_dir_all(self.place.join("jetstream")).expect("it is removed");
        }
        let (place, port) = (self.place.clone(), self.port);
        self.place = PathBuf::new();
        NatsServer::at(place, Some(port)).await
    }
}

fn spawn(place: &Path, port: &str) -> Child {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(crate::tool("nats-server"))
        .args(["--jetstream", "--addr", "127.0.0.1", "--port", port])
        .arg("--store_dir")
        .arg(place)
        .arg("--ports_file_dir")
        .arg(place)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nats-server starts")
}

fn ports_files(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "ports"))
        .collect()
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if !self.place.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.place);
        }
    }
}
