//! The doors: HTTP, the node gateway, and which door leads to which story.
