//! What the machine is, what it was doing while figures were taken, and what processes cost it.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// What the machine and we were doing in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    /// The share of all cores that others were using right before it.
    pub(crate) foreign_cpu: f64,
    /// What whoever asks has used of the same cores, in seconds, if somebody was asking.
    pub(crate) client_cpu: Option<f64>,
    /// What the cores had done when the round began.
    began: Option<Ticks>,
}

/// What all cores have done since the machine began, in ticks.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    busy: f64,
    /// Of these, what the machine under this one took away.
    stolen: f64,
    total: f64,
}

impl Mood {
    /// Looks before a round.
    pub(crate) async fn look() -> Mood {
        Mood { began: ticks(), ..Mood::of(foreign_cpu().await) }
    }

    /// That share was somebody else's before the round, and none of it was taken away in it.
    pub(crate) const fn of(foreign_cpu: f64) -> Mood {
        Mood { foreign_cpu, client_cpu: None, began: None }
    }

    /// The share of all cores that was not ours: in use by others right before the round, or taken away until now.
    pub(crate) fn foreign(self) -> f64 {
        let stolen = |began: Ticks| {
            ticks()
                .filter(|now| now.total > began.total)
                .map_or(0.0, |now| (now.stolen - began.stolen) / (now.total - began.total))
        };
        self.foreign_cpu.max(self.began.map_or(0.0, stolen))
    }

    /// The same, with what our own asking has cost.
    pub(crate) const fn asking(self, seconds: f64) -> Mood {
        Mood { client_cpu: Some(seconds), ..self }
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1_000.0
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which a share of the sorted values lies.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = ((sorted.len() as f64) * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The mean load of the last minute, the bench included.
pub(crate) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The share of all cores that is busy while we do nothing, without what agents that are at rest cost, and the product because of them:
/// somebody else's work.
#[expect(clippy::disallowed_methods, reason = "it has to look twice, some time apart")]
async fn foreign_cpu() -> f64 {
    let (before, ours) = (ticks(), ours_cpu());
    tokio::time::sleep(Duration::from_millis(500)).await;
    match (before, ticks()) {
        (Some(before), Some(after)) if after.total > before.total => {
            // A tick is a hundredth of a second.
            let ours = (ours_cpu() - ours).max(0.0) * 100.0;
            (after.busy - before.busy - ours).max(0.0) / (after.total - before.total)
        }
        _ => f64::NAN,
    }
}

/// CPU seconds of this process and of those below it that are the bench, the product or its database. What others have made is started
/// by scripts, and is not among them.
fn ours_cpu() -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let known: HashMap<u32, Process> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, Process::read(&entry.path())?))
        })
        .collect();
    let ours = known.keys().filter(|number| is_below(**number, std::process::id(), &known));
    ours.map(|number| known[number].seconds).sum()
}

/// Whether that process is this one, or below it with nobody else's in between.
fn is_below(mut number: u32, this: u32, known: &HashMap<u32, Process>) -> bool {
    while number != this {
        match known.get(&number) {
            Some(process) if process.is_product => number = process.parent,
            Some(_) | None => return false,
        }
    }
    true
}

/// What is known of a process.
struct Process {
    parent: u32,
    /// Whether it is the bench, the product or its database, by its name.
    is_product: bool,
    seconds: f64,
}

impl Process {
    fn read(folder: &Path) -> Option<Process> {
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
        let is_product = ["bench", "berth", "postgres"].contains(&name);
        Some(Process { parent, is_product, seconds: cpu_seconds(folder).ok()? })
    }
}

fn ticks() -> Option<Ticks> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let total: f64 = ticks.iter().take(8).sum();
    let busy = total - ticks.get(3)? - ticks.get(4)?;
    Some(Ticks { busy, stolen: *ticks.get(7)?, total })
}

/// CPU seconds of our own process, which is whoever asks.
pub(crate) fn own_cpu() -> f64 {
    cpu_seconds(Path::new("/proc/self")).unwrap_or(f64::NAN)
}

/// Memory in MB and CPU seconds of a process.
pub(crate) fn usage(process: u32) -> anyhow::Result<(f64, f64)> {
    let folder = Path::new("/proc").join(process.to_string());
    let status = std::fs::read_to_string(folder.join("status"))?;
    let kilobytes = kilobytes_of(&status, "VmRSS:").context("VmRSS")?;
    Ok((kilobytes / 1024.0, cpu_seconds(&folder)?))
}

fn cpu_seconds(folder: &Path) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(folder.join("stat"))?;
    let after_name = stat.rsplit(')').next().context("stat")?;
    let words: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: f64 = words[11].parse::<f64>()? + words[12].parse::<f64>()?;
    // A tick is a hundredth of a second on every Linux we run on.
    Ok(ticks / 100.0)
}

fn kilobytes_of(text: &str, label: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Memory of a process and all its children in MB, in which what several share is counted once.
pub(crate) fn family_memory(process: u32) -> anyhow::Result<f64> {
    let mut family = vec![process];
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(other) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent == Some(process.to_string().as_str()) {
            family.push(other);
        }
    }
    let mut kilobytes = 0.0;
    for member in family {
        let path = Path::new("/proc").join(member.to_string()).join("smaps_rollup");
        // One that has ended meanwhile has no memory.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        kilobytes += kilobytes_of(&text, "Pss:").unwrap_or_default();
    }
    Ok(kilobytes / 1024.0)
}

/// Cores, memory and kernel, in words that name nobody's machine.
pub(crate) fn described() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = kilobytes_of(&read("/proc/meminfo"), "MemTotal:").unwrap_or(f64::NAN);
    let kernel = read("/proc/sys/kernel/osrelease");
    let gibibytes = memory / 1024.0 / 1024.0;
    format!("{cores} cores, {gibibytes:.0} GiB, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Process, is_below, ours_cpu, own_cpu};

    #[test]
    fn what_scripts_have_started_is_not_ours() {
        let of = |parent, is_product| Process { parent, is_product, seconds: 0.0 };
        let known = HashMap::from([
            (7, of(1, true)),
            (8, of(7, true)),
            (9, of(8, true)),
            (10, of(7, false)),
            (11, of(10, true)),
            (12, of(1, true)),
        ]);
        let ours: Vec<u32> = (7..=13).filter(|number| is_below(*number, 7, &known)).collect();
        assert_eq!(ours, [7, 8, 9]);
        let before = own_cpu();
        assert!(ours_cpu() >= before, "whoever looks is ours");
    }
}
