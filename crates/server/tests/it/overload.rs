//! R34, overload: ten times as many requests as can be served. What is not done is shed, in words and with when to come
//! back; what is done is nearly as much as without the crowd; and when the crowd has gone, it is as if it had never been there.
//!
//! `BERTH_R34_SECONDS=60` for the whole of it, on a machine of its own: only then goodput is asserted, 80 % of the peak.
//! Beside other tests it is printed, and the rest is asserted: what is shed is shed in words, what is answered is in the
//! database, and all is as before within ten seconds.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use server::Limits;
use testkit::new_id;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::api::{Api, PATIENCE};

/// How long it goes on beside other tests.
const SECONDS: u64 = 3;
/// How many times as many come as were served.
const FACTOR: u64 = 10;
/// How many clients make the peak, each with the next request when the last is answered.
const CLIENTS: usize = 64;
/// How long everything may take to be as before.
const RECOVERY: Duration = Duration::from_secs(10);
/// So often in a row a lone request must be as fast as before.
const IN_A_ROW: usize = 10;
/// What is still as fast: so many times the median before.
const AS_FAST: u32 = 3;
/// More than a machine serves in a second.
const PEAK_MAX: u64 = 10_000;
/// How many are let in at a time: fewer than the crowd is, in one process with it.
const PLACES: usize = 128;
/// How many connections the crowd has. Who finds all of them waiting for an answer has come, and goes again.
const LINES_MAX: usize = 400;
/// For how much of the time all of them must have waited, unless so many times the peak really asked.
const FULL_PERCENT_MIN: u64 = 50;
/// GPUs of one node: many, so that few nodes are enough for all that is granted.
const NODE_GPUS: usize = 64;

/// How it is run, and what must hold then.
struct Contract {
    seconds: u64,
    goodput_percent: u64,
    /// How many times the peak must have come.
    factor_min: u64,
}

impl Contract {
    fn given() -> Contract {
        let given = std::env::var("BERTH_R34_SECONDS").ok().and_then(|text| text.parse().ok());
        match given {
            Some(seconds) => Contract { seconds, goodput_percent: 80, factor_min: FACTOR - 1 },
            None => Contract { seconds: SECONDS, goodput_percent: 0, factor_min: FACTOR / 3 },
        }
    }
}

/// Reads the clock: what is measured here is how long people wait.
#[expect(clippy::disallowed_methods, reason = "a duration is measured")]
fn now() -> Instant {
    Instant::now()
}

/// What somebody sends, but for the key.
struct Wish {
    address: SocketAddr,
    head: String,
    body: String,
}

impl Wish {
    fn new(api: &Api) -> Wish {
        let body = api.wish(1).to_string();
        let head = format!(
            "POST /api/v1/allocations HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n",
            api.tenant,
            body.len()
        );
        Wish { address: api.address, head, body }
    }

    fn text(&self) -> String {
        format!("{}Idempotency-Key: {}\r\n\r\n{}", self.head, new_id(), self.body)
    }
}

/// A connection, as cheap as can be: whoever makes the crowd must not take the time of whoever serves it.
struct Line(TcpStream);

/// What came back.
#[derive(Clone, Copy, Debug)]
struct Answer {
    status: u16,
    retry_after: Option<u64>,
    took: Duration,
    /// Whether the connection can be used again.
    open: bool,
}

impl Line {
    async fn ask(&mut self, text: &str) -> io::Result<Answer> {
        let began = now();
        self.0.write_all(text.as_bytes()).await?;
        let mut bytes = Vec::with_capacity(2_048);
        let head = loop {
            if self.0.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |name: &str| field(name).and_then(|text| text.trim().parse::<u64>().ok());
        let length = number("content-length:").ok_or(io::ErrorKind::InvalidData)?;
        let mut rest = head + usize::try_from(length).unwrap_or(0) - bytes.len();
        while rest > 0 {
            bytes.clear();
            let read = self.0.read_buf(&mut bytes).await?;
            rest = rest.checked_sub(read).filter(|_| read > 0).ok_or(io::ErrorKind::InvalidData)?;
        }
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let open = field("connection:").is_none_or(|text| text.trim() != "close");
        Ok(Answer { status, retry_after: number("retry-after:"), took: began.elapsed(), open })
    }
}

/// One request on a connection of before, or on a new one.
async fn ask(wish: Arc<Wish>, line: Option<Line>) -> io::Result<(Option<Line>, Answer)> {
    let asked = async {
        let mut line = match line {
            Some(line) => line,
            None => Line(TcpStream::connect(wish.address).await?),
        };
        let answer = line.ask(&wish.text()).await?;
        Ok((answer.open.then_some(line), answer))
    };
    timeout(PATIENCE, asked).await?
}

/// What became of many requests.
#[derive(Debug, Default)]
struct Tally {
    answers: BTreeMap<u16, u64>,
    /// Those that were shed without a word of when to come back.
    silent: u64,
    /// When the shed were told to come back, and how many each time.
    told: BTreeMap<u64, u64>,
    broken: Vec<String>,
    /// How long the crowd came, how many in that time, and how many of them were served in it.
    crowd: (Duration, u64, u64),
    /// How many of them found a line to ask on, and for how much of the time there was none.
    asked: u64,
    full_percent: u64,
    served: Vec<Duration>,
    shed: Vec<Duration>,
}

impl Tally {
    fn count(&mut self, asked: io::Result<(Option<Line>, Answer)>) -> Option<Line> {
        let (line, answer) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.broken.push(error.to_string());
                return None;
            }
        };
        *self.answers.entry(answer.status).or_default() += 1;
        match (answer.status, answer.retry_after) {
            (201, _) => self.served.push(answer.took),
            (_, None) => self.silent += 1,
            (_, Some(seconds)) => {
                self.shed.push(answer.took);
                *self.told.entry(seconds).or_default() += 1;
            }
        }
        line
    }

    fn granted(&self) -> u64 {
        self.answers.get(&201).copied().unwrap_or(0)
    }

    /// Everything was either done, or shed as it should be.
    fn is_clean(&self) {
        let known = |status: &u16| [201, 429, 503].contains(status);
        assert!(self.answers.keys().all(known), "{:?}", self.answers);
        assert!(self.broken.is_empty(), "{} broke: {:?}", self.broken.len(), self.broken.first());
        assert_eq!(self.silent, 0, "some were shed and not told when to come back");
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// A few clients who always have one request under way.
async fn peak(wish: &Arc<Wish>, time: Duration) -> Tally {
    let (began, mut clients) = (now(), JoinSet::new());
    for _ in 0..CLIENTS {
        let wish = Arc::clone(wish);
        clients.spawn(async move {
            let (mut tally, mut line) = (Tally::default(), None);
            while began.elapsed() < time {
                line = tally.count(ask(Arc::clone(&wish), line.take()).await);
            }
            tally
        });
    }
    let mut all = Tally::default();
    for tally in clients.join_all().await {
        tally.is_clean();
        *all.answers.entry(201).or_default() += tally.granted();
    }
    all
}

/// So many a second, whether or not those before are answered; every request at its time on a line of its own, if one is free.
async fn crowd(wish: &Arc<Wish>, per_second: u64, seconds: u64) -> Tally {
    const TICK: Duration = Duration::from_millis(5);
    let ticks_in_all = seconds * 200;
    let (mut tally, mut idle, mut running) = (Tally::default(), Vec::new(), JoinSet::new());
    let (began, mut ticks, mut came, mut full) = (now(), interval(TICK), 0, 0);
    for tick in 1..=ticks_in_all {
        ticks.tick().await;
        while let Some(done) = running.try_join_next() {
            idle.extend(tally.count(done.expect("nothing panicked")));
        }
        while came < per_second * seconds * tick / ticks_in_all {
            if running.len() < LINES_MAX {
                running.spawn(ask(Arc::clone(wish), idle.pop()));
                tally.asked += 1;
            }
            came += 1;
        }
        full += u64::from(running.len() == LINES_MAX);
    }
    tally.full_percent = full * 100 / ticks_in_all;
    // What is served when nobody comes any more is not served against a crowd.
    tally.crowd = (began.elapsed(), came, tally.granted());
    while let Some(done) = running.join_next().await {
        tally.count(done.expect("nothing panicked"));
    }
    tally
}

/// The times of lone requests, one after the other.
async fn lone(wish: &Arc<Wish>, requests: usize) -> Vec<Duration> {
    let (mut tally, mut line) = (Tally::default(), None);
    for _ in 0..requests {
        line = tally.count(ask(Arc::clone(wish), line.take()).await);
    }
    tally.is_clean();
    tally.served
}

/// How long it takes until lone requests are as fast as before, and how many were sent until then.
async fn recovery(wish: &Arc<Wish>, before: Duration) -> (Duration, u64) {
    let (began, mut tally, mut line, mut row) = (now(), Tally::default(), None, 0);
    while row < IN_A_ROW {
        assert!(began.elapsed() < RECOVERY, "not as before: {before:?}, and now {tally:?}");
        let served = tally.served.len();
        line = tally.count(ask(Arc::clone(wish), line.take()).await);
        let last = tally.served.get(served).copied();
        row = if last.is_some_and(|took| took <= before * AS_FAST) { row + 1 } else { 0 };
    }
    (began.elapsed(), tally.granted())
}

async fn room_for(api: &mut Api, requests: u64) {
    let nodes = usize::try_from(requests).expect("few") / NODE_GPUS + 1;
    for _ in 0..nodes {
        api.house.node("h100.slice", &[0; NODE_GPUS]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r34_ten_times_as_many_as_can_be_served_are_shed_and_forgotten() {
    let contract = Contract::given();
    let many = std::num::NonZeroU32::MAX;
    let limits = Limits { token_per_minute: many, token_burst: many, ..Limits::default() };
    let limits = Limits { in_flight_max: PLACES, ..limits };
    let mut api = Api::with(limits).await;
    let time = Duration::from_secs(contract.seconds.min(10));
    room_for(&mut api, PEAK_MAX * time.as_secs()).await;
    let wish = Arc::new(Wish::new(&api));
    lone(&wish, 20).await;
    let before = median(&lone(&wish, 40).await);
    let began = now();
    let peak = peak(&wish, time).await.granted();
    let peak_per_second = peak as f64 / began.elapsed().as_secs_f64();
    room_for(&mut api, 3 * peak * contract.seconds / time.as_secs() + 2_000).await;

    let rows = api.house.rows("allocations").await;
    let per_second = (peak_per_second * FACTOR as f64) as u64;
    let tally = crowd(&wish, per_second, contract.seconds).await;
    let (recovered, since) = recovery(&wish, before).await;
    let in_database = api.house.rows("allocations").await - rows;
    let (took, came, served) = tally.crowd;
    let of_peak = |count: u64| count as f64 / took.as_secs_f64() / peak_per_second;
    let (factor, asked, share) = (of_peak(came), of_peak(tally.asked), of_peak(served));
    println!(
        "R34: peak {peak_per_second:.0}/s; {factor:.1} times as many for {took:.1?}, {asked:.1} times asked, no line free for {} %: \
         {:?}, told {:?}; goodput {share:.2} of the \
         peak; lone {before:.1?}, served {:.1?} at most {:.1?}, shed {:.1?} at most {:.1?}; as before after {recovered:.1?}",
        tally.full_percent,
        tally.answers,
        tally.told,
        median(&tally.served),
        tally.served.iter().max().copied().unwrap_or_default(),
        median(&tally.shed),
        tally.shed.iter().max().copied().unwrap_or_default(),
    );
    tally.is_clean();
    assert!(!tally.shed.is_empty(), "nobody was turned away, so nothing was seen");
    let granted = i64::try_from(tally.granted() + since).expect("few");
    assert_eq!(
        in_database, granted,
        "what is answered with 201 is in the database, and nothing else"
    );
    let many_asked = asked >= contract.factor_min as f64;
    let is_crowd = many_asked || tally.full_percent >= FULL_PERCENT_MIN;
    assert!(factor >= contract.factor_min as f64 && is_crowd, "it was no crowd: {asked:.1} times");
    let percent = share * 100.0;
    assert!(percent >= contract.goodput_percent as f64, "goodput is {percent:.0} % of the peak");
    api.close().await;
}
