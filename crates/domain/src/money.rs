//! Money: whole numbers of a currency's minor unit, and prices as whole millionths of its unit a second. Nothing is ever a
//! float, and what is rounded is rounded down once, over everything so far.

/// Millionths of a second in a second, and of a unit in a unit.
const MILLION: i64 = 1_000_000;
/// The minute that a window is, in microseconds.
pub const WINDOW_MICROS: i64 = 60 * MILLION;
/// The highest price of one GPU for one second, so that no product of a rate and a time leaves its type.
pub const PRICE_MICROS_MAX: i64 = 100 * MILLION;

/// Currencies without a minor unit, of those that payments are taken in.
const WHOLE: &[&str] = &[
    "BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "UGX", "VND", "VUV",
    "XAF", "XOF", "XPF",
];
/// Currencies with thousandths.
const THOUSANDTHS: &[&str] = &["BHD", "JOD", "KWD", "OMR", "TND"];

/// A currency, by its code of three capital letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    /// The currency of that code; none when it can't be one.
    pub fn parse(code: &str) -> Option<Currency> {
        let letters: [u8; 3] = code.as_bytes().try_into().ok()?;
        letters.iter().all(u8::is_ascii_uppercase).then_some(Currency(letters))
    }

    /// Its code.
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// How many digits its minor unit stands behind the point.
    pub fn digits(&self) -> u32 {
        match self.code() {
            code if WHOLE.contains(&code) => 0,
            code if THOUSANDTHS.contains(&code) => 3,
            _ => 2,
        }
    }

    /// How many millionths of its unit are one of its minor unit.
    pub fn micros_per_minor(&self) -> i64 {
        10_i64.pow(6 - self.digits())
    }

    /// An amount of it as people write it: `-12.30 USD`.
    pub fn shown(&self, minor: i64) -> String {
        let sign = if minor < 0 { "-" } else { "" };
        let (whole, digits) = (minor.unsigned_abs(), self.digits());
        let unit = 10_u64.pow(digits);
        match digits {
            0 => format!("{sign}{whole} {}", self.code()),
            _ => format!(
                "{sign}{}.{:0width$} {}",
                whole / unit,
                whole % unit,
                self.code(),
                width = digits as usize
            ),
        }
    }
}

/// One minute of a stretch of time, clipped to it. Moments are microseconds of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The minute: what names the window.
    pub at: i64,
    /// Where the stretch enters it.
    pub from: i64,
    /// Where the stretch leaves it.
    pub until: i64,
}

/// The windows between two moments, none of them empty; together they are the stretch, without gap or overlap.
pub fn windows(from: i64, until: i64) -> impl Iterator<Item = Window> {
    let first = from.div_euclid(WINDOW_MICROS) * WINDOW_MICROS;
    let minutes = (0..).map(move |minute| first + minute * WINDOW_MICROS);
    minutes.take_while(move |at| *at < until && from < until).map(move |at| Window {
        at,
        from: from.max(at),
        until: until.min(at + WINDOW_MICROS),
    })
}

/// A stretch of billable time with its prices: what was agreed, and what it costs from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// When it began.
    pub started: i64,
    /// How many GPUs.
    pub gpus: i64,
    /// The price of one GPU for one second that was agreed.
    pub agreed: i64,
    /// From when on it costs what instead, in order of time.
    pub changes: &'a [(i64, i64)],
    /// How many millionths of the unit are one of its minor unit.
    pub micros_per_minor: i64,
}

impl Stretch<'_> {
    /// What is owed for it at that moment: every part at its own price, rounded down once, over all of it.
    pub fn owed_at(&self, moment: i64) -> i64 {
        let (mut from, mut price, mut exact) = (self.started, self.agreed, 0_i128);
        for (at, next) in self.changes {
            if *at >= moment {
                break;
            }
            if *at > from {
                exact += i128::from(price) * i128::from(*at - from);
                from = *at;
            }
            price = *next;
        }
        exact += i128::from(price) * i128::from(moment - from);
        let minor = exact * i128::from(self.gpus)
            / (i128::from(MILLION) * i128::from(self.micros_per_minor));
        i64::try_from(minor).unwrap_or(i64::MAX)
    }

    /// What a window of it costs: what is owed at its end, less what was owed at its beginning. Whatever the windows are, they
    /// sum to what is owed.
    pub fn charge(&self, window: Window) -> i64 {
        self.owed_at(window.until) - self.owed_at(window.from)
    }
}

/// For how many whole minutes a balance lasts at so many minor units an hour; none when nothing is spent.
pub fn runway_minutes(
    balance_minor: i64,
    burn_micros_per_second: i64,
    micros_per_minor: i64,
) -> Option<i64> {
    if burn_micros_per_second <= 0 {
        return None;
    }
    let balance = i128::from(balance_minor.max(0)) * i128::from(micros_per_minor);
    let seconds = balance / i128::from(burn_micros_per_second);
    i64::try_from(seconds / 60).ok()
}

#[cfg(test)]
mod tests {
    use super::{Currency, Stretch, WINDOW_MICROS, runway_minutes, windows};

    const USD: Currency = Currency(*b"USD");

    #[test]
    fn an_amount_is_written_with_the_digits_of_its_currency() {
        assert_eq!(USD.shown(1_234), "12.34 USD");
        assert_eq!(USD.shown(-5), "-0.05 USD");
        assert_eq!(Currency::parse("JPY").map(|yen| yen.shown(1_200)), Some("1200 JPY".to_owned()));
        assert_eq!(
            Currency::parse("KWD").map(|dinar| dinar.shown(1)),
            Some("0.001 KWD".to_owned())
        );
        assert_eq!(USD.shown(i64::MIN), "-92233720368547758.08 USD");
        for none in ["usd", "US", "DOLLAR", "U$D", ""] {
            assert_eq!(Currency::parse(none), None);
        }
    }

    #[test]
    fn windows_tile_a_stretch_and_their_charges_sum_to_its_price() {
        let (from, until) = (WINDOW_MICROS * 7 + 13_500_001, WINDOW_MICROS * 7_000 + 3);
        let changes =
            [(WINDOW_MICROS * 90, 900), (WINDOW_MICROS * 91, 0), (WINDOW_MICROS * 300, 77)];
        for changes in [&changes[..], &changes[..1], &[]] {
            let (started, micros_per_minor) = (from, USD.micros_per_minor());
            let stretch = Stretch { started, gpus: 8, agreed: 831, changes, micros_per_minor };
            let (mut last, mut charged) = (from, 0);
            for window in windows(from, until) {
                assert_eq!(window.from, last);
                assert!(window.from < window.until && window.at <= window.from);
                assert_eq!(window.at % WINDOW_MICROS, 0);
                charged += stretch.charge(window);
                last = window.until;
            }
            assert_eq!((last, charged), (until, stretch.owed_at(until)));
        }
        assert_eq!(windows(5, 5).count(), 0);
        assert_eq!(windows(5, 4).count(), 0);
    }

    #[test]
    fn a_price_that_changed_before_the_stretch_began_holds_from_its_beginning() {
        let stretch = Stretch {
            started: 10 * WINDOW_MICROS,
            gpus: 1,
            agreed: 1_000_000,
            changes: &[(5 * WINDOW_MICROS, 2_000_000)],
            micros_per_minor: 10_000,
        };
        assert_eq!(stretch.owed_at(11 * WINDOW_MICROS), 2 * 60 * 100);
    }

    #[test]
    fn a_balance_lasts_as_long_as_it_pays_for_whole_minutes() {
        let per_minor = USD.micros_per_minor();
        assert_eq!(runway_minutes(1_000, 0, per_minor), None);
        assert_eq!(runway_minutes(-1, 831, per_minor), Some(0));
        // 3.60 an hour: 10.00 last for 166 minutes.
        assert_eq!(runway_minutes(1_000, 1_000, per_minor), Some(166));
    }
}
