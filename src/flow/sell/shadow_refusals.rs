//! Shadow refusals: whom guards in shadow would have refused lately. Each process adds its own to those of all, every
//! second; operators read them. Without a guard in shadow, nothing is noted.
//!
//! A crash, or a server that does not answer, loses those of the last second.

use crate::domain::fault::Fault;
use crate::domain::guard::ShadowRefusal;
use crate::domain::ids::SaleId;
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::recover::instances::ledger_name;
use chrono::Utc;
use parking_lot::Mutex;
use std::collections::HashMap;

/// How many a process notes in a second. Of a crowd, that shows whom a guard meets, and costs Redis little beside it.
const NOTED_MAX: usize = 100;

/// The shadow refusals of the last second, each with the time of its last request.
#[derive(Default)]
pub struct ShadowRefusals(Mutex<HashMap<ShadowRefusal, Millis>>);

impl ShadowRefusals {
    pub(super) fn note(&self, refusal: ShadowRefusal) {
        let mut noted = self.0.lock();
        if noted.len() < NOTED_MAX || noted.contains_key(&refusal) {
            noted.insert(refusal, Utc::now().timestamp_millis());
        }
    }

    fn take(&self) -> Vec<(ShadowRefusal, Millis)> {
        let noted = std::mem::take(&mut *self.0.lock());
        noted.into_iter().collect()
    }
}

/// Adds the shadow refusals of this process to those of all.
pub async fn publish(app: &App) -> Result<(), Fault> {
    let noted = app.shadow_refusals.take();
    if noted.is_empty() {
        return Ok(());
    }
    let (ledger, now) = (ledger_name(app).await?, Utc::now().timestamp_millis());
    app.stock.add_shadow_refusals(ledger, &noted, now).await
}

/// The shadow refusals of a sale, or of all requests, the latest first, with the time of the last request of each.
pub async fn list(app: &App, sale: Option<SaleId>) -> Result<Vec<(ShadowRefusal, Millis)>, Fault> {
    let (ledger, now) = (ledger_name(app).await?, Utc::now().timestamp_millis());
    let mut all = app.stock.shadow_refusals(ledger, now).await?;
    all.retain(|(refusal, _)| sale.is_none() || refusal.sale == sale);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::guard::{Layer, Sender};

    #[test]
    fn a_shopper_is_noted_once_and_a_crowd_in_part() {
        let refusals = ShadowRefusals::default();
        let of = |number: usize| ShadowRefusal {
            layer: Layer::Account,
            sale: None,
            sender: Sender::Account(format!("shopper-{number}").parse().unwrap()),
        };
        (0..3).for_each(|_| refusals.note(of(0)));
        assert_eq!(refusals.take().len(), 1);
        (0..=NOTED_MAX).for_each(|number| refusals.note(of(number)));
        assert_eq!(refusals.take().len(), NOTED_MAX);
        assert!(refusals.take().is_empty());
    }
}
