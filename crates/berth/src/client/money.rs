//! Money: what somebody has, what it goes for, and what operators correct.

use reqwest::Method;
use uuid::Uuid;
use wire::http::Page;
use wire::http::money::{
    Account, Balance, BalanceStatus, Charge, LedgerAudit, LedgerLine, NewAdjustment, NewPrice,
    NewSpendingCap, NewThreshold, PostingKindWord, Price, Spending, Usage,
};

use super::call::Call;
use super::{Client, Query};
use crate::exit::Done;

impl Client {
    pub(crate) async fn balance(&self, project: Option<Uuid>) -> Done<Balance> {
        let call = Call::new(Method::GET, "/balance");
        let asking = |call: Call, id: Uuid| call.asking("project", id.to_string());
        self.send(project.into_iter().fold(call, asking)).await
    }

    pub(crate) async fn set_threshold(&self, new: &NewThreshold) -> Done<NewThreshold> {
        self.send(Call::new(Method::PUT, "/balance/threshold").once().saying(new)?).await
    }

    pub(crate) async fn usage(&self, query: Query<'_>) -> Done<Usage> {
        let mut call = Call::new(Method::GET, "/usage");
        for (name, value) in query {
            call = call.asking(name, value.clone());
        }
        self.send(call).await
    }

    /// The newest lines of the ledger.
    pub(crate) async fn ledger(
        &self,
        kind: Option<PostingKindWord>,
        most: u16,
    ) -> Done<Vec<LedgerLine>> {
        let mut call = Call::new(Method::GET, "/ledger").asking("limit", most.to_string());
        if let Some(kind) = kind {
            call = call.asking("kind", kind.to_string());
        }
        Ok(self.send::<Page<LedgerLine>>(call).await?.items)
    }

    pub(crate) async fn explain_charge(&self, posting: Uuid) -> Done<Charge> {
        self.get(&format!("/ledger/{posting}")).await
    }

    pub(crate) async fn spending(&self, project: Uuid) -> Done<Spending> {
        self.get(&format!("/projects/{project}/spending")).await
    }

    pub(crate) async fn set_spending_cap(&self, project: Uuid, cap: Option<i64>) -> Done<Spending> {
        let path = format!("/projects/{project}/spending-cap");
        let new = NewSpendingCap { spend_cap_minor: cap };
        self.send(Call::new(Method::PUT, &path).once().saying(&new)?).await
    }

    pub(crate) async fn accounts(&self, status: Option<BalanceStatus>) -> Done<Vec<Account>> {
        let query: Vec<_> =
            status.map(|status| ("status", status.to_string())).into_iter().collect();
        self.all("/admin/accounts", &query).await
    }

    pub(crate) async fn adjust_ledger(&self, new: &NewAdjustment) -> Done<LedgerLine> {
        let call = Call::new(Method::POST, "/admin/ledger/adjustments");
        self.send(call.once().saying(new)?).await
    }

    pub(crate) async fn audit_ledger(&self) -> Done<LedgerAudit> {
        self.get("/admin/ledger/audit").await
    }

    pub(crate) async fn set_price(&self, sku: &str, new: &NewPrice) -> Done<Price> {
        let path = format!("/admin/skus/{sku}/price");
        self.send(Call::new(Method::PUT, &path).once().saying(new)?).await
    }
}
