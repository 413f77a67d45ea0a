//! The columns that the four machines read and write, and the checks that both generations make on
//! them.

use lifecycle::{Check, Column, Kind, Test};

/// When the thread was thrown away; it stays as a tombstone.
pub const DELETED_AT: Column = Column::new("deleted_at", Kind::Time);
/// When the thread was put aside.
pub const ARCHIVED_AT: Column = Column::new("archived_at", Kind::Time);
/// When somebody asked for the thread to stop: the intent as the first generation keeps it.
pub const STOP_REQUESTED_AT: Column = Column::new("stop_requested_at", Kind::Time);
/// When the thread last asked for its owner's attention.
pub const ATTENTION_AT: Column = Column::new("attention_at", Kind::Time);
/// The thread that began this one; a root thread has none.
pub const PARENT_ID: Column = Column::new("parent_id", Kind::Id);
/// The environment that the thread runs in.
pub const ENVIRONMENT_ID: Column = Column::new("environment_id", Kind::Id);

/// Whether the environment is ours to take down.
pub const MANAGED: Column = Column::new("managed", Kind::Bool);
/// Where the workspace is, when there is one.
pub const PATH: Column = Column::new("path", Kind::Text);
/// When somebody asked for the environment to be cleaned up: the intent as the first generation
/// keeps it.
pub const CLEANUP_REQUESTED_AT: Column = Column::new("cleanup_requested_at", Kind::Time);
/// How thoroughly to clean up.
pub const CLEANUP_MODE: Column = Column::new("cleanup_mode", Kind::Text);
/// The destroy that the environment is busy with.
pub const DESTROY_ATTEMPT_ID: Column = Column::new("destroy_attempt_id", Kind::Id);
/// Since when the environment is to go. Only the machine writes it, so nothing else can move the
/// clock.
pub const RETIRING_SINCE: Column = Column::new("retiring_since", Kind::Time);

/// When the row last moved.
pub const UPDATED_AT: Column = Column::new("updated_at", Kind::Time);

/// A root thread has no parent that watches it, so a person must.
pub const ROOT_THREAD: Check = Check::new("rootThread", Test::Null(PARENT_ID));
/// The environment has a workspace on disk.
pub const WORKSPACE_PATH_PRESENT: Check = Check::new("workspacePathPresent", Test::Present(PATH));
/// The environment has no workspace on disk.
pub const WORKSPACE_PATH_ABSENT: Check = Check::new("workspacePathAbsent", Test::Null(PATH));
/// The environment is ours to take down.
pub const IS_MANAGED: Check = Check::new("managed", Test::True(MANAGED));
/// The thread is not a tombstone.
pub const NOT_DELETED: Check = Check::new("notDeleted", Test::Null(DELETED_AT));
/// The thread is not put aside.
pub const NOT_ARCHIVED: Check = Check::new("notArchived", Test::Null(ARCHIVED_AT));
