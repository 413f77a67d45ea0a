//! What operators may turn: deadlines, attempts, lifetimes. One table says every key with what it means, its default and how
//! far it may be turned; the struct that stories read is made of the same table, so that the two can't differ.

pub mod turn;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lifecycle::codes;
use store::policies::Turned;

codes! {
    /// What a value counts.
    pub enum Unit {
        Seconds = "seconds",
        Days = "days",
        Times = "times",
        Minor = "minor units",
        Switch = "0 or 1",
    }
}

/// One policy: a row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// What it is called.
    pub key: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
    /// What its value counts.
    pub unit: Unit,
    /// What it is when nobody has turned it.
    pub default: u32,
    /// The least it may be.
    pub min: u32,
    /// The most it may be.
    pub max: u32,
    /// Its value among others.
    pub read: fn(&Policies) -> u32,
    /// Makes it another.
    pub write: fn(&mut Policies, u32),
}

impl Policy {
    /// The policy of that name.
    pub fn find(key: &str) -> Option<&'static Policy> {
        TABLE.iter().find(|policy| policy.key == key)
    }

    /// What it stands at.
    pub fn of(&self, policies: &Policies) -> u32 {
        (self.read)(policies)
    }

    fn fits(&self, value: i64) -> Option<u32> {
        u32::try_from(value).ok().filter(|value| (self.min..=self.max).contains(value))
    }
}

macro_rules! policies {
    ($(
        #[doc = $meaning:literal]
        $field:ident = $key:literal, $unit:ident, $default:expr, $min:literal..=$max:literal;
    )+) => {
        /// See the module. Each value says its unit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Policies {
            $(#[doc = $meaning] pub $field: u32,)+
        }

        impl Default for Policies {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// Every policy.
        pub const TABLE: &[Policy] = &[$(Policy {
            key: $key,
            meaning: $meaning.trim_ascii(),
            unit: Unit::$unit,
            default: $default,
            min: $min,
            max: $max,
            read: |policies| policies.$field,
            write: |policies, value| policies.$field = value,
        }),+];
    };
}

policies! {
    /// A node that was not heard of for so long is offline.
    node_offline_after_seconds = "node.offline_after_seconds", Seconds, 60, 3..=86_400;
    /// How often agents are to report.
    node_heartbeat_seconds = "node.heartbeat_seconds", Seconds, 10, 1..=3_600;
    /// For how long an agent's certificate is good.
    certificate_ttl_seconds = "certificate.ttl_seconds", Seconds, 7 * 86_400, 600..=7_776_000;
    /// For how long a join token can be used.
    join_token_ttl_seconds = "join_token.ttl_seconds", Seconds, 900, 60..=86_400;
    /// An agent that was given a task and is not heard of for so long has lost it.
    task_lease_seconds = "task.lease_seconds", Seconds, 60, 3..=3_600;
    /// For how long a signed task may be begun.
    task_envelope_ttl_seconds = "task.envelope_ttl_seconds", Seconds, 900, 30..=900;
    /// How often a provision is tried when the node says that a lease is in the way.
    provision_attempts_max = "provision.attempts_max", Times, 3, 1..=20;
    /// How often a clean-up is tried before an operator is asked.
    release_attempts_max = "release.max_deliver", Times, 5, 1..=50;
    /// How long a restart may take.
    restart_timeout_seconds = "restart.timeout_seconds", Seconds, 900, 30..=86_400;
    /// How long one attempt to clean up may take.
    release_attempt_seconds = "release.attempt_seconds", Seconds, 120, 5..=7_200;
    /// The first pause between two attempts; it doubles, up to a minute.
    retry_seconds = "retry.seconds", Seconds, 2, 1..=60;
    /// For how long an answer is kept for its idempotency key.
    idempotency_ttl_seconds = "idempotency.ttl_seconds", Seconds, 86_400, 3_600..=2_592_000;
    /// Whether an account that has nothing left, or a project at its cap, is refused more and gives back what it has.
    billing_enforced = "billing.enforced", Switch, 1, 0..=1;
    /// For how long a depleted account keeps what it has.
    billing_depletion_grace_seconds = "billing.depletion_grace_seconds", Seconds, 0, 0..=2_592_000;
    /// At or under this a balance is low, for accounts that are opened from now on; their owners may choose another.
    billing_low_balance_threshold = "billing.low_balance_threshold", Minor, 1_000, 0..=100_000_000;
    /// For how long somebody may stay at the checkout.
    payments_session_ttl_seconds = "payments.session_ttl_seconds", Seconds, 86_400, 3_600..=86_400;
    /// The least that somebody may pay at once.
    payments_amount_min = "payments.amount_min", Minor, 100, 1..=100_000_000;
    /// The most that somebody may pay at once.
    payments_amount_max = "payments.amount_max", Minor, 99_999_999, 1..=999_999_999;
    /// How often it is tried to settle what the payment provider has told, before an operator is asked.
    payments_event_attempts_max = "payments.event_attempts_max", Times, 10, 1..=50;
    /// For how long entries of the audit log are kept.
    audit_retention_days = "audit.retention_days", Days, 400, 30..=36_500;
    /// For how long a message is kept after it was published, and that it was handled.
    outbox_kept_days = "outbox.kept_days", Days, 1, 1..=30;
    /// For how long a run of a workflow is kept after it was over.
    workflow_kept_days = "workflow.kept_days", Days, 30, 7..=3_650;
    /// For how long people can read what they were told, and see its deliveries to webhooks.
    notification_kept_days = "notification.kept_days", Days, 90, 7..=3_650;
    /// For how long what the payment provider told is kept, when something came of it.
    payments_events_kept_days = "payments.events_kept_days", Days, 90, 30..=3_650;
    /// For how long the minutes behind charges are kept, a day at a time. The charges are kept for ever.
    usage_windows_kept_days = "usage.windows_kept_days", Days, 90, 35..=400;
    /// For how long details are kept: reports that were refused, phases of tasks, closed findings, and tokens and certificates after their end.
    history_kept_days = "history.kept_days", Days, 90, 30..=3_650;
}

impl Policies {
    /// The pause before the attempt after `attempt` failed ones.
    pub fn retry_after(&self, attempt: u32) -> Duration {
        let factor = 1_u32 << attempt.saturating_sub(1).min(5);
        Duration::from_secs(u64::from(self.retry_seconds.saturating_mul(factor).min(60)))
    }

    /// These, with what operators have turned. What this binary does not know, or would not have let them do, is left out:
    /// another version has written it.
    #[must_use]
    pub fn turned(mut self, turned: &[Turned]) -> Policies {
        for Turned { key, value, .. } in turned {
            let found = Policy::find(key).and_then(|policy| Some((policy, policy.fits(*value)?)));
            match found {
                Some((policy, value)) => (policy.write)(&mut self, value),
                None => tracing::warn!(key, value, "a policy is not understood, and left out"),
            }
        }
        self
    }

    /// Why these make no sense together, if they do not.
    pub fn nonsense(&self) -> Option<String> {
        let heartbeat = self.node_heartbeat_seconds;
        let twice = heartbeat.saturating_mul(2);
        let too_short = |key: &str, value: u32| {
            format!(
                "{key} ({value}) must be more than twice node.heartbeat_seconds ({heartbeat}), or one lost report counts as silence"
            )
        };
        if self.node_offline_after_seconds <= twice {
            return Some(too_short("node.offline_after_seconds", self.node_offline_after_seconds));
        }
        if self.task_lease_seconds <= twice {
            return Some(too_short("task.lease_seconds", self.task_lease_seconds));
        }
        if self.payments_amount_min > self.payments_amount_max {
            return Some(
                "payments.amount_min is more than payments.amount_max: nobody could pay anything"
                    .to_owned(),
            );
        }
        None
    }
}

/// The policies of this process, as they stand now. Clones share them.
#[derive(Clone, Debug)]
pub struct Current(Arc<RwLock<Standing>>);

#[derive(Clone, Copy, Debug)]
struct Standing {
    /// What is true of what nobody has turned.
    given: Policies,
    now: Policies,
}

impl Current {
    /// Policies to begin with, and to come back to.
    pub fn new(policies: Policies) -> Current {
        Current(Arc::new(RwLock::new(Standing { given: policies, now: policies })))
    }

    /// As they stand now.
    pub fn get(&self) -> Policies {
        self.0.read().unwrap_or_else(PoisonError::into_inner).now
    }

    /// What they are when nobody has turned them.
    pub fn given(&self) -> Policies {
        self.0.read().unwrap_or_else(PoisonError::into_inner).given
    }

    /// They are these when nobody has turned them, and stand like this from now on.
    pub fn set(&self, policies: Policies) {
        let mut standing = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *standing = Standing { given: policies, now: policies };
    }

    /// Operators have turned these; says whether anything is another than before.
    pub fn turn(&self, turned: &[Turned]) -> bool {
        let mut standing = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let now = standing.given.turned(turned);
        let other = now != standing.now;
        standing.now = now;
        other
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::Timestamp;
    use store::policies::Turned;

    use super::{Policies, Policy, TABLE};

    fn turned(key: &str, value: i64) -> Turned {
        Turned { key: key.to_owned(), value, changed_at: Timestamp::UNIX_EPOCH, changed_by: None }
    }

    #[test]
    fn every_policy_is_within_its_own_bounds_and_each_key_turns_one_of_them() {
        let (default, mut keys) = (Policies::default(), HashSet::new());
        assert_eq!(default.nonsense(), None);
        for policy in TABLE {
            assert!((policy.min..=policy.max).contains(&policy.default), "{}", policy.key);
            assert!(policy.min < policy.max, "{}", policy.key);
            assert!(policy.meaning.ends_with('.') && !policy.meaning.starts_with(' '));
            assert_eq!(policy.of(&default), policy.default);
            assert!(keys.insert(policy.key), "{} is there twice", policy.key);
            let other = if policy.default == policy.max { policy.min } else { policy.max };
            let after = default.turned(&[turned(policy.key, i64::from(other))]);
            for each in TABLE {
                let expected = if each.key == policy.key { other } else { each.default };
                assert_eq!(each.of(&after), expected, "{} after {}", each.key, policy.key);
            }
        }
    }

    #[test]
    fn what_another_version_wrote_is_left_out() {
        let default = Policies::default();
        let strange = ["of.another.version", "node.heartbeat_seconds"];
        let after = default.turned(&strange.map(|key| turned(key, 1_000_000)));
        assert_eq!(after, default);
        assert!(
            Policy::find("node.heartbeat_seconds").is_some_and(|policy| policy.max < 1_000_000)
        );
    }

    #[test]
    fn a_lease_or_a_silence_as_short_as_two_reports_makes_no_sense() {
        let sensible = Policies::default();
        let short = Policies { node_offline_after_seconds: 20, ..sensible };
        assert!(short.nonsense().is_some_and(|why| why.contains("node.offline_after_seconds")));
        let short = Policies { task_lease_seconds: 20, ..sensible };
        assert!(short.nonsense().is_some_and(|why| why.contains("task.lease_seconds")));
        assert_eq!(Policies { node_heartbeat_seconds: 29, ..sensible }.nonsense(), None);
    }

    #[test]
    fn bounds_between_which_nobody_could_pay_anything_make_no_sense() {
        let sensible = Policies::default();
        let none = Policies { payments_amount_min: 501, payments_amount_max: 500, ..sensible };
        assert!(none.nonsense().is_some_and(|why| why.contains("payments.amount_min")));
        let one = Policies { payments_amount_min: 500, payments_amount_max: 500, ..sensible };
        assert_eq!(one.nonsense(), None);
    }
}
