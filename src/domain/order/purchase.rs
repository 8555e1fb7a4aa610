//! A purchase: the request, and every outcome that it can have.

use super::Order;
use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::ids::{IdempotencyKey, Sku, UserId};
use crate::domain::sale::SaleState;
use crate::domain::shopper::ban::FOR_EVER;
use crate::domain::time::Millis;

/// The most units that one request may ask for.
pub const QUANTITY_MAX: u32 = 100_000;

/// One shopper's request for units of one item.
#[derive(Debug, Clone)]
pub struct PurchaseRequest {
    pub user: UserId,
    /// The client's name for this request.
    pub key: IdempotencyKey,
    pub sku: Sku,
    /// How many units, 1 to [`QUANTITY_MAX`].
    pub quantity: u32,
}

impl PurchaseRequest {
    /// A request with what each one has.
    pub const fn new(user: UserId, key: IdempotencyKey, sku: Sku, quantity: u32) -> Self {
        Self {
            user,
            key,
            sku,
            quantity,
        }
    }
}

/// The outcome of a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurchaseOutcome {
    /// Units are held for a new order.
    Reserved(Order),
    /// The order that this key already has.
    Replayed(Order),
    Refused(Refusal),
    /// A refusal without a replay probe of the key: an earlier request may have an order under it.
    Unprobed(Refusal),
}

macro_rules! refusals {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $({ $field:ident: $type:ty = $example:expr })? => $code:ident, $guard:expr, key $key:ident,
            $detail:literal;
    )*) => {
        /// Why a purchase is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name $({ $field: $type })?,)*
        }

        impl Refusal {
            /// One of each, with examples in place of their fields.
            pub fn each() -> Vec<Self> {
                vec![$(Self::$name $({ $field: $example })?),*]
            }

            pub const fn code(&self) -> Code {
                match self { $(Self::$name { .. } => Code::$code,)* }
            }

            /// What is refused in this request, and what to do. Shoppers get it as `detail`.
            pub fn detail(&self) -> String {
                match *self { $(Self::$name $({ $field })? => {
                    // A sentence need not have the value.
                    $(let _ = &$field;)?
                    std::fmt::format(format_args!($detail))
                })* }
            }

            /// The guard that refused, if a guard did.
            pub const fn guard(&self) -> Option<Layer> {
                match self { $(Self::$name { .. } => $guard,)* }
            }

            /// Whether the key certainly has no order, if it was probed.
            pub const fn is_key_free(&self) -> bool {
                match self { $(Self::$name { .. } => refusals!($key),)* }
            }

            /// After how many milliseconds the same request may succeed, if that is known.
            pub const fn wait_ms(&self) -> Option<Millis> {
                match *self { $(Self::$name $({ $field })? => refusals!(member wait_ms $(of $field $field)?),)* }
            }

            /// The sale's state, if that is the reason.
            pub const fn sale_state(&self) -> Option<SaleState> {
                match *self { $(Self::$name $({ $field })? => refusals!(member state $(of $field $field)?),)* }
            }

            /// When the account's ban ends, if that is the reason and the ban has an end.
            pub const fn banned_until(&self) -> Option<Millis> {
                match *self { $(Self::$name $({ $field })? => refusals!(member until $(of $field $field)?),)* }
            }
        }
    };
    (free) => { true };
    (unknown) => { false };
    // The value of a refusal's field, if the field has the wanted name.
    (member $wanted:ident) => { None };
    (member wait_ms of wait_ms $value:ident) => { Some($value) };
    (member state of state $value:ident) => { Some($value) };
    (member until of until $value:ident) => { $value };
    (member $wanted:ident of $other:ident $value:ident) => {{
        let _ = &$value;
        None
    }};
}

// In the order of the checks. A test compares it with the script. `wait_ms` becomes `Retry-After`, `state` becomes
// `sale_state`, `until` becomes `banned_until`. A field has the value of the API document's example.
refusals! {
    /// There is no such sale.
    SaleNotFound => NotFound, None, key unknown,
        "there is no such sale";
    /// The key belongs to another request.
    KeyReused => IdempotencyKeyReused, None, key unknown,
        "this key belongs to an order with another sku or quantity";
    /// The sale has a waiting room, and the shopper has not been admitted.
    AdmissionRequired => AdmissionRequired, Some(Layer::WaitingRoom), key free,
        "send X-Admission: what POST /v1/sales/{{id}}/waiting-room answers when it is this shopper's turn";
    /// The sale requires a purchase token, and the request has none that is valid for it.
    TokenRequired => PurchaseTokenRequired, Some(Layer::PurchaseToken), key free,
        "send X-Purchase-Token: one that POST /v1/sales/{{id}}/tokens gave for this Idempotency-Key within five minutes";
    /// The sale has no such item.
    ItemNotFound => NotFound, None, key free,
        "there is no such sku in this sale";
    /// An operator or a guard has banned the account. Without a time, the ban has no end.
    Banned { until: Option<Millis> = Some(1_795_424_400_000) } => Banned, Some(Layer::Ban), key free,
        "this account may not buy";
    /// The shopper's window is full, and has room for a request after these milliseconds.
    RateLimited { wait_ms: Millis = 12_000 } => RateLimited, Some(Layer::Window), key free,
        "this shopper's window is full";
    /// The sale does not sell now.
    NotOpen { state: SaleState = SaleState::Paused } => SaleNotOpen, None, key free,
        "the sale is {state}";
    /// The account did not pay for its last holds, and may buy again after these milliseconds.
    CoolingDown { wait_ms: Millis = 600_000 } => CoolingDown, Some(Layer::Cooldown), key free,
        "this account did not pay for its last orders";
    /// The shopper would have more units of this item than this limit.
    LimitReached { limit: u32 = 2 } => PurchaseLimitReached, None, key free,
        "one shopper may have {limit} of this item in this sale, unpaid orders among them";
    /// The account has the most unpaid holds that the sale allows.
    TooManyHolds => TooManyHolds, Some(Layer::Holds), key free,
        "this account has as many unpaid orders as it may; pay for one or cancel it";
    /// No shard has enough free units, and none are in transit.
    SoldOut => SoldOut, None, key free,
        "there are not that many units left";
}

impl Refusal {
    /// The refusal of an account that is banned, with the end of the ban in the form of a shard.
    pub fn banned(until_seconds: i64) -> Self {
        let has_end = until_seconds != i64::from(FOR_EVER);
        Self::Banned {
            until: has_end.then_some(until_seconds * 1000),
        }
    }
}
