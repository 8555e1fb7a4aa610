//! The part of the document that holds for every route. Words in backticks are code.

use crate::http::extract::{BODY_MAX, SALE_BODY_MAX};

/// A heading and its paragraphs.
pub type Chapter = (&'static str, Vec<String>);

/// The chapters in their order.
pub fn chapters() -> Vec<Chapter> {
    let all: [(&str, Vec<String>); 6] = [
        (
            "Authentication",
            texts(&[
                "Shoppers send `Authorization: Bearer` with a token from the shop's own login: a JWT, signed with \
                 HS256 and `FLASHSALE_JWT_SECRET`. Its `sub` is the shopper's id (1 to 128 bytes), and `exp` is \
                 required. Operators send `Authorization: Bearer` with `FLASHSALE_ADMIN_KEY`, or with a \
                 key of their own from `FLASHSALE_OPERATOR_KEYS`: it has a name and a role, and what its role may not \
                 do is refused as `forbidden`. The payment provider signs its messages with `FLASHSALE_WEBHOOK_SECRET`, as in Standard Webhooks.",
            ]),
        ),
        (
            "Format",
            vec![format!(
                "Requests and answers are JSON in UTF-8. Times are RFC 3339; those of answers are in UTC with \
                 milliseconds, except `at` of the live stream: Unix milliseconds. Money is an integer in the \
                 currency's minor unit. Write an integer as `4`, not `4.0` or `4e0`. Ids are UUIDs in lower case. \
                 Unknown fields of a body are refused. A body has at most {BODY_MAX} bytes, or {SALE_BODY_MAX} if it \
                 creates or changes a sale. Answers may get further fields in later versions: ignore those that you \
                 do not know. `HEAD` is answered like `GET`, except for endless streams. Other methods get 405 \
                 `method_not_allowed` with `Allow`."
            )],
        ),
        (
            "Retries",
            texts(&[
                "A purchase and a restock need an `Idempotency-Key`, and a new sale may have one. If no complete \
                 answer comes, or 500, 502, 503 or 504, repeat the request with the same key and the same body. It takes effect once, and each \
                 repetition gets its outcome. The same key with another body is refused. Use a new key for a new \
                 purchase.",
                "429 and 503 say in `Retry-After` how many seconds to wait; then the same request may succeed. Wait a \
                 random part of a second more, to spread retries. Other 4xx answers stay the same until something \
                 changes.",
            ]),
        ),
        (
            "Problems",
            texts(&[
                "Refusals and errors are `application/problem+json` (RFC 9457). Programs use `code`; `detail` explains \
                 the case to people. `type` is the address of the page that explains the code, relative to the address \
                 of the request.",
                "A refused purchase has `\"key_has_order\": false` if its `Idempotency-Key` certainly has no order. \
                 Without that member, an earlier request with the key may have an order: keep the key.",
            ]),
        ),
        (
            "Pagination",
            texts(&[
                "A list has `data` and `has_more`. For the next page, repeat the request with `starting_after` and the \
                 id of the last entry. A route with query parameters refuses unknown ones.",
            ]),
        ),
        (
            "Request ids",
            texts(&[
                "Every answer has `X-Request-Id`. It is the client's own id with `client-` before it, or a new one if \
                 the client sends none.",
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
