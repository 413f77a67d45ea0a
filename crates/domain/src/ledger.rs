//! The words of the ledger: what happens to money, and in whose books.

use lifecycle::codes;

codes! {
    /// What a posting is about.
    pub enum PostingKind {
        /// Minutes that were used.
        Usage = "usage",
        /// Minutes given back, because the machine could not be reached.
        Unreachable = "unreachable",
        /// Time given back that was charged behind the end of a record.
        Overrun = "overrun",
        /// Money that came in.
        Payment = "payment",
        /// Money that went back to whoever paid it.
        Refund = "refund",
        /// What an operator corrected, with a reason.
        Adjustment = "adjustment",
    }
}

codes! {
    /// Whose books.
    pub enum Book {
        /// What tenants have.
        Tenant = "tenant",
        /// What was earned.
        Revenue = "revenue",
        /// What the payment provider has, or has had back.
        Clearing = "clearing",
        /// What operators gave and took.
        Adjustments = "adjustments",
    }
}

impl PostingKind {
    /// The platform's book that stands against the tenant's.
    pub const fn against(self) -> Book {
        match self {
            PostingKind::Usage | PostingKind::Unreachable | PostingKind::Overrun => Book::Revenue,
            PostingKind::Payment | PostingKind::Refund => Book::Clearing,
            PostingKind::Adjustment => Book::Adjustments,
        }
    }
}
