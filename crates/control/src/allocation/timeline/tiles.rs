//! Steps as tiles: each lasts until the next one begins, so that every moment between the first and the end belongs to
//! exactly one, and their whole seconds add up to those of the whole.

use jiff::Timestamp;

/// One stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) started_at: Timestamp,
    /// None for the last one, while it lasts.
    pub(crate) completed_at: Option<Timestamp>,
    pub(crate) seconds: i64,
}

/// The tiles that begin at these moments. The last is a moment if it is `over`, and else lasts until `now`.
///
/// Seconds are counted from the first moment on and then subtracted, never rounded one by one: that is why they add up. A
/// clock that was set back makes a tile empty, never negative.
pub(crate) fn tiled(moments: &[Timestamp], over: bool, now: Timestamp) -> Vec<Tile> {
    let Some(first) = moments.first().copied() else {
        return Vec::new();
    };
    let mut latest = first;
    let begins: Vec<Timestamp> = moments
        .iter()
        .map(|moment| {
            latest = latest.max(*moment);
            latest
        })
        .collect();
    let end = if over { latest } else { latest.max(now) };
    let counted = |moment: Timestamp| moment.duration_since(first).as_secs();
    let ends = begins.iter().skip(1).copied().map(Some).chain([over.then_some(end)]);
    begins
        .iter()
        .zip(ends)
        .map(|(begin, completed_at)| Tile {
            started_at: *begin,
            completed_at,
            seconds: counted(completed_at.unwrap_or(end)) - counted(*begin),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::tiled;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(1_763_236_800_000_000 + micros).expect("it is a moment")
    }

    /// A small generator: the same numbers every time.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        }
    }

    #[test]
    fn whatever_the_history_its_tiles_cover_the_time_once_and_add_up_to_it() {
        for seed in 0..20_000 {
            let mut number = numbers(seed);
            let steps = 1 + number(12);
            let mut micros = 0_i64;
            let mut moments = Vec::new();
            for _ in 0..steps {
                moments.push(at(micros));
                // Fractions of a second, hours, nothing at all, and now and then a clock that is set back.
                micros += match number(4) {
                    0 => i64::try_from(number(1_000_000)).expect("small"),
                    1 => i64::try_from(number(7_200_000_000)).expect("small"),
                    2 => 0,
                    _ => 999_999 - i64::try_from(number(2_000_000)).expect("small"),
                };
            }
            let (over, now) = (number(2) == 0, at(micros));
            let tiles = tiled(&moments, over, now);
            assert_eq!(tiles.len(), moments.len());
            let first = moments[0];
            let latest = moments.iter().max().copied().expect("one");
            let end = if over { latest } else { latest.max(now) };
            let whole = end.duration_since(first).as_secs();
            assert_eq!(tiles.iter().map(|tile| tile.seconds).sum::<i64>(), whole, "seed {seed}");
            for (tile, next) in tiles.iter().zip(&tiles[1..]) {
                assert_eq!(tile.completed_at, Some(next.started_at), "no gap, no overlap: {seed}");
                assert!(tile.seconds >= 0, "seed {seed}");
                let exact = next.started_at.duration_since(tile.started_at);
                let off = (exact - SignedDuration::from_secs(tile.seconds)).abs();
                assert!(off < SignedDuration::from_secs(1), "a tile is off by {off}: {seed}");
            }
            let last = tiles.last().expect("one");
            assert_eq!(last.completed_at, over.then_some(latest));
        }
        assert!(tiled(&[], true, at(0)).is_empty());
    }
}
