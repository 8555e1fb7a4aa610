//! The pages of shoppers and operators as they are served, and their colours.

mod development;
mod repeated;
mod words;

use crate::support::app::{Answer, Client, Instance, TestApp, Who, environment, sale, sale_with};
use crate::support::servers::{Frozen, database, fresh_redis};
use crate::support::{poll, root};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flashsale::domain::shop::look::Accent;
use flate2::read::GzDecoder;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::time::{Duration, Instant};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types proof";

/// The files that browsers get, by name.
fn files() -> impl Iterator<Item = (String, String)> {
    let folders = ["shared", "shop", "console"].map(|folder| root().join("web").join(folder));
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    entries.map(|entry| {
        let path = entry.unwrap().path();
        (
            path.file_name().unwrap().to_str().unwrap().to_owned(),
            fs::read_to_string(path).unwrap(),
        )
    })
}

fn pages() -> BTreeMap<String, String> {
    files().filter(|(name, _)| name.ends_with(".html")).collect()
}

fn assets() -> BTreeMap<String, String> {
    files().filter(|(name, _)| !name.ends_with(".html")).collect()
}

/// Files of the shop that are parts of others.
fn is_part(name: &str) -> bool {
    let is_of_shop = root().join("web/shop").join(name).exists();
    is_of_shop && !["sale-page.js", "sales-page.js", "proof-worker.js", "shop.css"].contains(&name)
}

/// How long clients keep a copy: a page of the shop, and all other pages and files, which they ask for again.
const SECOND: &str = "public, max-age=1";
const ASK: &str = "no-cache";

fn is_guarded(answer: &Answer, caching: &str) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", caching),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let unused = answer.header("permissions-policy").unwrap();
    assert!(unused.contains("camera=()"), "{unused}");
}

#[tokio::test]
async fn every_file_is_served_guarded_and_not_sent_twice() {
    let app = TestApp::shared_api_only().await;
    let kinds = [("js", "text/javascript"), ("css", "text/css"), ("svg", "image/svg+xml")];
    for (name, text) in assets() {
        let path = format!("/assets/another/{name}");
        if is_part(&name) {
            app.get(Who::Nobody, &path).await.no(404, "not_found");
            continue;
        }
        let served = app.get(Who::Nobody, &path).await.ok(200);
        is_guarded(&served, ASK);
        let is_bundle = root().join("web/shop").join(&name).exists() && name != "proof-worker.js";
        // The server fills in the languages.
        let is_filled = is_bundle || name.ends_with("words.js");
        let text = if is_filled { served.text.clone() } else { text };
        assert_eq!(served.text, text, "{name}");
        let mut lines = text.lines().filter(|_| is_bundle);
        assert!(
            lines.all(|line| !line.starts_with("import ") && !line.starts_with("export ")),
            "{name} is whole"
        );
        let kind = served.header("content-type").unwrap();
        assert!(
            kinds
                .iter()
                .any(|(end, it)| name.ends_with(end) && kind.starts_with(it)),
            "{name}: {kind}"
        );
        let packed = app
            .request(Method::GET, Who::Nobody, &path)
            .header("Accept-Encoding", "br, gzip");
        let packed = packed.send().await.unwrap();
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        let mut unpacked = String::new();
        let bytes = packed.bytes().await.unwrap();
        assert!(bytes.len() < text.len(), "{name}");
        GzDecoder::new(&bytes[..]).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, text, "{name}");
        let tag = served.header("etag").unwrap();
        for (known, status) in [(tag, 304), ("*", 304), ("\"other\"", 200), ("nonsense", 200)] {
            let request = app
                .request(Method::GET, Who::Nobody, &path)
                .header("If-None-Match", known);
            let again = app.send(request).await.ok(status);
            assert_eq!(again.text.is_empty(), status == 304, "{name}");
            is_guarded(&again, ASK);
        }
        let head = app.send(app.request(Method::HEAD, Who::Nobody, &path)).await.ok(200);
        assert_eq!((head.text.as_str(), head.header("etag")), ("", Some(tag)), "{name}");
    }
    for nothing in [
        "/assets/-/nothing.js",
        "/assets/base.css",
        "/assets/-/",
        "/assets/-/..%2Fsale.html",
        "/assets/-/sale.html",
    ] {
        app.get(Who::Nobody, nothing).await.no(404, "not_found");
    }
}

#[tokio::test]
async fn browsers_keep_the_files_that_a_page_names_and_ask_for_no_other() {
    let app = TestApp::shared_api_only().await;
    let sale = format!("/sales/{}", app.load_sale(&sale()).await);
    for (path, vary) in [
        ("/", "Accept-Encoding, Accept-Language"),
        (&*sale, "Accept-Encoding, Accept-Language"),
        ("/console", "Accept-Encoding"),
    ] {
        let page = app.get(Who::Nobody, path).await.ok(200);
        assert_eq!(page.header("vary"), Some(vary));
        for rest in page.text.split("\"/assets/").skip(1) {
            let file = rest.split('"').next().unwrap();
            let file = app.get(Who::Nobody, &format!("/assets/{file}")).await.ok(200);
            assert_eq!(
                file.header("cache-control"),
                Some("public, max-age=31536000, immutable")
            );
        }
    }
}

#[tokio::test]
async fn configured_texts_of_the_shop_are_escaped_in_the_page() {
    let sign_in = "https://shop.example/sign-in?a=1&copy=2&back={return}";
    let app = TestApp::with("api", &[("FLASHSALE_SIGN_IN_URL", sign_in)]).await;
    let sale = format!("/sales/{}", app.load_sale(&sale()).await);
    for path in ["/", &sale] {
        let page = app.get(Who::Nobody, path).await.ok(200);
        is_guarded(&page, SECOND);
        let escaped = "data-sign-in-url=\"https://shop.example/sign-in?a=1&amp;copy=2&amp;back={return}\"";
        assert!(
            page.text.contains(escaped) && !page.text.contains("data-pay-url"),
            "{}",
            page.text
        );
    }
}

#[tokio::test]
async fn the_look_of_the_shop_is_on_its_pages_and_their_policy_lets_it_in() {
    let look = [
        ("FLASHSALE_SHOP_NAME", "Ada & \"Co\""),
        ("FLASHSALE_SHOP_LOGO_URL", "https://logos.example/ada.svg?a=1&b=2"),
        ("FLASHSALE_SHOP_ACCENT", "#0A5C36"),
        (
            "FLASHSALE_IMAGE_ORIGINS",
            "https://images.example, https://cdn.example:8443",
        ),
    ];
    let pictures = "img-src 'self' data: https://logos.example https://images.example https://cdn.example:8443;";
    let tones = Accent::parse("#0a5c36").unwrap();
    let [light, dark] = [tones.light(), tones.dark()].map(|tones| {
        format!(
            "html:root{{--accent:{};--accent-deep:{};--on-accent:{}}}",
            tones.accent, tones.deep, tones.ink
        )
    });
    let style = format!("{light}@media (prefers-color-scheme:dark){{{dark}}}");
    let hash = STANDARD.encode(Sha256::digest(&style));
    let policy = POLICY
        .replace("img-src 'self' data:;", pictures)
        .replace("style-src 'self'", &format!("style-src 'self' 'sha256-{hash}'"));
    let app = TestApp::with("api", &look).await;
    let sale = format!("/sales/{}", app.load_sale(&sale()).await);
    let name = "Ada &amp; &quot;Co&quot;";
    for (path, title) in [
        ("/", "Sales"),
        (&*sale, "A sale"),
        ("/nothing", "There is no such page."),
    ] {
        let page = asking(&app, "en", path).send().await.unwrap();
        assert_eq!(page.headers()["content-security-policy"], policy.as_str());
        let page = page.text().await.unwrap();
        for part in [
            &format!("<title>{title} · {name}</title>"),
            &format!("<meta property=\"og:site_name\" content=\"{name}\">"),
            &format!("<img class=\"logo\" alt=\"\" src=\"https://logos.example/ada.svg?a=1&amp;b=2\">{name}</a>"),
            &format!("<style>{style}</style>"),
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.contains(&format!("data-shop-name=\"{name}\"")), path != "/nothing");
    }
    is_guarded(&app.get(Who::Nobody, "/console").await.ok(200), ASK);

    let plain = TestApp::start_api_only().await;
    let page = plain.get(Who::Nobody, "/").await.ok(200);
    is_guarded(&page, SECOND);
    assert!(page.text.contains("data-shop-name=\"Flashsale\""), "{}", page.text);
    for part in ["class=\"logo\"", "<style"] {
        assert!(!page.text.contains(part), "{}", page.text);
    }
}

#[tokio::test]
async fn a_page_shows_texts_pictures_options_and_the_message_of_the_shop_in_its_html() {
    let app = TestApp::start().await;
    let item = |option: &str, stock: u32| {
        json!({"sku": option, "name": format!("Shirt {option}"), "price_minor": 1900, "currency": "EUR", "stock": stock,
            "per_user_limit": 1, "group": "Shirts", "option": option, "image_url": "/assets/shirt.png"})
    };
    let picture = "https://images.example/winter.jpg?a=1&b=2";
    let long = format!("Warm things,\n\n{}", "once a year ".repeat(20));
    let mut request = sale_with(&json!({"items": [item("S", 1), item("M", 50)]}));
    (request["description"], request["image_url"]) = (json!(long.trim()), json!(picture));
    let id = app.load_sale(&request).await;
    let path = format!("/v1/admin/sales/{id}/message");
    let message = json!({"en": "More <b>at</b> 18:00."});
    let message = app.request(Method::PUT, Who::Operator, &path).json(&message);
    app.send(message).await.ok(200);
    for (language, words) in [("en", ["Choose one", "Almost gone"]), ("zh", ["请选择", "即将售罄"])] {
        let page = poll::answer("the page has the message", || async {
            let page = page_in(&app, language, &format!("/sales/{id}")).await.ok(200);
            page.text.contains("at&lt;/b&gt; 18:00").then_some(page)
        })
        .await
        .text;
        let escaped = "https://images.example/winter.jpg?a=1&amp;b=2";
        for part in [
            &*format!("<meta property=\"og:image\" content=\"{escaped}\">"),
            &format!("fetchpriority=\"high\" src=\"{escaped}\">"),
            "<meta property=\"og:description\" content=\"Warm things, once a year once",
            "Warm things,\n\nonce a year",
            "<h3>Shirts</h3>",
            "<span>S</span>",
            // Its address is not that of a file of ours.
            "loading=\"lazy\" decoding=\"async\" src=\"/assets/shirt.png\">",
            "<p id=\"message-text\" lang=\"en\">More &lt;b&gt;at",
        ]
        .iter()
        .chain(&words)
        {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert_eq!(
            page.matches("class=\"picture\"").count(),
            2,
            "one of the sale, one of the group"
        );
    }
    // Other sites want a whole address.
    let id = app.load_sale(&sale_with(&json!({"image_url": "/winter.jpg"}))).await;
    let page = page_in(&app, "en", &format!("/sales/{id}")).await.ok(200).text;
    assert!(
        page.contains("src=\"/winter.jpg\"") && !page.contains("og:image"),
        "{page}"
    );
}

#[tokio::test]
async fn pages_are_the_same_for_everybody_and_hold_no_script_of_their_own() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let sale_path = format!("/sales/{id}");
    let (console, draft) = (format!("/console/sales/{id}"), format!("/console/sales/{id}/edit"));
    let of_console = [
        "/console",
        "/console/sales",
        "/console/accounts",
        "/console/money",
        "/console/orders",
        "/console/limits",
        "/console/shadow",
        "/console/audit-log",
    ];
    let (attention, report) = (format!("{console}/attention"), format!("{console}/report"));
    let of_sales = ["/console/sales/new", &console, &draft, &attention, &report];
    let of_shop = ["/", &sale_path];
    app.buy("ada-lovelace", &id, "k", 1).await.ok(201);
    for path in of_shop.into_iter().chain(of_console).chain(of_sales) {
        let page = app.get(Who::Shopper("ada-lovelace"), path).await.ok(200);
        is_guarded(&page, if of_shop.contains(&path) { SECOND } else { ASK });
        assert!(!page.text.contains("ada-lovelace"), "{path}");
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert!(page.text.contains("data-development=\"no\""), "{path}");
        if !of_shop.contains(&path) {
            let tag = page.header("etag").unwrap();
            let request = app.request(Method::GET, Who::Nobody, path).header("If-None-Match", tag);
            app.send(request).await.ok(304);
        }
        for (at, _) in page.text.match_indices("<script") {
            let tag = &page.text[at..at + page.text[at..].find("</script>").unwrap()];
            let is_data = tag.starts_with("<script id=\"reading\" type=\"application/json\">{");
            assert!(
                is_data || tag.ends_with("\">") && tag.contains(" src=\"/assets/"),
                "{tag}"
            );
        }
        for word in ["style=", "<style", "javascript:", "http:", "https:", "//"] {
            assert!(!page.text.contains(word), "{path} has {word}");
        }
        for attribute in page.text.split_whitespace() {
            assert!(!attribute.starts_with("on"), "{path} has {attribute}");
        }
    }
    let wrong = app.request(Method::GET, Who::Nobody, "/sales/nonsense");
    let wrong = wrong.send().await.unwrap();
    assert_eq!(wrong.status().as_u16(), 404);
    assert!(wrong.text().await.unwrap().contains("sale-page.js"));
    for nothing in ["/console/nothing", "/console/sales/nothing"] {
        let page = app.request(Method::GET, Who::Nobody, nothing).send().await.unwrap();
        assert_eq!(page.status().as_u16(), 404, "{nothing}");
        assert!(page.text().await.unwrap().contains("console.js"));
    }
    app.post(Who::Nobody, "/").await.no(405, "method_not_allowed");
    app.post(Who::Nobody, "/console").await.no(405, "method_not_allowed");
}

#[test]
fn pages_and_scripts_name_only_files_that_there_are_and_load_all_that_they_need() {
    let assets = assets();
    let mut named = BTreeSet::new();
    for (name, text) in assets.iter().chain(&pages()) {
        for (start, end) in [("\"/assets/", '"'), ("URL('./", '\''), ("from './", '\'')] {
            for rest in text.split(start).skip(1) {
                let file = rest.split(end).next().unwrap();
                assert!(assets.contains_key(file), "{name} names {file}");
                named.insert(file.to_owned());
            }
        }
        // The ways from text to markup or code.
        let dangers = [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "http://",
            "https://",
        ];
        // The name of a kind of markup, which nobody asks for.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for danger in dangers {
            assert!(!text.contains(danger), "{name} has {danger}");
        }
    }
    let all: BTreeSet<String> = assets.keys().cloned().collect();
    assert_eq!(named, all, "files that nobody needs");
    let console = pages().remove("console.html").unwrap();
    let (mut needed, mut left) = (BTreeSet::new(), vec!["console.js".to_owned()]);
    while let Some(file) = left.pop() {
        let imports = assets[&file]
            .split("from './")
            .skip(1)
            .map(|rest| rest.split('\'').next().unwrap().to_owned());
        left.extend(imports.filter(|import| needed.insert(import.clone())));
    }
    let preloaded = console.split("modulepreload\" href=\"/assets/").skip(1);
    let preloaded: BTreeSet<_> = preloaded
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .collect();
    assert_eq!(preloaded, needed, "the console loads beforehand");
}

/// Asks as a browser does.
fn asking(client: &Client, language: &str, path: &str) -> RequestBuilder {
    let request = client.request(Method::GET, Who::Nobody, path);
    let request = request.header("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    request.header("Accept-Language", language)
}

async fn page_in(client: &Client, language: &str, path: &str) -> Answer {
    client.send(asking(client, language, path)).await
}

/// The text of a page that says that something is not there.
async fn missing_page(client: &Client, language: &str, path: &str) -> String {
    let page = asking(client, language, path).send().await.unwrap();
    assert_eq!(page.status().as_u16(), 404, "{path}");
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", POLICY),
        ("cache-control", ASK),
    ] {
        assert_eq!(page.headers()[name], value, "{path}");
    }
    page.text().await.unwrap()
}

/// The reading in a page.
fn reading(page: &Answer) -> Value {
    let rest = page
        .text
        .split("<script id=\"reading\" type=\"application/json\">")
        .nth(1);
    serde_json::from_str(rest.unwrap().split("</script>").next().unwrap()).unwrap()
}

#[tokio::test]
async fn what_a_page_shows_stands_in_its_html_in_the_readers_language() {
    let app = TestApp::start().await;
    let hostile = "Drop </script><!--items--> &";
    let id = app.load_sale(&sale_with(&json!({"name": hostile}))).await;
    let path = format!("/sales/{id}");
    let escaped = "Drop &lt;/script&gt;&lt;!--items--&gt; &amp;";
    for (language, words) in [
        (
            "en-US,en;q=0.9",
            ["lang=\"en\"", "On sale", "Available", "€499.00", "All sales"],
        ),
        (
            "zh-CN,zh;q=0.9",
            ["lang=\"zh-CN\"", "抢购中", "有货", "€499.00", "全部活动"],
        ),
    ] {
        let page = page_in(&app, language, &path).await.ok(200);
        let title = format!("<meta property=\"og:title\" content=\"{escaped}\">");
        let heading = format!("<h1 id=\"name\">{escaped}</h1>");
        for text in [&*title, &heading, "A phone", "og:description"].iter().chain(&words) {
            assert!(page.text.contains(text), "no {text} in {}", page.text);
        }
        let mut shown = reading(&page);
        let mut sale = app.get(Who::Nobody, &format!("/v1{path}")).await.ok(200).body;
        for one in [&mut shown, &mut sale] {
            assert!(one.as_object_mut().unwrap().remove("server_time").is_some());
        }
        assert_eq!(shown, sale);
    }
    let list = page_in(&app, "en", "/").await.ok(200);
    let link = format!("<a href=\"{path}\">{escaped}</a>");
    let description = format!("<meta name=\"description\" content=\"{escaped}\">");
    for text in [&*link, &*description, "On sale", "€499.00", "Ends in "] {
        assert!(list.text.contains(text), "no {text} in {}", list.text);
    }
    assert_eq!(reading(&list)["data"][0]["id"], json!(id));
    app.operate(&id, "pause").await.ok(200);
    poll::answer("the page shows that it is paused", || async {
        let page = page_in(&app, "en", &path).await.ok(200);
        page.text.contains("Nobody can buy now").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_unknown_address_is_a_page_for_people_and_a_problem_for_programs() {
    let app = TestApp::shared_api_only().await;
    // The last one is a Chinese word, as browsers send it.
    let unknown = [
        "/nothing/here",
        "/console/no/such/view",
        "/assets/-/nothing.js",
        "/%E4%BF%83%E9%94%80",
    ];
    for path in unknown {
        for (language, words) in [("en", "There is no such page."), ("zh", "没有这个页面。")] {
            let page = missing_page(&app, language, path).await;
            assert!(page.contains(words), "{path}: {page}");
        }
    }
    for sale in ["/sales/nonsense", "/sales/01a2004e-9e16-74fe-b2c9-db6e9ef58fa3"] {
        let page = missing_page(&app, "en", sale).await;
        assert!(page.contains("There is no such sale."), "{page}");
    }
    page_in(&app, "en", "/v1/nothing").await.no(404, "not_found");
    for path in unknown {
        app.get(Who::Nobody, path).await.no(404, "not_found");
    }
    app.post(Who::Nobody, "/nothing").await.no(404, "not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_hangs_a_page_shows_the_last_reading() {
    let redis = fresh_redis();
    let environment = environment(&redis.server.url(), &database().await);
    let app = Instance::start(&environment, "all").may_log_errors();
    let id = app.load_sale(&sale()).await;
    let path = format!("/sales/{id}");
    page_in(&app, "en", &path).await.ok(200);
    let frozen = Frozen::one(redis.server.pid());
    // Longer than a reading stays in memory.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let page = page_in(&app, "en", &path).await.ok(200);
        assert!(page.text.contains("<h1 id=\"name\">A sale</h1>"), "{}", page.text);
    }
    drop(frozen);
}

/// How bright a colour is, as WCAG reckons.
fn brightness(colour: &str) -> f64 {
    let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
    let linear = |part: f64| {
        if part <= 0.04045 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
}

#[test]
fn text_can_be_read_on_every_ground_in_both_schemes() {
    let assets = assets();
    let schemes = |file: &str| -> Vec<BTreeMap<String, String>> {
        let roots = assets[file].split(":root {").skip(1);
        let schemes = roots.map(|rest| {
            let lines = rest.split('}').next().unwrap().lines();
            let colours = lines.filter_map(|line| line.trim().strip_suffix(';')?.split_once(": "));
            colours
                .map(|(name, colour)| (name.to_owned(), colour.to_owned()))
                .collect()
        });
        schemes.collect()
    };
    let (base, console) = (schemes("base.css"), schemes("console.css"));
    assert_eq!((base.len(), console.len()), (2, 2));
    let ratio = |one: &str, other: &str| {
        let (one, other) = (brightness(one), brightness(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    };
    // Whatever colour a shop has.
    for colour in [
        "#000000", "#767676", "#0000ff", "#b93815", "#0a5c36", "#8a00c2", "#d0021b",
    ] {
        let accent = Accent::parse(colour).unwrap();
        for (scheme, tones) in base.iter().zip([accent.light(), accent.dark()]) {
            let grounds = scheme.iter().filter(|(name, _)| name.ends_with("-soft"));
            for ground in grounds
                .map(|(_, ground)| ground)
                .chain([&scheme["--ground"], &scheme["--card"]])
            {
                let ratio = ratio(&tones.accent, ground);
                assert!(ratio >= 4.5, "{colour} on {ground}: {ratio:.2}");
            }
            for ground in [&tones.accent, &tones.deep] {
                let ratio = ratio(&tones.ink, ground);
                assert!(ratio >= 4.5, "text on {ground}: {ratio:.2}");
            }
        }
    }
    for (scheme, tones) in base.into_iter().zip(console) {
        let check = |text: &str, ground: &str, least: f64| {
            let colour = |name: &str| scheme.get(name).unwrap_or_else(|| &tones[name]);
            let ratio = ratio(colour(text), colour(ground));
            assert!(ratio >= least, "{text} on {ground}: {ratio:.2}");
        };
        let grounds = scheme.keys().filter(|name| name.ends_with("-soft"));
        for ground in grounds.map(String::as_str).chain(["--ground", "--card"]) {
            check("--ink", ground, 7.0);
            check("--muted", ground, 4.5);
            check("--accent", ground, 4.5);
            check("--edge", ground, 3.0);
        }
        for tone in ["--good", "--due", "--wait", "--wrong"] {
            for ground in [format!("{tone}-soft").as_str(), "--card", "--ground"] {
                check(tone, ground, 4.5);
            }
        }
        assert_eq!(tones.len(), 6);
        for tone in tones.keys() {
            check(tone, "--card", 3.0);
            check(tone, "--bad-soft", 3.0);
        }
        check("--on-accent", "--accent", 4.5);
        check("--on-accent", "--accent-deep", 4.5);
    }
}
