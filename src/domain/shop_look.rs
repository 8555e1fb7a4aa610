//! The look that a shop gives its pages.

/// The most characters of a shop's name.
pub const SHOP_NAME_MAX: usize = 60;
/// The least contrast of text and its ground, as WCAG 2.2 wants it at level AA.
const CONTRAST_MIN: f64 = 4.5;

/// A shop's name, logo and colour, and where its pictures come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShopLook {
    pub name: String,
    /// Its address, as of any picture.
    pub logo_url: Option<String>,
    /// The colour of links and buttons; without it, the pages have their own.
    pub accent: Option<Accent>,
    /// Origins besides the pages' own that pictures may come from.
    pub image_origins: Vec<String>,
}

/// A colour as `#rrggbb`. White text can be read on it, and it can be read as text on white.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accent(String);

impl Accent {
    /// Parses a colour. The error says what is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_digits = |it: &&str| it.len() == 6 && it.bytes().all(|it| it.is_ascii_hexdigit());
        let digits = text.strip_prefix('#').filter(is_digits);
        let Some(value) = digits.and_then(|it| u32::from_str_radix(it, 16).ok()) else {
            return Err("is not a colour; write it as #rrggbb, for example #b93815".to_owned());
        };
        let [_, red, green, blue] = value.to_be_bytes();
        let contrast = 1.05 / (luminance(red, green, blue) + 0.05);
        if contrast < CONTRAST_MIN {
            return Err(format!(
                "has a contrast of {contrast:.2} with white, and links and buttons need {CONTRAST_MIN}; choose a darker \
                 colour"
            ));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The relative luminance of a colour, as WCAG defines it: 0 is black, 1 is white.
fn luminance(red: u8, green: u8, blue: u8) -> f64 {
    let linear = |part: u8| {
        let part = f64::from(part) / 255.0;
        if part <= 0.040_45 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_is_taken_if_white_can_be_read_on_it() {
        for (right, shown) in [
            ("#B93815", "#b93815"),
            ("#000000", "#000000"),
            ("#0000ff", "#0000ff"),
            ("#767676", "#767676"),
        ] {
            assert_eq!(Accent::parse(right).unwrap().as_str(), shown);
        }
        for (wrong, contrast) in [
            ("#777777", "4.48"),
            ("#ffcc00", "1.5"),
            ("#00ff00", "1.37"),
            ("#ffffff", "1.00"),
        ] {
            let said = Accent::parse(wrong).unwrap_err();
            let expected = format!("has a contrast of {contrast}");
            assert!(said.starts_with(&expected) && said.contains("darker"), "{said}");
        }
        for wrong in [
            "",
            "#",
            "red",
            "b93815",
            "#b938",
            "#b9381g",
            "#+b9381",
            "#b9381500",
            "#ééé",
        ] {
            let said = Accent::parse(wrong).unwrap_err();
            assert!(said.contains("write it as #rrggbb"), "{wrong}: {said}");
        }
    }
}
