//! Describes one route, step by step, from its method and path on.

use super::operation::{
    DescribedAnswer, DescribedBody, EVENT_STREAM, Group, Header, ORDER_ID, Operation, Parameter, SALE_ID, Who,
};
use super::schemas::{Schemas, elements};
use crate::domain::code::Code;
use crate::domain::ids::{OrderId, SaleId};
use crate::domain::operator::console::OPERATOR_MAX;
use crate::http::admin::operator::OPERATOR as OPERATOR_HEADER;
use crate::http::extract::{IDEMPOTENCY_KEY, LAST_EVENT_ID, PROOFS};
use crate::http::views::Page;
use schemars::JsonSchema;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The name of a kind of events, its description, and the schema of its data.
type EventKind<'a> = (&'a str, &'a str, fn(&mut Schemas) -> Value);

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
        let said = "Your name, for the audit log. It is not verified. A named key has its own.";
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
        let this = PROOFS.into_iter().fold(self, |it, (name, said)| {
            it.takes("header", name, said, false, text(), None)
        });
        this.refuses(&[Code::InvalidRequest])
    }

    /// Accepts an `If-Match` with the `ETag` of a sale.
    pub fn with_version(self, description: &str) -> Self {
        let schema = json!({"type": "string", "pattern": "^\"[A-Za-z0-9_-]{22}\"$"});
        self.takes("header", "If-Match", description, false, schema, None)
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

/// The schema of an event.
fn event_of(name: Value, data: Value) -> Value {
    let data = json!({"type": "string", "contentMediaType": "application/json", "contentSchema": data});
    json!({
        "type": "object",
        "required": ["event", "data"],
        "properties": {"event": name, "id": {"type": "string"}, "data": data},
    })
}
