//! The names of enums in SQL, JSON and paths. Each name stands once, and the compiler asks for it.

/// Gives an enum all its values, their names, and the value of a name.
macro_rules! names {
    // Also its text, and the value that a text is, of a kind of things with this name.
    ($type:ident as $kind:literal: $($rows:tt)*) => {
        $crate::domain::names::names! { $type: $($rows)* }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                Self::from_name(text).ok_or_else(|| format!(concat!("no ", $kind, " is called {:?}"), text))
            }
        }
    };
    ($type:ident: $($variant:ident $name:literal),*) => {
        impl $type {
            /// Every value, in the order of the rows.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in SQL, JSON and paths.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

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
    use crate::domain::sale::report::ReportTable;
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
        assert_eq!(
            json(ReportTable::ALL),
            ReportTable::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>()
        );
    }
}
