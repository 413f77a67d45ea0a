//! What an operator does to a simulated machine by hand, standing in front of it.

use std::path::Path;

use uuid::Uuid;

use super::world::{Boot, World};
use crate::Error;
use crate::journal::Place;

/// What a wipe took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiped {
    /// The allocations whose guests were there.
    pub guests: Vec<Uuid>,
    /// The places that had traces of somebody on them.
    pub places: Vec<Place>,
}

/// Removes every guest and every trace of a tenant from the simulated machine in `directory`; with a slot, those on the
/// slot alone. A guest that has other slots too goes as a whole, what it left on those stays. The agent's books are its
/// own, and are not touched.
///
/// # Errors
/// When there is no such machine.
pub fn wipe(directory: &Path, slot: Option<i16>) -> Result<Wiped, Error> {
    let failed = || Error::file(directory);
    let world = World::open(directory).map_err(failed())?;
    let mut wiped = Wiped::default();
    for guest in world.guests().map_err(failed())? {
        if slot.is_none_or(|slot| guest.slots.is_empty() || guest.slots.contains(&slot)) {
            world.remove(guest.allocation).map_err(failed())?;
            wiped.guests.push(guest.allocation);
        }
    }
    let meant = |place: &Place| slot.is_none_or(|slot| *place == Place::Slot(slot));
    for place in world.traces().map_err(failed())?.into_iter().filter(meant) {
        world.wipe(place).map_err(failed())?;
        wiped.places.push(place);
    }
    Ok(wiped)
}

/// Switches the simulated machine in `directory` on, if it went down and did not come back. Whether it did.
///
/// # Errors
/// When there is no such machine.
pub fn power_on(directory: &Path) -> Result<bool, Error> {
    let failed = || Error::file(directory);
    let world = World::open(directory).map_err(failed())?;
    if world.booting().map_err(failed())? != Some(Boot::WhenSwitchedOn) {
        return Ok(false);
    }
    world.boot().map_err(failed())?;
    world.is_up().map_err(failed())?;
    Ok(true)
}
