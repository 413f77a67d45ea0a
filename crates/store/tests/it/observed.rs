//! What operators see of reports: a line for every refusal, a counter for every report.

use std::sync::{Arc, Mutex};

use domain::ids::OperationId;
use domain::machines::allocation::Event;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use testkit::{Database, new_id};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The fields of the first line that the writer wrote.
    fn fields(&self) -> serde_json::Value {
        let bytes = self.0.lock().expect("nobody panicked").clone();
        let text = String::from_utf8(bytes).expect("it is text");
        let line =
            text.lines().find(|line| line.contains("store::lifecycle")).expect("there is a line");
        let line: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
        line["fields"].clone()
    }
}

fn counters(snapshotter: &Snapshotter) -> Vec<(String, u64)> {
    let mut counted = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<&str> = key.key().labels().map(|label| label.value()).collect();
        match value {
            DebugValue::Counter(n) => counted.push((labels.join(" "), n)),
            DebugValue::Gauge(_) | DebugValue::Histogram(_) => {}
        }
    }
    counted
}

#[tokio::test]
async fn a_refusal_is_a_line_with_fields_and_every_report_is_counted() {
    let database = Database::new().await;
    let id = database.active_allocation().await.allocation;
    let lines = Lines::default();
    let sink = lines.clone();
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || sink.clone()).finish();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    {
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let _recorded = metrics::set_default_local_recorder(&recorder);
        let _late = database.report(id, Event::ProvisionFailed, OperationId(new_id())).await;
        let _moved = database.report(id, Event::ReleaseRequested, OperationId(new_id())).await;
    }
    let fields = lines.fields();
    assert_eq!(fields["machine"], "allocation");
    assert_eq!(fields["id"], id.to_string());
    assert_eq!(
        (&fields["event"], &fields["reason"]),
        (&"provision.failed".into(), &"superseded".into())
    );
    assert_eq!((&fields["name"], &fields["status"]), (&"same_operation".into(), &"active".into()));
    let counted = counters(&snapshotter);
    assert!(
        counted.contains(&("allocation provision.failed superseded".to_owned(), 1)),
        "{counted:?}"
    );
    assert!(
        counted.contains(&("allocation release.requested applied".to_owned(), 1)),
        "{counted:?}"
    );
    database.remove().await;
}
