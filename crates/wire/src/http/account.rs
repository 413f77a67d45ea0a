//! Who is who: login, tokens, SSH keys, projects and their members.

use domain::policy::{ProjectRole, Scope};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

/// A role in a project, as it travels.
pub type ProjectRoleWord = Coded<ProjectRole>;
/// A scope, as it travels.
pub type ScopeWord = Coded<Scope>;

/// `POST /login`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The account.
    #[schema(max_length = 254)]
    pub email: String,
    /// Its password.
    #[schema(max_length = 1024)]
    pub password: String,
    /// What the token that comes back is to be called.
    #[schema(max_length = 64)]
    pub token_name: Option<String>,
}

/// Who the caller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// The user.
    pub user_id: Uuid,
    /// Their address.
    pub email: String,
    /// Their name.
    pub name: String,
    /// Whether they run the platform.
    pub operator: bool,
    /// What the token in use may be used for.
    pub scopes: Vec<ScopeWord>,
    /// Their projects.
    pub projects: Vec<Project>,
}

/// `POST /projects`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    /// What it is called.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
}

/// A project, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Project {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// The caller's role in it.
    pub role: ProjectRoleWord,
    /// Since when it exists.
    pub created_at: Timestamp,
}

/// `PUT /projects/{id}/members`: adds a member, or changes their role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Whose account.
    #[schema(max_length = 254)]
    pub email: String,
    /// What they may do.
    pub role: ProjectRoleWord,
}

/// A member of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// The user.
    pub user_id: Uuid,
    /// Their address.
    pub email: String,
    /// Their name.
    pub name: String,
    /// What they may do.
    pub role: ProjectRoleWord,
}

/// `POST /ssh-keys`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSshKey {
    /// What it is called.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// One public key, as in `id_ed25519.pub`.
    #[schema(max_length = 16384)]
    pub public_key: String,
}

/// An SSH key. Its comment is not shown: it often names a person and their machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshKey {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// `SHA256:…`, as `ssh-keygen -l` shows it.
    pub fingerprint: String,
    /// The sort of key.
    pub algorithm: String,
    /// Since when it is there.
    pub created_at: Timestamp,
}

/// `POST /tokens`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// What it is called.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// What it may be used for; never more than the token that asks.
    pub scopes: Vec<ScopeWord>,
    /// For how long; 90 days when nobody says.
    #[schema(minimum = 60, maximum = 31_536_000)]
    pub ttl_seconds: Option<u32>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// What it may be used for.
    pub scopes: Vec<ScopeWord>,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A token with its secret, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FreshToken {
    /// The token.
    pub token: Token,
    /// What goes into `Authorization: Bearer …`. It can't be shown again.
    pub secret: String,
}
