//! Amendments: changes of a published sale, whose preload has begun. They change only what no shopper can have relied on,
//! or what favours shoppers.

use super::guards::{ADMISSIONS_MAX, SaleGuards, SaleStages};
use super::{
    DESCRIPTION_MAX, ITEMS_MAX, InvalidSale, Lifecycle, NAME_MAX, NAME_PATTERN, Sale, SaleState, description, instant,
    picture, text,
};
use crate::domain::ids::Sku;
use crate::domain::plain::{LINES_PATTERN, or_empty};
use crate::domain::shop::image_url::{IMAGE_URL_MAX, IMAGE_URL_PATTERN};
use crate::domain::stage::members_may_lack;
use crate::domain::time::Millis;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// How long before a start or an end it can still be moved, in milliseconds. The clocks of the servers differ, and a
/// shard must not begin or stop to sell before it has the new time.
const MARGIN: Millis = 5_000;

/// New values of a published sale. An absent member stays.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Amendment {
    /// The sale's name.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    pub name: Option<String>,
    /// What the sale is about: plain text with line breaks. Empty removes it.
    #[schemars(length(max = DESCRIPTION_MAX), regex(pattern = or_empty(LINES_PATTERN)))]
    pub description: Option<String>,
    /// The address of the sale's picture. Empty removes it.
    #[schemars(length(max = IMAGE_URL_MAX), regex(pattern = or_empty(IMAGE_URL_PATTERN)))]
    pub image_url: Option<String>,
    /// New texts of items.
    #[schemars(length(max = ITEMS_MAX))]
    pub items: Vec<ItemAmendment>,
    /// A later start, for a sale that has not started.
    pub starts_at: Option<DateTime<Utc>>,
    /// A later end, for a sale that has not ended.
    pub ends_at: Option<DateTime<Utc>>,
    /// How many shoppers the waiting room admits a second.
    #[schemars(range(min = 1, max = ADMISSIONS_MAX))]
    pub admissions_per_second: Option<u32>,
    /// Guards that get another value for a part of the shoppers. `null` ends a stage, absent members of one stay.
    #[schemars(with = "Option<SaleStages>", transform = members_may_lack)]
    pub guards: Option<Map<String, Value>>,
}

/// New values of an item. An absent member stays.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemAmendment {
    /// The item's SKU.
    pub sku: Sku,
    /// What the item is: plain text with line breaks. Empty removes it.
    #[schemars(length(max = DESCRIPTION_MAX), regex(pattern = or_empty(LINES_PATTERN)))]
    pub description: Option<String>,
    /// The address of the item's picture. Empty removes it.
    #[schemars(length(max = IMAGE_URL_MAX), regex(pattern = or_empty(IMAGE_URL_PATTERN)))]
    pub image_url: Option<String>,
}

/// Why a published sale stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CannotAmend {
    /// A value is out of its bounds.
    Invalid(InvalidSale),
    /// The sale is in this state: a draft is replaced as a whole, and a closed sale stays as it was.
    State(SaleState),
    /// This time can only become a later one.
    NotLater(&'static str),
    /// This time has passed, or is about to.
    TooLate(&'static str),
    /// The sale has no item with one of the SKUs.
    NoItem,
    /// The sale has none of the versions that the client accepts.
    Stale,
}

impl Amendment {
    /// Changes the sale. After an error, the sale may be half changed: store nothing.
    pub fn apply(&self, sale: &mut Sale, now: Millis) -> Result<(), CannotAmend> {
        let state = sale.state_at(now);
        if sale.lifecycle == Lifecycle::Loading || matches!(state, SaleState::Draft | SaleState::Closed) {
            return Err(CannotAmend::State(state));
        }
        if let Some(name) = &self.name {
            sale.name = text("name", name).map_err(CannotAmend::Invalid)?;
        }
        replace(&mut sale.description, &self.description, |it| {
            description("description", it)
        })?;
        replace(&mut sale.image_url, &self.image_url, |it| picture("image_url", it))?;
        if self.items.len() > ITEMS_MAX {
            let wrong = format!("items must be at most {ITEMS_MAX}, not {}", self.items.len());
            return Err(CannotAmend::Invalid(InvalidSale(wrong)));
        }
        for (position, new) in self.items.iter().enumerate() {
            let item = sale.items.iter_mut().find(|item| item.sku == new.sku);
            let item = item.ok_or(CannotAmend::NoItem)?;
            let at = |member: &str| format!("items[{position}].{member}");
            replace(&mut item.description, &new.description, |it| {
                description(&at("description"), it)
            })?;
            replace(&mut item.image_url, &new.image_url, |it| picture(&at("image_url"), it))?;
        }
        sale.starts_at = moved("starts_at", sale.starts_at, self.starts_at, now)?;
        sale.ends_at = moved("ends_at", sale.ends_at, self.ends_at, now)?;
        if sale.ends_at <= sale.starts_at {
            return Err(CannotAmend::Invalid(InvalidSale(
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
                .map_err(|wrong| CannotAmend::Invalid(InvalidSale(wrong.to_string())))?;
            sale.guards = guards;
        }
        if let Some(patch) = &self.guards {
            let stages = sale.staged_guards.with(patch, &sale.guards);
            sale.staged_guards =
                stages.map_err(|wrong| CannotAmend::Invalid(InvalidSale(format!("guards: {wrong}"))))?;
        }
        Ok(())
    }

    /// Whether it has new texts of this item.
    pub fn names(&self, sku: &Sku) -> bool {
        self.items.iter().any(|item| item.sku == *sku)
    }
}

/// Puts a new text in the place of the present one, if there is a new one.
fn replace(
    present: &mut Option<String>,
    new: &Option<String>,
    check: impl FnOnce(Option<&str>) -> Result<Option<String>, InvalidSale>,
) -> Result<(), CannotAmend> {
    if new.is_some() {
        *present = check(new.as_deref()).map_err(CannotAmend::Invalid)?;
    }
    Ok(())
}

/// The time `to`, if a time of a sale may be moved there from `from`.
fn moved(
    field: &'static str,
    from: DateTime<Utc>,
    to: Option<DateTime<Utc>>,
    now: Millis,
) -> Result<DateTime<Utc>, CannotAmend> {
    let Some(to) = to else { return Ok(from) };
    let to = instant(field, to).map_err(CannotAmend::Invalid)?;
    if to == from {
        Ok(from)
    } else if to < from {
        Err(CannotAmend::NotLater(field))
    } else if from.timestamp_millis() < now + MARGIN {
        Err(CannotAmend::TooLate(field))
    } else {
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::{Item, NewSale};
    use crate::domain::time::from_millis;
    use serde_json::json;

    const START: Millis = 1_000_000;
    const END: Millis = 2_000_000;

    fn amended(amendment: &Amendment, now: Millis) -> Result<Sale, CannotAmend> {
        let items = ["a", "b"].map(|sku| Item::plain(sku.parse().unwrap(), 10, 1));
        let mut sale = NewSale::plain(items.to_vec(), from_millis(START), from_millis(END)).unstored();
        sale.items[1].description = Some("As before".to_owned());
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
            (times(Some(START - 1), None), 0, CannotAmend::NotLater("starts_at")),
            (times(None, Some(END - 1)), 0, CannotAmend::NotLater("ends_at")),
            (
                times(Some(START + 1), None),
                START - MARGIN + 1,
                CannotAmend::TooLate("starts_at"),
            ),
            (
                times(None, Some(END + 1)),
                END - MARGIN + 1,
                CannotAmend::TooLate("ends_at"),
            ),
            (times(None, Some(END + 1)), END, CannotAmend::State(SaleState::Closed)),
        ] {
            assert_eq!(amended(&amendment, now).unwrap_err(), wrong);
        }
        assert!(matches!(
            amended(&times(Some(END), None), 0),
            Err(CannotAmend::Invalid(_))
        ));
        let same = amended(&times(Some(START), Some(END + 1)), START + 1).unwrap();
        assert_eq!(same.starts_at, from_millis(START), "the time that it has is no change");
    }

    #[test]
    fn a_guard_gets_a_stage_while_the_sale_runs() {
        let amendment = |guards: Value| Amendment {
            guards: guards.as_object().cloned(),
            ..Amendment::default()
        };
        let staged = amendment(json!({"purchase_token": {"value": true, "percent": 10, "shadow": true}}));
        let sale = amended(&staged, START).unwrap();
        assert!(sale.staged_guards.purchase_token.is_some_and(|stage| stage.shadow));
        assert!(!sale.guards.purchase_token, "the others have what they had");
        let wrong = amendment(json!({"purchase_token": true}));
        assert!(matches!(amended(&wrong, START), Err(CannotAmend::Invalid(_))));
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
            assert!(
                matches!(amended(&wrong, START), Err(CannotAmend::Invalid(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn texts_and_pictures_can_change_while_the_sale_runs() {
        let of = |body: serde_json::Value| amended(&serde_json::from_value(body).unwrap(), START);
        let said = json!({"description": " One\ntwo ", "image_url": "/a.jpg", "items": [
            {"sku": "b", "image_url": "https://images.example/b.jpg"}, {"sku": "a", "description": "An a"}]});
        let sale = of(said).unwrap();
        let texts = |sale: &Sale| {
            let items = sale.items.iter();
            let items = items.flat_map(|item| [item.description.clone(), item.image_url.clone()]);
            let all = [sale.description.clone(), sale.image_url.clone()]
                .into_iter()
                .chain(items);
            all.map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(&sale),
            [
                "One\ntwo",
                "/a.jpg",
                "An a",
                "",
                "As before",
                "https://images.example/b.jpg"
            ]
        );
        assert_eq!(texts(&of(json!({})).unwrap()), ["", "", "", "", "As before", ""]);
        let gone = of(json!({"items": [{"sku": "b", "description": ""}]})).unwrap();
        assert_eq!(gone.items[1].description, None);

        let items = vec![json!({"sku": "a"}); ITEMS_MAX + 1];
        for (wrong, said) in [
            (json!({"description": "\t"}), "description must"),
            (json!({"image_url": "a.jpg"}), "image_url must"),
            (
                json!({"items": [{"sku": "a"}, {"sku": "b", "image_url": "x"}]}),
                "items[1].image_url must",
            ),
            (json!({ "items": items }), "items must be at most 1000, not 1001"),
        ] {
            let refused = of(wrong).unwrap_err();
            assert!(
                matches!(&refused, CannotAmend::Invalid(it) if it.0.starts_with(said)),
                "{refused:?}"
            );
        }
        assert_eq!(of(json!({"items": [{"sku": "c"}]})).unwrap_err(), CannotAmend::NoItem);
    }
}
