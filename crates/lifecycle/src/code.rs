//! Codes: the closed sets of names that a machine is made of (its statuses, its events).
//! One declaration gives the enum and its one spelling, used in databases, logs and documents alike.

use std::fmt::{Debug, Display};
use std::hash::Hash;

/// A closed set of names. Implemented by [`codes!`](crate::codes); write no other implementation.
pub trait Code: Copy + Eq + Hash + Ord + Debug + Display + Send + Sync + 'static {
    /// Every member, in order of declaration.
    const ALL: &'static [Self];

    /// The one spelling of this member, everywhere.
    fn code(self) -> &'static str;

    /// The position of this member in [`Code::ALL`].
    fn index(self) -> usize;

    /// The member spelled `text`; `None` for a stranger, which the caller must treat as an error.
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|member| member.code() == text)
    }
}

/// Declares an enum of codes: `codes! { pub enum Light { Red = "red", Green = "green" } }`.
#[macro_export]
macro_rules! codes {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $code:literal),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$variant_meta])* #[doc = concat!("`", $code, "`")] $variant),+ }

        impl $crate::Code for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad($crate::Code::code(*self))
            }
        }
    };
}
