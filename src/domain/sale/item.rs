//! An item of a sale: as an operator sends it, and checked.

use super::rules::{DESCRIPTION_MAX, InvalidSale, NAME_MAX, NAME_PATTERN, bounded, description, given, picture, text};
use crate::domain::ids::Sku;
use crate::domain::plain::{LINES_PATTERN, PLAIN_PATTERN, or_empty, plain};
use crate::domain::shop::image_url::{IMAGE_URL_MAX, IMAGE_URL_PATTERN};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::slice;

/// The most units of one item in a sale.
pub const STOCK_MAX: i64 = 1_000_000_000;
/// The highest price of a unit. Times the largest quantity, it stays below 2^53, which every JSON parser keeps exactly.
pub const PRICE_MAX: i64 = 10_000_000_000;
/// The highest limit of units of an item for one shopper.
const PER_USER_LIMIT_MAX: i64 = 100_000;
/// The most characters of a group of items, and of an option in it.
const VARIANT_MAX: usize = 100;
/// The pattern of a currency.
const CURRENCY_PATTERN: &str = "^[A-Z]{3}$";

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "An item of a sale.")]
pub(super) struct ItemRequest {
    /// The item's SKU, unique in the sale.
    #[schemars(with = "Sku")]
    sku: String,
    /// The item's name: not only white space, no control characters.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    name: String,
    /// The price of one unit, in the currency's minor unit.
    #[schemars(range(min = 0, max = PRICE_MAX))]
    price_minor: i64,
    /// The currency of the price, in ISO 4217.
    #[schemars(regex(pattern = CURRENCY_PATTERN))]
    currency: String,
    /// The units that the sale owns.
    #[schemars(range(min = 0, max = STOCK_MAX))]
    stock: i64,
    /// The most units that one shopper may have, held or paid.
    #[schemars(range(min = 1, max = PER_USER_LIMIT_MAX))]
    per_user_limit: i64,
    /// What the item is: plain text with line breaks. Empty is none.
    #[schemars(length(max = DESCRIPTION_MAX), regex(pattern = or_empty(LINES_PATTERN)))]
    description: Option<String>,
    /// The address of the item's picture, by the rules of the sale's. Empty is none.
    #[schemars(length(max = IMAGE_URL_MAX), regex(pattern = or_empty(IMAGE_URL_PATTERN)))]
    image_url: Option<String>,
    /// The thing of which the item is a variant, such as `T-shirt`: plain text. The variants of one thing have the same
    /// group. Empty is none.
    #[schemars(length(max = VARIANT_MAX), regex(pattern = or_empty(PLAIN_PATTERN)))]
    group: Option<String>,
    /// Which variant of its group it is, such as `M`: plain text. It needs a group, and differs from the group's other
    /// options. Empty is none.
    #[schemars(length(max = VARIANT_MAX), regex(pattern = or_empty(PLAIN_PATTERN)))]
    option: Option<String>,
}

impl ItemRequest {
    pub(super) fn check(self, at: &str) -> Result<Item, InvalidSale> {
        let of = |field: &str| format!("{at}.{field}");
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidSale(format!(
                "{at}.currency must be three capital letters, as in ISO 4217"
            )));
        }
        let variant =
            |field: &str, text: &Option<String>| given(&of(field), text.as_deref(), |text| plain(text, VARIANT_MAX));
        let (group, option) = (variant("group", &self.group)?, variant("option", &self.option)?);
        if option.is_some() && group.is_none() {
            return Err(InvalidSale(format!("{at}.option needs a group")));
        }
        Ok(Item {
            sku: self
                .sku
                .parse()
                .map_err(|wrong| InvalidSale(format!("{at}.sku: {wrong}")))?,
            name: text(&of("name"), &self.name)?,
            price_minor: bounded(&of("price_minor"), self.price_minor, 0, PRICE_MAX)?,
            currency: self.currency,
            stock: bounded(&of("stock"), self.stock, 0, STOCK_MAX)?,
            per_user_limit: bounded(&of("per_user_limit"), self.per_user_limit, 1, PER_USER_LIMIT_MAX)?,
            description: description(&of("description"), self.description.as_deref())?,
            image_url: picture(&of("image_url"), self.image_url.as_deref())?,
            group,
            option,
        })
    }
}

/// An item of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    /// The item's SKU, unique in the sale.
    pub sku: Sku,
    /// The item's name.
    pub name: String,
    /// The price of one unit, in the currency's minor unit.
    pub price_minor: i64,
    /// The currency of the price, in ISO 4217.
    pub currency: String,
    /// The units that the sale owns, including restocks and withdrawals.
    pub stock: i64,
    /// The most units that one shopper may have, held or paid.
    pub per_user_limit: u32,
    /// What the item is, in plain text with line breaks; absent if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The address of the item's picture; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// The thing of which the item is a variant; absent if it is none. The variants of one thing have the same group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Which variant of the group it is, such as a size; absent if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
}

impl Item {
    /// An item that costs 1.00 EUR, named after its SKU. Benchmarks and tests begin with it.
    pub fn plain(sku: Sku, stock: i64, per_user_limit: u32) -> Self {
        Self {
            name: sku.to_string(),
            sku,
            price_minor: 100,
            currency: "EUR".to_owned(),
            stock,
            per_user_limit,
            description: None,
            image_url: None,
            group: None,
            option: None,
        }
    }

    /// The price of so many units, in the currency's minor unit.
    pub const fn price_of(&self, quantity: u32) -> i64 {
        self.price_minor.saturating_mul(quantity as i64)
    }
}

/// The items of a sale in their order, found by SKU as soon among a thousand as among few. An item keeps its SKU.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Items {
    all: Vec<Item>,
    #[serde(skip)]
    positions: HashMap<Sku, u16>,
}

impl Items {
    pub(super) fn position(&self, sku: &Sku) -> Option<u16> {
        self.positions.get(sku).copied()
    }
}

impl From<Vec<Item>> for Items {
    fn from(all: Vec<Item>) -> Self {
        let skus = all.iter().map(|item| item.sku.clone());
        let positions = skus.zip(0..).collect();
        Self { all, positions }
    }
}

impl Deref for Items {
    type Target = [Item];

    fn deref(&self) -> &[Item] {
        &self.all
    }
}

impl DerefMut for Items {
    fn deref_mut(&mut self) -> &mut [Item] {
        &mut self.all
    }
}

impl<'a> IntoIterator for &'a Items {
    type Item = &'a Item;
    type IntoIter = slice::Iter<'a, Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}
