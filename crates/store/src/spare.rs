//! Connections that nobody needs while hardly anything is asked. Each is a process of the database with plans and catalogues of its
//! own, several megabytes of them, and a pool uses all that it has in turn, so that none of them ever rests for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::interval;

use crate::pool::Pool;

/// How often it is looked how much is asked.
const LOOK: Duration = Duration::from_secs(2);

/// What is asked less often than this between two looks is no load: it is what the product asks by itself.
const HARDLY: u64 = 100;

/// So many stay of those on which everything is planned, for whoever comes next.
const KEPT: usize = 1;
/// And of the others none: what timers ask for once a minute takes a process of the database to many times what it needs, and it gives
/// nothing of that back as long as it lasts.
const OTHERS_KEPT: usize = 0;

/// How often connections were used. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses(Arc<AtomicU64>);

impl Uses {
    /// One more.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn taken(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Looks after these pools until what comes back is dropped: that of all statements, and that of those that are planned once, if it
/// is another.
pub(crate) fn looked_after(pool: Pool, hot: Option<Pool>, uses: Uses) -> Arc<JoinSet<()>> {
    let pools = match hot {
        Some(hot) => vec![(pool, OTHERS_KEPT), (hot, KEPT)],
        None => vec![(pool, KEPT)],
    };
    let mut looks = JoinSet::new();
    looks.spawn(async move {
        let mut ticks = interval(LOOK);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if uses.taken() <= HARDLY {
                for (pool, kept) in &pools {
                    pool.keep(*kept).await;
                }
            }
        }
    });
    Arc::new(looks)
}
