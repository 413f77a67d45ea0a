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

/// So many of each pool stay, for whoever comes next.
const KEPT: usize = 1;

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

/// Looks after these pools until what comes back is dropped.
pub(crate) fn looked_after(pools: [Pool; 2], uses: Uses) -> Arc<JoinSet<()>> {
    let mut looks = JoinSet::new();
    looks.spawn(async move {
        let mut ticks = interval(LOOK);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if uses.taken() <= HARDLY {
                for pool in &pools {
                    pool.keep(KEPT).await;
                }
            }
        }
    });
    Arc::new(looks)
}
