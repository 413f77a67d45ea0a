//! Lines and their number.

use xtask::tidy::text::{
    ignored_tests, machine_paths, open_ends, opening, registries, size, test_names, white_space,
};

use super::lines_found;

const SOURCE: &str = "crates/store/src/a.rs";

#[test]
fn a_file_over_its_size_is_found() {
    assert_eq!(lines_found(size, SOURCE, &"\n".repeat(501)), [501]);
    assert_eq!(lines_found(size, "crates/store/tests/it/a.rs", &"\n".repeat(801)), [801]);
    assert_eq!(lines_found(size, "ARCHITECTURE.md", &"\n".repeat(201)), [201]);
    assert_eq!(lines_found(size, "STYLE.md", &"\n".repeat(61)), [61]);
}

#[test]
fn a_file_at_its_size_is_clean() {
    assert!(lines_found(size, SOURCE, &"\n".repeat(500)).is_empty());
    assert!(lines_found(size, "crates/store/tests/it/a.rs", &"\n".repeat(800)).is_empty());
    assert!(lines_found(size, "STYLE.md", &"\n".repeat(60)).is_empty());
    assert!(lines_found(size, "Cargo.lock", &"\n".repeat(5000)).is_empty());
}

#[test]
fn a_source_file_opens_with_what_it_owns() {
    assert_eq!(lines_found(opening, SOURCE, "use a;\n"), [1]);
    assert_eq!(lines_found(opening, SOURCE, ""), [1]);
    assert!(lines_found(opening, SOURCE, "//! A.\n").is_empty());
    assert!(lines_found(opening, "crates/store/tests/it/src/a.rs", "use a;\n").is_empty());
}

#[test]
fn an_open_end_without_an_issue_is_found() {
    let text = "// TODO: this\n# FIXME(me)\n-- XXX\n";
    assert_eq!(lines_found(open_ends, "a.sql", text), [1, 2, 3]);
}

#[test]
fn an_open_end_with_an_issue_and_words_like_it_are_clean() {
    let text = "// TODO(#12): this\nmktemp XXXXXX\nTODOS FIXMEs\ntodo!()\n";
    assert!(lines_found(open_ends, "a.rs", text).is_empty());
}

#[test]
fn an_ignored_test_is_found() {
    let text = "#[test]\n#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n#[cfg_attr(x, ignore)]\nfn c() {}\n";
    assert_eq!(lines_found(ignored_tests, SOURCE, text), [2, 4, 6]);
}

#[test]
fn a_test_that_runs_is_clean() {
    let text = "// #[ignore]\n#[test]\nfn a() { f(\"#[ignore]\"); ignore(); }\n";
    assert!(lines_found(ignored_tests, SOURCE, text).is_empty());
}

#[test]
fn a_test_called_test_is_found() {
    let text = "#[test]\nfn test_a() {}\n\n#[tokio::test(\n    flavor = \"x\",\n)]\nasync fn test_b() {}\n";
    assert_eq!(lines_found(test_names, SOURCE, text), [2, 7]);
}

#[test]
fn a_sentence_and_a_function_that_is_no_test_are_clean() {
    let text =
        "#[test]\nfn a_late_proof_frees_nothing() {}\n\npub fn test_store() {}\n// fn test_c()\n";
    assert!(lines_found(test_names, SOURCE, text).is_empty());
}

#[test]
fn a_folder_of_one_machine_is_found() {
    // The folders are put together here, so that this file names none.
    let (work, root) = ("work", "root");
    let text =
        format!("cd /{work}/a\n\"/{root}/.a\"\nsee /home/ann/src\n`/Users/bob/x`\n/{work}/\n");
    assert_eq!(lines_found(machine_paths, "README.md", &text), [1, 2, 3, 4, 5]);
}

#[test]
fn other_paths_are_clean() {
    let text = "crates/work/src\nhttps://example.com/home/a\n/home/\n/home/$USER/a\n/tmp/a\n$HOME/src/a\n/workspace/\n";
    assert!(lines_found(machine_paths, "README.md", text).is_empty());
}

#[test]
fn a_private_registry_is_found() {
    let text = "source = \"registry+https://mirror.example/index\"\nregistry = \"sparse+https://mirror.example/\"\n\
                \"resolved\": \"https://mirror.example/a.tgz\"\nregistry=http://localhost:4873/\n";
    assert_eq!(lines_found(registries, "Cargo.lock", text), [1, 2, 3, 4]);
}

#[test]
fn public_registries_are_clean() {
    let text = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
                \"resolved\": \"https://registry.npmjs.org/a.tgz\"\nunknown-registry = \"deny\"\n\
                allow-registry = [\"https://github.com/rust-lang/crates.io-index\"]\n";
    assert!(lines_found(registries, "Cargo.lock", text).is_empty());
}

#[test]
fn white_space_at_the_end_and_tabs_are_found() {
    assert_eq!(lines_found(white_space, SOURCE, "a \n\tb\nc\t\n"), [1, 2, 3, 3]);
    assert_eq!(lines_found(white_space, "README.md", "a  \nb\n"), [1]);
}

#[test]
fn plain_lines_and_other_kinds_of_files_are_clean() {
    assert!(lines_found(white_space, SOURCE, "a\n    b\n").is_empty());
    assert!(lines_found(white_space, "Makefile", "a:\n\tb \n").is_empty());
}
