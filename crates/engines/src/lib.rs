//! What carries Berth on more than one machine. Truth stays in Postgres: these engines bring word of it to whoever is to act,
//! share work out among processes, and may lose all they have at any time.

pub mod nats;
pub mod temporal;
