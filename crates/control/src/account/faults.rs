//! Everything that is wrong with a body, collected, so that it is told at once.

use wire::problem::Fault;

use crate::Error;

const NAME_CHARACTERS_MAX: usize = 64;

/// The faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Notes a fault.
    pub(crate) fn note(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Fault { pointer: pointer.into(), detail: detail.into() });
    }

    /// A name without the white space around it; what is wrong with it is noted.
    pub(crate) fn name<'t>(&mut self, pointer: &str, text: &'t str) -> &'t str {
        let name = text.trim();
        let length = name.chars().count();
        if length == 0 || length > NAME_CHARACTERS_MAX {
            self.note(pointer, format!("must have 1 to {NAME_CHARACTERS_MAX} characters"));
        }
        if name.chars().any(char::is_control) {
            self.note(pointer, "must not have control characters");
        }
        name
    }

    /// Nothing, if nothing was noted.
    pub(crate) fn settle(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Invalid(self.0)) }
    }
}
