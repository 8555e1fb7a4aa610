//! The API as one OpenAPI 3.1 document. Its schemas come from the types that are parsed and written, its codes from the
//! table of problems, the rest from the modules below. A test compares it with the table of routes. Every other test
//! compares its answers with it.

pub mod description;
mod examples;
mod guide;
mod operation;
pub(super) mod schemas;

use crate::http::ROUTES as ALL_ROUTES;
use crate::http::admin::operator::{REQUEST_TOKEN, SESSION_COOKIE};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::file::File;
use crate::http::problem::ProblemBody;
use actix_web::{HttpRequest, HttpResponse};
pub use description::Description;
use description::Undescribed;
pub use examples::{Language, VARIABLES};
pub use guide::chapters;
pub use operation::{EVENT_STREAM, Group, Header, KEY, ORDER_ID, Operation, Parameter, SALE_ID, SESSION_ID, Who};
use operation::{OPERATOR, PROVIDER, SESSION, SESSION_TOKEN, SHOPPER};
pub use schemas::{Schemas, elements};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/openapi.json", handler!(document), |it| {
    it.of_machines("getDocument", "This document, as OpenAPI 3.1")
        .answers_file(
            "The document.",
            "application/json",
            json!({"type": "object", "required": ["openapi", "info", "paths"]}),
        )
})];

/// The description of all routes.
pub struct Reference {
    pub operations: Vec<Operation>,
    /// The schemas of bodies and answers, by name.
    pub schemas: Map<String, Value>,
}

/// The description of all routes, made once.
pub static REFERENCE: LazyLock<Reference> = LazyLock::new(|| {
    let (operations, schemas) = describe();
    Reference {
        operations,
        schemas: schemas.named(),
    }
});

/// The content security policy of the document, which is not a web page.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

static FILE: LazyLock<File> = LazyLock::new(|| File::new(REFERENCE.document().to_string(), "application/json", POLICY));

async fn document(request: HttpRequest) -> HttpResponse {
    FILE.answer(&request)
}

fn describe() -> (Vec<Operation>, Schemas) {
    let mut schemas = Schemas::default();
    let described = ALL_ROUTES.iter().filter_map(|it| {
        let undescribed = Undescribed::new(it.method.as_str(), it.path, &mut schemas);
        Some((it.describe?)(undescribed).operation())
    });
    let operations = described.collect();
    // Routes refer to this schema only by its name, so it must be named here.
    let _named = schemas.written::<ProblemBody<'_>>();
    (operations, schemas)
}

impl Reference {
    pub fn document(&self) -> Value {
        let mut paths = Map::new();
        for operation in &self.operations {
            let path = paths.entry(operation.path).or_insert_with(|| json!({}));
            let samples = Language::ALL
                .map(|it| json!({"lang": it.sample(), "label": it.name(), "source": it.example(operation)}));
            path[operation.method.as_str()] = operation.describe(&samples);
        }
        let headers = Header::ALL.iter().map(|it| (it.name.to_owned(), it.component()));
        let groups = Group::ALL.map(|it| json!({"name": it.name(), "description": it.description()}));
        json!({
            "openapi": "3.1.1",
            "info": {
                "title": "Flashsale",
                "version": env!("CARGO_PKG_VERSION"),
                "summary": env!("CARGO_PKG_DESCRIPTION"),
                "description": guide::markdown(),
                "license": {"name": env!("CARGO_PKG_LICENSE"), "identifier": env!("CARGO_PKG_LICENSE")},
            },
            "servers": [{"url": "/"}],
            "tags": groups,
            "paths": paths,
            "components": {
                "schemas": self.schemas,
                "headers": headers.collect::<Map<_, _>>(),
                "securitySchemes": {
                    SHOPPER: {
                        "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                        "description": "A shopper's token, signed by the shop's own login.",
                    },
                    OPERATOR: {
                        "type": "http", "scheme": "bearer",
                        "description": "The operators' key.",
                    },
                    SESSION: {
                        "type": "apiKey", "in": "cookie", "name": SESSION_COOKIE,
                        "description": "The console's session, which a browser gets for the operators' key. Other \
                            clients send the key itself. Over HTTPS the cookie's name begins with `__Secure-`.",
                    },
                    SESSION_TOKEN: {
                        "type": "apiKey", "in": "header", "name": REQUEST_TOKEN,
                        "description": "The request token of the session, required with every change: any page can \
                            make a browser send the cookie.",
                    },
                    PROVIDER: {
                        "type": "apiKey", "in": "header", "name": "webhook-signature",
                        "description": "`v1,` and the base64 of an HMAC-SHA256 over `webhook-id`, a dot, \
                            `webhook-timestamp`, a dot and the body, as in Standard Webhooks. While the secret \
                            is changed, several of them, separated by spaces.",
                    },
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_same_where_it_is_read_and_where_it_is_written() {
        let (_, schemas) = describe();
        assert_eq!(schemas.torn(), [""; 0]);
    }
}
