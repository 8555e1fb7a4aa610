//! Links to the shop around the pages: its sign-in and its payment page. They have places that the pages fill in.

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
    #[must_use]
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
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let host = rest
            .and_then(|rest| rest.split(['/', '?', '#']).next())
            .unwrap_or_default();
        // The host has no place, so that it cannot change, and no password, which every visitor could read.
        let is_of_host = |it: u8| it.is_ascii_alphanumeric() || b".-:[]".contains(&it);
        let is_of_url = |it: u8| it.is_ascii_graphic() && !b"\"'<>\\^`|".contains(&it);
        let is_right = !host.is_empty() && host.bytes().all(is_of_host) && filled.bytes().all(is_of_url);
        if is_right {
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
