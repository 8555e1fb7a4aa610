//! The look of a shop on its pages: its name, logo and colour, and a content security policy that lets them in.

use crate::domain::deployment::host::Origin;
use crate::domain::shop::look::{ShopLook, Tones};
use crate::http::pages::assets::POLICY;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

/// The parts of the policy about pictures and style sheets.
const PICTURES: &str = "img-src 'self' data:";
const STYLES: &str = "style-src 'self'";

/// The policy of the shop's pages. They also load pictures from the origins that are configured, and have the shop's
/// colour as a style sheet of their own.
pub fn policy(look: &ShopLook) -> String {
    let logo = look.logo_url.as_deref().and_then(Origin::of);
    let logo = logo.map(|origin| origin.to_string());
    let mut pictures = PICTURES.to_owned();
    for origin in logo.iter().chain(&look.image_origins) {
        pictures += &format!(" {origin}");
    }
    let mut styles = STYLES.to_owned();
    if let Some(rules) = rules(look) {
        styles += &format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(rules)));
    }
    POLICY.replacen(PICTURES, &pictures, 1).replacen(STYLES, &styles, 1)
}

/// The shop's colour, if it has one.
pub fn colours(look: &ShopLook) -> Markup {
    html! {
        @if let Some(rules) = rules(look) {
            style { (PreEscaped(rules)) }
        }
    }
}

/// The text of the style sheet. Its selector is stronger than the `:root` of `base.css`.
fn rules(look: &ShopLook) -> Option<String> {
    let rule = |Tones { accent, deep, ink }: Tones| {
        format!("html:root{{--accent:{accent};--accent-deep:{deep};--on-accent:{ink}}}")
    };
    let accent = look.accent.as_ref()?;
    let (light, dark) = (rule(accent.light()), rule(accent.dark()));
    Some(format!("{light}@media (prefers-color-scheme:dark){{{dark}}}"))
}

/// The shop's logo and name.
pub fn brand(look: &ShopLook) -> Markup {
    html! {
        @if let Some(logo) = &look.logo_url {
            img class="logo" alt="" src=(logo);
        }
        (look.name)
    }
}
