//! The doors through which facts come in: what a message leads to, which workflows there are, what is swept when. Each is
//! one list in one file; with the rules of the machines, which name what they publish, the flow of the product is data.

/// The consumers and timers of money, payments included: what a process of the role `billing` runs.
pub const BILLING: &[&str] =
    &["billing", "charging", "unpaid", "payment_events", "payment_sessions"];
/// Those that tell people: what a process of the role `notifier` runs.
pub const NOTIFIER: &[&str] = &["notifier", "webhook_deliveries"];

pub mod subscriptions;
pub mod timers;
pub mod workflows;
