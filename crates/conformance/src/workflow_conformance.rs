//! What every workflow engine does: words are heard once, in order, by one step at a time; nothing is held while a step runs;
//! time is over when the clock says so; a start is recognised for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use spine::workflow::{Definition, Happened, NewRun, Next, Run};
use spine::{Clock, Error};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::bed::{Bed, Engine, Journal, MakeEngine, PATIENCE, workflow};

/// Makes every case a test of one engine: `conformance::workflow_conformance!(postgres by make);`
#[macro_export]
macro_rules! workflow_conformance {
    ($engine:ident by $make:path) => {
        $crate::held_to!($engine by $make: workflow_conformance:
            a_run_hears_that_it_started_and_then_every_word_in_order,
            a_start_that_is_repeated_is_recognised_also_after_the_end,
            a_word_that_is_told_while_a_step_runs_is_heard_next,
            time_is_over_when_the_clock_says_so,
            two_engines_never_step_one_run_at_once,
            nothing_is_held_while_a_step_runs,
            a_workflow_that_nobody_knows_is_not_started_and_one_that_others_know_is_left_to_them,
        );
    };
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A run of the tests' workflow.
pub fn new_run(id: &str) -> NewRun {
    let entity_id = Uuid::from_u128(id.bytes().map(u128::from).sum());
    NewRun { id: id.to_owned(), workflow: "w", entity_id, state: json!([]) }
}

/// Word that a task has ended.
pub fn finished(task: u128) -> Happened {
    Happened::TaskFinished { task_id: Uuid::from_u128(task) }
}

/// Waits for a word, for an hour.
pub fn wait(clock: &Clock, state: Value) -> Next {
    Next::Wait { state, until: clock.after(HOUR), waits_for: "a word" }
}

/// Writes what it hears into its state, and ends when it is called off.
fn diligent(bed: &Bed) -> Vec<Definition> {
    let clock = bed.clock.clone();
    workflow(move |run, happened| {
        let clock = clock.clone();
        async move { Ok(noted(&clock, &run, &happened)) }
    })
}

/// Writes what it hears into its state, and ends when it is called off.
pub fn noted(clock: &Clock, run: &Run, happened: &Happened) -> Next {
    let mut heard: Vec<Value> = run.state.as_array().cloned().unwrap_or_default();
    let word = match happened {
        Happened::Started => json!("started"),
        Happened::TaskFinished { task_id } => json!(task_id.as_u128()),
        Happened::TimeOut => json!("time out"),
        Happened::Cancelled => return Next::Done,
    };
    heard.push(word);
    wait(clock, Value::Array(heard))
}

/// Steps until nothing is due.
pub async fn settle(engine: &dyn Engine) {
    while engine.step().await.expect("the engine steps") > 0 {}
}

/// Starts a run; whether it is new.
pub async fn start(engine: &dyn Engine, id: &str) -> bool {
    engine.workflows().start(new_run(id)).await.expect("it is answered")
}

/// Tells a run; whether there is one.
pub async fn tell(engine: &dyn Engine, id: &str, happened: Happened) -> bool {
    engine.workflows().tell(id, happened).await.expect("it is answered")
}

/// The state of a run, and whether it is over.
pub async fn state(bed: &Bed, id: &str) -> (Value, bool) {
    let run = store::workflow_runs::find(&bed.store, id).await.expect("it is answered");
    let run = run.expect("there is such a run");
    (run.state, run.done_at.is_some())
}

/// See its name.
pub async fn a_run_hears_that_it_started_and_then_every_word_in_order(make: MakeEngine) {
    let bed = Bed::new().await;
    let engine = make(&bed, diligent(&bed));
    assert!(start(&*engine, "a").await);
    assert!(start(&*engine, "b").await);
    for task in 1..=3 {
        assert!(tell(&*engine, "a", finished(task)).await);
    }
    settle(&*engine).await;
    assert!(tell(&*engine, "a", finished(4)).await);
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await, (json!(["started", 1, 2, 3, 4]), false));
    assert_eq!(state(&bed, "b").await, (json!(["started"]), false));
    assert_eq!(engine.step().await.expect("the engine steps"), 0, "they rest");
    bed.end().await;
}

/// See its name.
pub async fn a_start_that_is_repeated_is_recognised_also_after_the_end(make: MakeEngine) {
    let bed = Bed::new().await;
    let engine = make(&bed, diligent(&bed));
    assert!(start(&*engine, "a").await);
    assert!(!start(&*engine, "a").await);
    assert!(tell(&*engine, "a", Happened::Cancelled).await);
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await, (json!(["started"]), true));
    assert!(!start(&*engine, "a").await);
    assert!(!tell(&*engine, "a", finished(1)).await, "it is over");
    assert!(!tell(&*engine, "nobody", finished(1)).await);
    bed.clock.advance(24 * HOUR);
    assert_eq!(engine.step().await.expect("the engine steps"), 0);
    bed.end().await;
}

/// See its name.
pub async fn a_word_that_is_told_while_a_step_runs_is_heard_next(make: MakeEngine) {
    let bed = Bed::new().await;
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (here, gate, clock) = (Arc::clone(&reached), Arc::clone(&go_on), bed.clock.clone());
    let engine = make(
        &bed,
        workflow(move |run, happened| {
            let (here, gate, clock) = (Arc::clone(&here), Arc::clone(&gate), clock.clone());
            async move {
                if happened == Happened::Started {
                    here.notify_one();
                    gate.notified().await;
                }
                Ok(noted(&clock, &run, &happened))
            }
        }),
    );
    start(&*engine, "a").await;
    let tells = async {
        reached.notified().await;
        for task in 1..=2 {
            assert!(tell(&*engine, "a", finished(task)).await);
        }
        go_on.notify_one();
    };
    let both = async { tokio::join!(engine.step(), tells) };
    let (stepped, ()) = timeout(PATIENCE, both).await.expect("nobody waits for anybody");
    stepped.expect("the engine steps");
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await, (json!(["started", 1, 2]), false));
    bed.end().await;
}

/// See its name.
pub async fn time_is_over_when_the_clock_says_so(make: MakeEngine) {
    let bed = Bed::new().await;
    let engine = make(&bed, diligent(&bed));
    start(&*engine, "a").await;
    settle(&*engine).await;
    bed.clock.advance(HOUR / 2);
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await.0, json!(["started"]));
    tell(&*engine, "a", finished(1)).await;
    settle(&*engine).await;
    bed.clock.advance(HOUR / 2 + HOUR / 4);
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await.0, json!(["started", 1]), "the word began another hour");
    bed.clock.advance(HOUR / 4);
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await.0, json!(["started", 1, "time out"]));
    bed.end().await;
}

/// See its name.
pub async fn two_engines_never_step_one_run_at_once(make: MakeEngine) {
    const RUNS: usize = 6;
    const WORDS: u128 = 10;
    let bed = Arc::new(Bed::new().await);
    let journal = Journal::default();
    let (told, clock) = (journal.clone(), bed.clock.clone());
    let definitions = workflow(move |run, happened| {
        let (told, clock) = (told.clone(), clock.clone());
        async move {
            told.begin(run.entity_id);
            tokio::task::yield_now().await;
            if let Happened::TaskFinished { task_id } = &happened {
                told.write(run.entity_id, i64::try_from(task_id.as_u128()).unwrap_or(0));
            }
            let next = noted(&clock, &run, &happened);
            told.end(run.entity_id);
            Ok(next)
        }
    });
    let engines = [make(&bed, definitions.clone()), make(&bed, definitions)];
    let ids: Vec<String> = (0..RUNS).map(|number| "x".repeat(number + 1)).collect();
    let together = Arc::new(Barrier::new(2 * engines.len()));
    let mut all = JoinSet::new();
    for (turn, engine) in engines.iter().enumerate() {
        let (steps, tells) = (Arc::clone(engine), Arc::clone(engine));
        let (journal, start_line, begin) =
            (journal.clone(), Arc::clone(&together), Arc::clone(&together));
        all.spawn(async move {
            begin.wait().await;
            while journal.total() < RUNS * 2 * usize::try_from(WORDS).unwrap_or(0) {
                steps.step().await.expect("the engine steps");
            }
        });
        let ids = ids.clone();
        all.spawn(async move {
            start_line.wait().await;
            for word in 0..WORDS {
                for id in &ids {
                    start(&*tells, id).await;
                    let task = 2 * word + u128::try_from(turn).unwrap_or(0);
                    assert!(tell(&*tells, id, finished(task)).await);
                }
            }
        });
    }
    timeout(PATIENCE, all.join_all()).await.expect("every word is heard");
    assert_eq!(journal.overlaps(), 0, "two steps of one run at once");
    for id in &ids {
        let mut heard = journal.of(new_run(id).entity_id);
        heard.sort_unstable();
        let expected: Vec<i64> = (0..).take(2 * usize::try_from(WORDS).unwrap_or(0)).collect();
        assert_eq!(heard, expected, "each word once");
    }
    drop(engines);
    Arc::into_inner(bed).expect("all have ended").end().await;
}

/// See its name.
pub async fn nothing_is_held_while_a_step_runs(make: MakeEngine) {
    let bed = Bed::narrow().await;
    let (store, steps) = (bed.store.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&steps);
    let engine = make(
        &bed,
        workflow(move |_, _| {
            let (store, count) = (store.clone(), Arc::clone(&count));
            async move {
                // There is one connection, and it is to be had.
                let began = timeout(PATIENCE / 3, store.begin()).await.expect("nobody has it");
                began.expect("it begins").rollback().await.expect("it ends");
                count.fetch_add(1, Ordering::SeqCst);
                Ok(Next::Done)
            }
        }),
    );
    start(&*engine, "a").await;
    settle(&*engine).await;
    assert_eq!((steps.load(Ordering::SeqCst), state(&bed, "a").await.1), (1, true));
    bed.end().await;
}

/// See its name.
pub async fn a_workflow_that_nobody_knows_is_not_started_and_one_that_others_know_is_left_to_them(
    make: MakeEngine,
) {
    let bed = Bed::new().await;
    let (old, new) = (make(&bed, Vec::new()), make(&bed, diligent(&bed)));
    let refused = old.workflows().start(new_run("a")).await;
    assert!(matches!(&refused, Err(Error::UnknownWorkflow(name)) if name == "w"), "{refused:?}");
    assert!(start(&*new, "a").await);
    assert_eq!(old.step().await.expect("the engine steps"), 0);
    assert!(tell(&*old, "a", finished(1)).await, "whoever hears of it may tell it");
    settle(&*new).await;
    assert_eq!(state(&bed, "a").await.0, json!(["started", 1]));
    bed.end().await;
}
