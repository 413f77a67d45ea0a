//! The library on machines of its own.

mod explore;
mod job;
mod laws;
mod mutate;
mod shape;
