//! How much an agent may say in a heartbeat. It is kept and shown, so it is short, and text.

use wire::node::Heartbeat;
use wire::problem::Fault;

use crate::Error;

const GPUS_MAX: usize = 64;
const IMAGES_MAX: usize = 256;
const GUESTS_MAX: usize = 256;
const LEASES_MAX: usize = 256;
const RUNNING_MAX: usize = 256;
const TEXT_MAX: usize = 64;

/// Whether it is within bounds.
pub(super) fn check(heartbeat: &Heartbeat) -> Result<(), Error> {
    let Heartbeat { agent_version, gpus, images, guests, leases, running, .. } = heartbeat;
    let mut faults = Vec::new();
    let mut fault = |pointer: String, detail: String| faults.push(Fault { pointer, detail });
    let counts = [
        ("/gpus", gpus.len(), GPUS_MAX),
        ("/images", images.len(), IMAGES_MAX),
        ("/guests", guests.len(), GUESTS_MAX),
        ("/leases", leases.len(), LEASES_MAX),
        ("/running", running.len(), RUNNING_MAX),
    ];
    for (pointer, count, max) in counts {
        if count > max {
            fault(pointer.to_owned(), format!("at most {max} are expected, not {count}"));
        }
    }
    let texts = [("/agent_version", agent_version)]
        .into_iter()
        .chain(gpus.iter().map(|gpu| ("/gpus", &gpu.model)))
        .chain(images.iter().map(|image| ("/images", image)));
    for (pointer, text) in texts {
        if !is_short_text(text) {
            let detail = format!("1 to {TEXT_MAX} characters, none of them a control character");
            fault(pointer.to_owned(), detail);
        }
    }
    if gpus.iter().any(|gpu| !is_slot(gpu.index) || !is_slot(gpu.numa)) {
        fault("/gpus".to_owned(), format!("numbers from 0 to {}", GPUS_MAX - 1));
    }
    let of_guests = guests.iter().map(|guest| ("/guests", &guest.slots));
    let of_leases = leases.iter().map(|lease| ("/leases", &lease.slots));
    for (pointer, slots) in of_guests.chain(of_leases) {
        if slots.len() > GPUS_MAX || !slots.iter().all(|slot| is_slot(*slot)) {
            fault(pointer.to_owned(), format!("slots from 0 to {}", GPUS_MAX - 1));
        }
    }
    // One fault says as much as a thousand.
    faults.truncate(16);
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

fn is_slot(number: i16) -> bool {
    usize::try_from(number).is_ok_and(|number| number < GPUS_MAX)
}

fn is_short_text(text: &str) -> bool {
    (1..=TEXT_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}
