//! Links to the shop around the pages: its sign-in and its payment page. They have places that the pages fill in.

use crate::domain::deployment::host::{Origin, has_only_url_characters};

/// The place for the address of the page to which the shop sends shoppers back.
const RETURN: &str = "return";
/// The place for the id of the order to pay.
const ORDER: &str = "order";

/// The shop's own pages to which ours link, if they are configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShopLinks {
    /// The page where shoppers sign in.
    pub sign_in: Option<ShopLink>,
    /// The page where shoppers pay for an order.
    pub pay: Option<ShopLink>,
}

/// An `http` or `https` address with the places `{return}` and `{order}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShopLink(String);

impl ShopLink {
    /// Parses the link to the sign-in. The error says what is wrong and what to write instead.
    pub fn sign_in(text: &str) -> Result<Self, String> {
        let example = "https://HOST/sign-in?back={return}";
        Self::parse(text, &[RETURN], example)
    }

    /// Parses the link to the payment page. The error says what is wrong and what to write instead.
    pub fn pay(text: &str) -> Result<Self, String> {
        let example = "https://HOST/pay?order={order}&back={return}";
        let link = Self::parse(text, &[ORDER, RETURN], example)?;
        if !text.contains("{order}") {
            return Err(format!("has no {{order}} for the order's id; write it as {example}"));
        }
        Ok(link)
    }

    /// The address with its places unfilled.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str, places: &[&str], example: &str) -> Result<Self, String> {
        let mut filled = text.to_owned();
        for place in places {
            filled = filled.replace(&format!("{{{place}}}"), "x");
        }
        if filled.contains(['{', '}']) {
            return Err(format!(
                "has braces that belong to none of its places; write it as {example}"
            ));
        }
        // The origin has no place, so that it cannot change.
        if Origin::of(text).is_some() && has_only_url_characters(&filled) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "is not an address that a page can link to; write it as {example}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shops_pages_are_addresses_of_the_web_with_places_behind_the_host() {
        for right in [
            "https://shop.example/sign-in",
            "http://127.0.0.1:9000/sign-in?back={return}",
            "https://shop.example?to={return}&lang=en",
        ] {
            assert_eq!(ShopLink::sign_in(right).unwrap().as_str(), right);
        }
        for right in [
            "https://shop.example/pay/{order}",
            "https://shop.example/#/pay/{order}?back={return}",
        ] {
            assert_eq!(ShopLink::pay(right).unwrap().as_str(), right);
        }
        for wrong in [
            "",
            "/sign-in",
            "shop.example/sign-in",
            "javascript:alert(1)",
            "javascript://shop.example/%0aalert(1)",
            "data://text/html",
            "https://",
            "https://{return}/",
            "https://shop.example{return}",
            "https://ada:secret@shop.example/",
            "https://shop.example/\"onclick=x",
            "https://shop.example/ x",
            "https://shop.example/{order}",
            "https://shop.example/{retrun}",
            "https://shop.example/{return",
        ] {
            let said = ShopLink::sign_in(wrong).unwrap_err();
            assert!(said.contains("write it as https://HOST/"), "{wrong}: {said}");
        }
        assert!(ShopLink::pay("https://shop.example/pay").unwrap_err().contains("order"));
    }
}
