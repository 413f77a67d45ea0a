//! Timers go on whatever becomes of their work, and never overlap themselves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spine::Wake;
use spine::timer::{self, Timer};
use store::Ring;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use conformance::bed::PATIENCE;

#[tokio::test]
async fn a_timer_runs_at_once_and_goes_on_after_failures_and_panics() {
    let (told, mut runs) = mpsc::unbounded_channel();
    let count = Arc::new(AtomicUsize::new(0));
    let often = Timer::new("often", Duration::from_millis(1), move || {
        let run = count.fetch_add(1, Ordering::SeqCst);
        told.send(run).expect("somebody listens");
        assert!(run != 1, "on purpose");
        async move { if run == 0 { Err("broken") } else { Ok(1) } }
    });
    let (seldom_told, mut seldom_runs) = mpsc::unbounded_channel();
    let seldom = Timer::new("seldom", Duration::from_secs(3_600), move || {
        seldom_told.send(()).expect("somebody listens");
        async { Ok::<u64, String>(0) }
    });
    let stop = CancellationToken::new();
    let watch = async {
        for expected in 0..5 {
            assert_eq!(runs.recv().await, Some(expected));
        }
        assert_eq!(seldom_runs.recv().await, Some(()), "the first time at once");
        assert!(seldom_runs.try_recv().is_err(), "and then in an hour");
        stop.cancel();
    };
    let both =
        async { tokio::join!(timer::run(vec![often, seldom], Wake::new(), stop.clone()), watch) };
    timeout(PATIENCE, both).await.expect("it runs and it stops");
}

#[tokio::test]
async fn a_timer_waits_for_its_own_last_run() {
    let (at_it, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, count) = (Arc::clone(&at_it), Arc::clone(&total));
    let stop = CancellationToken::new();
    let end = stop.clone();
    let slow = Timer::new("slow", Duration::from_millis(1), move || {
        let (now, count, end) = (Arc::clone(&now), Arc::clone(&count), end.clone());
        async move {
            assert_eq!(now.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            // Several periods pass.
            let _ = timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
            now.fetch_sub(1, Ordering::SeqCst);
            if count.fetch_add(1, Ordering::SeqCst) == 4 {
                end.cancel();
            }
            Ok::<u64, String>(0)
        }
    });
    timeout(PATIENCE, timer::run(vec![slow], Wake::new(), stop))
        .await
        .expect("it runs and it stops");
    assert_eq!((at_it.load(Ordering::SeqCst), total.load(Ordering::SeqCst)), (0, 5));
}

#[tokio::test]
async fn a_timer_that_is_woken_does_not_wait_for_its_time() {
    let (told, mut runs) = mpsc::unbounded_channel();
    let timer = Timer::new("seldom", Duration::from_secs(3_600), move || {
        told.send(()).expect("somebody listens");
        async { Ok::<u64, String>(0) }
    });
    let (wake, stop) = (Wake::new(), CancellationToken::new());
    let watch = async {
        runs.recv().await.expect("the first time at once");
        // Rung many times in a moment, it runs once.
        for _ in 0..50 {
            wake.ring(&Ring::AuditLog);
        }
        runs.recv().await.expect("it was woken");
        let more = timeout(Duration::from_millis(300), runs.recv()).await;
        assert!(more.is_err(), "once for all of them");
        stop.cancel();
    };
    let timers = vec![timer.woken_by(Ring::AuditLog)];
    let both = async { tokio::join!(timer::run(timers, wake.clone(), stop.clone()), watch) };
    timeout(PATIENCE, both).await.expect("it runs and it stops");
}

#[tokio::test]
async fn a_timer_that_is_stepped_says_what_broke() {
    let timer = Timer::new("sweep", Duration::from_secs(1), || async { Err("it is broken") });
    let error = timer.step().await.expect_err("it fails");
    let source = std::error::Error::source(&error).expect("it has a cause").to_string();
    assert_eq!(
        (error.to_string().as_str(), source.as_str()),
        ("the timer sweep failed", "it is broken")
    );
}

/// Each would need a connection of its own, again and again, in a process that has nothing else to do.
#[expect(clippy::disallowed_methods, reason = "nobody waits: the clock of this test stands still")]
#[tokio::test(start_paused = true)]
async fn timers_of_one_period_run_one_after_another() {
    let began = Instant::now();
    let runs: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let timers = ["one", "two", "three"].map(|name| {
        let runs = Arc::clone(&runs);
        Timer::new(name, Duration::from_secs(5), move || {
            runs.lock().unwrap().push(began.elapsed());
            async { Ok::<_, String>(0) }
        })
    });
    let stop = CancellationToken::new();
    let over = async {
        sleep(Duration::from_secs(16)).await;
        stop.cancel();
    };
    tokio::join!(timer::run(timers.into(), Wake::new(), stop.clone()), over);
    let runs = runs.lock().unwrap().clone();
    assert_eq!(runs.len(), 12, "at once, and three times more: {runs:?}");
    let later: BTreeSet<Duration> = runs[3..].iter().copied().collect();
    assert_eq!(later.len(), 9, "two at one moment: {runs:?}");
}
