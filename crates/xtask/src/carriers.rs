//! A NATS and a Temporal for a run of the tests: on free ports, in a directory that is gone at the end.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// How often it is looked whether a server listens, and how often at most.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS_MAX: usize = 1_200;

/// Both, running.
pub struct Carriers {
    nats: Child,
    nats_port: u16,
    temporal: Child,
    temporal_port: u16,
    place: PathBuf,
}

impl Carriers {
    /// Starts them, and waits until they listen.
    ///
    /// # Errors
    /// When one is not installed, or does not start.
    pub fn start(root: &Path) -> anyhow::Result<Carriers> {
        let place = std::env::temp_dir().join(format!("berth-carriers-{}", std::process::id()));
        std::fs::create_dir_all(&place)?;
        let (nats_port, temporal_port) = (free_port()?, free_port()?);
        let nats = quiet(&tool(root, "nats-server"))
            .args(["--jetstream", "--addr", "127.0.0.1", "--port", &nats_port.to_string()])
            .arg("--store_dir")
            .arg(place.join("nats"))
            .spawn()
            .context("nats-server does not start: run scripts/install-engines")?;
        let temporal = quiet(&tool(root, "temporal"))
            .args(["server", "start-dev", "--headless", "--log-level", "error"])
            .args(["--ip", "127.0.0.1", "--port", &temporal_port.to_string(), "--db-filename"])
            .arg(place.join("temporal.db"))
            .spawn()
            .context("temporal does not start: run scripts/install-engines")?;
        let carriers = Carriers { nats, nats_port, temporal, temporal_port, place };
        for port in [nats_port, temporal_port] {
            ensure!((0..LOOKS_MAX).any(|_| listens(port)), "nobody listens on port {port}");
        }
        Ok(carriers)
    }

    /// Where NATS is.
    pub fn nats(&self) -> String {
        format!("nats://127.0.0.1:{}", self.nats_port)
    }

    /// Where Temporal is.
    pub fn temporal(&self) -> String {
        format!("http://127.0.0.1:{}", self.temporal_port)
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        for child in [&mut self.nats, &mut self.temporal] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// Whether somebody does, after a moment.
#[expect(clippy::disallowed_methods, reason = "a server says nothing when it listens")]
fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() || {
        sleep(LOOK);
        false
    }
}

/// On the path, or where `scripts/install-engines` puts it.
fn tool(root: &Path, name: &str) -> PathBuf {
    let installed = root.join(".tools/bin").join(name);
    if installed.exists() { installed } else { name.into() }
}

/// They end with whoever started them, however that ends.
fn quiet(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
