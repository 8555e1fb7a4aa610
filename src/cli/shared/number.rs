//! Whole numbers as people type them.

use std::fmt::Display;
use std::str::FromStr;

/// Reads a whole number from `least` to `most`. Its refusal says how to write one.
pub fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse::<N>().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("write a whole number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_bounds_and_a_refusal_names_them() {
        let read = whole(1_u32, 10);
        assert_eq!((read("1"), read("10")), (Ok(1), Ok(10)));
        for wrong in ["0", "11", "-1", "1.5", "many", ""] {
            assert_eq!(
                read(wrong),
                Err("write a whole number from 1 to 10".to_owned()),
                "{wrong}"
            );
        }
    }
}
