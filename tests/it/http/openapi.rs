//! The document that describes the API, and the page that shows it. The test client checks each answer of every test
//! against the document.

use crate::support::app::{Answer, TestApp, Who, sale, sale_with, token};
use crate::support::document::{DOCUMENT, operations, validator};
use flashsale::domain::code::Code;
use flashsale::http::ROUTES;
use flashsale::http::openapi::REFERENCE;
use flashsale::metrics::Metrics;
use reqwest::Method;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

#[tokio::test]
async fn every_route_is_in_the_document_and_the_other_way_round() {
    let all: BTreeSet<_> = ROUTES.iter().map(|it| (it.path, it.method.as_str())).collect();
    assert_eq!(all.len(), ROUTES.len(), "a route is there twice");
    let documented = ROUTES.iter().filter(|it| it.describe.is_some());
    let routes: BTreeSet<_> = documented
        .map(|it| (it.path, it.method.as_str().to_lowercase()))
        .collect();
    let described: BTreeSet<_> = operations()
        .map(|(method, path, _)| (path, method.to_owned()))
        .collect();
    let none = BTreeSet::new();
    let undescribed: BTreeSet<_> = routes.difference(&described).collect();
    let unserved: BTreeSet<_> = described.difference(&routes).collect();
    assert_eq!((undescribed, unserved), (none.iter().collect(), none.iter().collect()));
    let app = TestApp::shared_api_only().await;
    let served = app.get(Who::Nobody, "/openapi.json").await.ok(200);
    assert_eq!(served.body, *DOCUMENT);
}

#[tokio::test]
async fn routes_missing_from_the_document_are_for_browsers_or_development() {
    let left_out: Vec<_> = ROUTES.iter().filter(|it| it.describe.is_none()).collect();
    let paths: BTreeSet<_> = left_out.iter().map(|it| it.path).collect();
    let expected = [
        "/",
        "/sales/{id}",
        "/assets/{version}/{name}",
        "/console",
        "/console/{view}",
        "/console/sales/{id}",
        "/console/sales/{id}/edit",
        "/console/sales/{id}/attention",
        "/console/sales/{id}/report",
        "/docs/alerts",
        "/dev/token",
        "/dev/pay",
    ];
    assert_eq!(paths, expected.into());
    let app = TestApp::shared_api_only().await;
    let sale = app.load_sale(&sale()).await;
    for route in left_out {
        let path = route
            .path
            .replace("{id}", &sale)
            .replace("{version}", "-")
            .replace("{name}", "icon.svg")
            .replace("{view}", "audit-log");
        let method = Method::from_bytes(route.method.as_str().as_bytes()).unwrap();
        let answer = app.send(app.request(method, Who::Nobody, &path)).await;
        if path.starts_with("/dev/") {
            // Development mode is not on.
            answer.no(404, "not_found");
        } else {
            let kind = answer.header("content-type").unwrap();
            assert!(
                ["text/html; charset=utf-8", "image/svg+xml"].contains(&kind),
                "{path}: {kind}"
            );
            answer.ok(200);
        }
    }
}

const NO_ID: &str = "019ac1f2-7c40-7d3a-9b1e-2f6a5c8e4d10";

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_as_described_also_where_none_is_read() {
    let app = TestApp::shared_api_only().await;
    let changing = operations().filter(|(method, path, _)| *method != "get" && path.starts_with("/v1/admin/"));
    // A sign-out is authorised by its session before any other check.
    let changing = changing.filter(|(_, _, operation)| operation["operationId"] != "signOut");
    let sale = format!("/v1/admin/sales/{NO_ID}");
    let mut count = 0;
    for (method, path, _) in changing {
        let path = path.replace("{id}", NO_ID);
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let of_sales = [("POST", "/v1/admin/sales"), ("PUT", &sale), ("PATCH", &sale)];
        let is_sale = of_sales.contains(&(method.as_str(), path.as_str()));
        let most = if is_sale { 1024 * 1024 } else { 16 * 1024 };
        let sends = |bytes: usize| {
            app.request(method.clone(), Who::Operator, &path)
                .body(vec![b' '; bytes])
        };
        // The client checks the answer against the document.
        let refused = app.send(sends(most + 1)).await.no(413, "payload_too_large");
        assert!(
            refused.text("detail").contains(&most.to_string()),
            "{path}: {refused:?}"
        );
        assert_ne!(app.send(sends(most)).await.status, 413, "{method} {path}");
        count += 1;
    }
    assert!(count > 10, "{count}");
}

#[test]
fn a_code_is_answered_by_some_route_and_with_its_status() {
    let mut seen = BTreeSet::new();
    for (_, path, operation) in operations() {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            let codes = answer.pointer("/content/application~1problem+json/schema/properties/code/enum");
            for code in codes.into_iter().flat_map(|codes| codes.as_array().unwrap()) {
                let known = Code::ALL.iter().find(|it| it.as_str() == code.as_str().unwrap());
                assert_eq!(known.unwrap().status().to_string(), *status, "{path} {code}");
                seen.insert(known.unwrap());
            }
        }
    }
    // A method that a path does not answer is no operation of the document.
    let others: BTreeSet<_> = Code::ALL.iter().filter(|code| !seen.contains(code)).collect();
    assert_eq!(others, [&Code::MethodNotAllowed].into());
}

#[test]
fn every_code_that_a_purchase_answers_has_a_count_of_its_own() {
    let metrics = Metrics::default();
    let (_, _, buy) = operations()
        .find(|(_, _, operation)| operation["operationId"] == "buy")
        .unwrap();
    let mut count = 0;
    for answer in buy["responses"].as_object().unwrap().values() {
        let codes = answer.pointer("/content/application~1problem+json/schema/properties/code/enum");
        for code in codes.into_iter().flat_map(|codes| codes.as_array().unwrap()) {
            assert!(metrics.purchases.knows([code.as_str().unwrap()]), "{code}");
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn everything_in_the_document_has_a_name_and_a_description() {
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations() {
        let at = format!("{method} {path}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{at}: the same name as another"
        );
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{at}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                !parameter["description"].as_str().unwrap().is_empty(),
                "{at}: {parameter}"
            );
        }
    }
    let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        for (member, inside) in schema["properties"].as_object().into_iter().flatten() {
            let of_type = inside["$ref"]
                .as_str()
                .map(|it| &schemas[it.rsplit('/').next().unwrap()]);
            let said = inside.get("description").or_else(|| of_type?.get("description"));
            assert!(
                said.is_some_and(|it| !it.as_str().unwrap().is_empty()),
                "{name}.{member}"
            );
        }
    }
    // A link that the compiler makes is none on other hosts.
    let text = DOCUMENT.to_string();
    assert!(
        !text.contains("[`"),
        "{}",
        &text[text.find("[`").unwrap() - 200..][..300]
    );
}

#[test]
fn examples_are_as_their_schemas_say() {
    let mut count = 0;
    let mut check = |at: &str, schema: &Value, example: &Value| {
        let wrong: Vec<String> = validator(schema, true)
            .iter_errors(example)
            .map(|it| it.to_string())
            .collect();
        assert!(wrong.is_empty(), "{at}: {example}: {wrong:?}");
        count += 1;
    };
    for (method, path, operation) in operations() {
        let at = format!("{method} {path}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if let Some(example) = parameter.get("example") {
                check(&at, &parameter["schema"], example);
            }
        }
        let bodies = operation["responses"]
            .as_object()
            .unwrap()
            .values()
            .chain(operation.get("requestBody"));
        for content in bodies
            .filter_map(|it| it.get("content"))
            .flat_map(|it| it.as_object().unwrap().values())
        {
            let several = content["examples"]
                .as_object()
                .into_iter()
                .flat_map(|it| it.values().map(|it| &it["value"]));
            for example in content.get("example").into_iter().chain(several) {
                check(&at, &content["schema"], example);
            }
        }
    }
    assert!(count > 200, "{count}");
}

#[tokio::test]
async fn the_examples_of_problems_are_as_the_answers() {
    let problems = |operation: &Value| -> BTreeMap<String, Value> {
        let answers = operation["responses"].as_object().unwrap().values();
        let examples = answers.filter_map(|it| it.pointer("/content/application~1problem+json/examples"));
        let examples = examples.flat_map(|it| it.as_object().unwrap());
        examples.map(|(code, it)| (code.clone(), it["value"].clone())).collect()
    };
    let mut by_operation = BTreeMap::new();
    for (method, path, operation) in operations() {
        let problems = problems(operation);
        for (code, problem) in &problems {
            assert_ne!(problem["detail"], problem["title"], "{method} {path}: {code}");
        }
        by_operation.insert(operation["operationId"].as_str().unwrap(), problems);
    }
    let buy = &by_operation["buy"];
    let (banned, until) = (&buy["banned"], json!("2026-11-23T09:00:00.000Z"));
    assert_eq!(
        (&banned["banned_until"], &banned["key_has_order"]),
        (&until, &json!(false))
    );
    let banned = &by_operation["askWaitingRoom"]["banned"];
    assert_eq!((&banned["banned_until"], banned.get("key_has_order")), (&until, None));
    let app = TestApp::shared_api_only().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 1, "per_user_limit": 2})))
        .await;
    let path = format!("/v1/sales/{id}/orders");
    let is = |answer: Answer, status: u16, code: &str| assert_eq!(answer.no(status, code).body, buy[code]);
    let nobody = app.request(Method::POST, Who::Nobody, &path);
    is(app.send(nobody).await, 401, "unauthenticated");
    let keyless = app.request(Method::POST, Who::Shopper("ada"), &path);
    is(app.send(keyless).await, 400, "idempotency_key_missing");
    is(app.buy("ada", NO_ID, "k", 1).await, 404, "not_found");
    is(app.buy("ada", &id, "k", 3).await, 409, "purchase_limit_reached");
    is(app.buy("ada", &id, "k", 2).await, 409, "sold_out");
    let broken = app.buying("ada", &id, "k").header("Content-Type", "application/json");
    is(app.send(broken.body("{\"sku\":")).await, 400, "invalid_request");
    app.operate(&id, "pause").await.ok(200);
    is(app.buy("ada", &id, "k", 1).await, 409, "sale_not_open");
}

/// Every member that a schema of the document names, with those that it is in.
pub(super) fn members(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let path = name.strip_prefix('#').unwrap();
        return members(DOCUMENT.pointer(path).unwrap(), at, found);
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{at}{name}"));
        members(inner, &format!("{at}{name}."), found);
    }
    for part in ["anyOf", "oneOf", "allOf"] {
        for inner in schema[part].as_array().into_iter().flatten() {
            members(inner, at, found);
        }
    }
    if let Some(items) = schema.get("items") {
        members(items, at, found);
    }
}

/// The keys of a table, likewise.
fn keys(value: &toml::Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => {
            for (name, inner) in table {
                found.insert(format!("{at}{name}"));
                keys(inner, &format!("{at}{name}."), found);
            }
        }
        toml::Value::Array(all) => all.iter().for_each(|inner| keys(inner, at, found)),
        _ => {}
    }
}

#[test]
fn the_example_of_a_sale_file_has_every_key_of_a_sale() {
    let (_, _, operation) = operations()
        .find(|(method, path, _)| (*method, *path) == ("post", "/v1/admin/sales"))
        .unwrap();
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let (mut of_sale, mut of_example) = (BTreeSet::new(), BTreeSet::new());
    members(schema, "", &mut of_sale);
    assert!(
        of_sale.contains("guards.captcha_proof_cost") && of_sale.contains("items.sku"),
        "{of_sale:?}"
    );
    let example: toml::Value = toml::from_str(include_str!("../../../sale.example.toml")).unwrap();
    keys(&example, "", &mut of_example);
    assert_eq!(of_example, of_sale);
}

/// Runs examples one after the other: their source and variables come as lines of JSON, and what each prints goes back so.
const JAVASCRIPT: &str = "import { createInterface } from 'node:readline';
const write = process.stdout.write.bind(process.stdout);
let number = 0;
for await (const line of createInterface({ input: process.stdin })) {
    const { source, variables } = JSON.parse(line);
    Object.assign(process.env, variables);
    let printed = '';
    process.stdout.write = (text) => { printed += text; return true; };
    // A module runs once under each address.
    const module = encodeURIComponent(`${source}\n// ${number += 1}`);
    await import(`data:text/javascript,${module}`).catch((error) => { printed += error.stack; });
    write(`${JSON.stringify(printed)}\n`);
}";
/// The same. Each example is a copy of this process, which has read the modules of all.
const PYTHON: &str = "import base64, hmac, json, os, sys, time, traceback, urllib.error, urllib.request
for line in sys.stdin:
    example = json.loads(line)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.environ.update(example['variables'])
        try:
            exec(compile(example['source'], 'the example', 'exec'), {'__name__': '__main__'})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as printed:
        text = printed.read()
    os.waitpid(child, 0)
    print(json.dumps(text))
";

/// A process that runs examples, each of which would take less time than the start of its own.
struct Runner {
    process: Child,
    printed: BufReader<ChildStdout>,
}

impl Runner {
    /// None for commands, which are processes themselves.
    fn of(language: &str) -> Option<Self> {
        let command = match language {
            "curl" => return None,
            "JavaScript" => ["node", "--input-type=module", "-e", JAVASCRIPT],
            _ => ["python3", "-u", "-c", PYTHON],
        };
        let mut process = Command::new("timeout")
            .arg("300")
            .args(command)
            // Not by a proxy that the environment may name.
            .env("no_proxy", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(process.stdout.take().unwrap());
        Some(Self { process, printed })
    }

    /// What an example prints.
    fn run(&mut self, source: &str, variables: &BTreeMap<&str, String>) -> String {
        let example = json!({"source": source, "variables": variables});
        writeln!(self.process.stdin.as_mut().unwrap(), "{example}").unwrap();
        let mut line = String::new();
        self.printed.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{error} in {line:?}; apt-get install --no-install-recommends nodejs python3")
        })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It ends with its last example.
        drop(self.process.stdin.take());
        let _status = self.process.wait();
    }
}

/// What an example prints in a process of its own, and what that says on standard error.
fn run_alone(language: &str, id: &str, source: &str, variables: &BTreeMap<&str, String>) -> (String, String) {
    // A stream is read for a moment.
    let seconds = if id.starts_with("follow") { "5" } else { "20" };
    let script = format!("curl() {{ command curl -w '\\n%{{http_code}}' --max-time {seconds} \"$@\"; }}\n{source}\n");
    let command = match language {
        "curl" => vec!["sh", "-c", script.as_str()],
        "JavaScript" => vec!["timeout", seconds, "node", "--input-type=module", "-e", source],
        _ => vec!["timeout", seconds, "python3", "-u", "-c", source],
    };
    let ran = Command::new(command[0])
        .args(&command[1..])
        .envs(variables)
        // Not by a proxy that the environment may name.
        .env("no_proxy", "127.0.0.1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    (String::from_utf8(ran.stdout).unwrap(), said)
}

/// Runs a route's example as the page has it, with these variables. Returns the status and the answer.
fn run(runner: Option<&mut Runner>, language: &str, id: &str, variables: &BTreeMap<&str, String>) -> (u16, Value) {
    let (_, _, operation) = operations().find(|(_, _, it)| it["operationId"] == id).unwrap();
    let mut samples = operation["x-codeSamples"].as_array().unwrap().iter();
    let sample = samples.find(|it| it["label"] == language).unwrap();
    let source = sample["source"].as_str().unwrap();
    // An example of a stream ends only with its process.
    let (stdout, said) = match runner.filter(|_| !id.starts_with("follow")) {
        Some(runner) => (runner.run(source, variables), String::new()),
        None => run_alone(language, id, source, variables),
    };
    // curl writes the status at the end, the others at the start.
    let parts = if language == "curl" {
        stdout.rsplit_once('\n').map(|(text, status)| (status, text))
    } else {
        stdout.split_once('\n')
    };
    let answer = parts.and_then(|(status, text)| {
        let body = serde_json::from_str(text).unwrap_or_else(|_| text.into());
        Some((status.parse().ok()?, body))
    });
    answer.unwrap_or_else(|| {
        panic!("{id} in {language}: {stdout} {said}; apt-get install --no-install-recommends curl nodejs python3")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_run_as_they_stand() {
    run_examples("curl").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_javascript_of_the_page_runs_as_it_stands() {
    run_examples("JavaScript").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_of_the_page_runs_as_it_stands() {
    run_examples("Python").await;
}

/// Runs the example of every route, in an order in which each is answered as the document says.
async fn run_examples(language: &str) {
    let app = TestApp::start().await;
    let guards = json!({"waiting_room": true, "purchase_token": true, "challenge": "captcha"});
    let guarded = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let mut variables: BTreeMap<_, _> = ["FLASHSALE_ADMIN_KEY", "FLASHSALE_WEBHOOK_SECRET"]
        .map(|name| (name, app.environment[name].clone()))
        .into();
    variables.insert("FLASHSALE_URL", app.url.clone());
    variables.insert("TOKEN", token("ada"));
    let (ran, runner) = (RefCell::new(BTreeSet::new()), RefCell::new(Runner::of(language)));
    let expect = |id: &'static str, variables: &BTreeMap<&str, String>| {
        let (_, _, operation) = operations().find(|(_, _, it)| it["operationId"] == id).unwrap();
        let answers = operation["responses"].as_object().unwrap().keys();
        // The first time, and not again: 201 where there is one.
        let good: Vec<u16> = answers.map(|it| it.parse().unwrap()).filter(|it| *it < 300).collect();
        let (status, body) = run(runner.borrow_mut().as_mut(), language, id, variables);
        assert_eq!(Some(&status), good.iter().max(), "{id} in {language}: {body}");
        ran.borrow_mut().insert(id);
        body
    };
    let id_of = |body: &Value| body["id"].as_str().unwrap().to_owned();
    let sale = expect("createSale", &variables);
    variables.insert("SALE_ID", id_of(&sale));
    for id in [
        "showSaleToOperator",
        "listSalesToOperator",
        "changeSale",
        "preloadSale",
        "openSale",
        "listSales",
        "showSale",
    ] {
        expect(id, &variables);
    }
    variables.insert("ORDER_ID", id_of(&expect("buy", &variables)));
    for id in [
        "listOrders",
        "showOrder",
        "showOrderToOperator",
        "cancelOrder",
        "getPurchaseToken",
    ] {
        expect(id, &variables);
    }
    // The key is another shopper's now, so this is another order.
    variables.insert("TOKEN", token("bob"));
    variables.insert("ORDER_ID", id_of(&expect("buy", &variables)));
    assert_eq!(expect("tellPayment", &variables), json!({"outcome": "applied"}));
    let paid = app
        .get(Who::Operator, "/v1/admin/payments?outcome=applied")
        .await
        .ok(200);
    let of_order = format!("pay_{}", variables["ORDER_ID"]);
    assert_eq!(
        paid.body["data"][0]["payment_id"], of_order,
        "another order, another payment"
    );
    // And another one, which is owed back.
    let paid_twice = app.pay_with("pay_2", &variables["ORDER_ID"], 2500, "EUR").await;
    assert_eq!(paid_twice, "refund_due");
    let put_aside =
        "insert into dead_letters (sale_id, shard, epoch, seq, event, reason) values ($1::uuid, 0, 1, 2, '', 'x')";
    let sale: uuid::Uuid = variables["SALE_ID"].parse().unwrap();
    let mut database = app.database().await;
    sqlx::query(put_aside).bind(sale).execute(&mut database).await.unwrap();
    expect("listOrdersToOperator", &variables);
    for id in [
        "restockSale",
        "followSale",
        "getStats",
        "listDeadLetters",
        "settleDeadLetter",
        "auditSale",
        "pauseSale",
        "resumeSale",
        "rebuildSale",
        "closeSale",
    ] {
        expect(id, &variables);
    }
    variables.insert("SALE_ID", app.create_sale(&sale_with(&json!({}))).await);
    expect("deleteSale", &variables);
    variables.insert("SALE_ID", guarded);
    for id in ["askWaitingRoom", "followWaitingRoom", "askChallenge", "banAccount"] {
        expect(id, &variables);
    }
    // The others need nothing but what exists by now.
    let of_sessions = ["showSession", "signIn", "signOut", "listSessions", "endSession"];
    for operation in &REFERENCE.operations {
        if !ran.borrow().contains(operation.id) && !of_sessions.contains(&operation.id) {
            expect(operation.id, &variables);
        }
    }
    expect("showSession", &variables);
    expect("signIn", &variables);
    // An example is no browser: the test keeps the cookie.
    let session = app.request(Method::POST, Who::Nobody, "/v1/admin/session");
    let session = app
        .send(session.json(&json!({"key": variables["FLASHSALE_ADMIN_KEY"]})))
        .await
        .ok(201);
    let cookie = session.header("set-cookie").unwrap().split(['=', ';']).nth(1).unwrap();
    variables.insert("SESSION", cookie.to_owned());
    variables.insert("CONSOLE_TOKEN", session.text("request_token").to_owned());
    assert_eq!(expect("signOut", &variables), json!({"signed_in": false}));
    let session = expect("signIn", &variables);
    variables.insert("SESSION_ID", session["session_id"].as_str().unwrap().to_owned());
    for id in ["listSessions", "endSession"] {
        expect(id, &variables);
    }
    let all: BTreeSet<_> = REFERENCE.operations.iter().map(|it| it.id).collect();
    assert_eq!(ran.into_inner(), all);
}

#[tokio::test]
async fn the_page_has_every_route_and_nothing_from_elsewhere() {
    let app = TestApp::shared_api_only().await;
    let page = app.get(Who::Nobody, "/docs").await.ok(200);
    let with_slash = app.get(Who::Nobody, "/docs/").await.ok(200);
    assert_eq!(with_slash.text, page.text);
    for part in ["webhook-signature", "FLASHSALE_OPERATOR_KEYS", "500, 502, 503 or 504"] {
        assert!(page.text.contains(part), "{part}");
    }
    for operation in &REFERENCE.operations {
        assert!(
            page.text.contains(&format!("<article id=\"{}\">", operation.id)),
            "{}",
            operation.id
        );
    }
    let script = r#"<script type="module" src="/docs/reference.js">"#;
    assert_eq!(page.text.matches(script).count(), 1);
    let others = page.text.replacen(script, "", 1);
    for forbidden in ["<script", "<style", " style=", "javascript:", "src=", " on"] {
        let tags = others.split('<').skip(1).map(|it| it.split('>').next().unwrap());
        let wrong: Vec<_> = tags
            .map(|it| format!("<{it}"))
            .filter(|it| it.contains(forbidden))
            .collect();
        assert_eq!(wrong, [""; 0], "{forbidden}");
    }
    let links = page
        .text
        .split("href=\"")
        .skip(1)
        .map(|it| it.split('"').next().unwrap());
    for link in links {
        match link.strip_prefix('#') {
            Some(anchor) => assert!(page.text.contains(&format!(" id=\"{anchor}\"")), "{link} leads nowhere"),
            None => {
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let leads_to = app.get(Who::Nobody, path).await.ok(200);
                let is_there = anchor.is_empty() || leads_to.text.contains(&format!(" id=\"{anchor}\""));
                assert!(is_there, "{link} leads nowhere");
            }
        }
    }
    let style = app.get(Who::Nobody, "/docs/reference.css").await.ok(200);
    assert!(!style.text.contains("url(") && !style.text.contains("@import"));
    let script = app.get(Who::Nobody, "/docs/reference.js").await.ok(200);
    for answer in [&page, &style, &script] {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
}

#[tokio::test]
async fn the_runbook_has_every_alert_and_the_console_leads_to_its_paragraphs() {
    let app = TestApp::shared_api_only().await;
    let page = app.get(Who::Nobody, "/docs/alerts").await.ok(200);
    for left in ["**", "```", "](", "###"] {
        assert!(!page.text.contains(left), "{left} is left");
    }
    let anchors: Vec<&str> = page
        .text
        .split(" id=\"")
        .skip(1)
        .map(|it| it.split('"').next().unwrap())
        .collect();
    let links = page
        .text
        .split("href=\"#")
        .skip(1)
        .map(|it| it.split('"').next().unwrap());
    for link in links {
        assert!(anchors.contains(&link), "{link} leads nowhere");
    }
    let verdict = app.get(Who::Nobody, "/assets/-/console-verdict.js").await.ok(200);
    let named: Vec<&str> = verdict
        .text
        .split("'flashsale")
        .skip(1)
        .map(|it| it.split('\'').next().unwrap())
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        assert!(
            anchors.contains(&&*format!("flashsale{name}")),
            "no paragraph for {name}"
        );
    }
}

#[tokio::test]
async fn a_copy_that_is_still_good_is_not_sent_again() {
    let app = TestApp::shared_api_only().await;
    for path in [
        "/docs",
        "/docs/alerts",
        "/docs/reference.css",
        "/docs/reference.js",
        "/problems",
        "/openapi.json",
    ] {
        let first = app.get(Who::Nobody, path).await.ok(200);
        let tag = first.header("etag").unwrap();
        let ask = |tag: &str| app.request(Method::GET, Who::Nobody, path).header("If-None-Match", tag);
        let again = app.send(ask(tag)).await.ok(304);
        assert_eq!((again.header("etag"), again.text.as_str()), (Some(tag), ""));
        app.send(ask("\"another\"")).await.ok(200);
    }
}

#[tokio::test]
async fn no_stream_of_events_is_kept_back_by_a_proxy() {
    let app = TestApp::start().await;
    let id = app
        .load_sale(&sale_with(&json!({"guards": {"waiting_room": true}})))
        .await;
    let streams: Vec<String> = operations()
        .filter(|(_, _, operation)| operation["responses"]["200"]["content"]["text/event-stream"].is_object())
        .map(|(_, path, _)| path.to_owned())
        .collect();
    assert_eq!(streams.len(), 3, "{streams:?}");
    for path in streams {
        let is_operators = path.starts_with("/v1/admin/");
        let who = if is_operators {
            Who::Operator
        } else {
            Who::Shopper("ada")
        };
        let request = app.request(Method::GET, who, &path.replace("{id}", &id));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-store"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(response.headers()[name], value, "{path}");
        }
    }
}
