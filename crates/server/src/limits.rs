//! How much of anything a stranger may have: bytes, time, connections, requests. One struct, so that a load test can
//! turn all of it in one place.

use std::num::NonZeroU32;
use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections a listener holds; the next ones wait to be accepted.
    pub connections_max: usize,
    /// How many newcomers it lets in a second; the next ones wait to be accepted.
    pub accepts_per_second: NonZeroU32,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How many TLS handshakes are worked on at a time.
    pub handshakes_max: usize,
    /// How many begin in a second: a fleet that comes back all at once takes its turns, and people are served meanwhile.
    pub handshakes_per_second: NonZeroU32,
    /// How many may wait for their turn; more are turned away at once. At the pace above nobody waits for longer than a
    /// handshake may take.
    pub handshakes_waiting_max: usize,
    /// How long the head of a request may take to arrive, counted from its first byte; also how long a fresh connection may
    /// stay silent.
    pub head: Duration,
    /// How large the head of a request may be.
    pub head_bytes_max: u32,
    /// How many headers it may have.
    pub headers_max: usize,
    /// How long a connection may rest between two requests.
    pub idle: Duration,
    /// How long a client may refuse to take what it asked for.
    pub stall: Duration,
    /// How many requests of one HTTP/2 connection may run at a time.
    pub streams_max: u32,
    /// How long requests may go on when the server is told to stop.
    pub drain: Duration,
    /// How large a body may be.
    pub body_bytes_max: usize,
    /// How long it may take to arrive.
    pub body: Duration,
    /// How deep JSON may be nested.
    pub json_depth_max: usize,
    /// How long a request may take in all, where it is not meant to wait.
    pub whole: Duration,
    /// How many requests may run at a time, those included that wait for a connection of the database; more are turned away at
    /// once, before anything but their head is read, so that those inside are served.
    pub in_flight_max: usize,
    /// How many are let in however long they take, where it is looked at how long that is.
    pub in_flight_min: usize,
    /// How soon most of them should be answered: while they are not, fewer are let in.
    pub soon: Duration,
    /// How many who find no place are told so at once, in a second; more are told at this pace.
    pub refusals_per_second: NonZeroU32,
    /// How long they wait for it at most.
    pub refusal_held: Duration,
    /// How often a token may be used in a minute.
    pub token_per_minute: NonZeroU32,
    /// How often it may be used at once.
    pub token_burst: NonZeroU32,
    /// How often somebody may try to log in to one account from one place, in a minute.
    pub login_per_minute: NonZeroU32,
    /// How often somebody may try to log in from one place, whatever the account, in a minute.
    pub login_per_peer_per_minute: NonZeroU32,
    /// How often somebody may try to enrol a node from one place, in a minute. A rack that is set up behind one address is
    /// let in at once.
    pub enrolments_per_peer_per_minute: NonZeroU32,
    /// How long the database may take to say that it is there.
    pub ready: Duration,
    /// How many streams of events one user may have open.
    pub streams_per_user_max: usize,
    /// How many streams of events may be open in all.
    pub streams_open_max: usize,
    /// How often an idle stream gives a sign of life, and it is asked whether its reader may still watch.
    pub stream_beat: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 8_192,
            accepts_per_second: count(5_000),
            handshake: Duration::from_secs(10),
            handshakes_max: 64,
            handshakes_per_second: count(400),
            handshakes_waiting_max: 2_000,
            head: Duration::from_secs(10),
            head_bytes_max: 64 * 1024,
            headers_max: 100,
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            streams_max: 128,
            drain: Duration::from_secs(10),
            body_bytes_max: 1024 * 1024,
            body: Duration::from_secs(30),
            json_depth_max: 32,
            whole: Duration::from_secs(30),
            in_flight_max: 1_024,
            in_flight_min: 64,
            soon: Duration::from_millis(200),
            refusals_per_second: count(1_000),
            refusal_held: Duration::from_secs(1),
            token_per_minute: count(600),
            token_burst: count(200),
            login_per_minute: count(10),
            login_per_peer_per_minute: count(60),
            enrolments_per_peer_per_minute: count(60),
            ready: Duration::from_secs(2),
            streams_per_user_max: 64,
            streams_open_max: 8_000,
            stream_beat: Duration::from_secs(15),
        }
    }
}

/// At least one.
const fn count(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}
