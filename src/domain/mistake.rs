//! Mistakes in JSON, in plain words. The texts of serde name types of Rust, and quote in its way.

/// What is wrong with the value of this name, from serde's text about it.
pub fn plain(name: &str, text: &str) -> String {
    let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
    for (start, end) in [
        ("missing field `", "is missing"),
        ("duplicate field `", "is there twice"),
    ] {
        if let Some(field) = text.strip_prefix(start).and_then(|rest| rest.strip_suffix('`')) {
            return format!("{} {end}", inside(name, field));
        }
    }
    let Some((found, expected)) = text.rsplit_once(", expected ") else {
        return format!("{name}: {text}");
    };
    let quoted: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    if let Some(field) = found
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        // The name may be that of the field already.
        let is_named = name == field || name.ends_with(&format!(".{field}"));
        let field = if is_named { name.to_owned() } else { inside(name, field) };
        return format!("{field} is unknown; known are {}", listed(&quoted, "and"));
    }
    if quoted.is_empty() {
        format!("{name} must be {}", kind(expected))
    } else {
        format!("{name} must be {}", listed(&quoted, "or"))
    }
}

fn inside(name: &str, field: &str) -> String {
    if name.is_empty() {
        field.to_owned()
    } else {
        format!("{name}.{field}")
    }
}

/// What serde expected, in the words of JSON.
fn kind(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "string or map" => "a string",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        other => other,
    }
}

/// Words in a row, with this one before the last.
pub fn listed(words: &[&str], last: &str) -> String {
    match words {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [others @ .., end] => format!("{} {last} {end}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Terms {
        limit: Option<u8>,
        change: Option<i64>,
        share: Option<f64>,
        is_on: Option<bool>,
        name: Option<String>,
        kind: Option<Kind>,
        inner: Option<Inner>,
        list: Option<Vec<u8>>,
    }

    #[derive(Deserialize, Debug)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        value: u8,
    }

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        None,
        ProofOfWork,
        Captcha,
    }

    fn of(name: &str, body: &Value) -> String {
        plain(
            name,
            &serde_json::from_value::<Terms>(body.clone()).unwrap_err().to_string(),
        )
    }

    #[test]
    fn no_word_of_the_library_is_left() {
        for (name, value, expected) in [
            ("limit", json!("7"), "limit must be an integer of at least 0"),
            ("limit", json!(-1), "limit must be an integer of at least 0"),
            ("change", json!(1.5), "change must be an integer"),
            ("share", json!(", expected "), "share must be a number"),
            ("is_on", json!("yes"), "is_on must be true or false"),
            ("name", json!([]), "name must be a string"),
            ("kind", json!("pow"), "kind must be none, proof_of_work or captcha"),
            ("kind", json!(1), "kind must be a string"),
            ("inner", json!(7), "inner must be an object"),
            ("inner", json!({}), "inner.value is missing"),
            ("list", json!("7"), "list must be a list"),
        ] {
            assert_eq!(of(name, &json!({ name: value })), expected);
        }
        let known = "is unknown; known are limit, change, share, is_on, name, kind, inner and list";
        let body = json!({"a, expected `b`": 1});
        assert_eq!(of("", &body), format!("a, expected `b` {known}"));
        assert_eq!(of("terms", &json!({"x": 1})), format!("terms.x {known}"));
        assert_eq!(of("terms.x", &json!({"x": 1})), format!("terms.x {known}"));
        assert_eq!(of("x.y", &json!({"x.y": 1})), format!("x.y {known}"));
    }

    #[test]
    fn a_place_in_a_text_is_left_out() {
        let wrong = |text: &str| serde_json::from_str::<Terms>(text).unwrap_err().to_string();
        assert_eq!(plain("is_on", &wrong(r#"{"is_on": 1}"#)), "is_on must be true or false");
        assert_eq!(plain("", &wrong(r#"{"limit": 1, "limit": 1}"#)), "limit is there twice");
    }
}
