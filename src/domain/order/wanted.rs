//! Which orders and payments an operator lists. Their lists run from the newest entry to the oldest.

use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::OrderState;
use crate::domain::order::payment::PaymentOutcome;
use chrono::{DateTime, Utc};

/// An entry's place among others by time, oldest first: its time and its id.
pub type Place<I> = (DateTime<Utc>, I);

/// A part of a list. The default of an id is less than the id of any entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch<I> {
    /// Only entries from this moment on.
    pub from: Option<DateTime<Utc>>,
    /// Only entries before this place.
    pub before: Option<Place<I>>,
}

impl<I: Default + Ord> Stretch<I> {
    /// The entries from one moment to another. It leaves out those of the second.
    pub fn between(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> Self {
        let before = to.map(|to| (to, I::default()));
        Self { from, before }
    }

    /// Leaves out the entries from this place on.
    pub fn end_before(&mut self, place: Place<I>) {
        self.before = self.before.take().into_iter().chain([place]).min();
    }

    /// Leaves out the entry at this place and all newer ones; every entry if there is no such place.
    pub fn follow(&mut self, place: Option<Place<I>>) {
        self.end_before(place.unwrap_or((DateTime::<Utc>::UNIX_EPOCH, I::default())));
    }
}

/// Whose orders they are. Not those of all accounts in all sales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrdersOf {
    Sale(SaleId),
    /// The orders of an account, in one sale or in all.
    User(UserId, Option<SaleId>),
}

impl OrdersOf {
    /// The one sale that the orders are in.
    pub const fn sale(&self) -> Option<SaleId> {
        match self {
            Self::Sale(sale) => Some(*sale),
            Self::User(_, sale) => *sale,
        }
    }
}

/// The orders that an operator lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedOrders {
    pub of: OrdersOf,
    /// Only orders in this state.
    pub state: Option<OrderState>,
    pub stretch: Stretch<OrderId>,
}

/// The payments that an operator lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPayments {
    pub outcome: PaymentOutcome,
    /// Only payments that were paid back, or only the others.
    pub settled: Option<bool>,
    /// Only payments that were matched with one of these orders.
    pub of: Option<OrdersOf>,
    pub stretch: Stretch<String>,
}
