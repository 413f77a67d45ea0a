//! The doors through which facts come in: what a message leads to, which workflows there are, what is swept when. Each is
//! one list in one file; with the rules of the machines, which name what they publish, the flow of the product is data.

pub mod subscriptions;
pub mod timers;
pub mod workflows;
