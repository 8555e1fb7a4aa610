//! The languages of the shoppers' pages. Their texts are those of `web/shared/words.js`, which the pages' scripts use, too.

use actix_web::HttpRequest;
use actix_web::http::header::{AcceptLanguage, Header as _};
use maud::html;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const TEXTS: &str = include_str!("../../../web/shared/words.js");

type Words = BTreeMap<&'static str, &'static str>;

static ENGLISH: LazyLock<Words> = LazyLock::new(|| words_of("en"));
static CHINESE: LazyLock<Words> = LazyLock::new(|| words_of("zh"));

/// The words of a language: one a line, in single quotes.
fn words_of(language: &str) -> Words {
    let start = format!("    {language}: {{\n");
    let rest = TEXTS.split_once(start.as_str()).map_or("", |(_, rest)| rest);
    let lines = rest.lines().take_while(|line| *line != "    },");
    lines
        .filter_map(|line| line.trim().strip_suffix("',")?.split_once(": '"))
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    English,
    Chinese,
}

impl Language {
    /// The first language of the browser decides, as in `language.js`. A choice on the page stays in the browser.
    #[must_use]
    pub fn of(request: &HttpRequest) -> Self {
        let wished = AcceptLanguage::parse(request).map(|accepted| accepted.preference());
        let is_chinese = wished.is_ok_and(|wished| {
            let tag = wished.item();
            tag.is_some_and(|tag| tag.primary_language().eq_ignore_ascii_case("zh"))
        });
        if is_chinese { Self::Chinese } else { Self::English }
    }

    /// The value of `lang` in HTML.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-CN",
        }
    }

    /// The text of a word.
    #[must_use]
    pub fn say(self, word: &str) -> &'static str {
        let words = match self {
            Self::English => &ENGLISH,
            Self::Chinese => &CHINESE,
        };
        words.get(word).copied().unwrap_or_default()
    }

    /// The text of a word with one `{name}`, filled in.
    #[must_use]
    pub fn say_with(self, word: &str, name: &str, value: &str) -> String {
        self.say(word).replace(&format!("{{{name}}}"), value)
    }

    /// A page in this language: the elements with `data-word` get the texts of their words.
    #[must_use]
    pub fn translate(self, page: &str) -> String {
        let page = page.replacen("lang=\"en\"", &format!("lang=\"{}\"", self.tag()), 1);
        let mut parts = page.split("data-word=\"");
        let mut translated = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (tag, rest) = part.split_once('>').unwrap_or((part, ""));
            let (_, rest) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
            let word = tag.split('"').next().unwrap_or_default();
            translated += &format!("data-word=\"{tag}>{}{rest}", html! { (self.say(word)) }.into_string());
        }
        translated
    }
}

#[cfg(test)]
mod tests {
    use super::{CHINESE, ENGLISH, Language};
    use actix_web::test::TestRequest;

    #[test]
    fn the_words_of_the_scripts_are_the_servers() {
        assert!(ENGLISH.len() > 80 && ENGLISH.keys().eq(CHINESE.keys()));
        assert_eq!(Language::English.say("state_open"), "On sale");
        assert_eq!(Language::Chinese.say_with("limitNote", "n", "3"), "每人限购 3 件");
    }

    #[test]
    fn the_first_language_of_the_browser_decides() {
        for (header, language) in [
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("zh", Language::Chinese),
            ("en-US,en;q=0.9,zh;q=0.8", Language::English),
            ("de-DE,zh;q=0.5", Language::English),
            ("*", Language::English),
            (";;;", Language::English),
        ] {
            let request = TestRequest::default().insert_header(("Accept-Language", header));
            assert_eq!(Language::of(&request.to_http_request()), language, "{header}");
        }
        assert_eq!(
            Language::of(&TestRequest::default().to_http_request()),
            Language::English
        );
    }

    #[test]
    fn a_page_is_translated_where_it_names_words() {
        let page = "<html lang=\"en\"><a id=\"all\" data-word=\"allSales\" hidden>All sales</a><b>name</b></html>";
        assert_eq!(
            Language::Chinese.translate(page),
            "<html lang=\"zh-CN\"><a id=\"all\" data-word=\"allSales\" hidden>全部活动</a><b>name</b></html>"
        );
    }
}
