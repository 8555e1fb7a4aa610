//! The names of enums in SQL and JSON. Each name stands once, and the compiler asks for it.

/// Gives an enum all its values, their names, and the value of a name.
macro_rules! names {
    ($type:ident: $($variant:ident $name:literal),*) => {
        impl $type {
            /// Every value, in the order of the rows.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in SQL and JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.as_str() == name)
            }
        }
    };
}

pub(super) use names;

#[cfg(test)]
mod tests {
    use crate::domain::order::OrderState;
    use crate::domain::sale::{Durability, SaleState};
    use serde::Serialize;

    fn json<T: Serialize>(all: &[T]) -> Vec<String> {
        let name = |it: &T| serde_json::to_value(it).unwrap().as_str().unwrap().to_owned();
        all.iter().map(name).collect()
    }

    #[test]
    fn json_has_the_same_names() {
        assert_eq!(
            json(OrderState::ALL),
            OrderState::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>()
        );
        assert_eq!(
            json(SaleState::ALL),
            SaleState::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>()
        );
        assert_eq!(
            json(Durability::ALL),
            Durability::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>()
        );
    }
}
