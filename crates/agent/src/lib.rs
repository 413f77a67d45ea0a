//! What a node does when told: typed tasks, a journal, drivers.
