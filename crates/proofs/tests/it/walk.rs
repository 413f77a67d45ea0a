//! A short walk; `make prove` walks on.

use lifecycle::mutate::{Sort, mutants};
use proofs::mutation;
use proofs::walk::{self, Size};

#[test]
fn library_and_reference_agree_on_every_step_of_a_random_walk() {
    let walk = walk::prove(Size { events: 200_000, threads: 2, seed: 1 }).unwrap();
    println!("{}", walk.figures());
    assert_eq!(walk.differences, Vec::<String>::new());
    assert_eq!(walk.edges_taken(), walk.edges, "some edge was never taken");
    assert!(walk.is_ok());
    for count in [walk.applied, walk.duplicates, walk.superseded, walk.late, walk.bug, walk.guard] {
        assert!(count > 1_000, "something was hardly met: {:?}", walk.figures());
    }
}

#[test]
fn the_same_seed_walks_the_same_way() {
    let size = Size { events: 20_000, threads: 1, seed: 7 };
    let (one, other) = (walk::prove(size).unwrap(), walk::prove(size).unwrap());
    assert_eq!(one.taken, other.taken);
}

#[test]
fn a_walk_of_no_length_is_no_proof() {
    let walk = walk::prove(Size { events: 0, threads: 1, seed: 1 }).unwrap();
    assert!(!walk.is_ok());
}

#[test]
fn a_walk_over_a_machine_that_is_wrong_in_one_place_finds_it() {
    // Where a row is born and what is merely declared (deadlines, fields, what settles) a walk can't see.
    let declared =
        [Sort::FieldRemoved, Sort::SettlesChanged, Sort::RestChanged, Sort::BirthChanged];
    for (table, reference) in mutation::pairs().unwrap() {
        let visible = mutants(table).into_iter().filter(|mutant| !declared.contains(&mutant.sort));
        // Every eleventh is enough to trust the walker, and quick.
        for mutant in visible.step_by(11) {
            let found = |events| {
                !walk::over(&mutant.table, &reference, events, 3).unwrap().differences.is_empty()
            };
            assert!([300, 3_000, 100_000].into_iter().any(found), "not found: {}", mutant.what);
        }
    }
}
