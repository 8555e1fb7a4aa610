//! The reference: the OpenAPI document and the table of codes as HTML. It needs no other site. Its one script adds search,
//! copy buttons and the mark of the place in view; without it, both pages can be read in full.

use crate::domain::code::Code;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::accepts;
use crate::http::file::File;
use crate::http::openapi::{
    EVENT_STREAM, Group, Language, Operation, Parameter, REFERENCE, Reference, Schemas, VARIABLES, Who, chapters,
    elements,
};
use crate::http::problem::Problem;
use actix_web::http::StatusCode;
use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse};
use maud::{DOCTYPE, Markup, html};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/docs", handler!(|request| PAGE.handle(request)), |it| {
        it.of_machines("getReference", "This document, to be read")
            .answers_file("The page.", "text/html; charset=utf-8", json!({"type": "string"}))
    }),
    Endpoint::get("/docs/reference.css", handler!(|request| STYLE.handle(request)), |it| {
        it.of_machines("getReferenceStyle", "The style sheet of the API reference")
            .answers_file("The style sheet.", "text/css; charset=utf-8", json!({"type": "string"}))
    }),
    Endpoint::get("/docs/reference.js", handler!(|request| SCRIPT.handle(request)), |it| {
        it.of_machines("getReferenceScript", "The script of the API reference")
            .answers_file(
                "The script.",
                "text/javascript; charset=utf-8",
                json!({"type": "string"}),
            )
    }),
];
/// A person may type the address with a slash.
pub const ADDRESS_ROUTES: &[Endpoint] = &[Endpoint::page("/docs/", handler!(to_docs))];
pub const PROBLEM_ROUTES: &[Endpoint] = &[
    Endpoint::get("/problems", handler!(|request| PROBLEMS.handle(request)), |it| {
        it.of_machines("explainProblems", "What each code means")
            .says("For each code: what happened, and what a client does.")
            .answers_file("The page.", "text/html; charset=utf-8", json!({"type": "string"}))
    }),
    Endpoint::get("/problems/{code}", handler!(problem), |it| {
        it.of_machines("explainProblem", "What a problem means")
            .says("The `type` of every problem leads here: what happened, and what a client does about it.")
            .takes(
                "path",
                "code",
                "The problem's code.",
                true,
                Schemas::alone::<Code>(),
                Some(Code::SoldOut.as_str().into()),
            )
            .answers_file("The page.", "text/html; charset=utf-8", json!({"type": "string"}))
            .refuses(&[Code::NotFound])
    }),
];

async fn to_docs() -> HttpResponse {
    HttpResponse::TemporaryRedirect()
        .insert_header((LOCATION, "/docs"))
        .finish()
}

/// The content security policy: the pages load only their own style sheet and script, which makes no markup of text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

static PAGE: LazyLock<File> = LazyLock::new(|| html_file(render(&REFERENCE)));
static STYLE: LazyLock<File> = LazyLock::new(|| {
    File::new(
        include_str!("../../web/reference/reference.css"),
        "text/css; charset=utf-8",
        POLICY,
    )
});
static SCRIPT: LazyLock<File> = LazyLock::new(|| {
    File::new(
        include_str!("../../web/reference/reference.js"),
        "text/javascript; charset=utf-8",
        POLICY,
    )
});

/// What the pages of codes say.
const EXPLAINED: &str = "What happened, and what a client does.";

/// The page of all codes.
static PROBLEMS: LazyLock<File> = LazyLock::new(|| html_file(explain("Problem codes", EXPLAINED, Code::ALL)));
/// The same for a code that does not exist.
static NO_PROBLEM: LazyLock<File> = LazyLock::new(|| {
    let all = "There is no such code. These are all: what happened, and what a client does.";
    html_file(explain("No such code", all, Code::ALL))
});
/// The page of each code, to which the `type` of its problems leads.
static PROBLEM: LazyLock<BTreeMap<&str, File>> = LazyLock::new(|| {
    let pages = Code::ALL
        .iter()
        .map(|code| (code.as_str(), html_file(explain(code.title(), EXPLAINED, &[*code]))));
    pages.collect()
});

pub(super) fn html_file(page: Markup) -> File {
    File::new(page.into_string(), "text/html; charset=utf-8", POLICY)
}

/// How many levels of nested members the page shows.
const DEPTH_MAX: usize = 4;

async fn problem(request: HttpRequest) -> Result<HttpResponse, Problem> {
    match PROBLEM.get(request.match_info().query("code")) {
        Some(page) => Ok(page.answer(&request)),
        None if accepts(&request, "text/html") => Ok(NO_PROBLEM.answer_as(&request, StatusCode::NOT_FOUND)),
        None => Err(Problem::not_found("such code")),
    }
}

/// A page: its title, the lines of its header, its contents as entries of a list, and its text.
pub(super) fn page_of(title: &str, header: &Markup, contents: &Markup, text: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="stylesheet" href="/docs/reference.css";
                script type="module" src="/docs/reference.js" {}
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header { (header) }
                nav aria-label="Contents" {
                    // The script shows it.
                    div #search role="search" hidden {
                        input #query type="search" aria-label="Search this page" placeholder="Search" autocomplete="off";
                        p #found role="status" {}
                    }
                    ul #results hidden {}
                    ul #contents { (contents) }
                }
                main #content { (text) }
            }
        }
    }
}

/// The page that explains these codes, with these words above them.
fn explain(title: &str, words: &str, shown: &[Code]) -> Markup {
    let header = html! {
        h1 { "Problem codes" }
        p { (words) " " a href="/docs#retries" { "API reference" } }
    };
    let contents = html! {
        @for code in Code::ALL {
            @let is_alone = shown == [*code];
            li { a href={ "/problems#" (code.as_str()) } aria-current=[is_alone.then_some("page")] { (code.as_str()) } }
        }
    };
    let text = html! {
        @for code in shown {
            section id=(code.as_str()) {
                h2 { (code.title()) }
                p { "Code " code { (code.as_str()) } ", status " (code.status()) "." }
                h3 { "What happened" }
                p { (worded(code.cause())) }
                h3 { "What a client does" }
                p { (worded(code.advice())) }
            }
        }
    };
    page_of(title, &header, &contents, &text)
}

fn render(reference: &Reference) -> Markup {
    let header = html! {
        h1 { "Flashsale API" }
        p { "Version " (env!("CARGO_PKG_VERSION")) ". For programs: " a href="/openapi.json" { "/openapi.json" } ", OpenAPI 3.1." }
    };
    let text = html! {
        @for (heading, texts) in chapters() {
            section id=(anchor(heading)) {
                h2 { (heading) }
                @for text in &texts { p { (worded(text)) } }
                @if heading == "Problems" { (codes()) }
            }
        }
        section #examples {
            h2 { "Examples" }
            p { "The examples read these variables from the environment." }
            div.copyable { pre tabindex="0" { code { (VARIABLES) } } }
            p {
                "JavaScript runs in Node 18 or later: save an example as " code { "example.mjs" } ". Python 3.9 or later \
                needs only its standard library. Each prints the status, then the answer."
            }
        }
        @for group in Group::ALL {
            section id=(anchor(group.name())) {
                h2 { (group.name()) }
                p { (group.description()) }
                @for operation in of(reference, group) { (operation_section(reference, operation)) }
            }
        }
    };
    page_of("Flashsale API", &header, &contents(reference), &text)
}

fn of(reference: &Reference, group: Group) -> impl Iterator<Item = &Operation> {
    reference.operations.iter().filter(move |it| it.group == group)
}

fn contents(reference: &Reference) -> Markup {
    html! {
        @for (heading, _) in chapters() { li { a href={ "#" (anchor(heading)) } { (heading) } } }
        li { a href="#examples" { "Examples" } }
        @for group in Group::ALL {
            li {
                a href={ "#" (anchor(group.name())) } { (group.name()) }
                ul {
                    @for operation in of(reference, group) { li { a href={ "#" (operation.id) } { (operation.summary) } } }
                }
            }
        }
    }
}

pub(super) fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

/// A text, with its words in backticks as code.
pub(super) fn worded(text: &str) -> Markup {
    html! {
        @for (part, at) in text.split('`').zip(0..) {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A table, from its head and its rows.
fn table(head: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide tabindex="0" {
            table {
                thead { tr { @for name in head { th { (name) } } } }
                tbody { (rows) }
            }
        }
    }
}

fn codes() -> Markup {
    let rows = html! {
        @for code in Code::ALL {
            tr id=(code.as_str()) {
                td { a href={ "/problems#" (code.as_str()) } { code { (code.as_str()) } } }
                td { (code.status()) }
                td { (code.title()) }
                td { (worded(code.advice())) }
            }
        }
    };
    table(&["Code", "Status", "Meaning", "What a client does"], &rows)
}

fn operation_section(reference: &Reference, operation: &Operation) -> Markup {
    html! {
        article id=(operation.id) {
            h3 { (operation.summary) }
            p.route { span.method { (operation.method.to_uppercase()) } " " code { (operation.path) } }
            p.who { (allowed(operation.who)) }
            @if !operation.description.is_empty() { p { (worded(&operation.description)) } }
            @if !operation.parameters.is_empty() { h4 { "Parameters" } (parameters(&operation.parameters)) }
            @if let Some(body) = &operation.body { h4 { "Body" } (members(reference, &body.schema)) }
            h4 { "Answers" }
            dl {
                @for answer in &operation.answers {
                    dt { (answer.status) }
                    dd {
                        p {
                            (answer.description)
                            @for header in &answer.headers { " " code { (header.name) } ": " (worded(header.description)) }
                        }
                        @if [Some("application/json"), Some(EVENT_STREAM)].contains(&answer.kind) {
                            details { summary { "Members" } (members(reference, &answer.schema)) }
                        }
                        @if let Some(example) = &answer.example {
                            details {
                                summary { "Example" }
                                div.copyable {
                                    pre tabindex="0" { code { (serde_json::to_string_pretty(example).unwrap_or_default()) } }
                                }
                            }
                        }
                    }
                }
                @for (status, codes) in operation.problems() {
                    dt { (status) }
                    dd { ul.codes { @for code in codes { li { a href={ "#" (code.as_str()) } { code { (code.as_str()) } } " " (code.title()) } } } }
                }
            }
            (examples(operation))
        }
    }
}

/// The example in each language. The style sheet shows the chosen one, also without a script.
fn examples(operation: &Operation) -> Markup {
    html! {
        fieldset.example.copyable {
            legend { "Example" }
            @for language in Language::ALL {
                label {
                    input type="radio" name={ "language-" (operation.id) } value=(language.name())
                        checked[language == Language::Curl] autocomplete="off";
                    " " (language.name())
                }
            }
            @for language in Language::ALL {
                pre tabindex="0" data-language=(language.name()) { code { (language.example(operation)) } }
            }
        }
    }
}

const fn allowed(who: Who) -> &'static str {
    match who {
        Who::Anybody => "No token is needed.",
        Who::Visitor => "No token is needed; with a shopper's token the page view is counted.",
        Who::Shopper => "With a shopper's token.",
        Who::Operator => "With the operators' key, or a session of the console.",
        Who::Console => "No token is needed; with a session of the console, the answer shows it.",
        Who::Session => "With a session of the console, and its token.",
        Who::Provider => "With the payment provider's signature.",
    }
}

fn parameters(all: &[Parameter]) -> Markup {
    let rows = html! {
        @for it in all {
            tr {
                td { code { (it.name) } @if it.is_required { " " span.required { "required" } } }
                td { (it.place) }
                td { (worded(&it.description)) " " span.bounds { (bounds(&it.schema)) } }
            }
        }
    };
    table(&["Name", "In", "What"], &rows)
}

/// The table of an object's members and of the members in them.
fn members(reference: &Reference, schema: &Value) -> Markup {
    let mut all = Vec::new();
    collect(reference, schema, "", 0, &mut all);
    let rows = html! {
        @for it in &all {
            tr {
                td { code { (it.name) } @if it.is_required { " " span.required { "required" } } }
                td { (worded(&it.description)) " " span.bounds { (bounds(&it.schema)) } }
            }
        }
    };
    table(&["Member", "What"], &rows)
}

struct MemberRow {
    name: String,
    is_required: bool,
    description: String,
    schema: Value,
}

/// The schema that a `$ref` names, or the schema itself.
fn resolved<'a>(reference: &'a Reference, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|it| it.rsplit('/').next());
    name.and_then(|name| reference.schemas.get(name)).unwrap_or(schema)
}

fn collect(reference: &Reference, schema: &Value, before: &str, depth: usize, rows: &mut Vec<MemberRow>) {
    let schema = resolved(reference, schema);
    if depth > DEPTH_MAX {
        return;
    }
    for kind in ["oneOf", "anyOf", "allOf"] {
        for alternative in elements(schema, kind) {
            collect(reference, alternative, before, depth, rows);
        }
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = elements(schema, "required").any(|it| it == name);
        let name = format!("{before}{name}");
        if rows.iter().any(|row| row.name == name) {
            continue;
        }
        let inside = resolved(reference, member);
        let said = member["description"]
            .as_str()
            .or_else(|| inside["description"].as_str());
        rows.push(MemberRow {
            name: name.clone(),
            is_required,
            description: said.unwrap_or_default().replace('\n', " "),
            schema: inside.clone(),
        });
        collect(reference, inside, &format!("{name}."), depth + 1, rows);
        if let Some(data) = inside.get("contentSchema") {
            collect(reference, data, &format!("{name}."), depth + 1, rows);
        }
        if let Some(items) = inside.get("items") {
            collect(reference, items, &format!("{name}[]."), depth + 1, rows);
        }
    }
}

/// A schema's type and limits, in a few words.
fn bounds(schema: &Value) -> String {
    let mut words = Vec::new();
    match &schema["type"] {
        Value::String(kind) => words.push(kind.clone()),
        Value::Array(kinds) => words.push(kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")),
        _ => {}
    }
    let number = |name: &str| schema.get(name).map(Value::to_string);
    let range = |low: Option<String>, high: Option<String>, unit: &str| match (low, high) {
        (Some(low), Some(high)) if low == high => Some(format!("{low}{unit}")),
        (Some(low), Some(high)) => Some(format!("{low} to {high}{unit}")),
        (Some(low), None) => Some(format!("at least {low}{unit}")),
        (None, Some(high)) => Some(format!("at most {high}{unit}")),
        (None, None) => None,
    };
    let format = schema["format"].as_str().filter(|it| !it.contains("int"));
    words.extend(format.map(str::to_owned));
    words.extend(range(number("minimum"), number("maximum"), ""));
    words.extend(range(number("minLength"), number("maxLength"), " characters"));
    words.extend(range(number("minItems"), number("maxItems"), " of them"));
    words.extend(schema["pattern"].as_str().map(str::to_owned));
    words.extend(schema.get("const").map(Value::to_string));
    let named = elements(schema, "oneOf").filter_map(|it| it.get("const"));
    let choices: Vec<String> = elements(schema, "enum").chain(named).map(Value::to_string).collect();
    if !choices.is_empty() {
        words.push(choices.join(", "));
    }
    words.extend(number("default").map(|it| format!("default {it}")));
    words.join(" · ")
}
