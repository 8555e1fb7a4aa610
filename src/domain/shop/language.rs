//! The languages of the pages, and of messages to shoppers: the files of `web/languages`, which `build.rs` lists.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The code of each language, which is the name of its file, and the file. English is first.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/languages.rs"));

static LANGUAGES: LazyLock<Languages> = LazyLock::new(|| Languages::read(FILES));

/// Texts by key. A text with a number may have plural forms instead, by their category in `Intl.PluralRules`.
type Texts = Map<String, Value>;

/// A language as its file describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// Its own name.
    name: String,
    /// Its name in English, for the API and the commands.
    english: String,
    /// The value of `lang` in HTML.
    tag: String,
    /// The tag of numbers and times, for readers whose browser prefers another language.
    form: String,
    /// The form of dates and prices before the page's script runs.
    #[serde(default)]
    first_paint: Texts,
    #[serde(default)]
    shop: Texts,
    /// What only the console says.
    #[serde(default)]
    console: Texts,
}

impl Described {
    /// A text of the first paint. It has no rules of plurals, so the general form stands for all.
    fn text(&self, key: &str) -> Option<&str> {
        match self.first_paint.get(key).or_else(|| self.shop.get(key))? {
            Value::Object(forms) => forms.get("other")?.as_str(),
            text => text.as_str(),
        }
    }
}

/// What readers see of a language where they choose one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'a> {
    pub code: &'a str,
    /// The value of `lang` in HTML.
    pub tag: &'a str,
    /// Its own name.
    pub name: &'a str,
}

struct Languages(Vec<(&'static str, Described)>);

impl Languages {
    /// Takes the files that are valid. A test shows that ours are.
    fn read(files: &[(&'static str, &str)]) -> Self {
        let described = |(code, file): &(&'static str, &str)| Some((*code, serde_json::from_str(file).ok()?));
        Self(files.iter().filter_map(described).collect())
    }

    /// A text that the language lacks is English.
    fn text(&self, place: usize, key: &str) -> &str {
        let own = self.0.get(place);
        let mut tried = own.into_iter().chain(self.0.first());
        tried.find_map(|(_, it)| it.text(key)).unwrap_or_default()
    }

    fn choices(&self) -> Vec<Choice<'_>> {
        let all = self.0.iter();
        all.map(|(code, it)| Choice {
            code,
            tag: &it.tag,
            name: &it.name,
        })
        .collect()
    }

    /// The languages by code, for the scripts of all pages.
    fn of_shop(&self) -> Value {
        let all = self.0.iter();
        let all = all.map(|(code, it)| {
            let language = json!({"name": it.name, "tag": it.tag, "form": it.form, "texts": it.shop});
            ((*code).to_owned(), language)
        });
        Value::Object(all.collect())
    }

    /// The console's texts by code.
    fn of_console(&self) -> Value {
        let all = self.0.iter();
        Value::Object(all.map(|(code, it)| ((*code).to_owned(), json!(it.console))).collect())
    }
}

/// A language, by its place among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Language(usize);

impl Language {
    pub const ENGLISH: Self = Self(0);

    /// All languages, English first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANGUAGES.0.len()).map(Self)
    }

    pub fn of_code(code: &str) -> Option<Self> {
        Self::all().find(|language| language.code() == code)
    }

    /// Its place in `all`.
    pub const fn place(self) -> usize {
        self.0
    }

    /// What readers choose from, English first.
    pub fn choices() -> Vec<Choice<'static>> {
        LANGUAGES.choices()
    }

    pub fn code(self) -> &'static str {
        LANGUAGES.0[self.0].0
    }

    fn described(self) -> &'static Described {
        &LANGUAGES.0[self.0].1
    }

    pub fn english(self) -> &'static str {
        &self.described().english
    }

    /// The value of `lang` in HTML.
    pub fn tag(self) -> &'static str {
        &self.described().tag
    }

    /// The tag of numbers and times.
    pub fn form(self) -> &'static str {
        &self.described().form
    }

    /// The text of a key.
    pub fn say(self, key: &str) -> &'static str {
        LANGUAGES.text(self.0, key)
    }

    /// The text of a key with one `{name}`, filled in.
    pub fn say_with(self, key: &str, name: &str, value: &str) -> String {
        self.say(key).replace(&format!("{{{name}}}"), value)
    }
}

/// The languages with the texts of the shop's pages, as `words.js` has them.
pub fn shop_json() -> String {
    LANGUAGES.of_shop().to_string()
}

/// The further texts of the console, as `console-words.js` has them.
pub fn console_json() -> String {
    LANGUAGES.of_console().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_english_is_first() {
        let read: Vec<_> = Language::all().map(Language::code).collect();
        let files: Vec<_> = FILES.iter().map(|(code, _)| *code).collect();
        assert_eq!(read, files, "a file of web/languages is not valid");
        assert_eq!(Language::of_code("en"), Some(Language::ENGLISH));
        assert_eq!(Language::of_code("xx"), None);
        let chinese = Language::of_code("zh").unwrap();
        assert_eq!(Language::ENGLISH.say("state_open"), "On sale");
        assert_eq!(chinese.say_with("limitNote", "n", "3"), "每人限购 3 件");
    }

    #[test]
    fn a_new_file_is_a_language_and_english_where_it_lacks_a_text() {
        let german = r#"{"name": "Deutsch", "english": "German", "tag": "de", "form": "de-DE",
            "first_paint": {"priceForm": "{amount}\u00a0{sign}"},
            "shop": {"buy": "Kaufen", "left": {"one": "Noch {n} Stück", "other": "Noch {n} Stücke"}}}"#;
        let files = [FILES, &[("xx", german), ("xy", "{}"), ("xz", "no JSON")]].concat();
        let languages = Languages::read(&files);
        assert_eq!(languages.0.len(), FILES.len() + 1);
        let say = |key| languages.text(FILES.len(), key);
        assert_eq!(say("buy"), "Kaufen");
        assert_eq!(say("priceForm"), "{amount}\u{a0}{sign}");
        assert_eq!(say("left"), "Noch {n} Stücke");
        assert_eq!(say("state_open"), "On sale");
        assert_eq!(say("sign_EUR"), "€");
        assert_eq!(say("nothing"), "");
        let offered = Choice {
            code: "xx",
            tag: "de",
            name: "Deutsch",
        };
        assert_eq!(languages.choices().last(), Some(&offered));
        let scripts = languages.of_shop();
        assert_eq!(scripts["xx"]["name"], "Deutsch");
        assert_eq!(scripts["xx"]["texts"]["left"]["one"], "Noch {n} Stück");
        assert_eq!(languages.of_console()["xx"], json!({}));
    }
}
