//! Whom guards in shadow would have refused lately: for each ledger the sorted set `{shadow:<ledger>}:refusals`, by the
//! time of the last request. Each shopper is in it once for each guard and sale. Entries leave it after a day, and the
//! oldest beyond [`SHADOW_REFUSALS_MAX`]. An entry of a newer version that this one cannot read is left out.

use crate::domain::fault::Fault;
use crate::domain::guard::{Layer, SHADOW_REFUSALS_MAX, Sender, ShadowRefusal};
use crate::domain::time::Millis;
use crate::stock::Stock;

/// How long the set keeps an entry, in milliseconds: a day.
const KEPT: Millis = 24 * 60 * 60 * 1_000;

/// What stands for the sale in an entry without one.
const NO_SALE: &str = "-";
const ACCOUNT: &str = "account";
const ADDRESS: &str = "address";

fn key(ledger: &str) -> String {
    format!("{{shadow:{ledger}}}:refusals")
}

/// The entry of a refusal. The sender comes last, because an account may have blanks.
fn entry_of(refusal: &ShadowRefusal) -> String {
    let layer = refusal.layer.as_str();
    let sale = refusal.sale.map_or_else(|| NO_SALE.to_owned(), |sale| sale.to_string());
    let (kind, sender) = match &refusal.sender {
        Sender::Account(user) => (ACCOUNT, user.as_str()),
        Sender::Address(address) => (ADDRESS, address.as_str()),
    };
    format!("{layer} {sale} {kind} {sender}")
}

fn refusal_in(entry: &str) -> Option<ShadowRefusal> {
    let mut parts = entry.splitn(4, ' ');
    let layer = Layer::from_name(parts.next()?)?;
    let sale = match parts.next()? {
        NO_SALE => None,
        sale => Some(sale.parse().ok()?),
    };
    let sender = match (parts.next()?, parts.next()?) {
        (ACCOUNT, user) => Sender::Account(user.parse().ok()?),
        (ADDRESS, address) => Sender::Address(address.to_owned()),
        _ => return None,
    };
    Some(ShadowRefusal { layer, sale, sender })
}

impl Stock {
    /// Adds refusals with their times, at least one. `now` decides which entries are too old.
    pub async fn add_shadow_refusals(
        &self,
        ledger: &str,
        noted: &[(ShadowRefusal, Millis)],
        now: Millis,
    ) -> Result<(), Fault> {
        let key = key(ledger);
        let mut pipeline = redis::pipe();
        // Another process may have seen a later request.
        pipeline.cmd("ZADD").arg(&key).arg("GT");
        for (refusal, at) in noted {
            pipeline.arg(*at).arg(entry_of(refusal));
        }
        pipeline.ignore();
        let surplus = -i64::from(SHADOW_REFUSALS_MAX) - 1;
        pipeline.cmd("ZREMRANGEBYRANK").arg(&key).arg(0).arg(surplus).ignore();
        let too_old = now - KEPT;
        pipeline
            .cmd("ZREMRANGEBYSCORE")
            .arg(&key)
            .arg("-inf")
            .arg(too_old)
            .ignore();
        pipeline.cmd("PEXPIRE").arg(&key).arg(KEPT).ignore();
        self.noted(self.link.ask_together(pipeline).await)
    }

    /// Reads the refusals of the day before `now` with their times, the latest first. Entries leave the set only when
    /// others come.
    pub async fn shadow_refusals(&self, ledger: &str, now: Millis) -> Result<Vec<(ShadowRefusal, Millis)>, Fault> {
        let mut read = redis::cmd("ZREVRANGEBYSCORE");
        read.arg(key(ledger)).arg("+inf").arg(now - KEPT).arg("WITHSCORES");
        let entries: Vec<(String, i64)> = self.command(&read).await?;
        let known = entries.into_iter();
        Ok(known
            .filter_map(|(entry, at)| Some((refusal_in(&entry)?, at)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use uuid::Uuid;

    #[test]
    fn a_refusal_is_read_as_it_was_written() {
        let sale = Some(SaleId(Uuid::from_u128(7)));
        for (layer, sale, sender) in [
            (
                Layer::PurchaseToken,
                sale,
                Sender::Account("ada of - x".parse().unwrap()),
            ),
            (Layer::Account, None, Sender::Account(" ".parse().unwrap())),
            (Layer::Address, None, Sender::Address("2001:db8::/64".to_owned())),
        ] {
            let refusal = ShadowRefusal { layer, sale, sender };
            assert_eq!(refusal_in(&entry_of(&refusal)), Some(refusal));
        }
        for other in [
            "",
            "address",
            "later - account ada",
            "address x account ada",
            "address - later ada",
        ] {
            assert_eq!(refusal_in(other), None, "{other}");
        }
    }
}
