//! How many digits a price has behind the point, as ISO 4217 says. Browsers and libraries follow CLDR, which leaves out
//! digits of some currencies, such as the forint's. `web/shared/currency.js` has the same table.

/// Currencies by their digits, separated by spaces. All others have two.
const DIGITS: [(usize, &str); 3] = [
    (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
    (3, "BHD IQD JOD KWD LYD OMR TND"),
    (4, "CLF UYW"),
];

pub fn digits(currency: &str) -> usize {
    let mut rows = DIGITS.iter();
    let row = rows.find(|(_, codes)| codes.split(' ').any(|code| code == currency));
    row.map_or(2, |(digits, _)| *digits)
}

/// The digits of an amount before and behind the point. The amount is in the currency's minor unit.
pub fn parts(minor: u128, currency: &str) -> (String, String) {
    let digits = digits(currency);
    let mut whole = format!("{minor:0>width$}", width = digits + 1);
    let fraction = whole.split_off(whole.len() - digits);
    (whole, fraction)
}

/// An amount in the currency's minor unit as people write it, such as `499.00 EUR`.
pub fn money(minor: impl Into<i128>, currency: &str) -> String {
    let minor: i128 = minor.into();
    let sign = if minor < 0 { "-" } else { "" };
    let (whole, fraction) = parts(minor.unsigned_abs(), currency);
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction} {currency}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_same_table() {
        let script = include_str!("../../../web/shared/currency.js");
        let rows: Vec<&str> = script.lines().filter(|line| line.starts_with("    [")).collect();
        let expected = DIGITS.map(|(digits, codes)| format!("    [{digits}, '{codes}'],"));
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_digits_are_those_of_iso_4217() {
        // CLDR has no digits for HUF and IQD.
        for (currency, expected) in [
            ("HUF", 2),
            ("IQD", 3),
            ("ISK", 0),
            ("UGX", 0),
            ("CLF", 4),
            ("EUR", 2),
            ("XOF XPF", 2),
            ("", 2),
        ] {
            assert_eq!(digits(currency), expected, "{currency}");
        }
    }

    #[test]
    fn an_amount_has_a_digit_before_its_point() {
        for (minor, currency, whole, fraction) in [
            (49_900, "EUR", "499", "00"),
            (5, "KWD", "0", "005"),
            (5, "JPY", "5", ""),
            (0, "EUR", "0", "00"),
        ] {
            assert_eq!(parts(minor, currency), (whole.to_owned(), fraction.to_owned()));
        }
    }

    #[test]
    fn an_amount_has_the_digits_of_its_currency() {
        let amounts: [(i128, &str, &str); 7] = [
            (49_900, "EUR", "499.00 EUR"),
            (5, "EUR", "0.05 EUR"),
            (0, "USD", "0.00 USD"),
            (-1_050, "USD", "-10.50 USD"),
            (49_900, "JPY", "49900 JPY"),
            (49_900, "KWD", "49.900 KWD"),
            (u64::MAX.into(), "EUR", "184467440737095516.15 EUR"),
        ];
        for (minor, currency, shown) in amounts {
            assert_eq!(money(minor, currency), shown);
        }
    }
}
