//! How well the product's placement packs, on a trace that is printed by its seed: held against what nobody could have
//! exceeded, and against worse rules, which must be noticed. `ONLY=packing make bench` replays longer ones.

use testkit::Database;
use testkit::packing::{Recipe, Score, Trace, replay};

/// Small, and fuller than full at noon.
const fn recipe(seed: u64) -> Recipe {
    Recipe { seed, machines: 16, days: 5, load_percent: 110 }
}

#[expect(clippy::print_stdout, reason = "the figures, for who asks for them")]
async fn scored(database: &Database, recipe: Recipe) -> Score {
    let trace = Trace::new(recipe);
    let replayed = replay(&database.store, &database.sql, &trace).await.expect("it is replayed");
    let score = Score::new(&trace, replayed);
    println!(
        "{recipe:?}: {} asked, {:.3} of the optimum, {:.3} of a fleet without walls, {:?}",
        trace.asked.len(),
        score.of_optimum(),
        score.of_without_walls(),
        score.replayed
    );
    score
}

#[tokio::test]
async fn what_is_placed_is_close_to_what_could_have_been() {
    for seed in [1, 2] {
        let database = Database::new().await;
        let score = scored(&database, recipe(seed)).await;
        assert!(score.of_without_walls() >= 0.95, "{}", score.of_without_walls());
        database.remove().await;
    }
}

/// Two rules that pack worse, in the place of the product's: the emptiest machine that fits, and any that fits.
const WORSE: [(&str, &str); 2] = [
    ("worst fit", "free_slots DESC, id"),
    ("chance", "md5(name || (SELECT count(*) FROM allocations))"),
];

#[tokio::test]
async fn a_rule_that_packs_worse_is_noticed() {
    for (name, order) in WORSE {
        let database = Database::new().await;
        let rule = format!(
            "CREATE OR REPLACE FUNCTION pick_node(in_region text, of_sku text, with_image text, wanted smallint)
             RETURNS uuid LANGUAGE sql AS $$
                 SELECT id
                   FROM nodes
                  WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots >= wanted
                  ORDER BY {order}
                  LIMIT 1
                    FOR NO KEY UPDATE
             $$"
        );
        assert!(database.lets(&rule).await, "{rule}");
        let score = scored(&database, recipe(1)).await;
        assert!(score.of_without_walls() < 0.9, "{name}: {}", score.of_without_walls());
        database.remove().await;
    }
}
