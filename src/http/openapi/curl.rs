//! Each route's example as a curl command. It runs in a shell that has the variables of [`VARIABLES`].

use super::operation::{EVENT_STREAM, KEY, ORDER_ID, Operation, SALE_ID, SESSION_ID, Who};
use crate::http::admin::operator::{REQUEST_TOKEN, SESSION_COOKIE};
use serde_json::Value;

/// The shell variables of the commands.
pub const VARIABLES: &str = "\
export FLASHSALE_URL=http://127.0.0.1:8080
export FLASHSALE_ADMIN_KEY=…                      # operators
export TOKEN=$(flashsale token --user ada)        # shoppers
export FLASHSALE_WEBHOOK_SECRET=whsec_…           # the payment provider
export SALE_ID=… ORDER_ID=… SESSION_ID=…          # from other answers
export SESSION=… CONSOLE_TOKEN=…                  # the cookie and the token of a session of the console";

/// The shell lines that sign a payment.
const SIGN: &str = r#"AT=$(date +%s)
KEY=$(printf %s "${FLASHSALE_WEBHOOK_SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
SIGNATURE=$(printf %s "msg_1.$AT.$BODY" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$KEY" -binary | base64)
"#;

pub fn command(operation: &Operation) -> String {
    let is_signed = operation.who == Who::Provider;
    let body = operation.body.as_ref().map(|body| quoted(&body.example));
    let mut text = match &body {
        Some(body) if is_signed => format!("BODY={body}\n{SIGN}"),
        _ => String::new(),
    };
    // -N: print the events of a stream as they come.
    let is_stream = operation.answers.iter().any(|answer| answer.kind == Some(EVENT_STREAM));
    text += if is_stream { "curl -sSN" } else { "curl -sS" };
    if operation.method != "get" {
        text += &format!(" -X {}", operation.method.to_uppercase());
    }
    text += &format!(" \"$FLASHSALE_URL{}\"", target(operation));
    let mut header = |value: &str| text += &format!(" \\\n  -H {value}");
    match operation.who {
        Who::Shopper => header("\"Authorization: Bearer $TOKEN\""),
        Who::Operator => header("\"Authorization: Bearer $FLASHSALE_ADMIN_KEY\""),
        Who::Provider => {
            header("\"webhook-timestamp: $AT\"");
            header("\"webhook-signature: v1,$SIGNATURE\"");
        }
        Who::Session => {
            header(&format!("\"Cookie: {SESSION_COOKIE}=$SESSION\""));
            header(&format!("\"{REQUEST_TOKEN}: $CONSOLE_TOKEN\""));
        }
        Who::Anybody | Who::Visitor | Who::Console => {}
    }
    for parameter in operation.parameters.iter().filter(|it| it.place == "header") {
        if let Some(example) = parameter.example.as_ref().and_then(Value::as_str) {
            header(&format!("'{}: {example}'", parameter.name));
        }
    }
    if let Some(body) = body {
        header("'Content-Type: application/json'");
        text += &format!(" \\\n  -d {}", if is_signed { "\"$BODY\"" } else { &body });
    }
    text
}

/// The path and the query, with shell variables in place of the example's ids.
fn target(operation: &Operation) -> String {
    let mut target = operation.path.to_owned();
    let mut separator = '?';
    for parameter in &operation.parameters {
        let Some(example) = &parameter.example else { continue };
        let value = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        let value = value.replace(SALE_ID, "$SALE_ID").replace(ORDER_ID, "$ORDER_ID");
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

/// A body as a quoted word for the shell. No example has an apostrophe.
fn quoted(body: &Value) -> String {
    let text = body.to_string();
    let text = text
        .replace(SALE_ID, "'\"$SALE_ID\"'")
        .replace(ORDER_ID, "'\"$ORDER_ID\"'")
        .replace(SESSION_ID, "'\"$SESSION_ID\"'")
        .replace(KEY, "'\"$FLASHSALE_ADMIN_KEY\"'");
    format!("'{text}'")
}
