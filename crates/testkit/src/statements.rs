//! How many statements the product sends, as the driver tells of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

/// Counts the statements that are sent from this thread, as long as it is kept. A test has one thread.
#[derive(Debug)]
pub struct Statements {
    count: Arc<AtomicUsize>,
    _subscribed: DefaultGuard,
}

impl Statements {
    /// Begins to count.
    pub fn count() -> Statements {
        let count = Arc::new(AtomicUsize::new(0));
        let subscribed = tracing::subscriber::set_default(Counter(Arc::clone(&count)));
        Statements { count, _subscribed: subscribed }
    }

    /// How many there were since this was last asked.
    pub fn take(&self) -> usize {
        self.count.swap(0, Ordering::Relaxed)
    }
}

struct Counter(Arc<AtomicUsize>);

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _from: &Id) {}

    fn event(&self, _event: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
