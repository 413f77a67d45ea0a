//! Laws of every machine, and the derived statuses, exhaustively.

mod derived;
mod laws;
