//! Every reason of a failed restart, in the simulated fleet, through the real agent, by commands alone.

use control::allocation::reason::OurReason;
use control::allocation::restart::REASONS;
use lifecycle::Code as _;
use testkit::Database;

use crate::whole::{Installation, create, json};

/// The faults that lead there: their words after `berth sim fault`, for the slice and for the whole machine. None where an
/// operator has a hand in it.
const fn faults(reason: OurReason) -> &'static [[&'static [&'static str]; 2]] {
    match reason {
        OurReason::DispatchFailed => &[[
            &["--fault", "fail", "--phase", "shut_down", "--reason", "stale_fence"],
            &["--fault", "fail", "--phase", "acknowledged", "--reason", "stale_fence"],
        ]],
        OurReason::NodeDidNotReturn => &[[
            &["--fault", "fail", "--phase", "vm_started", "--reason", "driver_failed"],
            &["--fault", "same_boot"],
        ]],
        OurReason::HealthNotRecovered => &[
            [&["--fault", "fail", "--phase", "ssh_reachable"]; 2],
            [&["--fault", "fail", "--phase", "driver_probe"]; 2],
            [&["--fault", "fail", "--phase", "mounts_reconciled"]; 2],
            [&["--fault", "fail", "--phase", "runtimes_reconciled"]; 2],
        ],
        OurReason::AgentRevoked
        | OurReason::Timeout
        | OurReason::NodeLost
        | OurReason::NoWorker
        | OurReason::ForceReleased
        | OurReason::Abandoned
        | OurReason::BalanceDepleted
        | OurReason::SpendingCap
        | OurReason::ReleaseExhausted => &[],
    }
}

/// Reasons that no machine has: an operator cuts it off in the middle.
fn by_an_operator(reason: OurReason) -> bool {
    reason == OurReason::AgentRevoked
}

fn restart(whole: &Installation, name: &str) -> (i32, String) {
    let ran = whole.home.run(&["alloc", "restart", name, "--yes", "--wait", "--json"]);
    let shown = json(&whole.ok(&["alloc", "show", name, "--json"]));
    let [status, reason] = ["status", "status_reason"].map(|field| shown[field].as_str());
    (ran.code, format!("{} {}", status.unwrap_or("none"), reason.unwrap_or("none")))
}

#[tokio::test]
async fn every_reason_of_a_failed_restart_can_be_ordered_from_the_simulated_fleet() {
    let database = Database::new().await;
    let whole = Installation::new(database.url());
    let up = whole.up();
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    let folder = whole.folder();
    let at = |words: &[&str]| whole.ok(&[words, &["--data", &folder]].concat());
    whole.ok(&create("slice"));
    let metal = ["alloc", "create", "--sku", "h100.metal", "--gpus", "8", "--region", "eu-1"];
    whole.ok(&[&metal[..], &["--name", "metal", "--wait", "--json"]].concat());
    for reason in REASONS.into_iter().filter(|reason| !by_an_operator(*reason)) {
        assert!(!faults(reason).is_empty(), "nobody knows how {reason} comes about");
        for fault in faults(reason) {
            for (name, fault) in ["slice", "metal"].into_iter().zip(fault) {
                at(&[&["sim", "fault"], *fault].concat());
                let (code, shown) = restart(&whole, name);
                assert_eq!(shown, format!("restart_failed {}", reason.code()), "{name} {fault:?}");
                assert_eq!(code, 10, "it ended badly, and says so");
                at(&["sim", "clear"]);
            }
        }
    }
    for name in ["slice", "metal"] {
        assert_eq!(restart(&whole, name), (0, "active none".to_owned()), "{name} after all that");
    }
    // The machine is at it, and an operator cuts it off.
    at(&["sim", "fault", "--fault", "hang", "--kind", "node.reboot"]);
    whole.ok(&["alloc", "restart", "metal", "--yes", "--no-wait"]);
    let node = json(&whole.ok(&["alloc", "show", "metal", "--json"]));
    let node = node["node"].as_str().expect("it has one").to_owned();
    let operator = ["--context", "operator", "admin", "nodes", "revoke", &node];
    whole.ok(&[&operator[..], &["--reason", "stolen"]].concat());
    let waited = whole.home.run(&["alloc", "timeline", "metal", "--follow"]);
    let shown = json(&whole.ok(&["alloc", "show", "metal", "--json"]));
    assert_eq!(shown["status_reason"], "agent_revoked", "{}", waited.err);
    let explained = whole.ok(&["alloc", "explain", "metal"]).out;
    assert!(explained.contains("cut off"), "{explained}");
    assert_eq!(whole.down().code, 0);
    database.remove().await;
}
