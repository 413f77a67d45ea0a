//! How often strangers may try to enrol: from one place, and all together. A token has 256 bits, so this is not about
//! guessing; it is about what a try costs us.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use wire::problem::ProblemCode;

use crate::http::problem::Refusal;

const OF_ALL_PER_SECOND: u32 = 50;
const OF_ALL_AT_ONCE: u32 = 200;

/// See the module.
pub(super) struct Enrolments {
    places: DefaultKeyedRateLimiter<IpAddr>,
    all: DefaultDirectRateLimiter,
    clock: DefaultClock,
}

impl Enrolments {
    /// Nobody has tried yet.
    pub(super) fn new(from_one_place_per_minute: NonZeroU32) -> Enrolments {
        Enrolments {
            places: RateLimiter::keyed(Quota::per_minute(from_one_place_per_minute)),
            all: RateLimiter::direct(
                Quota::per_second(count(OF_ALL_PER_SECOND)).allow_burst(count(OF_ALL_AT_ONCE)),
            ),
            clock: DefaultClock::default(),
        }
    }

    /// Somebody tries, from a place if it is known.
    ///
    /// # Errors
    /// A problem that says when to try again.
    pub(super) fn admit(&self, from: Option<IpAddr>) -> Result<(), Refusal> {
        let place = place(from.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
        // One place can't use up what is there for all.
        let now = self.clock.now();
        self.places.check_key(&place).map_err(|until| refused(until.wait_time_from(now)))?;
        self.all.check().map_err(|until| refused(until.wait_time_from(now)))
    }

    /// Forgets whom it need not remember.
    pub(super) fn forget(&self) {
        self.places.retain_recent();
    }
}

fn refused(wait: std::time::Duration) -> Refusal {
    let seconds = wait.as_secs().saturating_add(1);
    let detail = format!("Too many try to enrol. Try again in {seconds} s.");
    Refusal::new(ProblemCode::TooManyRequests, detail).retry_after(seconds)
}

/// Whoever has one address of IPv6 has 2⁶⁴ of them.
fn place(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(long) => {
            let network = u128::from(long) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{Enrolments, count};

    #[test]
    fn one_place_is_told_to_wait_and_another_is_not() {
        let enrolments = Enrolments::new(count(3));
        let at = |text: &str| Some(text.parse::<IpAddr>().expect("an address"));
        for _ in 0..3 {
            enrolments.admit(at("2001:db8::1")).expect("there is room");
        }
        let refusal = enrolments.admit(at("2001:db8::2")).expect_err("the same network");
        assert_eq!(refusal.problem().status, 429);
        enrolments.admit(at("2001:db8:0:1::1")).expect("another network");
        enrolments.admit(at("192.0.2.1")).expect("another place");
    }
}
