//! The language of a page as it is served.

use crate::domain::shop::language::Language;
use actix_web::HttpRequest;
use actix_web::http::header::{AcceptLanguage, Header as _};
use maud::html;

/// The first language of the browser decides, as in `language.js`. A choice on the page stays in the browser.
pub fn language_of(request: &HttpRequest) -> Language {
    let wished = AcceptLanguage::parse(request).map(|accepted| accepted.preference());
    let own = wished.ok().and_then(|wished| {
        let code = wished.item()?.primary_language().to_ascii_lowercase();
        Language::of_code(&code)
    });
    own.unwrap_or(Language::ENGLISH)
}

/// A page in a language: the elements with `data-word` get the texts of their words.
pub fn translate(language: Language, page: &str) -> String {
    let page = page.replacen("lang=\"en\"", &format!("lang=\"{}\"", language.tag()), 1);
    let mut parts = page.split("data-word=\"");
    let mut translated = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (tag, rest) = part.split_once('>').unwrap_or((part, ""));
        let (_, rest) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
        let word = tag.split('"').next().unwrap_or_default();
        translated += &format!(
            "data-word=\"{tag}>{}{rest}",
            html! { (language.say(word)) }.into_string()
        );
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    #[test]
    fn the_first_language_of_the_browser_decides() {
        for (header, code) in [
            ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
            ("zh", "zh"),
            ("en-US,en;q=0.9,zh;q=0.8", "en"),
            ("xx-XX,zh;q=0.5", "en"),
            ("*", "en"),
            (";;;", "en"),
        ] {
            let request = TestRequest::default().insert_header(("Accept-Language", header));
            assert_eq!(language_of(&request.to_http_request()).code(), code, "{header}");
        }
        let silent = TestRequest::default().to_http_request();
        assert_eq!(language_of(&silent), Language::ENGLISH);
    }

    #[test]
    fn a_page_is_translated_where_it_names_words() {
        let page = "<html lang=\"en\"><a id=\"all\" data-word=\"allSales\" hidden>All sales</a><b>name</b></html>";
        assert_eq!(
            translate(Language::of_code("zh").unwrap(), page),
            "<html lang=\"zh-CN\"><a id=\"all\" data-word=\"allSales\" hidden>全部活动</a><b>name</b></html>"
        );
    }
}
