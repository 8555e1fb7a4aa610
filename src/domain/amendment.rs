//! Changes of a sale whose preload has begun: only what no shopper can have relied on, or what favours them.

use super::sale::{InvalidSale, Lifecycle, NAME_MAX, NAME_PATTERN, Sale, SaleState, instant, text};
use super::sale_guards::{ADMISSIONS_MAX, SaleGuards};
use super::time::Millis;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;

/// How long before a start or an end it can still be moved, in milliseconds. The clocks of the servers differ, and a
/// shard must not begin or stop to sell before it has the new time.
const MARGIN: Millis = 5_000;

/// New values of a sale whose preload has begun. An absent member stays.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Amendment {
    /// The sale's name.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    pub name: Option<String>,
    /// A later start, for a sale that has not started.
    pub starts_at: Option<DateTime<Utc>>,
    /// A later end, for a sale that has not ended.
    pub ends_at: Option<DateTime<Utc>>,
    /// How many shoppers the waiting room admits a second.
    #[schemars(range(min = 1, max = ADMISSIONS_MAX))]
    pub admissions_per_second: Option<u32>,
}

/// Why a sale cannot be changed as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// A value is out of its bounds.
    Invalid(InvalidSale),
    /// The sale is in this state: a draft is replaced as a whole, and a closed sale stays as it was.
    State(SaleState),
    /// This time can only become a later one.
    NotLater(&'static str),
    /// This time has passed, or is about to.
    TooLate(&'static str),
}

impl Amendment {
    /// Changes the sale as asked.
    ///
    /// # Errors
    /// Why it cannot be changed so; then nothing is to be stored.
    pub fn apply(&self, sale: &mut Sale, now: Millis) -> Result<(), Unfit> {
        let state = sale.state_at(now);
        if sale.lifecycle == Lifecycle::Loading || matches!(state, SaleState::Draft | SaleState::Closed) {
            return Err(Unfit::State(state));
        }
        if let Some(name) = &self.name {
            sale.name = text("name", name).map_err(Unfit::Invalid)?;
        }
        sale.starts_at = moved("starts_at", sale.starts_at, self.starts_at, now)?;
        sale.ends_at = moved("ends_at", sale.ends_at, self.ends_at, now)?;
        if sale.ends_at <= sale.starts_at {
            return Err(Unfit::Invalid(InvalidSale(
                "ends_at must be after starts_at".to_owned(),
            )));
        }
        if let Some(admissions_per_second) = self.admissions_per_second {
            let guards = SaleGuards {
                admissions_per_second,
                ..sale.guards
            };
            guards
                .check()
                .map_err(|wrong| Unfit::Invalid(InvalidSale(wrong.to_string())))?;
            sale.guards = guards;
        }
        Ok(())
    }
}

/// The time `to`, if a time of a sale may be moved there from `from`.
fn moved(
    field: &'static str,
    from: DateTime<Utc>,
    to: Option<DateTime<Utc>>,
    now: Millis,
) -> Result<DateTime<Utc>, Unfit> {
    let Some(to) = to else { return Ok(from) };
    let to = instant(field, to).map_err(Unfit::Invalid)?;
    if to == from {
        Ok(from)
    } else if to < from {
        Err(Unfit::NotLater(field))
    } else if from.timestamp_millis() < now + MARGIN {
        Err(Unfit::TooLate(field))
    } else {
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::NewSale;
    use crate::domain::time::from_millis;

    const START: Millis = 1_000_000;
    const END: Millis = 2_000_000;

    fn amended(amendment: &Amendment, now: Millis) -> Result<Sale, Unfit> {
        let mut sale = NewSale::plain(Vec::new(), from_millis(START), from_millis(END)).unstored();
        amendment.apply(&mut sale, now).map(|()| sale)
    }

    fn times(starts_at: Option<Millis>, ends_at: Option<Millis>) -> Amendment {
        Amendment {
            starts_at: starts_at.map(from_millis),
            ends_at: ends_at.map(from_millis),
            ..Amendment::default()
        }
    }

    #[test]
    fn a_start_and_an_end_can_become_later_until_they_are_near() {
        let sale = amended(&times(Some(START + 1), Some(END + 1)), START - MARGIN).unwrap();
        assert_eq!(
            (sale.starts_at, sale.ends_at),
            (from_millis(START + 1), from_millis(END + 1))
        );
        for (amendment, now, wrong) in [
            (times(Some(START - 1), None), 0, Unfit::NotLater("starts_at")),
            (times(None, Some(END - 1)), 0, Unfit::NotLater("ends_at")),
            (
                times(Some(START + 1), None),
                START - MARGIN + 1,
                Unfit::TooLate("starts_at"),
            ),
            (times(None, Some(END + 1)), END - MARGIN + 1, Unfit::TooLate("ends_at")),
            (times(None, Some(END + 1)), END, Unfit::State(SaleState::Closed)),
        ] {
            assert_eq!(amended(&amendment, now).unwrap_err(), wrong);
        }
        assert!(matches!(amended(&times(Some(END), None), 0), Err(Unfit::Invalid(_))));
        let same = amended(&times(Some(START), Some(END + 1)), START + 1).unwrap();
        assert_eq!(same.starts_at, from_millis(START), "the time that it has is no change");
    }

    #[test]
    fn a_name_and_the_rate_of_a_waiting_room_can_change_while_the_sale_runs() {
        let amendment = |name: Option<&str>, admissions_per_second| Amendment {
            name: name.map(str::to_owned),
            admissions_per_second,
            ..Amendment::default()
        };
        let sale = amended(&amendment(Some("Winter"), Some(7)), START).unwrap();
        assert_eq!((sale.name.as_str(), sale.guards.admissions_per_second), ("Winter", 7));
        for wrong in [amendment(Some(" "), None), amendment(None, Some(0))] {
            assert!(matches!(amended(&wrong, START), Err(Unfit::Invalid(_))), "{wrong:?}");
        }
    }
}
