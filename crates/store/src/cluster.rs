//! A private Postgres cluster: a child process over the distribution's server binaries, reached by a Unix socket in
//! its own directory, gone with its parent. Works as root too, by running as another user.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// The longest socket path Postgres takes is 107 bytes; the file's own name needs some of them.
const DIRECTORY_BYTES_MAX: usize = 107 - "/.s.PGSQL.5432".len();
const READY_ATTEMPTS: u32 = 1_200;

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There are no server binaries.
    #[error(
        "no Postgres server was found: install the Debian package `postgresql`, or set BERTH_PG_BIN to the folder that holds `postgres` and `initdb`"
    )]
    NotInstalled,
    /// The socket would not fit.
    #[error(
        "{0} is too long for a Postgres socket: use a directory of at most {DIRECTORY_BYTES_MAX} bytes"
    )]
    PathTooLong(PathBuf),
    /// A program failed.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which.
        program: &'static str,
        /// What it printed.
        said: String,
    },
    /// The server did not come up.
    #[error("Postgres did not become ready; its log is {0}")]
    NotReady(PathBuf),
    /// Another server has the files, and does not end.
    #[error("another Postgres runs in {0} and does not end: stop the process that started it")]
    InUse(PathBuf),
    /// The file system or the process table got in the way.
    #[error("could not set the cluster up")]
    Io(#[from] io::Error),
}

/// How much a crash may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed.
    Full,
    /// Everything: for tests, which never look at a cluster again.
    None,
}

/// A running cluster. Dropping it stops the server; its directory stays.
#[derive(Debug)]
pub struct Cluster {
    server: Child,
    directory: PathBuf,
    /// Where the server's programs are, `pgbench` and `psql` among them.
    pub binaries: PathBuf,
}

/// Who runs the server when we are root, which Postgres refuses to be.
#[derive(Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Cluster {
    /// Starts the cluster in `directory`, making it first if it is not there yet.
    ///
    /// Call this from a thread that lives as long as the cluster shall: the server is told to end when the thread
    /// that started it ends, so that it never outlives us.
    ///
    /// # Errors
    /// What is missing or failed, in a sentence that says what to do.
    pub fn start(directory: &Path, durability: Durability) -> Result<Cluster, ClusterError> {
        if directory.as_os_str().len() > DIRECTORY_BYTES_MAX {
            return Err(ClusterError::PathTooLong(directory.to_owned()));
        }
        let binaries = find_binaries().ok_or(ClusterError::NotInstalled)?;
        let account = drop_to()?;
        if !directory.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        if let Some(Account { uid, gid }) = account {
            chown(directory, Some(uid), Some(gid))?;
        }
        initialise(directory, &binaries, account)?;
        wait_for_predecessor(directory)?;
        let server = launch(directory, &binaries, account, durability)?;
        let mut cluster = Cluster { server, directory: directory.to_owned(), binaries };
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// The address of one of its databases.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://berth@localhost/{database}?host={}", self.directory.display())
    }

    /// The directory that holds the socket, as `-h` of Postgres's own programs takes it.
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// How the server has ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.server.try_wait() {
            Ok(ended) => ended.map(|how| how.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn wait_until_ready(&mut self) -> Result<(), ClusterError> {
        // Line 8 of the pid file says `ready`; no client is needed to find out.
        let pid_file = self.directory.join("data/postmaster.pid");
        for _ in 0..READY_ATTEMPTS {
            let text = fs::read_to_string(&pid_file).unwrap_or_default();
            let ours = text.lines().next() == Some(&self.server.id().to_string());
            if ours && text.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                return Ok(());
            }
            if self.server.try_wait()?.is_some() {
                break;
            }
            pause(Duration::from_millis(25));
        }
        Err(ClusterError::NotReady(self.directory.join("server.log")))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The number of one that is gone may be somebody else's by now.
        if self.ended().is_some() {
            return;
        }
        // SIGINT is Postgres's fast shutdown: open transactions are rolled back, nothing committed is lost.
        if let Some(pid) = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.server.wait();
    }
}

/// The server of a process that was killed ends by itself, but takes a moment for it. Until then the files are its.
fn wait_for_predecessor(directory: &Path) -> Result<(), ClusterError> {
    let pid_file = directory.join("data/postmaster.pid");
    for _ in 0..READY_ATTEMPTS {
        let text = fs::read_to_string(&pid_file).unwrap_or_default();
        let Some(process) = text.lines().next().and_then(|line| line.trim().parse::<u32>().ok())
        else {
            return Ok(());
        };
        // The number may be somebody else's by now; a server of these files names them in its arguments.
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let data = directory.join("data");
        let data = data.as_os_str().as_encoded_bytes();
        if !words.split(|byte| *byte == 0).any(|word| word == data) {
            return Ok(());
        }
        pause(Duration::from_millis(25));
    }
    Err(ClusterError::InUse(directory.to_owned()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the server announces itself by a file; there is nothing to wait on"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn find_binaries() -> Option<PathBuf> {
    let complete =
        |folder: &PathBuf| folder.join("postgres").is_file() && folder.join("initdb").is_file();
    if let Some(folder) = std::env::var_os("BERTH_PG_BIN").map(PathBuf::from) {
        return Some(folder).filter(complete);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
        })
        .filter(|(_, folder)| complete(folder))
        .max_by_key(|(version, _)| *version);
    let on_path = || std::env::split_paths(&std::env::var_os("PATH")?).find(complete);
    newest.map(|(_, folder)| folder).or_else(on_path)
}

fn drop_to() -> Result<Option<Account>, ClusterError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let number = |flag: &str, user: &str| -> Option<u32> {
        let output = Command::new("id").args([flag, user]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let account = |user: &str| Some(Account { uid: number("-u", user)?, gid: number("-g", user)? });
    let found = account("postgres").or_else(|| account("nobody"));
    found.map(Some).ok_or_else(|| ClusterError::Failed {
        program: "id",
        said: "there is neither a user `postgres` nor a user `nobody` to run the server as"
            .to_owned(),
    })
}

/// A command in a bare environment, as the account. The account may not be able to read the present directory.
fn command(program: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env_clear().env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command
}

/// Makes the cluster's files, beside their place first: a crash half-way never leaves half a cluster.
fn initialise(
    directory: &Path,
    binaries: &Path,
    account: Option<Account>,
) -> Result<(), ClusterError> {
    let (place, draft) = (directory.join("data"), directory.join("data.draft"));
    if place.exists() {
        return Ok(());
    }
    if draft.exists() {
        fs::remove_dir_all(&draft)?;
    }
    let output = command(&binaries.join("initdb"), account)
        .args([
            "--username=berth",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            // The same order as that locale's, by comparing bytes: Postgres asks the C library for any other, text by text.
            "--lc-collate=C",
            "--data-checksums",
            // Whoever commits first into a new segment writes all of it, and everybody else who commits waits: less each time.
            "--wal-segsize=4",
        ])
        .args(["--no-sync", "--pgdata"])
        .arg(&draft)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(ClusterError::Failed { program: "initdb", said });
    }
    fs::rename(&draft, &place)?;
    Ok(())
}

fn launch(
    directory: &Path,
    binaries: &Path,
    account: Option<Account>,
    durability: Durability,
) -> Result<Child, ClusterError> {
    let log = fs::File::options().create(true).append(true).open(directory.join("server.log"))?;
    // `setpriv` keeps the process: what it becomes is the server, which ends when we do, however we end.
    let mut server = command(Path::new("setpriv"), account);
    server
        .args(["--pdeathsig", "INT"])
        .arg(binaries.join("postgres"))
        .arg("-D")
        .arg(directory.join("data"));
    server.arg("-k").arg(directory);
    let mut set = |setting: &str| {
        server.args(["-c", setting]);
    };
    set("listen_addresses=");
    set("unix_socket_permissions=0700");
    set("max_connections=200");
    // Nothing here is serializable, replicated by rows or written in bulk: what is set aside for that would be memory for nothing.
    set("max_pred_locks_per_transaction=10");
    set("max_logical_replication_workers=0");
    // Together they still are for thousands of tables, and no transaction of ours locks more than a hundred.
    set("max_locks_per_transaction=32");
    set("wal_buffers=1MB");
    // With small segments `initdb` makes this as much smaller, so that checkpoints come four times as often; this is what Postgres has.
    set("max_wal_size=1GB");
    set("log_min_messages=warning");
    if durability == Durability::None {
        set("fsync=off");
        set("synchronous_commit=off");
        set("full_page_writes=off");
    }
    let errors = log.try_clone()?;
    Ok(server.stdout(log).stderr(errors).process_group(0).spawn()?)
}
