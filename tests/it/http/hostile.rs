//! Hostile requests, byte for byte: each has one right answer, none a 5xx, and afterwards the instance still answers and
//! every unit is accounted for.

use crate::support::app::{
    ADMIN_KEY, JWT_SECRET, TestApp, Who, payment_body, sale, sale_with, token, token_of, webhook_key,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::Utc;
use flashsale::domain::order::webhook::sign;
use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BODY_MAX: usize = 16 * 1024;
const BAD: (u16, &str) = (400, "invalid_request");
const NOT_FOUND: (u16, &str) = (404, "not_found");
const UNAUTHENTICATED: (u16, &str) = (401, "unauthenticated");
const TOO_LARGE: (u16, &str) = (413, "payload_too_large");
const BOUGHT: (u16, &str) = (201, "");
/// Refused by the HTTP parser, before there is a request that a handler could answer.
const NO_REQUEST: (u16, &str) = (400, "");

/// A request, written out.
#[derive(Clone)]
struct Raw {
    line: Vec<u8>,
    headers: Vec<Vec<u8>>,
    body: Vec<u8>,
}

impl Raw {
    fn new(line: impl AsRef<[u8]>) -> Self {
        Self {
            line: line.as_ref().to_vec(),
            headers: vec![b"Host: x".to_vec(), b"Connection: close".to_vec()],
            body: Vec::new(),
        }
    }

    fn header(mut self, header: impl AsRef<[u8]>) -> Self {
        self.headers.push(header.as_ref().to_vec());
        self
    }

    fn bearer(self, token: &str) -> Self {
        self.header(format!("Authorization: Bearer {token}"))
    }

    /// A JSON body with its length.
    fn json(self, body: impl AsRef<[u8]>) -> Self {
        self.header("Content-Type: application/json").body(body)
    }

    fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        let length = format!("Content-Length: {}", self.body.len());
        self.header(length)
    }

    /// A body in chunks of this size.
    fn chunked(mut self, body: &[u8], size: usize) -> Self {
        for chunk in body.chunks(size) {
            self.body.extend(format!("{:x}\r\n", chunk.len()).bytes());
            self.body.extend(chunk);
            self.body.extend(b"\r\n");
        }
        self.body.extend(b"0\r\n\r\n");
        self.header("Transfer-Encoding: chunked")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.line.clone();
        bytes.extend(b" HTTP/1.1\r\n");
        for header in &self.headers {
            bytes.extend(header);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }
}

/// The reply to a request.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Sends bytes and reads the reply until the server closes the connection.
async fn exchange(app: &TestApp, bytes: &[u8]) -> Reply {
    let talk = async {
        let mut stream = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
        // The server may have answered and closed before everything is sent.
        let _sent = stream.write_all(bytes).await;
        let mut reply = Vec::new();
        let mut part = [0; 4096];
        // A reset after the answer is an end like any other.
        while let Ok(length @ 1..) = stream.read(&mut part).await {
            reply.extend(&part[..length]);
        }
        reply
    };
    let reply = tokio::time::timeout(Duration::from_secs(4), talk)
        .await
        .unwrap_or_default();
    let reply = String::from_utf8(reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    Reply {
        status: head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

/// Sends each case and lists those with a wrong answer.
async fn check(app: &TestApp, cases: Vec<(String, Raw, (u16, &str))>) -> usize {
    let mut wrong = Vec::new();
    let mut bought = 0;
    let number = cases.len();
    for (name, request, expected) in cases {
        let reply = exchange(app, &request.bytes()).await;
        let body = reply.json();
        let code = body["code"].as_str().unwrap_or_default();
        let is_problem = reply.head.contains("content-type: application/problem+json")
            && reply.head.contains("x-request-id: ")
            && body["status"] == reply.status;
        let is_one = is_problem || reply.status < 400 || expected == NO_REQUEST;
        if (reply.status, code) != expected || !is_one {
            wrong.push(format!("{name}: expected {expected:?}, got {reply:?}"));
        }
        bought += usize::from(reply.status == 201);
    }
    assert!(
        wrong.is_empty(),
        "{} of {number} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    bought
}

/// A sale with plenty, and a purchase in it that only lacks key and body.
async fn hostile_sale(app: &TestApp) -> (String, Raw) {
    let plenty = json!({"stock": 1000, "per_user_limit": 1000, "purchase_rate": {"limit": 1000, "window_ms": 1}});
    let id = app.load_sale(&sale_with(&plenty)).await;
    let purchase = Raw::new(format!("POST /v1/sales/{id}/orders")).bearer(&token("mallory"));
    (id, purchase)
}

/// The instance answers, no unit is lost, and exactly these were bought, one by one.
async fn is_unharmed(app: &TestApp, sale: &str, bought: usize) {
    let bought = i64::try_from(bought).unwrap();
    app.get(Who::Nobody, "/readyz").await.ok(200);
    app.wait_for_units(sale, [1000 - bought, bought, 0]).await;
    let orders = app.orders("mallory", sale).await.ok(200).body;
    assert_eq!(i64::try_from(orders["data"].as_array().unwrap().len()).unwrap(), bought);
    app.buy("friend", sale, "k", 1).await.ok(201);
    app.assert_balanced(sale).await;
}

/// A purchase of one phone with spaces up to this length.
fn padded(length: usize) -> Vec<u8> {
    let mut body = br#"{"sku":"phone","quantity":1}"#.to_vec();
    body.resize(length, b' ');
    body
}

#[tokio::test]
async fn hostile_bodies_are_refused_one_by_one() {
    let app = TestApp::start().await;
    let (id, purchase) = hostile_sale(&app).await;
    let mut cases: Vec<(String, Raw, (u16, &str))> = Vec::new();
    let mut number = 0;
    let mut case = |name: &str, request: Raw, expected| {
        number += 1;
        let request = request.header(format!("Idempotency-Key: body-{number}"));
        cases.push((name.to_owned(), request, expected));
    };
    let bodies: [&[u8]; 33] = [
        b"",
        b" ",
        b"{",
        b"}",
        b"null",
        b"true",
        b"1",
        b"\"phone\"",
        b"[]",
        b"[\"phone\",1",
        b"{}",
        br#"{"sku":"phone"}"#,
        br#"{"quantity":1}"#,
        br#"{"sku":"phone","quantity":1}x"#,
        br#"{"sku":"phone","quantity":1}{"sku":"phone","quantity":1}"#,
        br#"{"sku":"phone","quantity":1,}"#,
        br#"{"sku":"phone","quantity":1]"#,
        br#"{'sku':'phone','quantity':1}"#,
        br#"{sku:"phone",quantity:1}"#,
        br#"{"sku":"phone",/**/"quantity":1}"#,
        br#"{"sku":"phone","sku":"phone","quantity":1}"#,
        br#"{"sku":"phone","quantity":1,"quantity":1}"#,
        br#"{"sku":"phone","quantity":1,"price_minor":0}"#,
        br#"{"sku":"phone","quantity":1,"__proto__":{}}"#,
        br#"{"Sku":"phone","Quantity":1}"#,
        b"{\"sku\":\"\xff\",\"quantity\":1}",
        b"{\"sku\":\"\xc0\xae\",\"quantity\":1}",
        b"\xef\xbb\xbf{\"sku\":\"phone\",\"quantity\":1}",
        b"\xff\xfe{\0\"\0",
        b"{\"sku\":\"phone\",\"quantity\":1}\0",
        b"sku=phone&quantity=1",
        br#"{"sku":"\ud800","quantity":1}"#,
        br#"{"sku":"phone\u0000","quantity":1}"#,
    ];
    for body in bodies {
        case(&String::from_utf8_lossy(body), purchase.clone().json(body), BAD);
    }
    for quantity in [
        "1.0",
        "1.5",
        "1e0",
        "1e400",
        "NaN",
        "Infinity",
        "-1",
        "0",
        "-0",
        "01",
        "+1",
        "0x1",
        "1_0",
        "\"1\"",
        "null",
        "[1]",
        "{}",
        "true",
        "100001",
        "2147483648",
        "4294967297",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551617",
        "-9223372036854775809",
    ] {
        let body = format!(r#"{{"sku":"phone","quantity":{quantity}}}"#);
        case(quantity, purchase.clone().json(body), BAD);
    }
    case(
        "the largest quantity",
        purchase.clone().json(br#"{"sku":"phone","quantity":100000}"#),
        (409, "purchase_limit_reached"),
    );
    let longest = format!("\"{}\"", "s".repeat(64));
    let longer = format!("\"{}\"", "s".repeat(65));
    for (sku, expected) in [
        ("\"\"", BAD),
        ("\":shard\"", BAD),
        ("\"{x}\"", BAD),
        ("\"phone \"", BAD),
        ("\"phone\\n\"", BAD),
        ("\"phоne\"", BAD),
        ("\"ｐhone\"", BAD),
        ("\"🦀\"", BAD),
        ("\"../phone\"", BAD),
        ("\"phone' or '1'='1\"", BAD),
        (&longer, BAD),
        ("1", BAD),
        ("null", BAD),
        ("[\"phone\"]", BAD),
        ("{}", BAD),
        (&longest, NOT_FOUND),
        ("\"PHONE\"", NOT_FOUND),
        ("\"..\"", NOT_FOUND),
        ("\"w\"", NOT_FOUND),
        ("\"b\"", NOT_FOUND),
        ("\"__proto__\"", NOT_FOUND),
        ("\"\\u0070hone\"", BOUGHT),
    ] {
        let body = format!(r#"{{"sku":{sku},"quantity":1}}"#);
        case(sku, purchase.clone().json(body), expected);
    }
    case("deep array", purchase.clone().json("[".repeat(8000)), BAD);
    case("deep object", purchase.clone().json("{\"a\":".repeat(3000)), BAD);
    let deep = format!("{{\"sku\":{}1{},\"quantity\":1}}", "[".repeat(2000), "]".repeat(2000));
    case("deep sku", purchase.clone().json(deep), BAD);
    case("16 KiB", purchase.clone().json(padded(BODY_MAX)), BOUGHT);
    case("16 KiB and one", purchase.clone().json(padded(BODY_MAX + 1)), TOO_LARGE);
    case("1 MiB", purchase.clone().json(padded(1024 * 1024)), TOO_LARGE);
    case("chunks", purchase.clone().chunked(&padded(BODY_MAX), 100), BOUGHT);
    case(
        "too many chunks",
        purchase.clone().chunked(&padded(BODY_MAX + 1), 100),
        TOO_LARGE,
    );
    case(
        "one large chunk",
        purchase.clone().chunked(&padded(200_000), 200_000),
        TOO_LARGE,
    );
    for length in ["16385", "99999999999", "9223372036854775807", "18446744073709551615"] {
        let announced = purchase.clone().header(format!("Content-Length: {length}"));
        case(&format!("{length} bytes announced"), announced, TOO_LARGE);
    }
    for (content_type, expected) in [
        ("text/plain", BAD),
        ("application/x-www-form-urlencoded", BAD),
        ("multipart/form-data; boundary=x", BAD),
        ("application/jsonx", BAD),
        ("application/problem+json", BAD),
        ("application", BAD),
        ("*/*", BAD),
        ("Application/JSON", BOUGHT),
        ("application/json; charset=utf-8", BOUGHT),
        ("application/json;", BOUGHT),
    ] {
        let request = purchase
            .clone()
            .header(format!("Content-Type: {content_type}"))
            .body(padded(100));
        case(content_type, request, expected);
    }
    let twice = purchase.clone().header("Content-Type: text/plain");
    case("two content types", twice.json(padded(100)), BAD);
    case("no content type", purchase.clone().body(padded(100)), BOUGHT);
    assert!(cases.len() >= 60);
    let bought = check(&app, cases).await;
    assert_eq!(bought, 7);
    is_unharmed(&app, &id, bought).await;
}

#[tokio::test]
async fn hostile_headers_and_requests_that_are_none_reserve_nothing() {
    let app = TestApp::start().await;
    let (id, purchase) = hostile_sale(&app).await;
    let good = purchase.json(padded(100));
    let key = |key: &[u8]| good.clone().header([b"Idempotency-Key: ", key].concat());
    let mut cases: Vec<(String, Raw, (u16, &str))> = vec![
        ("no key".into(), good.clone(), (400, "idempotency_key_missing")),
        ("empty key".into(), key(b""), BAD),
        ("blank key".into(), key(b"   "), BAD),
        ("long key".into(), key(&[b'k'; 65]), BAD),
        ("longest key".into(), key(&[b'k'; 64]), BOUGHT),
        ("very long key".into(), key(&[b'k'; 20_000]), BAD),
        ("non-ASCII key".into(), key("é".as_bytes()), BAD),
        ("Latin-1 key".into(), key(b"\xe9"), BAD),
        ("key with a tab".into(), key(b"a\tb"), BAD),
        ("key with a space".into(), key(b"a b"), BOUGHT),
        ("key like a key in Redis".into(), key(b"{x}:shard"), BOUGHT),
        ("key with quotes".into(), key(b"\"'\\"), BOUGHT),
        ("two keys".into(), key(b"a").header("Idempotency-Key: b"), BAD),
        ("one key twice".into(), key(b"a").header("idempotency-key: a"), BAD),
        ("key with DEL".into(), key(b"a\x7fb"), NO_REQUEST),
        ("key with NUL".into(), key(b"a\0b"), NO_REQUEST),
        ("key with a control character".into(), key(b"a\x01b"), NO_REQUEST),
        ("key with a CR".into(), key(b"a\rb"), NO_REQUEST),
        ("folded key".into(), key(b"a\r\n b"), NO_REQUEST),
        ("header without colon".into(), key(b"h1").header("nonsense"), NO_REQUEST),
        ("header with a space".into(), key(b"h2").header("X : y"), NO_REQUEST),
        ("empty header name".into(), key(b"h3").header(": y"), NO_REQUEST),
        ("two lengths".into(), key(b"h4").header("Content-Length: 1"), NO_REQUEST),
        (
            "a length and chunks".into(),
            key(b"h5").header("Transfer-Encoding: chunked"),
            NO_REQUEST,
        ),
        (
            "negative length".into(),
            Raw::new(&good.line).header("Content-Length: -1"),
            NO_REQUEST,
        ),
        (
            "length in words".into(),
            Raw::new(&good.line).header("Content-Length: ten"),
            NO_REQUEST,
        ),
        (
            "length with a sign".into(),
            Raw::new(&good.line).header("Content-Length: +5"),
            NO_REQUEST,
        ),
        (
            "length over 64 bits".into(),
            Raw::new(&good.line).header("Content-Length: 99999999999999999999999"),
            NO_REQUEST,
        ),
    ];
    for (name, body) in [("wrong chunk", "zz\r\n"), ("endless chunk", "fffffffffffffffffff\r\n")] {
        let mut request = Raw::new(&good.line)
            .bearer(&token("mallory"))
            .header("Idempotency-Key: chunk")
            .header("Transfer-Encoding: chunked");
        request.body = body.as_bytes().to_vec();
        cases.push((name.into(), request, BAD));
    }
    let path = String::from_utf8(good.line.clone()).unwrap().replace("POST ", "");
    for line in [
        "".to_owned(),
        "POST".to_owned(),
        format!("POST  {path}"),
        format!("PO\0ST {path}"),
        format!("POST {path}\0"),
        format!("POST {path} extra"),
        "\u{16}\u{3}\u{1}".to_owned(),
    ] {
        let mut request = key(b"line");
        request.line = line.clone().into_bytes();
        cases.push((format!("{line:?}"), request, NO_REQUEST));
    }
    let bought = check(&app, cases).await;
    assert_eq!(bought, 4);
    // A truncated body buys nothing, nor does a request that never ends.
    let whole = key(b"cut").bytes();
    for end in [10, whole.len() - 150, whole.len() - 50, whole.len() - 1] {
        let mut stream = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(&whole[..end]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut reply = Vec::new();
        let _closed = stream.read_to_end(&mut reply).await;
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400"), "{end}: {reply}");
    }
    is_unharmed(&app, &id, bought).await;
}

#[tokio::test]
async fn hostile_paths_and_methods_find_nothing() {
    let app = TestApp::start().await;
    let (id, _) = hostile_sale(&app).await;
    let order = app.buy("mallory", &id, "k", 1).await.ok(201).id();
    let other = app.load_sale(&sale()).await;
    let friends = app.buy("friend", &other, "k", 1).await.ok(201).id();
    let mut cases: Vec<(String, Raw, (u16, &str))> = Vec::new();
    let mut get = |path: &str, expected| {
        let request = Raw::new(format!("GET {path}")).bearer(&token("mallory"));
        cases.push((path.chars().take(200).collect(), request, expected));
    };
    let simple = order.replace('-', "");
    for (name, expected) in [
        (order.clone(), (200, "")),
        // A UUID is read in either case and written in lower case.
        (order.to_uppercase(), (200, "")),
        (friends.clone(), NOT_FOUND),
        (id.clone(), NOT_FOUND),
        (format!("{{{order}}}"), NOT_FOUND),
        (format!("%7B{order}%7D"), NOT_FOUND),
        (format!("urn:uuid:{order}"), NOT_FOUND),
        (simple, NOT_FOUND),
        (order[..35].to_owned(), NOT_FOUND),
        (format!("{order}0"), NOT_FOUND),
        (format!("{order}%00"), NOT_FOUND),
        (format!("{order}%20"), NOT_FOUND),
        (format!("{order}%0d%0aSet-Cookie:%20x"), NOT_FOUND),
        (format!("{order}/"), NOT_FOUND),
        (format!("{order}/paid"), NOT_FOUND),
        (format!("{order};x=1"), NOT_FOUND),
        ("%00".to_owned(), NOT_FOUND),
        ("%".to_owned(), NOT_FOUND),
        ("%zz".to_owned(), NOT_FOUND),
        ("%ff%fe".to_owned(), NOT_FOUND),
        ("%2e%2e%2fsales".to_owned(), NOT_FOUND),
        ("..%2F..%2Fadmin%2Fsales".to_owned(), NOT_FOUND),
        ("null".to_owned(), NOT_FOUND),
        ("-1".to_owned(), NOT_FOUND),
        ("00000000-0000-0000-0000-000000000000".to_owned(), NOT_FOUND),
        ("ffffffff-ffff-ffff-ffff-ffffffffffff".to_owned(), NOT_FOUND),
        ("*".to_owned(), NOT_FOUND),
        ("a".repeat(8_000), NOT_FOUND),
    ] {
        get(&format!("/v1/orders/{name}"), expected);
    }
    for path in [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v2/sales",
        "/V1/sales",
        "//v1/sales",
        "/v1//sales",
        "/v1/sales/",
        "/v1/sales/../sales",
        "/v1/orders/../admin/sales",
        "/v1/admin",
        "/v1/admin/",
        "/v1/admin/nothing",
        "/.env",
        "/.git/config",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/metrics/",
        "/healthz%00",
        "/wp-login.php",
    ] {
        get(path, NOT_FOUND);
    }
    for (query, expected) in [
        ("", BAD),
        ("?sale_id=", BAD),
        ("?sale_id=x", BAD),
        ("?sale_id[]=x", BAD),
        ("?sale_id=%00", BAD),
        ("?sale_id=%ff", BAD),
        ("?&&&===", BAD),
        (&format!("?sale_id={id}%00"), BAD),
        (&format!("?sale_id={{{id}}}"), BAD),
        (&format!("?sale_id={id}&sale_id={id}"), BAD),
        (&format!("?sale_id={}", uuid::Uuid::new_v4()), NOT_FOUND),
        (&format!("?sale_id={id}&x={}", "y".repeat(4_000)), BAD),
        (&format!("?sale_id={id}"), (200, "")),
    ] {
        get(&format!("/v1/orders{query}"), expected);
    }
    for (query, expected) in [
        ("?limit=x", BAD),
        ("?limit=-1", BAD),
        ("?limit=99999999999", BAD),
        ("?starting_after=x", BAD),
        ("?limit=0", BAD),
        ("?limit=1", (200, "")),
        ("?limit=100", (200, "")),
        ("?limit=101", BAD),
        ("?limit=1&limit=1", BAD),
        ("?x=%00", BAD),
        ("?", (200, "")),
    ] {
        get(&format!("/v1/sales{query}"), expected);
    }
    for (method, path) in [
        ("PUT", "/v1/sales".to_owned()),
        ("DELETE", "/v1/sales".to_owned()),
        ("POST", "/v1/sales".to_owned()),
        ("PATCH", format!("/v1/sales/{id}")),
        ("OPTIONS", format!("/v1/sales/{id}")),
        ("TRACE", format!("/v1/sales/{id}")),
        ("BREW", format!("/v1/sales/{id}")),
        ("get", format!("/v1/sales/{id}")),
        ("GET", format!("/v1/sales/{id}/orders")),
        ("DELETE", format!("/v1/orders/{order}")),
        ("PUT", format!("/v1/orders/{order}")),
        ("GET", format!("/v1/orders/{order}/cancel")),
        ("POST", format!("/v1/orders/{order}")),
        ("GET", "/v1/webhooks/payments".to_owned()),
        ("GET", format!("/v1/admin/sales/{id}/close")),
        ("POST", format!("/v1/admin/sales/{id}")),
        ("POST", format!("/v1/admin/sales/{id}/stats")),
        ("POST", "/metrics".to_owned()),
        ("POST", "/healthz".to_owned()),
    ] {
        let request = Raw::new(format!("{method} {path}")).bearer(ADMIN_KEY);
        cases.push((format!("{method} {path}"), request, (405, "method_not_allowed")));
    }
    assert!(cases.len() >= 60);
    check(&app, cases).await;
    let line = format!("POST /v1/orders/{friends}/cancel");
    let theirs = vec![(line.clone(), Raw::new(line).bearer(&token("mallory")), NOT_FOUND)];
    check(&app, theirs).await;
    assert_eq!(app.units(&other).await, [9, 1, 0]);
    is_unharmed(&app, &id, 1).await;
}

#[tokio::test]
async fn hostile_tokens_are_nobodys() {
    let app = TestApp::start().await;
    let (id, _) = hostile_sale(&app).await;
    let later = Utc::now().timestamp() + 3600;
    let hs256 = Header::new(Algorithm::HS256);
    let signed = |claims: Value| token_of(&hs256, JWT_SECRET, &claims);
    let good = signed(json!({"sub": "mallory", "exp": later}));
    let parts: Vec<&str> = good.split('.').collect();
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = |text: &str| format!("{}.{}.{}", parts[0], encode(text), parts[2]);
    let header = |text: &str| format!("{}.{}.{}", encode(text), parts[1], parts[2]);
    let none = encode(r#"{"alg":"none","typ":"JWT"}"#);
    let tokens = [
        ("nothing", String::new()),
        ("a word", "mallory".into()),
        ("two dots", "..".into()),
        ("no algorithm", format!("{none}.{}.", parts[1])),
        ("no algorithm, signed", format!("{none}.{}.{}", parts[1], parts[2])),
        ("No algorithm", header(r#"{"alg":"None"}"#)),
        (
            "HS512",
            token_of(
                &Header::new(Algorithm::HS512),
                JWT_SECRET,
                &json!({"sub": "mallory", "exp": later}),
            ),
        ),
        (
            "HS384",
            token_of(
                &Header::new(Algorithm::HS384),
                JWT_SECRET,
                &json!({"sub": "mallory", "exp": later}),
            ),
        ),
        ("RS256 header", header(r#"{"alg":"RS256","typ":"JWT"}"#)),
        ("unknown algorithm", header(r#"{"alg":"HS257"}"#)),
        ("algorithm twice", header(r#"{"alg":"HS256","alg":"none"}"#)),
        ("header is no object", header("[]")),
        (
            "another secret",
            token_of(
                &hs256,
                "another-secret-0123456789abcdef-0123",
                &json!({"sub": "mallory", "exp": later}),
            ),
        ),
        (
            "empty secret",
            token_of(&hs256, "", &json!({"sub": "mallory", "exp": later})),
        ),
        (
            "another shopper",
            claims(&format!(r#"{{"sub":"victim","exp":{later}}}"#)),
        ),
        (
            "a longer lifetime",
            claims(&format!(r#"{{"sub":"mallory","exp":{}}}"#, later + 1)),
        ),
        ("claims are no object", claims("[]")),
        ("expired", signed(json!({"sub": "mallory", "exp": later - 7200}))),
        (
            "just expired",
            signed(json!({"sub": "mallory", "exp": Utc::now().timestamp() - 1})),
        ),
        ("no end", signed(json!({"sub": "mallory"}))),
        ("end in words", signed(json!({"sub": "mallory", "exp": "tomorrow"}))),
        (
            "end as text",
            signed(json!({"sub": "mallory", "exp": later.to_string()})),
        ),
        ("no end at all", signed(json!({"sub": "mallory", "exp": null}))),
        ("end before time", signed(json!({"sub": "mallory", "exp": -1}))),
        (
            "not yet",
            signed(json!({"sub": "mallory", "exp": later, "nbf": later - 60})),
        ),
        (
            "for another service",
            signed(json!({"sub": "mallory", "exp": later, "aud": "refunds"})),
        ),
        (
            "for other services",
            signed(json!({"sub": "mallory", "exp": later, "aud": ["refunds", "mail"]})),
        ),
        ("no shopper", signed(json!({"exp": later}))),
        ("empty shopper", signed(json!({"sub": "", "exp": later}))),
        ("129 bytes", signed(json!({"sub": "u".repeat(129), "exp": later}))),
        (
            "65 letters of two bytes",
            signed(json!({"sub": "é".repeat(65), "exp": later})),
        ),
        ("NUL", signed(json!({"sub": "mall\0ory", "exp": later}))),
        ("a number", signed(json!({"sub": 1, "exp": later}))),
        ("nobody", signed(json!({"sub": null, "exp": later}))),
        ("several", signed(json!({"sub": ["mallory"], "exp": later}))),
        (
            "a large token",
            signed(json!({"sub": "u".repeat(40_000), "exp": later})),
        ),
        ("cut", good[..good.len() - 2].to_owned()),
        ("without signature", format!("{}.{}.", parts[0], parts[1])),
        ("four parts", format!("{good}.x")),
        ("the operators' key", ADMIN_KEY.to_owned()),
    ];
    let mut cases: Vec<(String, Raw, (u16, &str))> = Vec::new();
    for (number, (name, token)) in tokens.into_iter().enumerate() {
        let purchase = Raw::new(format!("POST /v1/sales/{id}/orders"))
            .bearer(&token)
            .header(format!("Idempotency-Key: token-{number}"))
            .json(padded(100));
        cases.push((name.to_owned(), purchase, UNAUTHENTICATED));
        let list = Raw::new(format!("GET /v1/orders?sale_id={id}")).bearer(&token);
        cases.push((format!("{name}, reading"), list, UNAUTHENTICATED));
    }
    let list = Raw::new(format!("GET /v1/orders?sale_id={id}"));
    for (value, expected) in [
        (format!("Basic {good}"), UNAUTHENTICATED),
        (good.clone(), UNAUTHENTICATED),
        (format!("Bearer{good}"), UNAUTHENTICATED),
        (format!("Bearer {good} {good}"), UNAUTHENTICATED),
        (format!("Bearer {good}, Bearer {good}"), UNAUTHENTICATED),
        ("Bearer é".to_owned(), UNAUTHENTICATED),
        (format!("bearer {good}"), (200, "")),
        (format!("BEARER {good}"), (200, "")),
    ] {
        let request = list.clone().header(format!("Authorization: {value}"));
        cases.push((value.chars().take(30).collect(), request, expected));
    }
    let longest = signed(json!({"sub": "u".repeat(128), "exp": later, "role": "admin", "more": {"a": [1]}}));
    cases.push(("128 bytes".to_owned(), list.bearer(&longest), (200, "")));
    check(&app, cases).await;
    is_unharmed(&app, &id, 0).await;
}

#[tokio::test]
async fn hostile_operators_change_nothing_by_what_is_refused() {
    let app = TestApp::start().await;
    let (id, _) = hostile_sale(&app).await;
    let mut cases: Vec<(String, Raw, (u16, &str))> = Vec::new();
    let restock = Raw::new(format!("POST /v1/admin/sales/{id}/restock")).bearer(ADMIN_KEY);
    for (number, (quantity, expected)) in [
        ("0", BAD),
        ("-0", BAD),
        ("1.0", BAD),
        ("1e3", BAD),
        ("\"5\"", BAD),
        ("null", BAD),
        ("1000000001", BAD),
        ("-1000000001", BAD),
        ("9223372036854775807", BAD),
        ("-9223372036854775808", BAD),
        ("9223372036854775808", BAD),
        ("18446744073709551615", BAD),
        ("1000000000", (409, "insufficient_stock")),
        ("-1000000000", (409, "insufficient_stock")),
        ("-1001", (409, "insufficient_stock")),
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(r#"{{"sku":"phone","quantity":{quantity}}}"#);
        let request = restock.clone().header(format!("Idempotency-Key: r{number}"));
        cases.push((format!("restock {quantity}"), request.json(body), expected));
    }
    let create = Raw::new("POST /v1/admin/sales").bearer(ADMIN_KEY);
    let good = sale().to_string();
    let name = r#""name":"A sale""#;
    assert!(good.contains(name) && good.contains(r#""stock":10"#) && good.contains(r#""shards":2"#));
    for (from, to) in [
        (name, r#""name":"A\u0000sale""#),
        (name, r#""name":"A\nsale""#),
        (name, r#""name":1"#),
        (name, r#""name":"A sale","name":"B""#),
        (name, r#""name":"A sale","id":"x""#),
        (name, r#""name":"A sale","state":"open""#),
        (r#""stock":10"#, r#""stock":-1"#),
        (r#""stock":10"#, r#""stock":1e9"#),
        (r#""stock":10"#, r#""stock":1e400"#),
        (r#""stock":10"#, r#""stock":9223372036854775808"#),
        (r#""stock":10"#, r#""stock":"10""#),
        (r#""price_minor":49900"#, r#""price_minor":499.00"#),
        (r#""price_minor":49900"#, r#""price_minor":9223372036854775807"#),
        (r#""per_user_limit":5"#, r#""per_user_limit":4294967301"#),
        (r#""shards":2"#, r#""shards":65538"#),
        (r#""shards":2"#, r#""shards":-2"#),
        (r#""sku":"phone""#, r#""sku":":shard""#),
        (r#""sku":"phone""#, r#""sku":"{phone}""#),
        (r#""currency":"EUR""#, r#""currency":"€""#),
        (r#""window_ms":60000"#, r#""window_ms":9223372036854775807"#),
        (r#""limit":1000"#, r#""limit":1000,"burst":1"#),
        (r#""items":[{"#, r#""items":{"a":[{"#),
    ] {
        assert!(good.contains(from), "{from} in {good}");
        cases.push((to.to_owned(), create.clone().json(good.replacen(from, to, 1)), BAD));
    }
    for time in [
        "",
        "tomorrow",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01",
        "99999-01-01T00:00:00Z",
    ] {
        let request = create.clone().json(sale_with(&json!({"starts_at": time})).to_string());
        cases.push((time.to_owned(), request, BAD));
    }
    let item = sale()["items"][0].clone();
    let twins = sale_with(&json!({"items": [item.clone(), item.clone()]}));
    cases.push(("one sku twice".into(), create.clone().json(twins.to_string()), BAD));
    let many = sale_with(&json!({"items": vec![item; 1001]}));
    cases.push(("too many items".into(), create.clone().json(many.to_string()), BAD));
    let padded = |bytes: usize| format!("{}{}", " ".repeat(bytes - 2), "{}");
    cases.push(("1 MiB".into(), create.clone().json(padded(1024 * 1024)), BAD));
    cases.push(("1 MiB and one".into(), create.json(padded(1024 * 1024 + 1)), TOO_LARGE));
    check(&app, cases).await;
    let listed = app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
    assert_eq!(listed.body["data"].as_array().unwrap().len(), 1);
    is_unharmed(&app, &id, 0).await;
}

#[tokio::test]
async fn hostile_webhooks_are_refused_however_well_they_are_signed() {
    let app = TestApp::start().await;
    let (id, _) = hostile_sale(&app).await;
    let order = app.buy("mallory", &id, "k", 1).await.ok(201).id();
    let good = payment_body("pay_1", &order, 49_900, "EUR");
    let mut bodies: Vec<(Vec<u8>, (u16, &str))> = [
        b"".as_slice(),
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"\0",
        b"{}",
        br#"{"type":"payment.succeeded"}"#,
        br#"{"type":"payment.succeeded","timestamp":"2026-01-01T00:00:00Z","data":null}"#,
        br#"{"type":"payment.succeeded","timestamp":"2026-01-01T00:00:00Z","data":{}}"#,
    ]
    .into_iter()
    .map(|body| (body.to_vec(), BAD))
    .collect();
    let longer = format!(r#""payment_id":"{}""#, "p".repeat(256));
    let order_id = format!(r#""order_id":"{order}""#);
    for (from, to) in [
        (r#""type":"payment.succeeded""#, r#""type":"payment.failed""#),
        (r#""type":"payment.succeeded""#, r#""type":1"#),
        (
            r#""type":"payment.succeeded""#,
            r#""type":"payment.succeeded","type":"payment.succeeded""#,
        ),
        (r#""type":"payment.succeeded""#, r#""type":"payment.succeeded","x":1"#),
        (r#""timestamp":"2"#, r#""timestamp":"x2"#),
        (r#""currency":"EUR""#, r#""currency":"E\u0000R""#),
        (r#""currency":"EUR""#, r#""currency":null"#),
        (r#""currency":"EUR""#, r#""currency":"""#),
        (&order_id, r#""order_id":"""#),
        (r#""amount_minor":49900"#, r#""amount_minor":-1"#),
        (r#""amount_minor":49900"#, r#""amount_minor":499.00"#),
        (r#""amount_minor":49900"#, r#""amount_minor":"49900""#),
        (r#""amount_minor":49900"#, r#""amount_minor":1e400"#),
        (r#""amount_minor":49900"#, r#""amount_minor":9223372036854775808"#),
        (r#""amount_minor":49900"#, r#""amount_minor":49900,"amount_minor":0"#),
        (r#""payment_id":"pay_1""#, r#""payment_id":"""#),
        (r#""payment_id":"pay_1""#, &longer),
        (r#""payment_id":"pay_1""#, r#""payment_id":"pay\u0000""#),
        (r#""payment_id":"pay_1""#, r#""payment_id":1"#),
        (&order_id, r#""order_id":null"#),
    ] {
        assert!(good.contains(from), "{from} in {good}");
        bodies.push((good.replacen(from, to, 1).into_bytes(), BAD));
    }
    bodies.push((format!("{good}x").into_bytes(), BAD));
    let mut large = good.clone().into_bytes();
    large.resize(BODY_MAX + 1, b' ');
    bodies.push((large, TOO_LARGE));
    let deliver = |id: &str, body: &[u8]| {
        let now = Utc::now().timestamp();
        Raw::new("POST /v1/webhooks/payments")
            .header(format!("webhook-id: {id}"))
            .header(format!("webhook-timestamp: {now}"))
            .header(format!("webhook-signature: {}", sign(&webhook_key(), id, now, body)))
            .json(body)
    };
    let mut cases: Vec<(String, Raw, (u16, &str))> = Vec::new();
    for (number, (body, expected)) in bodies.into_iter().enumerate() {
        let name = String::from_utf8_lossy(&body).chars().take(300).collect();
        cases.push((name, deliver(&format!("msg_{number}"), &body), expected));
    }
    let long_id = "m".repeat(256);
    cases.push(("long id".into(), deliver(&long_id, good.as_bytes()), BAD));
    cases.push(("dotted id".into(), deliver("msg.1", good.as_bytes()), UNAUTHENTICATED));
    check(&app, cases).await;
    assert_eq!(app.payments_recorded().await, 0);
    assert_eq!(app.order("mallory", &order).await.text("state"), "reserved");
    // Unusual values are accepted: a name of 255 bytes, letters of several alphabets, quotes.
    let odd = ["p".repeat(255), "🦀'\"; drop table payments".to_owned()];
    for (number, name) in odd.iter().enumerate() {
        let answer = app
            .webhook(&format!("odd_{number}"), &payment_body(name, &order, 1, "EUR"))
            .await;
        assert_eq!(answer.ok(200).text("outcome"), "refund_due");
    }
    // Money is recorded for any named order.
    let braced = format!("{{{order}}}");
    for (name, of, currency, outcome) in [
        ("usd", order.as_str(), "usd", "refund_due"),
        ("euro", &order, "EURO", "refund_due"),
        ("x", "x", "EUR", "unmatched"),
        ("braced", &braced, "EUR", "unmatched"),
    ] {
        let answer = app
            .webhook(&format!("money_{name}"), &payment_body(name, of, 49_900, currency))
            .await;
        assert_eq!(answer.ok(200).text("outcome"), outcome, "{name}");
    }
    is_unharmed(&app, &id, 1).await;
}

/// Sends these bytes, then one more each fifth of a second, until the server ends the connection. Returns its answer.
async fn dribble(app: &TestApp, start: &[u8]) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(start).await.unwrap();
        let (mut reply, mut part) = (Vec::new(), [0; 4096]);
        loop {
            match tokio::time::timeout(Duration::from_millis(200), stream.read(&mut part)).await {
                Ok(Ok(length @ 1..)) => reply.extend(&part[..length]),
                // It has closed, orderly or not.
                Ok(_) => return reply,
                Err(_) => {
                    let _closed = stream.write_all(b"a").await;
                }
            }
        }
    };
    let reply = tokio::time::timeout(Duration::from_secs(20), talk).await;
    String::from_utf8(reply.expect("a slow client is not waited for")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_bodies_are_not_waited_for_and_keep_nobody_else() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let bearer = format!("Authorization: Bearer {}", token("slow"));
    let head = format!("GET /v1/sales/{id} HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    let body = format!(
        "POST /v1/sales/{id}/orders HTTP/1.1\r\nHost: x\r\n{bearer}\r\nIdempotency-Key: k\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{{"
    );
    let many = (0..100).map(|n| dribble(&app, if n % 2 == 0 { head.as_bytes() } else { body.as_bytes() }));
    let others = async {
        for n in 0..10 {
            app.buy("quick", &id, &format!("k{n}"), 1).await;
        }
        app.orders("quick", &id).await.ok(200).body["data"]
            .as_array()
            .unwrap()
            .len()
    };
    let (replies, bought) = tokio::join!(futures_util::future::join_all(many), others);
    assert_eq!(bought, 5, "the limit per shopper");
    for (n, reply) in replies.iter().enumerate() {
        let expected = if n % 2 == 0 { "HTTP/1.1 408 " } else { "HTTP/1.1 400 " };
        assert!(reply.starts_with(expected), "{n}: {reply:?}");
    }
    assert_eq!(app.units(&id).await, [5, 5, 0]);
}
