//! A turnstile between a store and its database: every statement waits until it is let through, so that a test decides
//! who goes when, and where a process dies: before a statement, or after it and before its answer.

mod frames;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::new_id;

/// Nobody waits for the world in these transactions, only for the turnstile; and who waits in a circle is told soon.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout = 0; SET deadlock_timeout = '20ms'";
/// Not in a transaction.
const IDLE: u8 = b'I';

/// What is done with a statement that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes to the database, and the answer comes back.
    Through,
    /// It goes to the database, and the answer waits for another word.
    ThroughInSilence,
    /// The connection breaks.
    Cut,
}

/// Where a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Before the statement reaches the database.
    Before,
    /// After the database has done it, and before anybody hears of that.
    After,
}

#[derive(Debug)]
struct State {
    held: bool,
    asks: Option<String>,
    verdict: Option<Verdict>,
    at_work: bool,
    withheld: bool,
    /// The letter by which Postgres says whether it is in a transaction.
    transaction: u8,
    backend: Option<i32>,
}

impl Default for State {
    fn default() -> Self {
        State {
            held: false,
            asks: None,
            verdict: None,
            at_work: false,
            withheld: false,
            transaction: IDLE,
            backend: None,
        }
    }
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    /// For who waits at the turnstile.
    word: Notify,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. For one connection at a time: open its store with one.
#[derive(Debug)]
pub struct Turnstile {
    gate: Arc<Gate>,
    news: Arc<Notify>,
    directory: PathBuf,
    address: String,
    _carried: JoinSet<()>,
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Turnstile {
    /// One in front of the database at `url`, open. `news` is told of everything that changes.
    pub fn new(url: &str, news: &Arc<Notify>) -> Turnstile {
        let (before, socket) = url.split_once("host=").expect("an address with a socket");
        let (socket, after) = socket.split_once('&').unwrap_or((socket, ""));
        let id = new_id().simple().to_string();
        let directory = std::env::temp_dir().join(format!("berth-turnstile-{id}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        let address = format!("{before}host={}&{after}", directory.display());
        let listener = UnixListener::bind(directory.join(".s.PGSQL.5432")).expect("a socket");
        let gate = Arc::new(Gate::default());
        let line = Line {
            gate: Arc::clone(&gate),
            news: Arc::clone(news),
            server: PathBuf::from(socket).join(".s.PGSQL.5432"),
        };
        let mut carried = JoinSet::new();
        carried.spawn(accept(listener, line));
        Turnstile { gate, news: Arc::clone(news), directory, address, _carried: carried }
    }

    /// Where to open the store.
    pub fn url(&self) -> &str {
        &self.address
    }

    /// From now on every statement waits.
    pub fn hold(&self) {
        self.gate.state().held = true;
    }

    /// From now on nothing waits.
    pub fn open(&self) {
        self.gate.state().held = false;
        self.say(Verdict::Through);
    }

    /// The statement that waits.
    pub fn asks(&self) -> Option<String> {
        self.gate.state().asks.clone()
    }

    /// Whether the database is at work on a statement.
    pub fn is_at_work(&self) -> bool {
        self.gate.state().at_work
    }

    /// Whether nothing waits, nothing is done and no transaction is open.
    pub fn rests(&self) -> bool {
        let state = self.gate.state();
        state.asks.is_none() && !state.at_work && !state.withheld && state.transaction == IDLE
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.gate.state().transaction != IDLE
    }

    /// The number of the process that serves the connection.
    pub fn backend(&self) -> Option<i32> {
        self.gate.state().backend
    }

    /// Lets the statement that waits through.
    pub fn let_through(&self) {
        self.say(Verdict::Through);
    }

    /// Breaks the connection before the statement that waits.
    pub fn cut(&self) {
        self.say(Verdict::Cut);
    }

    fn say(&self, verdict: Verdict) {
        let mut state = self.gate.state();
        if state.asks.take().is_some() || state.withheld {
            state.verdict = Some(verdict);
            // From here until the answer, so that nobody takes the pause for rest.
            state.at_work = !state.withheld && verdict != Verdict::Cut;
            self.gate.word.notify_one();
        }
    }

    /// Waits until `holds`.
    pub async fn until(&self, holds: impl Fn(&Turnstile) -> bool) {
        while !holds(self) {
            self.news.notified().await;
        }
    }

    /// Lets a process's statements through one by one, until it has ended or asks for the one of that number, which still
    /// waits then. Answers what it asked for, and what is to happen at that one if it came.
    async fn lead<T: Send + 'static>(
        &self,
        process: &mut Process<T>,
        at: Option<(usize, Death)>,
    ) -> (Vec<String>, Option<Death>) {
        let mut asked = Vec::new();
        loop {
            self.until(|turnstile| process.has_ended() || turnstile.asks().is_some()).await;
            let Some(statement) = self.asks().filter(|_| !process.has_ended()) else {
                return (asked, None);
            };
            asked.push(statement);
            match at {
                Some((number, how)) if number == asked.len() => return (asked, Some(how)),
                _ => self.let_through(),
            }
        }
    }

    /// Runs a story alone, and lets its process die at the statement of that number, from 1; a death that never came is
    /// none. Answers what the story said, and the statements that it asked for.
    pub async fn run<T: Send + 'static>(
        &self,
        story: impl Future<Output = T> + Send + 'static,
        death: Option<(usize, Death)>,
    ) -> (Option<T>, Vec<String>) {
        self.hold();
        let mut process = Process::begin(story, &self.news);
        let (asked, met) = self.lead(&mut process, death).await;
        if let Some(how) = met {
            self.kill(&mut process, how).await;
            return (None, asked);
        }
        self.open();
        self.until(Turnstile::rests).await;
        (process.answer().await, asked)
    }

    /// Runs a story alone, and breaks its connection at the statement of that number, from 1; the process lives on. Answers what
    /// the story said, and the statements that it asked for until then.
    pub async fn run_cut<T: Send + 'static>(
        &self,
        story: impl Future<Output = T> + Send + 'static,
        cut: Option<(usize, Death)>,
    ) -> (T, Vec<String>) {
        self.hold();
        let mut process = Process::begin(story, &self.news);
        let (asked, met) = self.lead(&mut process, cut).await;
        if let Some(how) = met {
            self.break_off(how).await;
        }
        self.open();
        let answer = process.answer().await.expect("nobody has ended it");
        self.until(Turnstile::rests).await;
        (answer, asked)
    }

    /// Breaks the connection at the statement that waits; from then on nothing waits.
    async fn break_off(&self, how: Death) {
        if how == Death::After {
            self.say(Verdict::ThroughInSilence);
            self.until(|turnstile| turnstile.gate.state().withheld).await;
        }
        self.gate.state().held = false;
        self.cut();
        self.until(Turnstile::rests).await;
    }

    /// Ends the process whose statement waits here; what it had begun is undone by the database.
    pub async fn kill<T: Send + 'static>(&self, process: &mut Process<T>, how: Death) {
        if how == Death::After {
            self.say(Verdict::ThroughInSilence);
            self.until(|turnstile| turnstile.gate.state().withheld).await;
        }
        process.kill().await;
        // What works for it beside it (a batch that it was in) dies with it: nobody hears anything any more.
        self.cut();
        self.gate.state().held = false;
        self.until(Turnstile::rests).await;
    }
}

/// A story that runs by itself, and can be ended at any moment.
#[derive(Debug)]
pub struct Process<T> {
    running: JoinSet<T>,
    ended: Arc<Mutex<bool>>,
}

impl<T: Send + 'static> Process<T> {
    /// Begins it; `news` is told when it has ended.
    pub fn begin(
        story: impl Future<Output = T> + Send + 'static,
        news: &Arc<Notify>,
    ) -> Process<T> {
        let ended = Arc::new(Mutex::new(false));
        let (over, news) = (Arc::clone(&ended), Arc::clone(news));
        let mut running = JoinSet::new();
        running.spawn(async move {
            let answer = story.await;
            *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
            news.notify_one();
            answer
        });
        Process { running, ended }
    }

    /// Whether it has come to its end.
    pub fn has_ended(&self) -> bool {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it said in the end; none if it was ended.
    pub async fn answer(&mut self) -> Option<T> {
        match self.running.join_next().await? {
            Ok(answer) => Some(answer),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => None,
        }
    }

    /// Ends it, wherever it is.
    pub async fn kill(&mut self) {
        self.running.shutdown().await;
        // What it had begun beside itself hears of it now.
        tokio::task::yield_now().await;
    }
}

#[derive(Clone)]
struct Line {
    gate: Arc<Gate>,
    news: Arc<Notify>,
    server: PathBuf,
}

async fn accept(listener: UnixListener, line: Line) {
    let mut carried = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let line = line.clone();
        carried.spawn(async move {
            // A connection that breaks is what happens to connections; the store sees it.
            let _ = line.carry(client).await;
            let held = line.gate.state().held;
            *line.gate.state() = State { held, ..State::default() };
            line.news.notify_one();
        });
    }
}

impl Line {
    async fn carry(&self, client: UnixStream) -> io::Result<()> {
        let mut client = BufReader::new(client);
        let mut server = BufReader::new(UnixStream::connect(&self.server).await?);
        let startup = loop {
            match frames::read_first(&mut client).await? {
                frames::First::Encryption => client.write_all(b"N").await?,
                frames::First::Startup(bytes) => break bytes,
            }
        };
        server.write_all(&startup).await?;
        let greeting = self.answer(&mut server).await?;
        server.write_all(&frames::simple(SETTINGS)).await?;
        self.answer(&mut server).await?;
        client.write_all(&greeting).await?;
        let mut reader = frames::Reader::default();
        while let Some(request) = reader.request(&mut client).await? {
            if request.is_goodbye {
                break;
            }
            if request.is_ping {
                let status = self.gate.state().transaction;
                client.write_all(&frames::ready(status)).await?;
                continue;
            }
            let verdict = match request.statement {
                Some(statement) => self.ask(statement).await,
                None => Verdict::Through,
            };
            match verdict {
                Verdict::Cut => break,
                Verdict::Through | Verdict::ThroughInSilence => {
                    self.at_work(true);
                    server.write_all(&request.bytes).await?;
                    let answer = self.answer(&mut server).await?;
                    if verdict == Verdict::ThroughInSilence && self.withhold().await == Verdict::Cut
                    {
                        break;
                    }
                    client.write_all(&answer).await?;
                    self.at_work(false);
                }
            }
        }
        Ok(())
    }

    fn at_work(&self, at_work: bool) {
        self.gate.state().at_work = at_work;
        self.news.notify_one();
    }

    /// Waits at the turnstile, if it is held.
    async fn ask(&self, statement: String) -> Verdict {
        {
            let mut state = self.gate.state();
            if !state.held {
                return Verdict::Through;
            }
            state.verdict = None;
            state.asks = Some(statement);
        }
        self.news.notify_one();
        self.word().await
    }

    async fn withhold(&self) -> Verdict {
        {
            let mut state = self.gate.state();
            state.at_work = false;
            state.withheld = true;
        }
        self.news.notify_one();
        let verdict = self.word().await;
        self.gate.state().withheld = false;
        verdict
    }

    async fn word(&self) -> Verdict {
        loop {
            if let Some(verdict) = self.gate.state().verdict.take() {
                return verdict;
            }
            self.gate.word.notified().await;
        }
    }

    /// All that the server says until it is ready.
    async fn answer(&self, server: &mut BufReader<UnixStream>) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        loop {
            let frame = frames::read(server).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            answer.extend(&frame.bytes);
            match frame.tag {
                b'K' => {
                    let number: [u8; 4] = frame.bytes[5..9].try_into().unwrap_or_default();
                    self.gate.state().backend = Some(i32::from_be_bytes(number));
                }
                b'Z' => {
                    self.gate.state().transaction = frame.bytes[5];
                    return Ok(answer);
                }
                _ => {}
            }
        }
    }
}
