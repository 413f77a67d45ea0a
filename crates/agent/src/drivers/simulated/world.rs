//! The simulated machine itself: files that outlive the agent's process, as a machine does.
//! A guest a file, what a tenant left on a slot a file, the boot id, and a diary of every effect.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use lifecycle::Code as _;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::node::{Phase, PhaseWord};

use crate::clock::new_id;
use crate::durable::{self, Outlives, find, remove};
use crate::journal::Place;

const DIARY_BYTES_MAX: u64 = 4 << 20;

/// Something that was prepared for an allocation, or is being prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GuestFile {
    pub(super) allocation: Uuid,
    pub(super) slots: Vec<i16>,
    pub(super) image: String,
    /// How far it has got.
    pub(super) stage: Vec<PhaseWord>,
    /// Who may log in.
    #[serde(default)]
    pub(super) ssh_keys: Vec<String>,
    /// New whenever it starts; nil for one that has not, and for an account.
    #[serde(default)]
    pub(super) boot_id: Uuid,
    /// The restart it is in, or was in last.
    #[serde(default)]
    pub(super) restart: Option<Round>,
}

impl GuestFile {
    /// Whether it was ever there to be used.
    pub(super) fn has_started(&self) -> bool {
        let is_start = |phase: &PhaseWord| matches!(phase.0, Phase::VmStarted | Phase::UserCreated);
        self.stage.iter().any(is_start)
    }
}

/// One restart, as far as it has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    /// The boot it is to end.
    pub(super) boot_id: Uuid,
    pub(super) stage: Vec<PhaseWord>,
}

/// When a machine that is down comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Boot {
    /// Then.
    At(Timestamp),
    /// When somebody switches it on.
    WhenSwitchedOn,
}

/// The files of one machine.
#[derive(Debug)]
pub(super) struct World {
    root: PathBuf,
}

impl World {
    /// The machine in `directory`; a new one, if there is none.
    pub(super) fn open(directory: &Path) -> io::Result<World> {
        let root = directory.join("world");
        fs::create_dir_all(root.join("guests"))?;
        fs::create_dir_all(root.join("residue"))?;
        Ok(World { root })
    }

    /// The present boot of the machine, which is older than this process if the machine is.
    pub(super) fn boot_id(&self) -> io::Result<Uuid> {
        let path = self.root.join("boot_id");
        if let Some(bytes) = find(&path)? {
            return Uuid::try_parse_ascii(bytes.trim_ascii()).map_err(io::Error::other);
        }
        self.boot()
    }

    /// Begins another boot.
    pub(super) fn boot(&self) -> io::Result<Uuid> {
        let id = new_id()?;
        let path = self.root.join("boot_id");
        durable::replace(&path, id.to_string().as_bytes(), Outlives::Process)?;
        Ok(id)
    }

    fn booting_path(&self) -> PathBuf {
        self.root.join("booting.json")
    }

    /// The machine is down until then.
    pub(super) fn go_down(&self, until: Boot) -> io::Result<()> {
        let bytes = serde_json::to_vec(&until).map_err(io::Error::other)?;
        durable::replace(&self.booting_path(), &bytes, Outlives::Process)
    }

    /// Until when the machine is down, if it is.
    pub(super) fn booting(&self) -> io::Result<Option<Boot>> {
        let bytes = find(&self.booting_path())?;
        bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other)).transpose()
    }

    /// The machine is up.
    pub(super) fn is_up(&self) -> io::Result<()> {
        remove(&self.booting_path())
    }

    fn guest_path(&self, allocation: Uuid) -> PathBuf {
        self.root.join("guests").join(format!("{allocation}.json"))
    }

    pub(super) fn guest(&self, allocation: Uuid) -> io::Result<Option<GuestFile>> {
        let bytes = find(&self.guest_path(allocation))?;
        bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other)).transpose()
    }

    pub(super) fn keep(&self, guest: &GuestFile) -> io::Result<()> {
        let bytes = serde_json::to_vec(guest).map_err(io::Error::other)?;
        durable::replace(&self.guest_path(guest.allocation), &bytes, Outlives::Process)
    }

    pub(super) fn remove(&self, allocation: Uuid) -> io::Result<()> {
        remove(&self.guest_path(allocation))
    }

    /// Every guest, in the order of their allocations.
    pub(super) fn guests(&self) -> io::Result<Vec<GuestFile>> {
        let mut guests = Vec::new();
        for file in fs::read_dir(self.root.join("guests"))? {
            let path = file?.path();
            // A file that is about to take its place, or has just gone, is no guest.
            if path.extension().is_some_and(|extension| extension == "json")
                && let Some(bytes) = find(&path)?
            {
                guests.push(serde_json::from_slice(&bytes).map_err(io::Error::other)?);
            }
        }
        guests.sort_by_key(|guest: &GuestFile| guest.allocation);
        Ok(guests)
    }

    fn residue_path(&self, place: Place) -> PathBuf {
        let name = match place {
            Place::Machine => "machine".to_owned(),
            Place::Slot(index) => index.to_string(),
        };
        self.root.join("residue").join(name)
    }

    /// Leaves something of the allocation on the place.
    pub(super) fn soil(&self, place: Place, allocation: Uuid) -> io::Result<()> {
        let text = allocation.to_string();
        durable::replace(&self.residue_path(place), text.as_bytes(), Outlives::Process)
    }

    /// Takes away whatever was left on the place.
    pub(super) fn wipe(&self, place: Place) -> io::Result<()> {
        remove(&self.residue_path(place))
    }

    /// Whose traces are on the place.
    pub(super) fn residue(&self, place: Place) -> io::Result<Option<Uuid>> {
        let bytes = find(&self.residue_path(place))?;
        bytes
            .map(|bytes| Uuid::try_parse_ascii(bytes.trim_ascii()).map_err(io::Error::other))
            .transpose()
    }

    /// Every place that has traces of somebody on it.
    pub(super) fn traces(&self) -> io::Result<Vec<Place>> {
        let mut places = Vec::new();
        for file in fs::read_dir(self.root.join("residue"))? {
            let name = file?.file_name();
            let place = match name.to_str() {
                Some("machine") => Some(Place::Machine),
                Some(name) => name.parse().ok().map(Place::Slot),
                None => None,
            };
            places.extend(place);
        }
        places.sort_unstable();
        Ok(places)
    }

    fn diary_path(&self) -> PathBuf {
        self.root.join("diary")
    }

    /// Notes that a phase had its effect.
    pub(super) fn note(&self, allocation: Uuid, phase: Phase) -> io::Result<()> {
        let path = self.diary_path();
        if fs::metadata(&path).is_ok_and(|diary| diary.len() > DIARY_BYTES_MAX) {
            remove(&path)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(format!("{allocation} {phase}\n").as_bytes())
    }

    /// Every effect that was noted, in order.
    pub(super) fn diary(&self) -> io::Result<Vec<(Uuid, Phase)>> {
        let bytes = find(&self.diary_path())?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let line = |line: &str| {
            let (allocation, phase) = line.split_once(' ')?;
            Some((Uuid::try_parse(allocation).ok()?, Phase::parse(phase)?))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}
