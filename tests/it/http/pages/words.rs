//! The words of the pages: the same in all languages, all used, and one for each name of the API.

use super::{assets, pages, root};
use flashsale::domain::code::Code;
use flashsale::domain::guard::Layer;
use flashsale::domain::order::OrderState;
use flashsale::domain::shop::language::Language;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;

/// The texts of a part of each language's file, English first. A text is one line.
fn words(part: &str) -> Vec<(String, Map<String, Value>)> {
    let mut languages = Vec::new();
    for entry in fs::read_dir(root().join("web/languages")).unwrap() {
        let path = entry.unwrap().path();
        let code = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = fs::read_to_string(path).unwrap();
        let all: Value = serde_json::from_str(&file).unwrap_or_else(|error| panic!("{code}.json: {error}"));
        let texts = all[part]
            .as_object()
            .unwrap_or_else(|| panic!("{code}.json has no {part}"));
        for key in texts.keys() {
            let lines = file.matches(&format!("\n        \"{key}\": ")).count();
            assert_eq!(lines, 1, "{code}.json: {key}");
        }
        languages.push((code, texts.clone()));
    }
    languages.sort_by_key(|(code, _)| (code != "en", code.clone()));
    languages
}

/// The forms of a text by their category of plurals.
fn forms(text: &Value) -> Vec<(&str, &str)> {
    match text {
        Value::Object(forms) => forms
            .iter()
            .map(|(name, form)| (name.as_str(), form.as_str().unwrap()))
            .collect(),
        text => vec![("other", text.as_str().unwrap())],
    }
}

/// The form of any number.
fn general<'t>(forms: &[(&str, &'t str)]) -> &'t str {
    forms.iter().find(|(name, _)| *name == "other").unwrap().1
}

/// The fields with a value.
fn holes(text: &str) -> BTreeSet<&str> {
    text.split('{')
        .skip(1)
        .map(|rest| rest.split('}').next().unwrap())
        .collect()
}

#[test]
fn every_language_has_the_texts_of_english_with_the_same_values() {
    for part in ["first_paint", "shop", "console"] {
        let languages = words(part);
        let (_, english) = &languages[0];
        for (code, texts) in &languages {
            let missing: Vec<_> = english.keys().filter(|key| !texts.contains_key(*key)).collect();
            assert!(missing.is_empty(), "{code}.json lacks {missing:?} of {part}");
            let unknown: Vec<_> = texts.keys().filter(|key| !english.contains_key(*key)).collect();
            assert!(unknown.is_empty(), "{code}.json has {unknown:?} beyond English");
            for (key, text) in texts {
                let (forms, english) = (forms(text), forms(&english[key]));
                let wanted = holes(general(&english));
                assert_eq!(holes(general(&forms)), wanted, "{code}.json: {key}");
                for (name, form) in forms {
                    // A form of one number may say it in words.
                    assert!(
                        !form.is_empty() && holes(form).is_subset(&wanted),
                        "{code}.json: {key}: {form}"
                    );
                    let categories = ["zero", "one", "two", "few", "many", "other"];
                    assert!(categories.contains(&name), "{code}.json: {key}: {name}");
                    let is_chinese = form.chars().any(|it| ('\u{4e00}'..='\u{9fff}').contains(&it));
                    let fields = holes(form).into_iter().map(|it| format!("{{{it}}}"));
                    let signs = fields.fold(form.to_owned(), |form, field| form.replace(&field, ""));
                    let is_sign = !signs.chars().any(char::is_alphanumeric);
                    assert!(
                        is_chinese || is_sign || code != "zh" || part == "first_paint",
                        "{key}: {form}"
                    );
                }
            }
        }
    }
    for language in Language::all() {
        // The browser's language is compared with the code, without its region.
        assert_eq!(language.tag().split('-').next(), Some(language.code()));
        assert_eq!(language.form().split('-').next(), Some(language.code()));
        assert_eq!(language.say("months").split(' ').count(), 12, "{}", language.code());
    }
}

#[test]
fn every_text_is_used() {
    let known = all_used(
        "shop",
        |name| !name.starts_with("console"),
        &["state_", "order_", "left_", "problem_"],
        &[],
    );
    let made = [
        "about_", "action_", "actor_", "alert_", "by_", "code_", "did_", "do_", "group_", "layer_", "message_",
        "must_", "ostate_", "outcome_", "payment_", "role_", "sale_", "set_", "span_", "sure_", "tile_", "trouble_",
        "unit_", "verdict_",
    ];
    let of_console = all_used(
        "console",
        |name| name.starts_with("console"),
        &made,
        &[
            "durability",
            "challenge",
            "settled",
            "letters",
            "switch",
            "range",
            "effect",
            "attempts",
            "seen",
        ],
    );
    for word in of_console {
        assert!(
            !known.contains(&word),
            "{word} would be another one on the shop's pages"
        );
    }
}

#[test]
fn the_console_has_words_for_every_guard_and_state_of_an_order() {
    for (language, words) in words("console") {
        let layers = Layer::NAMES.iter().map(|name| format!("layer_{name}"));
        let states = OrderState::ALL.iter().map(|state| format!("ostate_{}", state.as_str()));
        for word in layers.chain(states) {
            assert!(words.contains_key(&word), "{language}: {word}");
        }
    }
}

#[test]
fn every_code_of_the_api_has_words_in_all_languages() {
    let codes: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    for (language, words) in words("shop") {
        let listed = words.keys().filter_map(|word| word.strip_prefix("problem_"));
        let listed: BTreeSet<_> = listed.map(str::to_owned).collect();
        assert_eq!(listed, codes, "{language}");
    }
}

/// Checks a part of the texts against the files that say them. A key that scripts put together begins with one of
/// `made`, or with one of `prefixes` if a field names it. Returns the keys.
fn all_used(part: &str, says_them: impl Fn(&str) -> bool, made: &[&str], prefixes: &[&str]) -> BTreeSet<String> {
    let own: BTreeSet<String> = words(part)[0].1.keys().cloned().collect();
    assert!(own.len() > 80);
    let files = assets().into_iter().chain(pages());
    let files = files.filter(|(name, _)| says_them(name)).map(|(_, text)| text);
    // The server writes the first paint of the shop's pages.
    let paint = std::fs::read_dir(root().join("src/http/pages/paint")).unwrap();
    let paint = paint.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let all: String = files.chain(paint).collect();
    for word in &own {
        let is_named = [format!("'{word}'"), format!("data-word=\"{word}\"")]
            .iter()
            .any(|it| all.contains(it));
        let is_made = made
            .iter()
            .any(|start| word.starts_with(start) && all.contains(&format!("`{start}${{")));
        let has_prefix = prefixes
            .iter()
            .any(|prefix| word.starts_with(&format!("{prefix}_")) && all.contains(&format!("prefix: '{prefix}'")));
        assert!(is_named || is_made || has_prefix, "nobody says {word}");
    }
    let mut known = own.clone();
    if part != "shop" {
        known.extend(words("shop")[0].1.keys().cloned());
    }
    let starts = ["say('", "data-word=\"", "wantSignIn('", "why = '"];
    let fields = ["label: '", " on: '", "caption: '", "empty: '", "title: '"];
    for start in starts.into_iter().chain(fields) {
        for rest in all.split(start).skip(1) {
            let word = rest.split(['\'', '"']).next().unwrap();
            assert!(word.is_empty() || known.contains(word), "there is no {word}");
        }
    }
    own
}
