//! How often somebody may ask. A token is counted by its identity once it is known to be good, logins by the account and
//! the place they come from, so that nobody can lock another one out from elsewhere.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock as _, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use uuid::Uuid;
use wire::problem::ProblemCode;

use super::problem::Refusal;
use crate::Limits;

/// The longest part of an address that is told apart: no account has a longer one.
const EMAIL_LETTERS_MAX: usize = 254;

/// See the module.
pub struct Rates {
    tokens: Counter<Uuid>,
    logins: Counter<(String, IpAddr)>,
    peers: Counter<IpAddr>,
}

impl Rates {
    /// Nobody has asked yet.
    pub fn new(limits: &Limits) -> Rates {
        let (login, peer) = (limits.login_per_minute, limits.login_per_peer_per_minute);
        Rates {
            tokens: Counter::new("token", limits.token_per_minute, limits.token_burst),
            logins: Counter::new("login", login, login),
            peers: Counter::new("login-place", peer, peer),
        }
    }

    /// Somebody uses a token.
    ///
    /// # Errors
    /// A problem that says when to try again.
    pub fn token(&self, token: Uuid) -> Result<Rate, Refusal> {
        self.tokens.count(&token)
    }

    /// Somebody tries to log in.
    ///
    /// # Errors
    /// A problem that says when to try again.
    pub fn login(&self, email: &str, from: IpAddr) -> Result<Rate, Refusal> {
        self.peers.count(&from)?;
        let email = email.trim().chars().take(EMAIL_LETTERS_MAX).collect::<String>();
        self.logins.count(&(email.to_lowercase(), from))
    }

    /// Forgets whom it need not remember.
    pub fn forget(&self) {
        self.tokens.limiter.retain_recent();
        self.logins.limiter.retain_recent();
        self.peers.limiter.retain_recent();
    }
}

/// How much of what is left for one who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    policy: Policy,
    left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    name: &'static str,
    burst: NonZeroU32,
    /// How long it takes until one more is allowed.
    each: Duration,
}

impl Policy {
    fn seconds_for(&self, requests: u32) -> u64 {
        let seconds = self.each.saturating_mul(requests).as_secs_f64().ceil();
        // Never negative, and far below what a float can't count.
        seconds as u64
    }
}

impl Rate {
    /// Writes it into an answer, by the names of the IETF's draft.
    pub fn write(&self, headers: &mut HeaderMap) {
        let Policy { name, burst, .. } = self.policy;
        let window = self.policy.seconds_for(burst.get()).max(1);
        let refill = self.policy.seconds_for(burst.get().saturating_sub(self.left));
        let texts = [
            ("ratelimit-policy", format!("\"{name}\";q={burst};w={window}")),
            ("ratelimit", format!("\"{name}\";r={};t={refill}", self.left)),
        ];
        for (header, text) in texts {
            if let Ok(text) = HeaderValue::from_str(&text) {
                headers.insert(HeaderName::from_static(header), text);
            }
        }
    }
}

/// Counts by one kind of key.
struct Counter<K: std::hash::Hash + Eq + Clone> {
    policy: Policy,
    clock: DefaultClock,
    limiter: DefaultKeyedRateLimiter<K, StateInformationMiddleware>,
}

impl<K: std::hash::Hash + Eq + Clone> Counter<K> {
    fn new(name: &'static str, per_minute: NonZeroU32, burst: NonZeroU32) -> Counter<K> {
        let each = Duration::from_secs(60) / per_minute.get();
        let quota = Quota::per_minute(per_minute).allow_burst(burst);
        let limiter = RateLimiter::keyed(quota).with_middleware::<StateInformationMiddleware>();
        let policy = Policy { name, burst, each };
        Counter { policy, clock: DefaultClock::default(), limiter }
    }

    fn count(&self, key: &K) -> Result<Rate, Refusal> {
        match self.limiter.check_key(key) {
            Ok(state) => Ok(Rate { policy: self.policy, left: state.remaining_burst_capacity() }),
            Err(not_until) => {
                let wait = not_until.wait_time_from(self.clock.now());
                let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                let detail = format!("Too many requests. Ask again in {seconds} s.");
                Err(Refusal::new(ProblemCode::TooManyRequests, detail).retry_after(seconds))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::num::NonZeroU32;

    use axum::http::HeaderMap;
    use uuid::Uuid;

    use super::Rates;
    use crate::Limits;

    fn one_at_a_time() -> Rates {
        let one = NonZeroU32::MIN;
        Rates::new(&Limits {
            token_per_minute: one,
            token_burst: one,
            login_per_minute: one,
            ..Limits::default()
        })
    }

    #[test]
    fn a_token_that_is_used_too_often_is_told_when_to_come_back() {
        let rates = one_at_a_time();
        let token = Uuid::nil();
        let mut headers = HeaderMap::new();
        rates.token(token).expect("the first is free").write(&mut headers);
        assert_eq!(headers["ratelimit-policy"], "\"token\";q=1;w=60");
        assert_eq!(headers["ratelimit"], "\"token\";r=0;t=60");
        let refusal = rates.token(token).expect_err("the second is too much");
        assert_eq!(refusal.problem().status, 429);
        rates.token(Uuid::max()).expect("another token is not concerned");
    }

    #[test]
    fn nobody_locks_another_one_out_from_elsewhere() {
        let rates = one_at_a_time();
        let (here, there) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        rates.login("a@example.org", IpAddr::V4(here)).expect("the first is free");
        rates.login("A@example.org ", IpAddr::V4(here)).expect_err("the same account");
        rates.login("a@example.org", IpAddr::V4(there)).expect("from elsewhere");
        rates.login("b@example.org", IpAddr::V4(here)).expect("another account");
    }
}
