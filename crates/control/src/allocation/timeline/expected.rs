//! How long things usually take: learnt from the closest circle in which there were enough of them, and a guess before
//! there is history.

use domain::machines::allocation::Status;
use lifecycle::Code as _;
use store::views::allocations::Row;
use store::views::learnt::{self, Durations, Learnt, Like};
use wire::http::timeline::{Basis, ExpectedSeconds};
use wire::node::TaskKind;

use crate::{Ctx, Error};

/// Fewer past ones than this say nothing.
const MEASURED_MIN: i64 = 5;
/// What stands between the request and the task, and between its result and the allocation being ready.
const AROUND_SECONDS: i64 = 2;

/// How long a task of this kind usually takes for such an allocation. None for a kind that nobody here knows.
///
/// # Errors
/// When the database fails.
pub(crate) async fn of_task(
    ctx: &Ctx,
    row: &Row,
    kind: &str,
) -> Result<Option<ExpectedSeconds>, Error> {
    let Some(known) = TaskKind::parse(kind) else {
        return Ok(None);
    };
    let learnt = learnt::tasks(&ctx.store, kind, like(ctx, row)).await?;
    let (p50, p90) = guess(known);
    Ok(Some(closest(&learnt, p50, p90)))
}

/// How long it usually takes from the request until such an allocation is ready; none when it is, or never will be.
///
/// # Errors
/// When the database fails.
pub(crate) async fn of_the_whole(ctx: &Ctx, row: &Row) -> Result<Option<ExpectedSeconds>, Error> {
    match row.status {
        Status::Requested | Status::Provisioning => {}
        Status::Active
        | Status::Restarting
        | Status::RestartFailed
        | Status::Releasing
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => return Ok(None),
    }
    let learnt = learnt::allocations(&ctx.store, like(ctx, row)).await?;
    let kind = if row.whole { TaskKind::UserProvision } else { TaskKind::SliceProvision };
    let (p50, p90) = guess(kind);
    Ok(Some(closest(&learnt, p50 + AROUND_SECONDS, p90 + AROUND_SECONDS)))
}

fn like<'a>(ctx: &Ctx, row: &'a Row) -> Like<'a> {
    Like { sku: &row.sku, image: &row.image, before: ctx.clock.now() }
}

fn closest(learnt: &Learnt, p50: i64, p90: i64) -> ExpectedSeconds {
    let circles = [
        (Basis::Image, learnt.by_image),
        (Basis::Sku, learnt.by_sku),
        (Basis::Kind, learnt.by_kind),
    ];
    let enough = circles.into_iter().find(|(_, durations)| durations.count >= MEASURED_MIN);
    match enough {
        Some((basis, Durations { p50_seconds, p90_seconds, .. })) => ExpectedSeconds {
            p50: rounded(p50_seconds),
            p90: rounded(p90_seconds),
            basis: basis.into(),
        },
        None => ExpectedSeconds { p50, p90, basis: Basis::Default.into() },
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seconds of a task, rounded for people")]
fn rounded(seconds: f64) -> i64 {
    seconds.round() as i64
}

/// Half, and nine of ten, of such tasks were faster than this where we have seen them.
const fn guess(kind: TaskKind) -> (i64, i64) {
    match kind {
        TaskKind::SliceProvision => (240, 420),
        TaskKind::UserProvision => (60, 150),
        TaskKind::SliceRestart => (60, 150),
        TaskKind::NodeReboot => (300, 600),
        TaskKind::SliceRelease => (30, 90),
        TaskKind::UserDeprovision => (60, 180),
    }
}

#[cfg(test)]
mod tests {
    use store::views::learnt::{Durations, Learnt};
    use wire::http::timeline::Basis;

    use super::{MEASURED_MIN, closest};

    #[test]
    fn the_closest_circle_with_enough_of_them_is_believed() {
        let some = |count, p50_seconds| Durations { count, p50_seconds, p90_seconds: 9.6 };
        let told = |by_image, by_sku, by_kind| {
            let learnt = Learnt { by_image, by_sku, by_kind };
            let expected = closest(&learnt, 100, 200);
            (expected.basis.0, expected.p50, expected.p90)
        };
        let (few, enough) = (MEASURED_MIN - 1, MEASURED_MIN);
        assert_eq!(told(some(enough, 1.4), some(200, 2.0), some(200, 3.0)), (Basis::Image, 1, 10));
        assert_eq!(told(some(few, 1.0), some(enough, 2.0), some(200, 3.0)), (Basis::Sku, 2, 10));
        assert_eq!(told(some(0, 0.0), some(few, 2.0), some(enough, 3.0)), (Basis::Kind, 3, 10));
        assert_eq!(told(some(0, 0.0), some(0, 0.0), some(few, 3.0)), (Basis::Default, 100, 200));
    }
}
