//! The operators' console: its sessions, and the entries of the audit log.

use crate::domain::ids::SaleId;
use crate::domain::keyed_hash;
use crate::domain::plain::plain_text;
use crate::domain::time;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

/// How long an operator stays signed in, in seconds: twelve hours.
pub const SESSION_SECONDS: i64 = 12 * 3600;
/// A session without a request or an open stream for so long ends, in seconds: one hour.
pub const IDLE_SECONDS: i64 = 3600;
/// The most sessions at once. Beyond that, the oldest of the name with the most sessions end.
pub const SESSIONS_MAX: i64 = 100;

/// The bytes of a session's secret, and of the check that follows it in the cookie and shows that we made it.
const SECRET_LENGTH: usize = 32;
const CHECK_LENGTH: usize = 16;
/// The purposes of the digests of a secret, which keep them apart.
const OF_COOKIE: &[u8] = b"flashsale console cookie";
const OF_LEDGER: &[u8] = b"flashsale console session";
const OF_REQUESTS: &[u8] = b"flashsale console request";

/// The secret in a session's cookie. It proves that its sender is the operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionSecret([u8; SECRET_LENGTH]);

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl SessionSecret {
    /// Needs random bytes.
    pub const fn new(bytes: [u8; SECRET_LENGTH]) -> Self {
        Self(bytes)
    }

    /// The secret in a cookie, if we made it. Invented cookies are recognized without a query to Postgres.
    pub fn parse(text: &str, admin_key: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (secret, check) = bytes.split_at_checked(SECRET_LENGTH)?;
        let secret = Self(secret.try_into().ok()?);
        let expected = secret.mac(admin_key, OF_COOKIE);
        bool::from(check.ct_eq(&expected[..CHECK_LENGTH])).then_some(secret)
    }

    /// The value of the cookie.
    pub fn encode(&self, admin_key: &str) -> String {
        let check = self.mac(admin_key, OF_COOKIE);
        URL_SAFE_NO_PAD.encode([&self.0[..], &check[..CHECK_LENGTH]].concat())
    }

    /// The digest by which Postgres knows the session. It does not reveal the secret, and a new operators' key changes
    /// it.
    pub fn digest(&self, admin_key: &str) -> [u8; 32] {
        self.mac(admin_key, OF_LEDGER)
    }

    /// The token that pages send with every change. Another site's page can make the browser send the cookie, but
    /// cannot know this token.
    pub fn request_token(&self, admin_key: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.mac(admin_key, OF_REQUESTS))
    }

    /// Whether this is the session's request token. Takes the same time for every wrong one.
    pub fn is_request_token(&self, admin_key: &str, given: &[u8]) -> bool {
        given.ct_eq(self.request_token(admin_key).as_bytes()).into()
    }

    fn mac(&self, admin_key: &str, of: &[u8]) -> [u8; 32] {
        keyed_hash::of(admin_key.as_bytes(), &[of, &self.0])
    }
}

/// The most characters of an operator's name.
pub const OPERATOR_MAX: usize = 64;

plain_text! {
    /// The name of an operator: of a named key, or as given, without proof, with the shared key.
    OperatorName OPERATOR_MAX
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub id: Uuid,
    /// The name that the operator gave at sign-in.
    pub operator: Option<OperatorName>,
    /// When the session ends by itself.
    pub expires_at: DateTime<Utc>,
}

/// What other operators see of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedSession {
    /// The session's id. The audit log has it beside each of the session's actions.
    pub session_id: Uuid,
    /// The name that the operator gave at sign-in.
    pub name: Option<String>,
    /// The address that signed in.
    pub address: String,
    /// When the operator signed in.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// When the session last sent a request or had a stream open, within about a minute.
    #[serde(serialize_with = "time::serialize")]
    pub last_used_at: DateTime<Utc>,
    /// When the session ends by itself, unless it is idle before.
    #[serde(serialize_with = "time::serialize")]
    pub expires_at: DateTime<Utc>,
}

/// Who acts, by the credentials of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Actor {
    /// A session of the console.
    Console(Uuid),
    /// A client with the operators' key: the command line, or a program.
    ApiKey,
    /// A client that was refused because it had no valid credentials.
    Nobody,
}

impl Actor {
    /// The actor as it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Console(_) => "console",
            Self::ApiKey => "api_key",
            Self::Nobody => "nobody",
        }
    }

    pub const fn session(self) -> Option<Uuid> {
        match self {
            Self::Console(id) => Some(id),
            Self::ApiKey | Self::Nobody => None,
        }
    }
}

/// An action that is about to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAction {
    pub actor: Actor,
    /// The name that the operator gave.
    pub operator: Option<OperatorName>,
    /// The client's address, if it is known.
    pub address: Option<String>,
    /// The action's name, such as `sales.open`.
    pub action: String,
    /// The sale that it acts on, if there is one.
    pub sale: Option<SaleId>,
    /// The request's parameters; see [`detail`].
    pub detail: Map<String, Value>,
}

/// An action in the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Action {
    /// The entry's number. Later entries have higher numbers.
    pub id: i64,
    /// When the action began.
    #[serde(serialize_with = "time::serialize")]
    pub begun_at: DateTime<Utc>,
    /// When the action was answered.
    #[serde(serialize_with = "time::serialize_option")]
    pub ended_at: Option<DateTime<Utc>>,
    /// `console`, `api_key`, or `nobody` for a client without valid credentials.
    pub actor: String,
    /// The session of the console, if the actor has one.
    pub session_id: Option<Uuid>,
    /// The name of the operator's key, or the name that was given with the shared key, which proves none.
    pub operator: Option<String>,
    /// The client's address.
    pub address: Option<String>,
    /// The action's name.
    pub action: String,
    /// The sale that the action changed or read, if there is one.
    pub sale_id: Option<Uuid>,
    /// The parameters of the request.
    pub detail: Value,
    /// `done`, or the code of the problem in the answer. Null while the action is under way, or if its process ended
    /// before the outcome was known.
    pub outcome: Option<String>,
}

/// The actions that an operator lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedActions {
    /// Only actions on this sale.
    pub sale: Option<SaleId>,
    /// Only actions that began at this moment or later.
    pub from: Option<DateTime<Utc>>,
    /// Only actions that began before this moment.
    pub to: Option<DateTime<Utc>>,
    /// Only actions older than the one with this number.
    pub before: Option<i64>,
}

/// The most members of an object that are kept, and the most characters of each text.
const MEMBERS_MAX: usize = 24;
const TEXT_MAX: usize = 200;
/// How many levels are kept: a sale's items are objects in a list in the body.
const DEPTH_MAX: usize = 3;
/// The most bytes of an action's detail as JSON.
const BYTES_MAX: usize = 8192;
/// Bytes around a value or a name (quotes, colon, comma), and bytes of an empty object.
const BESIDE: usize = 4;
/// Bytes reserved for the number of entries of a list that have no room.
const REST: usize = 16;

/// The part of a body that the audit log keeps: long texts are cut, and lists end where the room ends. A body that is
/// not a JSON object leaves nothing; its action is refused later.
pub fn detail(body: &[u8]) -> Map<String, Value> {
    let Ok(Value::Object(members)) = serde_json::from_slice(body) else {
        return Map::new();
    };
    // Lists come last: a long list must leave room for everything short.
    let (lists, others): (Vec<_>, Vec<_>) = named(members).partition(|(_, value)| value.is_array());
    let mut room = BYTES_MAX - BESIDE;
    let mut kept = Map::new();
    for (name, value) in others.into_iter().chain(lists).take(MEMBERS_MAX) {
        if let Some((value, left)) = fit(value, DEPTH_MAX - 1, room.saturating_sub(length_of(&name))) {
            room = left;
            kept.insert(name, value);
        }
    }
    kept
}

/// The members whose names are short enough, and that Postgres can store.
fn named(members: Map<String, Value>) -> impl Iterator<Item = (String, Value)> {
    let is_name = |name: &str| name.len() <= 64 && !name.contains('\0');
    members.into_iter().filter(move |(name, _)| is_name(name))
}

/// The bytes of a text as JSON, with the bytes around it.
fn length_of(text: &str) -> usize {
    Value::from(text).to_string().len() + BESIDE
}

/// As much of a value as has room, and the room that is left then. None if nothing fits.
fn fit(value: Value, depth: usize, room: usize) -> Option<(Value, usize)> {
    match value {
        Value::Array(list) if depth > 0 => {
            let all = list.len();
            let mut left = room.checked_sub(BESIDE + REST)?;
            let mut kept = Vec::new();
            for value in list {
                let Some((value, rest)) = fit(value, depth - 1, left) else {
                    kept.push(format!("{} more", all - kept.len()).into());
                    break;
                };
                left = rest;
                kept.push(value);
            }
            Some((kept.into(), left))
        }
        Value::Object(members) if depth > 0 => {
            let mut left = room.checked_sub(BESIDE)?;
            let mut kept = Map::new();
            for (name, value) in named(members).take(MEMBERS_MAX) {
                let (value, rest) = fit(value, depth - 1, left.checked_sub(length_of(&name))?)?;
                left = rest;
                kept.insert(name, value);
            }
            Some((kept.into(), left))
        }
        Value::Array(_) | Value::Object(_) => fit("…".into(), 0, room),
        Value::String(text) => {
            let cut: String = text.chars().filter(|it| *it != '\0').take(TEXT_MAX).collect();
            let left = room.checked_sub(length_of(&cut))?;
            Some((cut.into(), left))
        }
        plain => {
            let left = room.checked_sub(plain.to_string().len() + BESIDE)?;
            Some((plain, left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn a_secret_survives_its_cookie_and_nothing_else_is_one() {
        let secret = SessionSecret::new([7; 32]);
        let cookie = secret.encode(KEY);
        assert_eq!(SessionSecret::parse(&cookie, KEY), Some(secret));
        assert_eq!(SessionSecret::parse(&cookie, "0123456789abcdeg"), None, "another key");
        let made_up = URL_SAFE_NO_PAD.encode([7; SECRET_LENGTH + CHECK_LENGTH]);
        for wrong in ["", "x", "AAAA", &cookie[4..], &format!("{cookie}AAAA"), &made_up] {
            assert_eq!(SessionSecret::parse(wrong, KEY), None, "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "[hidden]");
    }

    #[test]
    fn digest_and_token_are_others_for_each_secret_and_key() {
        let (one, other) = (SessionSecret::new([1; 32]), SessionSecret::new([2; 32]));
        assert_ne!(one.digest(KEY), other.digest(KEY));
        assert_ne!(one.digest(KEY), one.digest("0123456789abcdeg"));
        let token = one.request_token(KEY);
        assert!(one.is_request_token(KEY, token.as_bytes()));
        assert!(!other.is_request_token(KEY, token.as_bytes()));
        assert!(!one.is_request_token("0123456789abcdeg", token.as_bytes()));
        for wrong in [
            &token[1..],
            "",
            URL_SAFE_NO_PAD.encode(one.digest(KEY)).as_str(),
            &one.encode(KEY),
        ] {
            assert!(!one.is_request_token(KEY, wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn the_audit_log_keeps_what_was_asked_for_and_cuts_what_is_long() {
        let body = json!({"sku": "a", "quantity": -5, "reason": "x".repeat(300), "guards": {"a": 1, "b": {"c": {}}},
            "items": [{"sku": "a", "stock": 2, "bad\0name": 1}, {"sku": "b\0", "list": [1]}], "until": null,
            "bad\0name": 1, "text": "a\0b"});
        let kept = detail(body.to_string().as_bytes());
        let expected = json!({"sku": "a", "quantity": -5, "reason": "x".repeat(200), "guards": {"a": 1, "b": {"c": "…"}},
            "items": [{"sku": "a", "stock": 2}, {"sku": "b", "list": "…"}], "until": null, "text": "ab"});
        assert_eq!(Value::Object(kept), expected);
        let many: Map<String, Value> = (0..100).map(|number| (format!("m{number}"), json!(1))).collect();
        assert_eq!(detail(Value::Object(many).to_string().as_bytes()).len(), MEMBERS_MAX);
        for nothing in ["", "[1]", "{", "\"text\""] {
            assert!(detail(nothing.as_bytes()).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn the_audit_log_keeps_as_much_of_a_body_as_it_has_room_for() {
        let item = |n: usize| json!({"sku": format!("sku-{n}"), "price_minor": 100, "stock": n, "per_user_limit": 1});
        let items: Vec<Value> = (0..1000).map(item).collect();
        let kept = detail(
            json!({"items": items, "name": "A sale", "shards": 4})
                .to_string()
                .as_bytes(),
        );
        assert_eq!((&kept["name"], &kept["shards"]), (&json!("A sale"), &json!(4)));
        let listed = kept["items"].as_array().unwrap();
        let whole = listed.len() - 1;
        assert!(whole > 80, "{whole}");
        assert_eq!(listed[..whole], items[..whole]);
        assert_eq!(listed[whole], format!("{} more", 1000 - whole));
        let deep = "[".repeat(100) + &"]".repeat(100);
        let wide = json!({"list": vec!["\u{1}\"é".repeat(200); 100]}).to_string();
        let objects =
            json!({"items": vec![json!({"a": "\u{1}".repeat(200), "b": "\u{1}".repeat(200)}); 60]}).to_string();
        for body in [
            json!({"items": items}).to_string(),
            format!("{{\"deep\": {deep}}}"),
            wide,
            objects,
        ] {
            let kept = detail(body.as_bytes());
            let length = Value::Object(kept.clone()).to_string().len();
            assert!(!kept.is_empty() && length <= BYTES_MAX, "{length}");
        }
    }
}
