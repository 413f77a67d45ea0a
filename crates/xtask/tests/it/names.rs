//! Names that say nothing.

use xtask::tidy::names::{check, words};

use super::lines_found;

#[test]
fn names_fall_apart_into_words() {
    assert_eq!(words("HTTPDataPath2"), ["http", "data", "path2"]);
    assert_eq!(words("node_task-0001.rs"), ["node", "task", "0001", "rs"]);
    assert_eq!(words("StatusInfo"), ["status", "info"]);
}

#[test]
fn an_empty_word_in_a_path_is_found() {
    for path in [
        "crates/store/src/utils.rs",
        "crates/common/src/lib.rs",
        "docs/base-data.md",
        "a/RowHelper.ts",
    ] {
        assert!(!lines_found(check, path, "").is_empty(), "{path}");
    }
}

#[test]
fn an_empty_word_in_a_type_or_module_is_found() {
    let text = "mod misc;\npub struct NodeInfo;\nenum BaseKind {}\ntrait JobHandler {}\ntype RowData = u8;\n";
    assert_eq!(lines_found(check, "crates/store/src/a.rs", text), [1, 2, 3, 4, 5]);
}

#[test]
fn words_that_only_contain_one_are_left_alone() {
    let text = "struct Database;\nstruct Metadata;\nmod baseline;\nfn info() { let data = 1; }\n// struct Info\n";
    assert!(lines_found(check, "crates/store/src/database.rs", text).is_empty());
}

#[test]
fn an_exception_holds_in_its_place_only() {
    assert!(lines_found(check, "crates/examples/src/service.rs", "mod service;\n").is_empty());
    assert_eq!(lines_found(check, "crates/examples/src/service.rs", "struct Info;\n"), [1]);
    assert_eq!(lines_found(check, "crates/control/src/service.rs", ""), [1]);
}
