//! Addresses of pictures that pages show.

use crate::domain::deployment::host::{Origin, has_only_url_characters};

/// The most characters of an address.
pub const IMAGE_URL_MAX: usize = 2000;

/// The pattern of an address.
pub const IMAGE_URL_PATTERN: &str = concat!(
    r"^(?:/(?:[!#-&(-.0-;=?-\[\]_a-{}~][!#-&(-;=?-\[\]_a-{}~]*)?",
    r"|https://[A-Za-z0-9.:\[\]-]+(?:[/?#][!#-&(-;=?-\[\]_a-{}~]*)?",
    r"|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]+)?(?:[/?#][!#-&(-;=?-\[\]_a-{}~]*)?)$"
);

/// A text that is no address of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be an https address, an http address on this machine, or a path that begins with one slash, with at most {} \
     characters",
    IMAGE_URL_MAX
)]
pub struct NotAnImageUrl;

/// The text, if it is the address of a picture: one that nobody on the network can change, or a path on the pages' own
/// origin.
pub fn image_url(text: &str) -> Result<&str, NotAnImageUrl> {
    // A browser reads two slashes as the start of a host.
    let is_path = text.starts_with('/') && !text.starts_with("//");
    let is_safe = is_path || Origin::of(text).is_some_and(Origin::is_secure);
    let is_right = is_safe && text.len() <= IMAGE_URL_MAX && has_only_url_characters(text);
    is_right.then_some(text).ok_or(NotAnImageUrl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_picture_has_an_address_that_nobody_can_change_and_the_pattern_agrees() {
        let schema = json!({"type": "string", "maxLength": IMAGE_URL_MAX, "pattern": IMAGE_URL_PATTERN});
        let schema = jsonschema::draft202012::new(&schema).unwrap();
        let longest = format!("/{}", "a".repeat(IMAGE_URL_MAX - 1));
        for right in [
            "https://images.example/winter.jpg",
            "https://images.example:8443/a%20b.png?w=600&h=400#x",
            "https://images.example",
            "http://127.0.0.1:9000/winter.jpg",
            "http://localhost/winter.jpg",
            "http://[::1]:80?x",
            "/pictures/winter.jpg",
            "/a",
            "/",
            &longest,
        ] {
            assert_eq!(image_url(right), Ok(right));
            assert!(schema.is_valid(&json!(right)), "{right}");
        }
        for wrong in [
            "",
            " ",
            "winter.jpg",
            "//images.example/winter.jpg",
            "/\\images.example/winter.jpg",
            "http://images.example/winter.jpg",
            "http://localhost.example/winter.jpg",
            "https://",
            "https://ada:secret@images.example/winter.jpg",
            "https://images.example/a b.jpg",
            "https://images.example/\"onload=x",
            "https://images.example/é.jpg",
            "https://images.example/a\n",
            "javascript:alert(1)",
            "data:image/png;base64,AAAA",
            &format!("{longest}a"),
        ] {
            assert_eq!(image_url(wrong), Err(NotAnImageUrl), "{wrong}");
            assert!(!schema.is_valid(&json!(wrong)), "{wrong}");
        }
        assert!(NotAnImageUrl.to_string().ends_with("at most 2000 characters"));
    }

    #[test]
    fn the_pattern_lets_the_same_characters_through() {
        let schema = jsonschema::draft202012::new(&json!({"pattern": IMAGE_URL_PATTERN})).unwrap();
        for character in '\0'..='\u{100}' {
            for text in [
                format!("/{character}"),
                format!("/a{character}"),
                format!("https://a/{character}"),
                format!("https://{character}"),
            ] {
                assert_eq!(schema.is_valid(&json!(text)), image_url(&text).is_ok(), "{text:?}");
            }
        }
    }
}
