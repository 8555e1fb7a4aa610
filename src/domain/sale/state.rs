//! The states of a sale: the stored one, the one that its times give, and how operators change them.

use crate::domain::names::names;
use crate::domain::time::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sale's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Created; no stock is loaded.
    #[default]
    Draft,
    /// Preloaded; the sale opens by itself.
    Scheduled,
    /// Selling.
    Open,
    /// Paused by an operator.
    Paused,
    /// Over.
    Closed,
}

names! { SaleState as "sale state": Draft "draft", Scheduled "scheduled", Open "open", Paused "paused", Closed "closed" }

/// The stored part of a sale's state; the sale's times give the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    Draft,
    /// The preload has begun; nothing is sold yet.
    Loading,
    /// Sells between `starts_at` and `ends_at`.
    Active,
    /// Paused by an operator.
    Paused,
    /// Closed by an operator.
    Closed,
}

names! { Lifecycle as "sale state": Draft "draft", Loading "loading", Active "active", Paused "paused", Closed "closed" }

impl Lifecycle {
    /// The code in a shard's packed records.
    pub const fn code(self) -> u8 {
        match self {
            Self::Draft | Self::Loading => 0,
            Self::Active => 1,
            Self::Paused => 2,
            Self::Closed => 3,
        }
    }

    /// The state for a shard's code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Loading),
            1 => Some(Self::Active),
            2 => Some(Self::Paused),
            3 => Some(Self::Closed),
            _ => None,
        }
    }

    /// The state at `now`, from the stored state and the times.
    pub const fn seen_at(self, now: Millis, starts_at: Millis, ends_at: Millis) -> SaleState {
        match self {
            Self::Draft | Self::Loading => SaleState::Draft,
            Self::Closed => SaleState::Closed,
            Self::Active | Self::Paused if now >= ends_at => SaleState::Closed,
            Self::Paused => SaleState::Paused,
            Self::Active if now < starts_at => SaleState::Scheduled,
            Self::Active => SaleState::Open,
        }
    }
}

/// An operator's change of a sale's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Sell now, even before `starts_at`.
    Open,
    /// Stop selling for a while. A scheduled sale does not open by itself.
    Pause,
    /// End a pause: the sale is open, or scheduled before `starts_at`.
    Resume,
    /// Stop selling for good.
    Close,
}

names! { Transition: Open "open", Pause "pause", Resume "resume", Close "close" }

/// The effect of a transition on a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The sale gets this state.
    To(Lifecycle),
    /// The sale already has that state, which is not an error.
    Already,
    /// The transition is not allowed.
    Invalid,
}

impl Transition {
    /// The effect of this transition on a sale in `state`.
    pub const fn from(self, state: SaleState) -> Step {
        use SaleState::{Closed, Draft, Open, Paused, Scheduled};
        match self {
            Self::Open => match state {
                Scheduled => Step::To(Lifecycle::Active),
                Open => Step::Already,
                Draft | Paused | Closed => Step::Invalid,
            },
            Self::Pause => match state {
                Scheduled | Open => Step::To(Lifecycle::Paused),
                Paused => Step::Already,
                Draft | Closed => Step::Invalid,
            },
            Self::Resume => match state {
                Paused => Step::To(Lifecycle::Active),
                Draft | Scheduled | Open | Closed => Step::Invalid,
            },
            Self::Close => match state {
                Scheduled | Open | Paused => Step::To(Lifecycle::Closed),
                Closed => Step::Already,
                Draft => Step::Invalid,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_decide_to_the_millisecond_what_a_stored_state_looks_like() {
        use {Lifecycle as L, SaleState as S};
        let table = [
            (L::Draft, 150, S::Draft),
            (L::Loading, 150, S::Draft),
            (L::Active, 99, S::Scheduled),
            (L::Active, 100, S::Open),
            (L::Active, 199, S::Open),
            (L::Active, 200, S::Closed),
            (L::Paused, 199, S::Paused),
            (L::Paused, 200, S::Closed),
            (L::Closed, 99, S::Closed),
        ];
        for (stored, now, seen) in table {
            assert_eq!(stored.seen_at(now, 100, 200), seen, "{stored:?} at {now}");
        }
    }

    #[test]
    fn transitions_that_make_no_sense_are_invalid() {
        use {SaleState as S, Transition as T};
        let states = [S::Draft, S::Scheduled, S::Open, S::Paused, S::Closed];
        let to = |transition: T| {
            states.map(|state| match transition.from(state) {
                Step::To(_) => 't',
                Step::Already => '=',
                Step::Invalid => '.',
            })
        };
        assert_eq!(to(T::Open), ['.', 't', '=', '.', '.']);
        assert_eq!(to(T::Pause), ['.', 't', 't', '=', '.']);
        assert_eq!(to(T::Resume), ['.', '.', '.', 't', '.']);
        assert_eq!(to(T::Close), ['.', 't', 't', 't', '=']);
    }
}
