//! Each route's example as a curl command, in JavaScript and in Python, all from the route's description. An example
//! reads the variables of [`VARIABLES`] from its environment.

use super::operation::{EVENT_STREAM, KEY, ORDER_ID, Operation, SALE_ID, SESSION_ID, Who};
use crate::http::admin::operator::{REQUEST_TOKEN, SESSION_COOKIE};
use serde_json::Value;

/// The environment of the examples, as shell commands.
pub const VARIABLES: &str = "\
export FLASHSALE_URL=http://127.0.0.1:8080
export FLASHSALE_ADMIN_KEY=…                      # operators
export TOKEN=$(flashsale token --user ada)        # shoppers
export FLASHSALE_WEBHOOK_SECRET=whsec_…           # the payment provider
export SALE_ID=… ORDER_ID=… SESSION_ID=…          # from other answers
export SESSION=… CONSOLE_TOKEN=…                  # the cookie and the token of a session of the console";

/// The values of the descriptions that examples read from a variable.
const FROM_VARIABLES: &[(&str, &str)] = &[
    (SALE_ID, "SALE_ID"),
    (ORDER_ID, "ORDER_ID"),
    (SESSION_ID, "SESSION_ID"),
    (KEY, "FLASHSALE_ADMIN_KEY"),
];

/// The lines that sign a payment, in each language: they read `body` and write `at` and `signature`.
const SIGN_SHELL: &str = r#"at=$(date +%s)
key=$(printf %s "${FLASHSALE_WEBHOOK_SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
signature=$(printf %s "msg_1.$at.$body" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
"#;
const SIGN_JAVASCRIPT: &str = r#"const at = Math.floor(Date.now() / 1000);
const key = Buffer.from(env.FLASHSALE_WEBHOOK_SECRET.replace("whsec_", ""), "base64");
const signature = createHmac("sha256", key).update(`msg_1.${at}.${body}`).digest("base64");
"#;
const SIGN_PYTHON: &str = r#"at = int(time.time())
key = base64.b64decode(environ["FLASHSALE_WEBHOOK_SECRET"].removeprefix("whsec_"))
signature = base64.b64encode(hmac.digest(key, f"msg_1.{at}.{body}".encode(), "sha256")).decode()
"#;

/// The indentation of a line in brackets, and the length from which brackets have lines of their own.
const STEP: usize = 4;
const LINE_MAX: usize = 80;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Curl,
    JavaScript,
    Python,
}

impl Language {
    pub const ALL: [Self; 3] = [Self::Curl, Self::JavaScript, Self::Python];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::JavaScript => "JavaScript",
            Self::Python => "Python",
        }
    }

    /// The language's name in `x-codeSamples`.
    pub const fn sample(self) -> &'static str {
        match self {
            Self::Curl => "Shell",
            Self::JavaScript | Self::Python => self.name(),
        }
    }

    pub fn example(self, operation: &Operation) -> String {
        let request = Request::of(operation);
        match self {
            Self::Curl => request.curl(),
            Self::JavaScript => request.javascript(),
            Self::Python => request.python(),
        }
    }
}

/// The request of an example. Its texts name variables as a shell does: those of the environment in upper case, those
/// of the signature in lower case.
struct Request<'a> {
    method: String,
    /// The path and the query.
    target: String,
    headers: Vec<(&'a str, String)>,
    body: Option<&'a Value>,
    is_signed: bool,
    is_stream: bool,
}

impl<'a> Request<'a> {
    fn of(operation: &'a Operation) -> Self {
        let body = operation.body.as_ref().map(|it| &it.example);
        let mut headers = match operation.who {
            Who::Shopper => vec![("Authorization", "Bearer $TOKEN".to_owned())],
            Who::Operator => vec![("Authorization", "Bearer $FLASHSALE_ADMIN_KEY".to_owned())],
            Who::Provider => vec![
                ("webhook-timestamp", "$at".to_owned()),
                ("webhook-signature", "v1,$signature".to_owned()),
            ],
            Who::Session => vec![
                ("Cookie", format!("{SESSION_COOKIE}=$SESSION")),
                (REQUEST_TOKEN, "$CONSOLE_TOKEN".to_owned()),
            ],
            Who::Anybody | Who::Visitor | Who::Console => Vec::new(),
        };
        for parameter in operation.parameters.iter().filter(|it| it.place == "header") {
            if let Some(example) = parameter.example.as_ref().and_then(Value::as_str) {
                headers.push((parameter.name.as_str(), example.to_owned()));
            }
        }
        if body.is_some() {
            headers.push(("Content-Type", "application/json".to_owned()));
        }
        Self {
            method: operation.method.to_uppercase(),
            target: target(operation),
            headers,
            body,
            is_signed: operation.who == Who::Provider,
            is_stream: operation.answers.iter().any(|answer| answer.kind == Some(EVENT_STREAM)),
        }
    }

    fn curl(&self) -> String {
        // No body has an apostrophe.
        let body = self.body.map(|it| it.to_string());
        let body = body.map(|it| format!("'{}'", with_variables(&it, |name| format!("'\"${name}\"'"))));
        let mut text = match &body {
            Some(body) if self.is_signed => format!("body={body}\n{SIGN_SHELL}"),
            _ => String::new(),
        };
        // -N: print the events of a stream as they come.
        text += if self.is_stream { "curl -sSN" } else { "curl -sS" };
        if self.method != "GET" {
            text += &format!(" -X {}", self.method);
        }
        text += &format!(" \"$FLASHSALE_URL{}\"", self.target);
        for (name, value) in &self.headers {
            // A shell replaces variables between double quotes only.
            let quote = if value.contains('$') { '"' } else { '\'' };
            text += &format!(" \\\n  -H {quote}{name}: {value}{quote}");
        }
        if let Some(body) = body {
            text += &format!(" \\\n  -d {}", if self.is_signed { "\"$body\"" } else { &body });
        }
        text
    }

    fn javascript(&self) -> String {
        let (before, options) = self.parts(&JAVASCRIPT);
        let imports = if self.is_signed {
            "import { createHmac } from \"node:crypto\";\n\n"
        } else {
            ""
        };
        let mut arguments = JAVASCRIPT.text(&format!("$FLASHSALE_URL{}", self.target));
        if !options.is_empty() {
            arguments += &format!(", {}", lines(['{', '}'], &options, 0));
        }
        let print = if self.is_stream {
            "for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {\n    \
             process.stdout.write(part);\n}"
        } else {
            "console.log(await answer.text());"
        };
        format!(
            "{imports}const {{ env }} = process;\n{before}const answer = await fetch({arguments});\n\
             console.log(answer.status);\n{print}"
        )
    }

    fn python(&self) -> String {
        let (before, options) = self.parts(&PYTHON);
        let imports = match self.body {
            Some(_) if self.is_signed => "import base64\nimport hmac\nimport json\nimport time\n",
            Some(_) => "import json\n",
            None => "",
        };
        let mut arguments = vec![PYTHON.text(&format!("$FLASHSALE_URL{}", self.target))];
        arguments.extend(options);
        let arguments = listed(['(', ')'], &arguments, 0);
        let print = if self.is_stream {
            "for line in answer:\n    print(line.decode(), end=\"\", flush=True)"
        } else {
            "print(answer.read().decode())"
        };
        format!(
            "{imports}from os import environ\nfrom urllib.error import HTTPError\n\
             from urllib.request import Request, urlopen\n\n{before}request = Request{arguments}\n\
             try:\n    answer = urlopen(request)\nexcept HTTPError as problem:\n    answer = problem\n\
             print(answer.status)\n{print}"
        )
    }

    /// The lines before the request, and its options.
    fn parts(&self, syntax: &Syntax) -> (String, Vec<String>) {
        let [begin, end] = syntax.json;
        let (assign, sign) = syntax.sign;
        let is = syntax.is;
        let mut before = String::new();
        let mut options = Vec::new();
        if self.method != "GET" {
            options.push(format!("method{is}\"{}\"", self.method));
        }
        let headers = self.headers.iter();
        let headers: Vec<String> = headers
            .map(|(name, value)| format!("\"{name}\": {}", syntax.text(value)))
            .collect();
        if !headers.is_empty() {
            options.push(format!("headers{is}{}", listed(['{', '}'], &headers, STEP)));
        }
        if let Some(body) = self.body {
            let indent = if self.is_signed { 0 } else { STEP };
            let mut text = format!("{begin}{}{end}", syntax.literal(body, indent));
            if self.is_signed {
                before = format!("{assign}{text}{}{sign}", syntax.line_end);
                text = "body".to_owned();
            }
            options.push(format!("{}{is}{text}{}", syntax.body, syntax.bytes));
        }
        (before, options)
    }
}

/// How JavaScript and Python write a request.
struct Syntax {
    /// True, false and nothing.
    constants: [&'static str; 3],
    /// A variable of the environment as a value.
    variable: fn(&str) -> String,
    /// A text with variables in it.
    template: fn(&str) -> String,
    line_end: &'static str,
    /// What stands between the name of an option and its value.
    is: &'static str,
    /// The name of the option for the body.
    body: &'static str,
    /// What stands around a value to write it as JSON.
    json: [&'static str; 2],
    /// What makes bytes of a text.
    bytes: &'static str,
    /// The start of the line with a body to be signed, and the lines that sign it.
    sign: (&'static str, &'static str),
}

const JAVASCRIPT: Syntax = Syntax {
    constants: ["true", "false", "null"],
    variable: |name| format!("env.{name}"),
    template: |text| {
        let text = replaced(text, |name| {
            format!("${{{}{name}}}", if is_of_environment(name) { "env." } else { "" })
        });
        format!("`{text}`")
    },
    line_end: ";\n",
    is: ": ",
    body: "body",
    json: ["JSON.stringify(", ")"],
    bytes: "",
    sign: ("const body = ", SIGN_JAVASCRIPT),
};

const PYTHON: Syntax = Syntax {
    constants: ["True", "False", "None"],
    variable: |name| format!("environ[\"{name}\"]"),
    template: |text| {
        let text = replaced(text, |name| {
            if is_of_environment(name) {
                format!("{{environ['{name}']}}")
            } else {
                format!("{{{name}}}")
            }
        });
        format!("f\"{text}\"")
    },
    line_end: "\n",
    is: "=",
    body: "data",
    json: ["json.dumps(", ")"],
    bytes: ".encode()",
    sign: ("body = ", SIGN_PYTHON),
};

impl Syntax {
    /// A text of a request.
    fn text(&self, text: &str) -> String {
        if text.contains('$') {
            (self.template)(text)
        } else {
            // The escapes of JSON are those of both languages.
            Value::from(text).to_string()
        }
    }

    /// A value of JSON, whose first line has this indentation.
    fn literal(&self, value: &Value, indent: usize) -> String {
        let [yes, no, nothing] = self.constants;
        match value {
            Value::Null => nothing.to_owned(),
            Value::Bool(true) => yes.to_owned(),
            Value::Bool(false) => no.to_owned(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => match FROM_VARIABLES.iter().find(|it| it.0 == text.as_str()) {
                Some((_, name)) => (self.variable)(name),
                // A part of the text may come from a variable.
                None => self.text(&with_variables(text, |name| format!("${name}"))),
            },
            Value::Array(all) => {
                let all: Vec<String> = all.iter().map(|it| self.literal(it, indent + STEP)).collect();
                listed(['[', ']'], &all, indent)
            }
            Value::Object(all) => {
                let all = all.iter();
                let all: Vec<String> = all
                    .map(|(name, it)| format!("\"{name}\": {}", self.literal(it, indent + STEP)))
                    .collect();
                listed(['{', '}'], &all, indent)
            }
        }
    }
}

/// Parts in brackets: on one line, if it is short.
fn listed([begin, end]: [char; 2], parts: &[String], indent: usize) -> String {
    let line = parts.join(", ");
    if line.contains('\n') || indent + line.len() > LINE_MAX {
        lines([begin, end], parts, indent)
    } else {
        format!("{begin}{line}{end}")
    }
}

/// Parts in brackets, each on a line.
fn lines([begin, end]: [char; 2], parts: &[String], indent: usize) -> String {
    let inner = " ".repeat(indent + STEP);
    let parts: Vec<String> = parts.iter().map(|part| format!("{inner}{part},\n")).collect();
    format!("{begin}\n{}{}{end}", parts.concat(), " ".repeat(indent))
}

fn is_of_environment(name: &str) -> bool {
    name.starts_with(|it: char| it.is_ascii_uppercase())
}

/// A text whose variables, each a `$` and a name, are written in another way.
fn replaced(text: &str, write: impl Fn(&str) -> String) -> String {
    let mut parts = text.split('$');
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|it: char| !it.is_ascii_alphabetic() && it != '_');
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        written += &write(name);
        written += rest;
    }
    written
}

/// A text with variables in place of the values that come from them.
fn with_variables(text: &str, write: impl Fn(&str) -> String) -> String {
    let all = FROM_VARIABLES.iter();
    all.fold(text.to_owned(), |text, (value, name)| {
        text.replace(*value, &write(name))
    })
}

/// The path and the query of the example.
fn target(operation: &Operation) -> String {
    let mut target = operation.path.to_owned();
    let mut separator = '?';
    for parameter in &operation.parameters {
        let Some(example) = &parameter.example else { continue };
        let value = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        let value = with_variables(&value, |name| format!("${name}"));
        match parameter.place {
            "path" => target = target.replace(&format!("{{{}}}", parameter.name), &value),
            "query" => {
                target += &format!("{separator}{}={value}", parameter.name);
                separator = '&';
            }
            _ => {}
        }
    }
    target
}
