//! The look that a shop gives its pages.

/// The most characters of a shop's name.
pub const SHOP_NAME_MAX: usize = 60;
/// The least contrast of text and its ground, as WCAG 2.2 wants it at level AA.
const CONTRAST_MIN: f64 = 4.5;
/// The darkest ground of links in the light scheme, and the lightest one in the dark scheme, as in `base.css`.
const LIGHT_GROUND: Colour = [0xfb, 0xe4, 0xe4];
const DARK_GROUND: Colour = [0x17, 0x30, 0x1f];
/// Text on light colours in the dark scheme.
const DARK_INK: Colour = [0x14, 0x12, 0x10];
const WHITE: Colour = [0xff; 3];
const BLACK: Colour = [0; 3];

/// Red, green and blue.
type Colour = [u8; 3];

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

/// A colour. White text can be read on it, and it can be read as text on white.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accent(Colour);

/// The colours of links and buttons in a light or dark scheme, as `#rrggbb`.
#[derive(Debug)]
pub struct Tones {
    pub accent: String,
    /// Of a button under the pointer.
    pub deep: String,
    /// Of text on both.
    pub ink: String,
}

impl Accent {
    /// Parses a colour. The error says what is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_digits = |it: &&str| it.len() == 6 && it.bytes().all(|it| it.is_ascii_hexdigit());
        let digits = text.strip_prefix('#').filter(is_digits);
        let Some(value) = digits.and_then(|it| u32::from_str_radix(it, 16).ok()) else {
            return Err("is not a colour; write it as #rrggbb, for example #b93815".to_owned());
        };
        let [_, red, green, blue] = value.to_be_bytes();
        let colour = [red, green, blue];
        let contrast = contrast(colour, WHITE);
        if contrast < CONTRAST_MIN {
            return Err(format!(
                "has a contrast of {contrast:.2} with white, and links and buttons need {CONTRAST_MIN}; choose a darker \
                 colour"
            ));
        }
        Ok(Self(colour))
    }

    /// The colour, darker if links on a tinted ground need it.
    pub fn light(&self) -> Tones {
        let accent = self.readable_on(LIGHT_GROUND, BLACK);
        Tones::of(accent, mixed(accent, BLACK, 3), WHITE)
    }

    /// The colour as light as links on a dark ground need it.
    pub fn dark(&self) -> Tones {
        let accent = self.readable_on(DARK_GROUND, WHITE);
        Tones::of(accent, mixed(accent, WHITE, 5), DARK_INK)
    }

    /// The least mixture with another colour that can be read there.
    fn readable_on(&self, ground: Colour, other: Colour) -> Colour {
        let mut mixtures = (0..SHARES).map(|share| mixed(self.0, other, share));
        let is_readable = |colour: &Colour| contrast(*colour, ground) >= CONTRAST_MIN;
        mixtures.find(is_readable).unwrap_or(other)
    }
}

impl Tones {
    fn of(accent: Colour, deep: Colour, ink: Colour) -> Self {
        let text = |[red, green, blue]: Colour| format!("#{red:02x}{green:02x}{blue:02x}");
        Self {
            accent: text(accent),
            deep: text(deep),
            ink: text(ink),
        }
    }
}

/// The parts of a mixture.
const SHARES: u16 = 16;

/// A colour with so many shares of another one.
fn mixed(colour: Colour, other: Colour, share: u16) -> Colour {
    let part = |at: usize| (u16::from(colour[at]) * (SHARES - share) + u16::from(other[at]) * share) / SHARES;
    [0, 1, 2].map(|at| u8::try_from(part(at)).unwrap_or(u8::MAX))
}

fn contrast(one: Colour, other: Colour) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// The relative luminance of a colour, as WCAG defines it: 0 is black, 1 is white.
fn luminance([red, green, blue]: Colour) -> f64 {
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
            // A little darker, for links on tinted grounds.
            ("#767676", "#676767"),
        ] {
            assert_eq!(Accent::parse(right).unwrap().light().accent, shown);
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
