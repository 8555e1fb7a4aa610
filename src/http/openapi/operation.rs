//! The description of one route: its request, and everything that it may answer.

mod problems;

use crate::domain::code::Code;
use crate::http::extract::REPLAYED;
use crate::http::problem::PROBLEM_JSON;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The ids of a sale, an order and a session in examples.
pub const SALE_ID: &str = "019ac1f2-7c40-7d3a-9b1e-2f6a5c8e4d10";
pub const ORDER_ID: &str = "00000001-a3f7-8c21-8e55-0d9b4c6f1a37";
pub const SESSION_ID: &str = "019ac1f2-9a10-7c55-8d02-61f3c0a7be42";
/// The operators' key in examples.
pub const KEY: &str = "the-operators-key";

/// The users of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Shoppers,
    Operators,
    Provider,
    /// Monitoring, and developers of clients.
    Machines,
}

impl Group {
    /// Every group, in the order of the document.
    pub const ALL: [Self; 4] = [Self::Shoppers, Self::Operators, Self::Provider, Self::Machines];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Shoppers => "Shoppers",
            Self::Operators => "Operators",
            Self::Provider => "Payment provider",
            Self::Machines => "Machines",
        }
    }

    /// What the group's routes are for.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Shoppers => "See sales, wait, buy, and read or cancel orders.",
            Self::Operators => "Create, preload, run and watch sales, and keep bots away from them.",
            Self::Provider => "Report payments.",
            Self::Machines => "Health, metrics, and this document.",
        }
    }
}

/// The credentials that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// None.
    Anybody,
    /// None. The page view of a signed-in shopper is counted.
    Visitor,
    Shopper,
    Operator,
    /// None. With a session of the console, the answer shows it.
    Console,
    /// A session of the console, with its request token.
    Session,
    Provider,
}

/// The content type of streams of events.
pub const EVENT_STREAM: &str = "text/event-stream";

/// The names of the security schemes.
pub const SHOPPER: &str = "shopper";
pub const OPERATOR: &str = "operator";
pub const PROVIDER: &str = "provider";
pub const SESSION: &str = "console_session";
pub const SESSION_TOKEN: &str = "console_token";

impl Who {
    fn security(self, method: &str) -> Value {
        match self {
            Self::Anybody => json!([]),
            Self::Visitor => json!([{}, {SHOPPER: []}]),
            Self::Shopper => json!([{SHOPPER: []}]),
            Self::Operator if method == "get" => json!([{OPERATOR: []}, {SESSION: []}]),
            Self::Operator => json!([{OPERATOR: []}, {SESSION: [], SESSION_TOKEN: []}]),
            Self::Console => json!([{}, {SESSION: []}]),
            Self::Session => json!([{SESSION: [], SESSION_TOKEN: []}]),
            Self::Provider => json!([{PROVIDER: []}]),
        }
    }
}

/// A parameter of a request, outside of its body.
pub struct Parameter {
    /// `path`, `query` or `header`.
    pub place: &'static str,
    pub name: String,
    pub description: String,
    pub is_required: bool,
    pub schema: Value,
    /// Its value in the route's example, if it is in it.
    pub example: Option<Value>,
}

pub struct DescribedBody {
    pub schema: Value,
    pub example: Value,
}

#[derive(Clone, Copy)]
pub struct Header {
    pub name: &'static str,
    pub description: &'static str,
    schema: fn() -> Value,
}

impl Header {
    /// On every answer.
    const REQUEST_ID: Self = Self {
        name: "X-Request-Id",
        description: "A trusted proxy's id; the client's own with `client-` before it, if it is usable; else a new one. \
        The log has it, too.",
        schema: || json!({"type": "string", "minLength": 1, "maxLength": 135}),
    };
    /// The path of a new resource.
    pub const LOCATION: Self = Self {
        name: "Location",
        description: "The path of the new resource.",
        schema: || json!({"type": "string", "pattern": "^/v1/"}),
    };
    /// Says that the answer is that of an earlier request.
    pub const IS_REPLAYED: Self = Self {
        name: REPLAYED,
        description: "The answer is that of an earlier request with this key.",
        schema: || json!({"type": "string", "const": "true"}),
    };
    const RETRY_AFTER: Self = Self {
        name: "Retry-After",
        description: "After so many seconds the same request may succeed.",
        schema: || json!({"type": "integer", "minimum": 1}),
    };
    const AUTHENTICATE: Self = Self {
        name: "WWW-Authenticate",
        description: "How to authenticate.",
        schema: || json!({"type": "string"}),
    };
    pub const TAG: Self = Self {
        name: "ETag",
        description: "The version of the content, for `If-None-Match` or `If-Match`.",
        schema: || json!({"type": "string"}),
    };

    /// The session's cookie: to keep, or to forget.
    pub const COOKIE: Self = Self {
        name: "Set-Cookie",
        description: "The session's cookie, for pages of this site alone; no script can read it. Empty if it has ended.",
        schema: || json!({"type": "string"}),
    };

    pub const ALL: [Self; 7] = [
        Self::REQUEST_ID,
        Self::LOCATION,
        Self::IS_REPLAYED,
        Self::RETRY_AFTER,
        Self::AUTHENTICATE,
        Self::TAG,
        Self::COOKIE,
    ];

    /// The header, as the components of the document describe it.
    pub fn component(&self) -> Value {
        json!({"description": self.description, "required": true, "schema": (self.schema)()})
    }
}

fn refer(headers: &[Header]) -> Map<String, Value> {
    let all = [Header::REQUEST_ID].into_iter().chain(headers.iter().copied());
    all.map(|header| {
        let at = format!("#/components/headers/{}", header.name);
        (header.name.to_owned(), json!({"$ref": at}))
    })
    .collect()
}

/// An answer without a problem.
#[derive(Default)]
pub struct DescribedAnswer {
    pub status: u16,
    /// What the answer means.
    pub description: &'static str,
    /// Its content type; none without a body.
    pub kind: Option<&'static str>,
    /// Another content type, for clients that ask for it.
    pub other_kind: Option<&'static str>,
    pub schema: Value,
    pub example: Option<Value>,
    /// Its headers, besides those of every answer.
    pub headers: Vec<Header>,
    /// Links to further routes: each one's name, its parameter, and the member of this answer for it.
    pub(super) links: Vec<(&'static str, &'static str, &'static str)>,
}

/// The description of one route.
pub struct Operation {
    /// In lower case.
    pub method: String,
    pub path: &'static str,
    /// Its name, for generated clients.
    pub id: &'static str,
    pub group: Group,
    pub summary: &'static str,
    pub description: String,
    pub who: Who,
    pub parameters: Vec<Parameter>,
    pub body: Option<DescribedBody>,
    /// The answers without a problem.
    pub answers: Vec<DescribedAnswer>,
    /// The codes of the problems that it may answer.
    pub codes: BTreeSet<Code>,
}

impl Operation {
    pub fn problems(&self) -> BTreeMap<u16, Vec<Code>> {
        let mut by_status = BTreeMap::<u16, Vec<Code>>::new();
        for code in &self.codes {
            by_status.entry(code.status()).or_default().push(*code);
        }
        by_status
    }

    /// The OpenAPI object, with these examples of the request.
    pub fn describe(&self, samples: &[Value]) -> Value {
        let parameters = self.parameters.iter().map(|it| {
            let mut said = json!({"name": it.name, "in": it.place, "description": it.description,
                "required": it.is_required, "schema": it.schema});
            if let Some(example) = &it.example {
                said["example"] = example.clone();
            }
            said
        });
        let answers = self.answers.iter().map(|it| (it.status.to_string(), it.describe()));
        let problems = self
            .problems()
            .into_iter()
            .map(|(status, codes)| (status.to_string(), self.problem(status, &codes)));
        let mut said = json!({
            "operationId": self.id,
            "tags": [self.group.name()],
            "summary": self.summary,
            "security": self.who.security(&self.method),
            "responses": answers.chain(problems).collect::<Map<_, _>>(),
            "x-codeSamples": samples,
        });
        if !self.description.is_empty() {
            said["description"] = self.description.clone().into();
        }
        if !self.parameters.is_empty() {
            said["parameters"] = parameters.collect();
        }
        if let Some(body) = &self.body {
            said["requestBody"] = json!({"required": true, "content": {"application/json": {
                "schema": body.schema, "example": body.example}}});
        }
        said
    }

    /// The OpenAPI response for the problems of one status.
    fn problem(&self, status: u16, codes: &[Code]) -> Value {
        let meanings: Vec<String> = codes
            .iter()
            .map(|code| format!("`{}`: {}.", code.as_str(), code.title()))
            .collect();
        let headers: &[Header] = match status {
            401 => &[Header::AUTHENTICATE],
            429 | 503 => &[Header::RETRY_AFTER],
            _ => &[],
        };
        let examples = codes.iter().map(|code| {
            let value = serde_json::to_value(self.example(*code).body());
            (code.as_str().to_owned(), json!({"value": value.unwrap_or_default()}))
        });
        json!({
            "description": meanings.join(" "),
            "headers": refer(headers),
            "content": {PROBLEM_JSON: {
                "schema": {
                    "$ref": "#/components/schemas/Problem",
                    "properties": {"status": {"const": status}, "code": {"enum": codes}},
                },
                "examples": examples.collect::<Map<_, _>>(),
            }},
        })
    }
}

impl DescribedAnswer {
    fn describe(&self) -> Value {
        let mut said = json!({"description": self.description, "headers": refer(&self.headers)});
        if let Some(kind) = self.kind {
            let mut content = json!({"schema": self.schema});
            if let Some(example) = &self.example {
                content["example"] = example.clone();
            }
            let kinds = [kind].into_iter().chain(self.other_kind);
            said["content"] = kinds
                .map(|kind| (kind.to_owned(), content.clone()))
                .collect::<Map<_, _>>()
                .into();
        }
        if !self.links.is_empty() {
            let links = self.links.iter().map(|(id, parameter, member)| {
                let from = format!("$response.body#{member}");
                (
                    (*id).to_owned(),
                    json!({"operationId": id, "parameters": {*parameter: from}}),
                )
            });
            said["links"] = links.collect::<Map<_, _>>().into();
        }
        said
    }
}
