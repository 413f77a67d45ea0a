//! Tables for people: as wide as the terminal, without a frame, and plain when nobody looks.

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Row, Table};

use crate::exit::Done;
use crate::say;
use crate::words::News;

/// In less than this nothing can be arranged.
const WIDTH_MIN: u16 = 40;
/// Where nobody says how wide a line is, and the most that is read with ease.
const LINE_DEFAULT: u16 = 100;
const LINE_MAX: u16 = 120;

/// A table to be.
pub(crate) struct Sheet {
    table: Table,
    coloured: bool,
}

/// Words and what they say, arranged for stderr.
pub(crate) fn lines_for_stderr(lines: &[(String, String)]) -> String {
    let coloured = say::err_is_terminal() && say::colours();
    let mut table = bare(true);
    for (word, text) in lines {
        let word = Sheet::text(word);
        let word = if coloured { word.add_attribute(Attribute::Dim) } else { word };
        table.add_row(Row::from(vec![word, Sheet::text(text)]));
    }
    if let Some(column) = table.column_mut(0) {
        column.set_padding((2, 2));
    }
    if let Some(column) = table.column_mut(1) {
        column.set_padding((0, 0));
    }
    table.trim_fmt()
}

/// How many characters a line of stdout may have: as many as fit, and not more than can be read.
pub(crate) fn line_width() -> usize {
    let width = Table::new().width().filter(|width| *width >= WIDTH_MIN).unwrap_or(LINE_DEFAULT);
    usize::from(width.min(LINE_MAX))
}

fn bare(to_stderr: bool) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if to_stderr {
        table.use_stderr();
    }
    // A terminal that does not know how wide it is says 0.
    if table.width().is_some_and(|width| width >= WIDTH_MIN) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

impl Sheet {
    /// A table with these columns.
    pub(crate) fn new(columns: &[&str]) -> Sheet {
        let mut sheet = Sheet::of_one();
        let coloured = sheet.coloured;
        let header = columns.iter().map(|column| {
            let cell = Cell::new(column.to_uppercase());
            if coloured { cell.add_attribute(Attribute::Bold) } else { cell }
        });
        sheet.table.set_header(Row::from(header.collect::<Vec<_>>()));
        sheet
    }

    /// A list of what belongs to one thing: a word and what it says.
    pub(crate) fn of_one() -> Sheet {
        let coloured = say::out_is_terminal() && say::colours();
        Sheet { table: bare(false), coloured }
    }

    /// One more row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.table.add_row(Row::from(cells.into_iter().collect::<Vec<_>>()));
    }

    /// One more word and what it says; nothing when it says nothing.
    pub(crate) fn line(&mut self, word: &str, text: impl Into<Option<String>>) {
        let Some(text) = text.into() else { return };
        let word = Cell::new(word);
        let word = if self.coloured { word.add_attribute(Attribute::Dim) } else { word };
        self.row([word, Sheet::text(text)]);
    }

    /// Text that somebody else may have written.
    pub(crate) fn text(text: impl AsRef<str>) -> Cell {
        Cell::new(say::clean(text.as_ref()))
    }

    /// A status, in the colour of the news it is.
    pub(crate) fn status(&self, text: &str, news: News) -> Cell {
        let cell = Sheet::text(text);
        if !self.coloured {
            return cell;
        }
        match news {
            News::Good => cell.fg(Color::Green),
            News::Pending => cell.fg(Color::Yellow),
            News::Bad => cell.fg(Color::Red),
            News::Past => cell.add_attribute(Attribute::Dim),
        }
    }

    /// A number or a price, at the right of its column.
    pub(crate) fn number(text: impl ToString) -> Cell {
        Cell::new(text).set_alignment(CellAlignment::Right)
    }

    /// Puts it on stdout.
    pub(crate) fn show(mut self) -> Done {
        for column in self.table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        say::data(self.table.trim_fmt())
    }
}
