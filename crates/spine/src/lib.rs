//! How truth travels: relay, bus and workflows, each an engine under one trait.
