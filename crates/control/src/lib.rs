//! What follows from what: the stories, each a few short transactions.
