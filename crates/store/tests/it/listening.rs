//! Since when somebody listens to the nodes, however many gateways say so.

use jiff::Timestamp;
use store::nodes::{find_listening, listen};
use testkit::Database;

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
}

#[tokio::test]
async fn a_stretch_lasts_as_long_as_any_gateway_says_so_and_begins_anew_after_a_gap() {
    let database = Database::new().await;
    let store = &database.store;
    assert_eq!(find_listening(store).await.expect("an answer"), None);
    // Two gateways, of which one is a little behind, and ends at 20.
    for seconds in [0, 2, 1, 10, 9, 20, 32, 45] {
        listen(store, moment(seconds)).await.expect("it is said");
    }
    let found = find_listening(store).await.expect("an answer").expect("somebody listens");
    assert_eq!((found.since, found.until), (moment(0), moment(45)));
    assert!(found.covers(moment(0), moment(60)), "one that is started again is back by then");
    assert!(!found.covers(moment(0), moment(61)), "nobody listens any more");
    assert!(!found.covers(moment(-1), moment(45)), "nobody had begun");

    listen(store, moment(61)).await.expect("it is said");
    let found = find_listening(store).await.expect("an answer").expect("somebody listens");
    assert_eq!((found.since, found.until), (moment(61), moment(61)));
    database.remove().await;
}
