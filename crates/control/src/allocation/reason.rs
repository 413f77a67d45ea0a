//! Why something came to a bad end, in words for people. A closed set: whatever else is in a column is shown as `other`, so
//! that nothing that a node or an operator wrote by hand reaches a tenant this way.

use lifecycle::{Code as _, codes};
use wire::node::FailureReason;

codes! {
    /// Reasons that the control plane gives; those of nodes are [`FailureReason`].
    pub enum OurReason {
        Timeout = "timeout",
        NodeLost = "node_lost",
        NoWorker = "no_worker",
        ForceReleased = "force_released",
        Abandoned = "abandoned",
        AgentRevoked = "agent_revoked",
        ReleaseExhausted = "release_exhausted",
        DispatchFailed = "dispatch_failed",
        NodeDidNotReturn = "node_did_not_return",
        HealthNotRecovered = "health_not_recovered",
        BalanceDepleted = "balance_depleted",
        SpendingCap = "spending_cap",
    }
}

/// What an unknown reason is called.
const OTHER: &str = "other";
const WORD_BYTES_MAX: usize = 64;

/// A reason, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// One that a node gave.
    Node(FailureReason),
    /// One of ours.
    Ours(OurReason),
    /// Anything else.
    Other,
}

impl Reason {
    /// The reason in a column.
    pub fn read(text: &str) -> Reason {
        let ours = OurReason::parse(text).map(Reason::Ours);
        FailureReason::parse(text).map(Reason::Node).or(ours).unwrap_or(Reason::Other)
    }

    /// What happened, in a sentence that anybody may read.
    pub const fn sentence(self) -> &'static str {
        match self {
            Reason::Node(reason) => of_node(reason),
            Reason::Ours(reason) => of_ours(reason),
            Reason::Other => "Something went wrong on our side.",
        }
    }

    /// What an operator does about it, and what a tenant is told that we do.
    pub const fn advice(self) -> &'static str {
        match self {
            Reason::Node(reason) => advice_of_node(reason),
            Reason::Ours(reason) => advice_of_ours(reason),
            Reason::Other => "An operator looks into it.",
        }
    }
}

/// The word that is shown for a reason: itself if it is a word, else `other`.
pub fn word(text: &str) -> &str {
    let fits = (1..=WORD_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if fits { text } else { OTHER }
}

const fn of_node(reason: FailureReason) -> &'static str {
    match reason {
        FailureReason::LeaseConflict => {
            "The machine still had something else in the place that was meant for you."
        }
        FailureReason::ImageUnavailable => "The image could not be fetched.",
        FailureReason::ImageChecksumMismatch => {
            "The image that was fetched is not the one it should be."
        }
        FailureReason::VfioUnavailable => "The machine could not pass its GPUs through.",
        FailureReason::SshNotReady => "SSH did not become reachable in time.",
        FailureReason::GuestNotReady => "The guest did not report that its drivers are ready.",
        FailureReason::DeviceDirty => "A GPU was not clean, and was not handed out.",
        FailureReason::CleanupIncomplete => "The clean-up left something behind.",
        FailureReason::GuestMissing => "What was to be restarted is not on the machine.",
        FailureReason::RebootFailed => "The machine did not reboot.",
        FailureReason::MountsNotReady => "The attached storage did not come back.",
        FailureReason::RuntimesNotReady => "The managed runtimes did not come back.",
        FailureReason::Interrupted => "The work on the machine was interrupted.",
        FailureReason::AgentDied => {
            "The machine's agent died over this work again and again, and gave it up."
        }
        FailureReason::DriverFailed => "The machine could not do its part.",
        FailureReason::BadSignature => "The machine did not accept that the order came from us.",
        FailureReason::OtherNode => "The order reached a machine that it was not meant for.",
        FailureReason::TaskExpired => "The order reached the machine too late.",
        FailureReason::UnknownKind => "The machine does not know this sort of work.",
        FailureReason::Malformed => "The machine could not read the order.",
        FailureReason::StaleFence => "The machine has begun something newer meanwhile.",
    }
}

const fn of_ours(reason: OurReason) -> &'static str {
    match reason {
        OurReason::Timeout => "It was not done in time.",
        OurReason::NodeLost => "The machine does not answer.",
        OurReason::NoWorker => "Nobody could begin the work.",
        OurReason::ForceReleased => "An operator took the machine back.",
        OurReason::Abandoned => "An operator sees to the machine by hand.",
        OurReason::AgentRevoked => "The machine was cut off by an operator.",
        OurReason::ReleaseExhausted => "The clean-up was tried as often as it may be.",
        OurReason::DispatchFailed => "The restart could not be ordered.",
        OurReason::NodeDidNotReturn => "The machine did not come back.",
        OurReason::HealthNotRecovered => "The machine came back, but not in working order.",
        OurReason::BalanceDepleted => "The balance was used up, so the machine was taken back.",
        OurReason::SpendingCap => {
            "The project has cost what it may this month, so the machine was taken back."
        }
    }
}

const fn advice_of_node(reason: FailureReason) -> &'static str {
    match reason {
        FailureReason::LeaseConflict => {
            "It is tried again; the lease reconciler clears leases that have expired."
        }
        FailureReason::ImageUnavailable | FailureReason::ImageChecksumMismatch => {
            "An operator checks the image catalogue; another image may work."
        }
        FailureReason::VfioUnavailable => {
            "An operator runs the host bootstrap on the machine and reboots it."
        }
        FailureReason::SshNotReady => "Inspect the cloud-init log on the boot disk.",
        FailureReason::GuestNotReady => "Use an image that has the drivers installed.",
        FailureReason::DeviceDirty => "The GPU is set aside until an operator has cleared it.",
        FailureReason::CleanupIncomplete => {
            "Until a clean-up succeeds nobody else gets this capacity; it can be tried again."
        }
        FailureReason::GuestMissing | FailureReason::RebootFailed => {
            "Try again, or release it; an operator looks at the machine."
        }
        FailureReason::MountsNotReady | FailureReason::RuntimesNotReady => {
            "Try again, or release it; the data on the storage is not touched."
        }
        FailureReason::Interrupted => "It is tried again when the machine is back.",
        FailureReason::AgentDied => {
            "An operator reads the agent's log on the machine; another machine may work."
        }
        FailureReason::DriverFailed => "An operator looks at the machine.",
        FailureReason::BadSignature | FailureReason::OtherNode => {
            "An operator checks the enrolment of the machine."
        }
        FailureReason::TaskExpired => {
            "An operator checks the clock and the connection of the machine."
        }
        FailureReason::UnknownKind | FailureReason::Malformed => {
            "An operator updates the agent of the machine."
        }
        FailureReason::StaleFence => "Nothing: the newer work goes on.",
    }
}

const fn advice_of_ours(reason: OurReason) -> &'static str {
    match reason {
        OurReason::Timeout => "An operator looks at the machine.",
        OurReason::NodeLost => {
            "The machine is offline; its capacity is given out again only after it was cleaned or set aside."
        }
        OurReason::NoWorker => "An operator looks at the workers and the dead letters.",
        OurReason::ForceReleased => "Nothing is to be done.",
        OurReason::Abandoned => "The capacity stays set aside until an operator has cleared it.",
        OurReason::AgentRevoked => {
            "Its capacity is given out again only after it was cleaned or set aside."
        }
        OurReason::ReleaseExhausted => "Try again, or leave it to an operator.",
        OurReason::BalanceDepleted => "Top up the balance, and ask for another one.",
        OurReason::SpendingCap => {
            "Ask a project admin to raise the cap, or wait for the next month."
        }
        OurReason::DispatchFailed | OurReason::NodeDidNotReturn | OurReason::HealthNotRecovered => {
            "Try again, or release it."
        }
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::Code as _;
    use wire::node::FailureReason;

    use super::{OurReason, Reason, word};

    #[test]
    fn every_reason_of_ours_is_a_word_and_what_is_none_is_other() {
        let codes = FailureReason::ALL.iter().map(|reason| reason.code());
        for code in codes.chain(OurReason::ALL.iter().map(|reason| reason.code())) {
            assert_eq!(word(code), code);
            assert_ne!(Reason::read(code), Reason::Other, "{code}");
        }
        let long = "a".repeat(65);
        for text in ["", "Timeout", "two words", "héllo", "<b>", "a\n", "x9", long.as_str()] {
            assert_eq!(word(text), "other", "{text:?}");
        }
    }
}
