//! The split of Rust into code and string literals.

use xtask::tidy::rust::Rust;

fn strings(text: &str) -> Vec<(usize, String)> {
    Rust::split(text).strings.into_iter().map(|literal| (literal.line, literal.text)).collect()
}

fn code(text: &str) -> String {
    Rust::split(text).code
}

#[test]
fn strings_of_all_kinds_are_found_with_their_lines() {
    let text =
        "let a = \"one\";\nlet b = r\"two\";\nlet c = br#\"th\"ree\"#;\nlet d = b\"four\";\n";
    let expected = [(1, "one"), (2, "two"), (3, "th\"ree"), (4, "four")];
    assert_eq!(strings(text), expected.map(|(line, text)| (line, text.to_owned())));
}

#[test]
fn escapes_do_not_end_a_string_and_spelled_newlines_start_no_line() {
    assert_eq!(strings(r#"("a\"b\nc\\", "d")"#), [(1, "a\"b c\\".to_owned()), (1, "d".to_owned())]);
}

#[test]
fn a_string_over_several_lines_keeps_its_line_breaks() {
    assert_eq!(strings("\n\"a\n b \\\n c\""), [(2, "a\n b \n c".to_owned())]);
}

#[test]
fn comments_hold_neither_code_nor_strings() {
    let text = "a // \"x\" 'y\nb /* \"x\" /* deep */ still */ c\n/// \"doc\"\nd";
    assert!(strings(text).is_empty());
    assert_eq!(code(text).split_whitespace().collect::<String>(), "abcd");
}

#[test]
fn quotes_that_are_characters_or_lifetimes_open_no_string() {
    let text = "fn f<'a>(x: &'a str) { ['\"', '\\'', '\\u{22}', b'\"'] }\nlet s = \"x\";";
    assert_eq!(strings(text), [(2, "x".to_owned())]);
}

#[test]
fn raw_identifiers_open_no_string() {
    assert_eq!(code("let r#type = for_r; \"x\""), "let r#type = for_r; \" \"");
}

#[test]
fn the_code_keeps_its_lines() {
    let text = "a\n/* b\n*/ c \"d\ne\" f\n";
    let lines: Vec<(usize, String)> =
        Rust::split(text).words().iter().map(|(line, word)| (*line, (*word).to_owned())).collect();
    assert_eq!(lines, [(1, "a"), (3, "c"), (4, "f")].map(|(line, word)| (line, word.to_owned())));
}
