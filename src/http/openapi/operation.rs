//! The description of one route: its request, and everything that it may answer.

use super::schemas::{Schemas, elements};
use crate::domain::code::Code;
use crate::domain::console::OPERATOR_MAX;
use crate::domain::ids::{OrderId, SaleId};
use crate::http::admin::operator::OPERATOR as OPERATOR_HEADER;
use crate::http::extract::{ADMISSION, IDEMPOTENCY_KEY, LAST_EVENT_ID, PURCHASE_TOKEN, REPLAYED};
use crate::http::problem::{PROBLEM_JSON, Problem};
use crate::http::views::Page;
use schemars::JsonSchema;
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
    links: Vec<(&'static str, &'static str, &'static str)>,
}

/// The name of a kind of events, its description, and the schema of its data.
type EventKind<'a> = (&'a str, &'a str, fn(&mut Schemas) -> Value);

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

/// Describes a route, from its method and path on.
pub type Describe = fn(Undescribed<'_>) -> Description<'_>;

/// A route whose description begins.
pub struct Undescribed<'a> {
    method: String,
    path: &'static str,
    schemas: &'a mut Schemas,
}

/// The description of one route, while it is made.
pub struct Description<'a> {
    operation: Operation,
    schemas: &'a mut Schemas,
}

impl<'a> Undescribed<'a> {
    pub fn new(method: &str, path: &'static str, schemas: &'a mut Schemas) -> Self {
        let method = method.to_lowercase();
        Self { method, path, schemas }
    }

    fn begin(self, group: Group, who: Who, id: &'static str, summary: &'static str) -> Description<'a> {
        let operation = Operation {
            method: self.method,
            path: self.path,
            id,
            group,
            summary,
            description: String::new(),
            who,
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            codes: BTreeSet::new(),
        };
        let schemas = self.schemas;
        Description { operation, schemas }.with_path()
    }

    /// A route for shoppers. The gateway may refuse any of them, and Redis or Postgres may be away.
    pub fn of_shoppers(self, who: Who, id: &'static str, summary: &'static str) -> Description<'a> {
        let this = self.begin(Group::Shoppers, who, id, summary);
        let this = this.refuses(&[Code::RateLimited, Code::Overloaded, Code::Unavailable]);
        if who == Who::Shopper {
            this.refuses(&[Code::Unauthenticated])
        } else {
            this
        }
    }

    pub fn of_operators(self, id: &'static str, summary: &'static str) -> Description<'a> {
        let this = self
            .begin(Group::Operators, Who::Operator, id, summary)
            .refuses(&[Code::Unauthenticated, Code::Unavailable]);
        if this.operation.method == "get" {
            return this;
        }
        // A name in another script comes as UTF-8, which the schema of a header cannot express.
        let name =
            json!({"type": "string", "minLength": 1, "maxLength": OPERATOR_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$"});
        let said = "Your name, for the audit log. It is not verified.";
        // A browser with a session may lack its token. The body is read for the audit log, even where the route takes
        // none.
        this.takes("header", OPERATOR_HEADER, said, false, name, None)
            .refuses(&[
                Code::ConsoleTokenRequired,
                Code::Forbidden,
                Code::InvalidRequest,
                Code::PayloadTooLarge,
                Code::RateLimited,
            ])
    }

    pub fn of_sessions(self, who: Who, id: &'static str, summary: &'static str) -> Description<'a> {
        self.begin(Group::Operators, who, id, summary)
            .refuses(&[Code::Unavailable])
    }

    pub fn of_provider(self, id: &'static str, summary: &'static str) -> Description<'a> {
        self.begin(Group::Provider, Who::Provider, id, summary)
            .refuses(&[Code::Unauthenticated, Code::Unavailable])
    }

    pub fn of_machines(self, id: &'static str, summary: &'static str) -> Description<'a> {
        self.begin(Group::Machines, Who::Anybody, id, summary)
    }
}

impl Description<'_> {
    pub fn operation(self) -> Operation {
        self.operation
    }

    /// Adds the parameter of the path, if there is one. An id that does not parse is 404, like one that does not exist.
    fn with_path(self) -> Self {
        let Some((before, _)) = self.operation.path.split_once("/{id}") else {
            return self;
        };
        let (description, schema, example) = if before.ends_with("orders") {
            ("The order's id.", Schemas::alone::<OrderId>(), ORDER_ID)
        } else {
            ("The sale's id.", Schemas::alone::<SaleId>(), SALE_ID)
        };
        self.takes("path", "id", description, true, schema, Some(example.into()))
            .refuses(&[Code::NotFound])
    }

    /// Sets the description.
    pub fn says(mut self, description: impl Into<String>) -> Self {
        self.operation.description = description.into();
        self
    }

    /// Adds a parameter.
    pub fn takes(
        mut self,
        place: &'static str,
        name: &str,
        description: &str,
        is_required: bool,
        schema: Value,
        example: Option<Value>,
    ) -> Self {
        self.operation.parameters.push(Parameter {
            place,
            name: name.to_owned(),
            description: description.to_owned(),
            is_required,
            schema,
            example,
        });
        self
    }

    /// Adds the parameters of a query, with the values of the example.
    pub fn query<T: JsonSchema>(mut self, examples: &[(&str, Value)]) -> Self {
        let all = Schemas::alone::<T>();
        for (name, schema) in all["properties"].as_object().into_iter().flatten() {
            let mut schema = schema.clone();
            // An optional field may be null in JSON; a parameter is absent instead.
            if let Some(kinds) = schema["type"].as_array() {
                schema["type"] = kinds.first().cloned().unwrap_or_default();
            }
            let parts = schema.as_object_mut();
            let description = parts.and_then(|parts| {
                parts.remove("default");
                parts.remove("description")
            });
            let description = description.as_ref().and_then(Value::as_str).unwrap_or_default();
            let is_required = elements(&all, "required").any(|it| it == name);
            let example = examples.iter().find(|(of, _)| of == name);
            let example = example.map(|(_, example)| example.clone());
            self = self.takes("query", name, description, is_required, schema, example);
        }
        self.refuses(&[Code::InvalidRequest])
    }

    /// Requires an `Idempotency-Key`.
    pub fn with_key(self, example: &str) -> Self {
        self.takes_key(true, Some(example.into()))
            .refuses(&[Code::IdempotencyKeyMissing])
    }

    /// Accepts an `Idempotency-Key`.
    pub fn with_key_if_any(self) -> Self {
        self.takes_key(false, None).refuses(&[Code::IdempotencyKeyReused])
    }

    fn takes_key(self, is_required: bool, example: Option<Value>) -> Self {
        let description = "A name for this request, the same on every retry: printable ASCII, no space at either end.";
        let schema = json!({"type": "string", "minLength": 1, "maxLength": crate::domain::ids::KEY_MAX,
            "pattern": "^[!-~]([ -~]*[!-~])?$"});
        self.takes("header", IDEMPOTENCY_KEY, description, is_required, schema, example)
            .refuses(&[Code::InvalidRequest])
    }

    /// Accepts the proofs that the guards of a sale may require.
    pub fn with_proofs(self) -> Self {
        // A sale ignores proofs that it does not require, so any text is valid here.
        let text = || json!({"type": "string", "pattern": r"^[\t -~]*$"});
        let token = "The token of `POST /v1/sales/{id}/tokens` for this `Idempotency-Key`, if the sale requires one.";
        let admission = "The admission of the waiting room, if the sale has one.";
        self.takes("header", PURCHASE_TOKEN, token, false, text(), None)
            .takes("header", ADMISSION, admission, false, text(), None)
            .refuses(&[
                Code::InvalidRequest,
                Code::PurchaseTokenRequired,
                Code::AdmissionRequired,
            ])
    }

    /// Accepts the `Last-Event-ID` of a stream.
    pub fn with_last_event(self) -> Self {
        let description = "The `id` of the last event that you received: the stream begins with the events after it.";
        let schema = json!({"type": "integer", "minimum": 0, "maximum": i64::MAX});
        self.takes("header", LAST_EVENT_ID, description, false, schema, None)
            .refuses(&[Code::InvalidRequest])
    }

    /// Sets the body.
    pub fn reads<T: JsonSchema>(mut self, example: Value) -> Self {
        self.operation.body = Some(DescribedBody {
            schema: self.schemas.read::<T>(),
            example,
        });
        self.refuses(&[Code::InvalidRequest, Code::PayloadTooLarge])
    }

    /// Adds an answer in JSON.
    pub fn answers<T: JsonSchema>(self, status: u16, description: &'static str, example: Value) -> Self {
        let schema = self.schemas.written::<T>();
        self.answers_with(status, description, "application/json", schema, Some(example))
    }

    /// Adds a result page of a list, with this entry as its example.
    pub fn answers_page<T: JsonSchema>(self, description: &'static str, entry: Value) -> Self {
        self.answers::<Page<T>>(200, description, json!({"data": [entry], "has_more": false}))
    }

    /// Adds an answer of any content type.
    pub fn answers_with(
        mut self,
        status: u16,
        description: &'static str,
        kind: &'static str,
        schema: Value,
        example: Option<Value>,
    ) -> Self {
        self.operation.answers.push(DescribedAnswer {
            status,
            description,
            kind: Some(kind),
            schema,
            example,
            ..DescribedAnswer::default()
        });
        self
    }

    /// Adds a stream of events, all with this type of data.
    pub fn answers_events<T: JsonSchema>(self, description: &'static str, event: &str, example: &Value) -> Self {
        let mut schema = event_of(json!({"type": "string"}), self.schemas.written::<T>());
        schema["description"] = "One event of the stream.".into();
        let example = json!({"event": event, "data": example.to_string()});
        self.answers_with(200, description, EVENT_STREAM, schema, Some(example))
    }

    /// Adds a stream of several kinds of events: each one's name, description and schema of its data.
    pub fn answers_kinds_of_events(
        self,
        description: &'static str,
        kinds: &[EventKind<'_>],
        (event, example): (&str, &Value),
    ) -> Self {
        let kinds = kinds.iter().map(|(name, says, data)| {
            let mut schema = event_of(json!({"type": "string", "const": name}), data(self.schemas));
            schema["description"] = (*says).into();
            schema
        });
        let kinds: Vec<Value> = kinds.collect();
        let schema = json!({"description": "One event of the stream.", "oneOf": kinds});
        let example = json!({"event": event, "data": example.to_string()});
        self.answers_with(200, description, EVENT_STREAM, schema, Some(example))
    }

    /// Adds a file of the program, which a client may have cached.
    pub fn answers_file(mut self, description: &'static str, kind: &'static str, schema: Value) -> Self {
        let known = "The version that the client has.";
        self = self.takes("header", "If-None-Match", known, false, json!({"type": "string"}), None);
        self = self
            .answers_with(200, description, kind, schema, None)
            .with_header(Header::TAG);
        self.operation.answers.push(DescribedAnswer {
            status: 304,
            description: "The copy that `If-None-Match` names is current.",
            headers: vec![Header::TAG],
            ..DescribedAnswer::default()
        });
        self
    }

    /// Adds another content type to the last answer.
    pub fn or_as(mut self, kind: &'static str) -> Self {
        if let Some(answer) = self.operation.answers.last_mut() {
            answer.other_kind = Some(kind);
        }
        self
    }

    /// Adds a header to the last answer.
    pub fn with_header(mut self, header: Header) -> Self {
        if let Some(answer) = self.operation.answers.last_mut() {
            answer.headers.push(header);
        }
        self
    }

    /// Adds links to the last answer: each route's name, its parameter, and the member of the answer for it.
    pub fn leads_to(mut self, links: &[(&'static str, &'static str, &'static str)]) -> Self {
        if let Some(answer) = self.operation.answers.last_mut() {
            answer.links.extend(links);
        }
        self
    }

    /// Adds problems.
    pub fn refuses(mut self, codes: &[Code]) -> Self {
        self.operation.codes.extend(codes);
        self
    }
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
            .map(|(status, codes)| (status.to_string(), problem(status, &codes)));
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

/// The schema of an event.
fn event_of(name: Value, data: Value) -> Value {
    let data = json!({"type": "string", "contentMediaType": "application/json", "contentSchema": data});
    json!({
        "type": "object",
        "required": ["event", "data"],
        "properties": {"event": name, "id": {"type": "string"}, "data": data},
    })
}

/// The OpenAPI response for the problems of one status.
fn problem(status: u16, codes: &[Code]) -> Value {
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
        let value = serde_json::to_value(Problem::new(*code, code.title()).body());
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
