//! Rust taken apart into code and string literals, so that a check on one is not fooled by the other.
//! A lexer for these two questions only; comments fall away.

/// A string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The line on which it opens, from 1.
    pub line: usize,
    /// What stands between the quotes, escapes resolved. A line break of the source is a line break here.
    pub text: String,
}

/// A Rust file in two parts.
#[derive(Clone, Debug, Default)]
pub struct Rust {
    /// The file with comments and the insides of literals blanked; lines stay where they are.
    pub code: String,
    /// The string literals, in order.
    pub strings: Vec<Literal>,
}

impl Rust {
    /// Takes `text` apart.
    pub fn split(text: &str) -> Self {
        let mut lexer =
            Lexer { rest: text.chars().collect(), at: 0, line: 1, out: Self::default() };
        while let Some(next) = lexer.peek(0) {
            lexer.step(next);
        }
        lexer.out
    }

    /// The words of the code with their lines: identifiers, keywords, numbers.
    pub fn words(&self) -> Vec<(usize, &str)> {
        let mut words = Vec::new();
        for (i, line) in self.code.lines().enumerate() {
            let in_line = line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
            words.extend(in_line.map(|word| (i + 1, word)));
        }
        words
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Lexer {
    rest: Vec<char>,
    at: usize,
    line: usize,
    out: Rust,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn step(&mut self, next: char) {
        match (next, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            _ if is_word(next) => self.word(),
            _ => self.keep(),
        }
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn keep(&mut self) {
        if let Some(c) = self.advance() {
            self.out.code.push(c);
        }
    }

    fn blank(&mut self) -> Option<char> {
        let c = self.advance()?;
        self.out.code.push(if c == '\n' { '\n' } else { ' ' });
        Some(c)
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let (Some(one), two) = (self.peek(0), self.peek(1)) {
            match (one, two) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        let line = self.line;
        let mut text = String::new();
        self.keep();
        while let Some(c) = self.peek(0).filter(|c| *c != '"') {
            self.blank();
            if c != '\\' {
                text.push(c);
                continue;
            }
            // A newline that is spelled out separates words as well as a space does, and starts no line of the source.
            match self.blank() {
                Some('n' | 't' | 'r') => text.push(' '),
                Some(escaped) => text.push(escaped),
                None => {}
            }
        }
        self.keep();
        self.out.strings.push(Literal { line, text });
    }

    fn raw_string(&mut self, hashes: usize) {
        for _ in 0..=hashes {
            self.keep();
        }
        let line = self.line;
        let mut text = String::new();
        while let Some(c) = self.peek(0) {
            if c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                break;
            }
            self.blank();
            text.push(c);
        }
        for _ in 0..=hashes {
            self.keep();
        }
        self.out.strings.push(Literal { line, text });
    }

    /// A character or a lifetime: only the first has a closing quote within reach.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            return self.keep();
        }
        self.keep();
        if escaped {
            self.blank();
        }
        self.blank();
        while self.peek(0).is_some_and(|c| c != '\'' && c != '\n') {
            self.blank();
        }
        self.keep();
    }

    fn word(&mut self) {
        let from = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.keep();
        }
        let word: String = self.rest[from..self.at].iter().collect();
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let hashes = (0..).take_while(|ahead| self.peek(*ahead) == Some('#')).count();
            if self.peek(hashes) == Some('"') {
                self.raw_string(hashes);
            }
        }
    }
}
