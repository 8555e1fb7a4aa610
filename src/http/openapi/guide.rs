//! What holds for every route. Words in backticks are code.

use crate::http::extract::{BODY_MAX, SALE_BODY_MAX};

/// A heading and what is under it.
pub type Chapter = (&'static str, Vec<String>);

/// The chapters, in the order that they are read in.
pub fn chapters() -> Vec<Chapter> {
    let all: [(&str, Vec<String>); 6] = [
        (
            "Who asks",
            texts(&[
                "Shoppers send `Authorization: Bearer` and a token that the shop's own login has signed: a JWT, HS256 \
                 with `FLASHSALE_JWT_SECRET`, whose `sub` is the shopper's id (1 to 128 bytes) and which has an `exp`. \
                 Operators send their key, `FLASHSALE_ADMIN_KEY`, likewise. The payment provider signs what it sends, as \
                 in Standard Webhooks, with `FLASHSALE_WEBHOOK_SECRET`.",
            ]),
        ),
        (
            "What is sent",
            vec![format!(
                "JSON in UTF-8. Times are RFC 3339, answered in UTC with milliseconds. Money is an integer in the \
                 currency's minor unit. An integer is written as one: `4`, not `4.0` or `4e0`. Ids are UUIDs in lower case. Unknown members of a body are refused, and so is \
                 a body of more than {BODY_MAX} bytes, or {SALE_BODY_MAX} where an operator creates or changes a sale. Answers may get further members: pass over those that you do not \
                 know. `HEAD` is answered wherever `GET` is, save for an endless stream; another method is answered 405 \
                 `method_not_allowed` with `Allow`."
            )],
        ),
        (
            "Trying again",
            texts(&[
                "A purchase and a restock have an `Idempotency-Key`. When no answer comes, or a 503, repeat the request \
                 with the same key and the same body: it is done once, and every repetition is told what came of it. The \
                 same key with another body is refused. Use a new key for a new wish.",
                "429 and 503 say in `Retry-After` how many seconds to wait; after that the same request may succeed. \
                 Spread retries: wait a random part of a second more. Other 4xx answers stay as they are until something \
                 changes.",
            ]),
        ),
        (
            "Problems",
            texts(&[
                "An answer that says no is `application/problem+json` (RFC 9457). Programs go by `code`; `detail` says \
                 to people what is wrong in this case. `type` is a reference to the page that explains the code, \
                 relative to the address that was asked.",
                "A refused purchase carries `\"key_has_order\": false` where it is certain that its `Idempotency-Key` has no \
                 order. Without that member an earlier request with the key may have one: keep the key.",
            ]),
        ),
        (
            "Pages of lists",
            texts(&[
                "A list has `data` and `has_more`. For what follows, ask again with `starting_after` and the id of the \
                 last one. A parameter that a route does not name here, where it takes any, is refused.",
            ]),
        ),
        (
            "Finding a request again",
            texts(&[
                "Every answer has `X-Request-Id`: the client's own with `client-` before it if it sends one, else a new one.",
            ]),
        ),
    ];
    all.into()
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// The chapters as one text in CommonMark.
pub fn markdown() -> String {
    let chapters = chapters();
    let texts = chapters
        .iter()
        .map(|(heading, texts)| format!("## {heading}\n\n{}", texts.join("\n\n")));
    texts.collect::<Vec<_>>().join("\n\n")
}
