//! One route: its path, its handler, and its description for the API document. The file of a resource has a table of
//! them; [`super`] lists the tables.

use crate::domain::operator::keys::OperatorRole;
use crate::http::openapi::description::Describe;
use crate::http::problem::Problem;
use actix_web::Route;
use actix_web::http::Method;
use actix_web::web::{self, ServiceConfig};
use std::sync::Arc;

/// The methods of routes, in the order of `Allow`.
static METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PATCH,
    Method::PUT,
    Method::DELETE,
];

/// A handler for a table of routes.
macro_rules! handler {
    ($handler:expr) => {
        || actix_web::web::to($handler)
    };
}
pub(crate) use handler;

/// Tables of routes.
pub type Tables = &'static [&'static [Endpoint]];

pub struct Endpoint {
    pub path: &'static str,
    pub method: Method,
    /// Whether HEAD is answered like GET. An endless stream does not answer HEAD.
    answers_head: bool,
    handler: fn() -> Route,
    /// The least role of an operator who may send a request that changes something.
    pub needs: OperatorRole,
    /// None for pages and for development mode, which are no API.
    pub describe: Option<Describe>,
}

impl Endpoint {
    pub const fn get(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::GET, true, handler, Some(describe))
    }

    /// An endless stream.
    pub const fn stream(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::GET, false, handler, Some(describe))
    }

    pub const fn post(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::POST, false, handler, Some(describe))
    }

    pub const fn patch(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::PATCH, false, handler, Some(describe))
    }

    pub const fn put(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::PUT, false, handler, Some(describe))
    }

    pub const fn delete(path: &'static str, handler: fn() -> Route, describe: Describe) -> Self {
        Self::new(path, Method::DELETE, false, handler, Some(describe))
    }

    /// A page, or a file of pages.
    pub const fn page(path: &'static str, handler: fn() -> Route) -> Self {
        Self::new(path, Method::GET, true, handler, None)
    }

    /// A route of development mode.
    pub const fn development(path: &'static str, handler: fn() -> Route) -> Self {
        Self::new(path, Method::POST, false, handler, None)
    }

    const fn new(
        path: &'static str,
        method: Method,
        answers_head: bool,
        handler: fn() -> Route,
        describe: Option<Describe>,
    ) -> Self {
        Self {
            path,
            method,
            answers_head,
            handler,
            needs: OperatorRole::All,
            describe,
        }
    }

    /// A change that the role `run` may make.
    pub const fn by_run(mut self) -> Self {
        self.needs = OperatorRole::Run;
        self
    }

    fn answers(&self, method: &Method) -> bool {
        self.method == *method || self.answers_head && *method == Method::HEAD
    }
}

/// Serves tables of routes in a scope, whose prefix all their paths have. A request is compared with one path after the
/// other, in the order of the tables. Other methods of a path get 405 with `Allow`.
pub fn serve(prefix: &'static str, tables: Tables) -> impl FnOnce(&mut ServiceConfig) {
    move |config| {
        let mut by_path = Vec::<(&str, Vec<&Endpoint>)>::new();
        for endpoint in tables.iter().copied().flatten() {
            match by_path.iter_mut().find(|(path, _)| *path == endpoint.path) {
                Some((_, endpoints)) => endpoints.push(endpoint),
                None => by_path.push((endpoint.path, vec![endpoint])),
            }
        }
        for (path, endpoints) in by_path {
            let answered = METHODS
                .iter()
                .filter(|it| endpoints.iter().any(|endpoint| endpoint.answers(it)));
            let allow: Vec<&str> = answered.map(Method::as_str).collect();
            let allow: Arc<str> = allow.join(", ").into();
            let mut resource =
                web::resource(path.strip_prefix(prefix).unwrap_or(path)).default_service(web::to(move || {
                    let allow = Arc::clone(&allow);
                    async move { Err::<&str, _>(Problem::method_not_allowed(allow)) }
                }));
            for endpoint in endpoints {
                for method in METHODS.iter().filter(|it| endpoint.answers(it)) {
                    resource = resource.route((endpoint.handler)().method(method.clone()));
                }
            }
            config.service(resource);
        }
    }
}
