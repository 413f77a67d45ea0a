//! A Temporal dev server of a test run's or of a test's own. It keeps what it has in a file that is gone at the end.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::new_id;

/// Longer than any start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It ends with the test, however that ends.
pub struct TemporalServer {
    child: Child,
    place: PathBuf,
    port: u16,
}

impl TemporalServer {
    /// Starts one on a free port, and waits until it answers.
    pub async fn start() -> TemporalServer {
        let place = std::env::temp_dir().join(format!("berth-temporal-{}", new_id().simple()));
        std::fs::create_dir_all(&place).expect("a directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("it has a number").port();
        drop(free);
        TemporalServer::at(place, port).await
    }

    async fn at(place: PathBuf, port: u16) -> TemporalServer {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(crate::tool("temporal"))
            .args(["server", "start-dev", "--headless", "--log-level", "error"])
            .args(["--ip", "127.0.0.1", "--port", &port.to_string(), "--db-filename"])
            .arg(place.join("temporal.db"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("temporal starts");
        let server = TemporalServer { child, place, port };
        let reached = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                let wait = std::future::pending::<()>();
                let _ = tokio::time::timeout(Duration::from_millis(20), wait).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("temporal listens");
        server
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends it without warning.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it, and starts it again at the same place; with nothing in it, if it is to forget.
    pub async fn restart(mut self, forget: bool) -> TemporalServer {
        self.kill();
        if forget {
            for file in std::fs::read_dir(&self.place).expect("it is there").flatten() {
                std::fs::remove_file(file.path()).expect("it is removed");
            }
        }
        let (place, port) = (std::mem::take(&mut self.place), self.port);
        TemporalServer::at(place, port).await
    }
}

impl Drop for TemporalServer {
    fn drop(&mut self) {
        self.kill();
        if !self.place.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.place);
        }
    }
}
