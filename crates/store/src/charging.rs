//! Charging: every minute of every open record, once. Windows, posting, entries and balances are one statement for all records of
//! a batch; run again it finds nothing due, and after an outage it catches up, a bounded batch at a time.
