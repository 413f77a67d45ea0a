//! Times, durations, prices and names as people say them, and back.

use std::time::Duration;

use domain::machines::allocation::Status;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use wire::node::Phase;

/// How long ago something was.
pub(crate) fn age(now: Timestamp, at: Timestamp) -> String {
    let ago = now.duration_since(at).as_secs();
    match ago {
        ..0 => format!("in {}", coarse(-ago)),
        0..=4 => "just now".to_owned(),
        _ => format!("{} ago", coarse(ago)),
    }
}

fn coarse(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// How long something takes: exact where it is short.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => with_rest(seconds / 60, "min", seconds % 60, "s"),
        _ => with_rest(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
    }
}

fn with_rest(whole: u64, unit: &str, rest: u64, smaller: &str) -> String {
    match rest {
        0 => format!("{whole} {unit}"),
        _ => format!("{whole} {unit} {rest} {smaller}"),
    }
}

/// Whole seconds as hours, minutes and seconds, so that a column of them can be added up.
pub(crate) fn clock(seconds: i64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// A text in lines of at most so many characters; a word that is longer has a line of its own.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// The time between two moments; none at all when a clock is behind.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from).max(SignedDuration::ZERO)).unwrap_or_default()
}

/// A duration such as `90s`, `15m`, `1h30m`, `7d`; a bare number is seconds.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || "write it like 90s, 15m, 1h30m or 7d".to_owned();
    let mut seconds = 0_u64;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit_seconds = match rest[digits..].chars().next() {
            None | Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            Some(_) => return Err(wrong()),
        };
        let part = number.checked_mul(unit_seconds).ok_or_else(wrong)?;
        seconds = seconds.checked_add(part).ok_or_else(wrong)?;
        rest = rest.get(digits + 1..).unwrap_or_default();
    }
    if seconds == 0 { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
}

/// The price of `gpus` GPUs for an hour.
pub(crate) fn hourly(micros_per_gpu_second: i64, gpus: i16, currency: &str) -> String {
    let micros = i128::from(micros_per_gpu_second) * i128::from(gpus) * 3_600;
    let cents = (micros + 5_000) / 10_000;
    let amount = format!("{}.{:02}", cents / 100, cents % 100);
    if currency == "USD" { format!("${amount}/h") } else { format!("{amount} {currency}/h") }
}

/// As much of an id as a table has room for. Ids begin with the millisecond they were made in, which is all of this.
pub(crate) fn short(id: Uuid) -> String {
    id.to_string().chars().take(13).collect()
}

/// `1 GPU`, `2 GPUs`.
pub(crate) fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// What a phase is called.
pub(crate) const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::ImagePrepared => "image prepared",
        Phase::SeedGenerated => "seed generated",
        Phase::DomainDefined => "domain defined",
        Phase::VmStarted => "VM started",
        Phase::UserCreated => "user created",
        Phase::KeysInstalled => "keys installed",
        Phase::SshReachable => "SSH reachable",
        Phase::DriverProbe => "driver probed",
        Phase::AccessRevoked => "access revoked",
        Phase::ShutDown => "shut down",
        Phase::Destroyed => "destroyed",
        Phase::Undefined => "undefined",
        Phase::Wiped => "wiped",
        Phase::LeasesReleased => "leases released",
        Phase::Acknowledged => "reboot acknowledged",
        Phase::Rebooted => "rebooted",
        Phase::MountsReconciled => "mounts reconciled",
        Phase::RuntimesReconciled => "runtimes reconciled",
    }
}

/// What sort of news a status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// All is well.
    Good,
    /// Something is under way.
    Pending,
    /// Something went wrong.
    Bad,
    /// It is over.
    Past,
}

/// What sort of news an allocation's status is.
pub(crate) const fn news(status: Status) -> News {
    match status {
        Status::Active => News::Good,
        Status::Requested | Status::Provisioning | Status::Restarting | Status::Releasing => {
            News::Pending
        }
        Status::RestartFailed | Status::ReleaseFailed | Status::Failed => News::Bad,
        Status::Released => News::Past,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};

    use super::{age, clock, hourly, parse_span, span, wrapped};

    #[test]
    fn seconds_are_written_so_that_they_can_be_added_up() {
        assert_eq!(
            [0, 59, 3_599, 93_784].map(clock),
            ["0:00:00", "0:00:59", "0:59:59", "26:03:04"]
        );
    }

    #[test]
    fn texts_are_broken_between_words_alone() {
        assert_eq!(wrapped("a bc def ghij", 6), ["a bc", "def", "ghij"]);
        assert_eq!(wrapped("unbreakable it is", 5), ["unbreakable", "it is"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn ages_are_coarse_and_spans_are_not() {
        let now = Timestamp::UNIX_EPOCH;
        let ago = |seconds| now - SignedDuration::from_secs(seconds);
        let ages = [1, 42, 200, 7_300, 200_000].map(|seconds| age(now, ago(seconds)));
        assert_eq!(ages, ["just now", "42 s ago", "3 min ago", "2 h ago", "2 days ago"]);
        assert_eq!(age(now, ago(-90)), "in 1 min");
        let spans = [900, 12_000, 280_000, 120_000, 5_400_000];
        let spans = spans.map(|millis| span(Duration::from_millis(millis)));
        assert_eq!(spans, ["0.9 s", "12 s", "4 min 40 s", "2 min", "1 h 30 min"]);
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in
            [("90s", 90), ("15m", 900), ("1h30m", 5_400), ("7d", 604_800), ("5", 5)]
        {
            assert_eq!(parse_span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "m", "-5m", "1.5h", "5x", "99999999999999999999s", "5é"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prices_are_rounded_to_the_cent() {
        assert_eq!(hourly(831, 1, "USD"), "$2.99/h");
        assert_eq!(hourly(831, 8, "USD"), "$23.93/h");
        assert_eq!(hourly(275, 2, "EUR"), "1.98 EUR/h");
    }
}
