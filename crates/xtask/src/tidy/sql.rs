//! SQL as a row of tokens, and the questions tidy asks of it. Tokens, because a statement breaks over lines
//! and a `status =` after WHERE is a question while one after SET is a write.

/// A word, a number, a placeholder, or one sign. Quotes and comments fall away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its line, from 1.
    pub line: usize,
    /// As written.
    pub text: String,
}

impl Token {
    fn is(&self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '.')
}

/// The tokens of `text`, which starts on line `first`. A `{hole}` of a format string is one token, as a name would be.
pub fn tokens(first: usize, text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = first;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '{' => rest.find('}').map_or(1, |end| end + 1),
            _ if is_word(c) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            _ => c.len_utf8(),
        };
        let (piece, after) = rest.split_at(length);
        let comment = piece.starts_with("--") || piece.starts_with("/*");
        if !comment && !c.is_whitespace() && !matches!(c, '"' | '\'' | '`') {
            tokens.push(Token { line, text: piece.to_owned() });
        }
        line += piece.matches('\n').count();
        rest = after;
    }
    tokens
}

/// The lines on which a statement that writes a status begins its list of columns.
pub fn status_writes(tokens: &[Token]) -> Vec<usize> {
    let writes = |(i, token): (usize, &Token)| {
        let after = &tokens[i + 1..];
        let writes = (token.is("set") && assigns_status(after))
            || (token.is("insert") && inserts_status(after))
            || (token.is("new.status") && starts(after, &[":", "="]));
        writes.then_some(token.line)
    };
    tokens.iter().enumerate().filter_map(writes).collect()
}

fn starts(tokens: &[Token], signs: &[&str]) -> bool {
    tokens.len() >= signs.len() && tokens.iter().zip(signs).all(|(token, sign)| token.is(sign))
}

/// Whether the assignments that follow a SET have `status` as a target, alone or in a row of columns.
fn assigns_status(tokens: &[Token]) -> bool {
    let mut depth = 0;
    let mut target = true;
    let mut row_has_status = false;
    for (i, token) in tokens.iter().enumerate() {
        let after = &tokens[i + 1..];
        let assigned = starts(after, &["="]) && !starts(after, &["=", "="]);
        match token.text.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            "," if depth == 0 => {
                target = true;
                row_has_status = false;
                continue;
            }
            _ if depth == 0 && token.is_one_of(&["where", "from", "returning", ";"]) => {
                return false;
            }
            _ if target && token.is("status") && depth == 0 && assigned => return true,
            _ if target && token.is("status") && depth == 1 => row_has_status = true,
            _ => {}
        }
        match depth {
            0 if row_has_status && token.is(")") && assigned => return true,
            0 => target = false,
            depth if depth < 0 => return false,
            _ => {}
        }
    }
    false
}

/// Whether the list of columns that follows an INSERT names `status`.
fn inserts_status(tokens: &[Token]) -> bool {
    let open = match tokens {
        [first, ..] if first.is("(") => 0,
        [first, named @ ..] if first.is("into") => {
            let opens = |token: &Token| token.is_one_of(&["(", "values", "select", "default", ";"]);
            match named.iter().position(opens) {
                Some(at) if named[at].is("(") => at + 1,
                _ => return false,
            }
        }
        _ => return false,
    };
    tokens[open..].iter().take_while(|token| !token.is(")")).any(|token| token.is("status"))
}

/// The functions that are created, with their lines.
pub fn functions(tokens: &[Token]) -> Vec<(usize, String)> {
    let created = tokens.windows(2).filter(|pair| pair[0].is("function"));
    created.map(|pair| (pair[1].line, pair[1].text.clone())).collect()
}

/// The lines that ask for the time at which the transaction began.
pub fn frozen_clocks(tokens: &[Token]) -> Vec<usize> {
    let frozen = |(i, token): (usize, &Token)| {
        let after_path = i > 0 && tokens[i - 1].is(":");
        let now =
            token.is_one_of(&["now", "pg_catalog.now"]) && starts(&tokens[i + 1..], &["(", ")"]);
        let constant = token.is_one_of(&["current_timestamp", "transaction_timestamp"]);
        ((now || constant) && !after_path).then_some(token.line)
    };
    tokens.iter().enumerate().filter_map(frozen).collect()
}

/// Whether the tokens of a string literal can only be meant as SQL, or as a piece of it.
pub fn looks_like_sql(tokens: &[Token]) -> bool {
    const TELLING: [&str; 8] =
        ["select", "insert", "where", "values", "default", "returning", "interval", "timestamptz"];
    statement(tokens).is_some() || tokens.iter().any(|token| token.is_one_of(&TELLING))
}

/// The line on which a string literal holds a statement: SELECT … FROM, INSERT INTO, UPDATE … SET or DELETE FROM.
///
/// In capitals the two words are enough. In small letters they are English too, so the words around them must fit.
pub fn statement(tokens: &[Token]) -> Option<usize> {
    let begins = |(i, token): (usize, &Token)| {
        let after = &tokens[i + 1..];
        let found = match token.text.to_ascii_lowercase().as_str() {
            "select" => pair(token, after, "from", after.len(), table_then_clause),
            "delete" => pair(token, after, "from", 1, table_then_clause),
            "insert" => pair(token, after, "into", 1, table_then_rows),
            "update" => pair(token, after, "set", UPDATE_NAME_MAX, assignment),
            _ => false,
        };
        found.then_some(token.line)
    };
    tokens.iter().enumerate().find_map(begins)
}

/// The tokens that may stand between UPDATE and SET: ONLY, a name, AS, an alias.
const UPDATE_NAME_MAX: usize = 5;

fn pair(
    verb: &Token,
    after: &[Token],
    word: &str,
    within: usize,
    fits: fn(&[Token]) -> bool,
) -> bool {
    let capital = |token: &Token| !token.text.contains(|c: char| c.is_ascii_lowercase());
    after.iter().enumerate().take(within).filter(|(_, token)| token.is(word)).any(|(i, token)| {
        let in_place = word != "set" || i > 0;
        in_place && ((capital(verb) && capital(token)) || fits(&after[i + 1..]))
    })
}

fn is_name(token: &Token) -> bool {
    token.text.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '{'))
}

fn table_then_clause(tokens: &[Token]) -> bool {
    const CLAUSES: [&str; 14] = [
        "where",
        "join",
        "left",
        "inner",
        "order",
        "group",
        "limit",
        "for",
        "using",
        "returning",
        ";",
        ",",
        ")",
        "union",
    ];
    match tokens {
        [table] => is_name(table),
        [table, clause, ..] => is_name(table) && clause.is_one_of(&CLAUSES),
        [] => false,
    }
}

fn table_then_rows(tokens: &[Token]) -> bool {
    matches!(tokens, [table, rows, ..] if is_name(table) && rows.is_one_of(&["(", "values", "select", "default"]))
}

fn assignment(tokens: &[Token]) -> bool {
    matches!(tokens, [column, equals, ..] if is_name(column) && equals.is("="))
}
