//! The appearance of pages: names from outside, languages, the look of the shop.

use crate::support::app::{TestApp, rfc3339, sale, sale_with, token};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, TELEPHONE, Window, development};
use chrono::{TimeDelta, Timelike as _, Utc};
use flashsale::domain::shop::look::Accent;
use serde_json::json;
use thirtyfour::Key;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_from_outside_are_text() {
    let app = development().await;
    let hostile = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>";
    let mut sale = sale_with(&json!({"name": hostile}));
    sale["items"][0]["name"] = json!(format!("{hostile}\u{202e}&amp;"));
    let id = app.load_sale(&sale).await;
    let window = Window::open(&app).await;
    window.goto("/").await;
    window.sees("#sales", hostile).await;
    window.goto_sale(&id).await;
    window.sees("#name", hostile).await;
    window.sees("#items h3", hostile).await;
    window.sign_in("<b id=hurt>ada</b>").await;
    window.click("#items .buy").await;
    window.sees("#orders h3", hostile).await;
    let hurt = "return window.hurt ?? document.querySelectorAll('main script, main img[src], #hurt').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn development_mode_cannot_be_overlooked_and_wants_its_link() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["404"]);
    for path in ["/", &format!("/sales/{id}")] {
        window.goto(path).await;
        window.sees("#development", "Development mode").await;
    }
    window.sees("#no-link", "open the link that the program printed").await;
    window.misses("#as-anybody").await;
    window.run("location.hash = 'development=wrong'", &[]).await;
    window.sees("#as-anybody", "").await;
    window.fill("#user", "ada").await;
    window.click("#as-anybody button").await;
    window.sees("#sign-in-why", "not of this shop").await;
    window.sign_in("ada").await;
    assert_eq!(
        window.run("return location.hash", &[]).await,
        "",
        "the key is not left in the address"
    );
    window.close().await;

    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    for nothing in ["#development", "#no-link", "#as-anybody"] {
        window.misses(nothing).await;
    }
    window.fill("#token", &token("ada")).await;
    window.click("#by-token button").await;
    window.click("#items .buy").await;
    window.sees("#items .payment .note", "Pay in the shop by").await;
    // The shop asks for the number, so it stands beside the time to pay, too.
    let order = app.orders("ada", &id).await.ok(200).body["data"][0]["id"].clone();
    let order = order.as_str().unwrap();
    let short = format!("Order …{}", &order[order.len() - 8..]);
    window.sees("#items .number", &short).await;
    window.sees("#orders .number", &short).await;
    // A browser under test has no clipboard of its own.
    let clipboard = "navigator.clipboard.writeText = async (text) => { window.copied = text; }";
    window.run(clipboard, &[]).await;
    window.sees("#orders .order-number button", "Copy").await;
    window.click("#orders .order-number button").await;
    window.sees("#orders .order-number button", "Copied").await;
    assert_eq!(window.run("return window.copied", &[]).await, order);
    // The button says so for a moment. A browser that does not copy leaves the whole number to the reader, selected.
    window.sees("#orders .order-number button", "Copy").await;
    window.misses("#orders .order-number code").await;
    let no_clipboard = "navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'))";
    window.run(no_clipboard, &[]).await;
    window.click("#orders .order-number button").await;
    window.sees("#orders .order-number code", order).await;
    window.sees("#orders .order-number button", "Copy").await;
    assert_eq!(window.run("return String(getSelection())", &[]).await, order);
    window.misses("#items .payment button.strong").await;
    window.close().await;
}

/// The heights of the bar's button and of the bar, and the width of the page.
const BAR: &str =
    "const [button, bar] = ['to-pay-link', 'to-pay'].map((id) => document.getElementById(id).offsetHeight);
    return [button < 50, bar < 120, document.documentElement.scrollWidth]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bar_of_a_telephone_fits_a_long_name_and_leads_to_how_to_pay() {
    let app = TestApp::start().await;
    let mut sale = sale();
    sale["items"][0]["name"] = json!("SupercalifragilisticexpialidociousProductNameWithoutSpaces, 2026 edition");
    let id = app.load_sale(&sale).await;
    let window = Window::with(&app, TELEPHONE).await;
    window.goto_sale(&id).await;
    window.fill("#token", &token("ada")).await;
    window.click("#by-token button").await;
    window.click("#items .buy").await;
    for (tag, words) in [("en", "How to pay"), ("zh-CN", "如何付款")] {
        window.change_language(tag).await;
        window.sees("#to-pay-link", words).await;
        assert_eq!(
            window.run(BAR, &[]).await,
            json!([true, true, TELEPHONE.width]),
            "{tag}"
        );
    }
    window.click("#to-pay-link").await;
    poll::within(PATIENCE, "the focus is at the item", async || {
        window.focus().await == "h3#item-phone."
    })
    .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_follow_the_browsers_chinese_until_the_reader_switches() {
    let app = development().await;
    let id = app.load_sale(&sale_with(&json!({"name": "双十一"}))).await;
    let appearance = Appearance {
        language: "zh-CN",
        ..Appearance::default()
    };
    let window = Window::with(&app, appearance).await;
    window.goto_sale(&id).await;
    assert_eq!(window.run("return document.documentElement.lang", &[]).await, "zh-CN");
    window.sees("#items .buy", "立即购买").await;
    window.sign_in("阿达").await;
    window.click("#items .buy").await;
    window.sees("#orders .pill", "已保留").await;
    window.sees("#items .note", "已为您保留").await;
    window.change_language("en").await;
    window.sees("#orders .pill", "Reserved").await;
    window.sees("#items .note", "Reserved for you").await;
    window.goto("/").await;
    window.sees("h1", "Sales").await;
    assert_eq!(window.run("return document.documentElement.lang", &[]).await, "en");
    window.close().await;
}

/// Adds a language to the scripts, as one more file in `web/languages` does, with the menu that the HTML then has.
const THIRD_LANGUAGE: &str = "const at = (name) => new URL(name, document.querySelector('script[type=module]').src);
    return Promise.all([import(at('words.js')), import(at('dom.js'))]).then(([{ WORDS }, { element }]) => {
        const texts = { sales: 'Vendas', language: 'Idioma' };
        WORDS.pt = { name: 'Português do Brasil', tag: 'pt-BR', form: 'pt-BR', texts };
        const options = Object.entries(WORDS).map(([value, { name, tag }]) => element('option', { value, lang: tag }, name));
        const menu = element('select', { class: 'scripted', id: 'language', autocomplete: 'off' }, ...options);
        const label = { class: 'for-readers scripted', for: 'language', 'data-word': 'language' };
        document.getElementById('language').replaceWith(element('label', label), menu);
        return import(at('language.js'));
    }).then(({ startLanguage }) => startLanguage(() => { window.changed = true; }))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_languages_the_reader_chooses_in_a_menu_by_the_keyboard() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto("/").await;
    window.run(THIRD_LANGUAGE, &[]).await;
    window.holds("language", "en").await;
    let chosen = "const label = document.getElementById('language').labels[0].textContent;
        return [document.documentElement.lang, localStorage.getItem('flashsale.language'), label, window.changed]";
    window.fill("#language", "Port").await;
    window.sees("h1", "Vendas").await;
    assert_eq!(window.run(chosen, &[]).await, json!(["pt-BR", "pt", "Idioma", true]));
    assert_eq!(window.focus().await, "select#language.scripted");
    // Up from the last language.
    window.press(Key::Up).await;
    window.sees("h1", "抢购活动").await;
    assert_eq!(window.run(chosen, &[]).await, json!(["zh-CN", "zh", "语言", true]));

    // A telephone has room for it, also beside the names of those who are signed in.
    let fits = async |page: &str| {
        window.run(THIRD_LANGUAGE, &[]).await;
        window.fill("#language", "Port").await;
        let found = window.findings_as(TELEPHONE).await;
        assert!(found.is_empty(), "{page}: {found:?}");
        let width = window.run("return document.documentElement.scrollWidth", &[]).await;
        assert_eq!(width, TELEPHONE.width, "{page}");
        window.appear(Appearance::default()).await;
    };
    window.driver().refresh().await.unwrap();
    fits("the list").await;
    window.goto_sale(&id).await;
    window.sign_in("a shopper with a long name").await;
    fits("a sale").await;
    window.open_console("/console").await;
    window.sees("#view h1", "").await;
    fits("the console").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_have_the_name_logo_and_colour_of_the_shop_in_both_schemes() {
    let look = [
        ("FLASHSALE_SHOP_NAME", "Ada & Co"),
        ("FLASHSALE_SHOP_LOGO_URL", "/assets/-/icon.svg"),
        ("FLASHSALE_SHOP_ACCENT", "#0a5c36"),
    ];
    let app = TestApp::with("all", &look).await;
    let id = app.load_sale(&sale()).await;
    let accent = Accent::parse("#0a5c36").unwrap();
    for (is_dark, tones) in [(false, accent.light()), (true, accent.dark())] {
        let appearance = Appearance {
            is_dark,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        window.goto("/").await;
        window.has_title("Sales · Ada & Co").await;
        window.goto_sale(&id).await;
        window.has_title("A sale · Ada & Co").await;
        window.sees(".brand", "Ada & Co").await;
        let logo = "return document.querySelector('.logo').naturalWidth > 0";
        poll::within(PATIENCE, "the logo is drawn", async || {
            window.run(logo, &[]).await == true
        })
        .await;
        // A button changes its colour slowly.
        let painted = "const probe = document.createElement('i');
            const { style } = probe;
            document.body.append(probe);
            [style.color, style.backgroundColor] = arguments;
            const { color, backgroundColor } = getComputedStyle(probe);
            probe.remove();
            const buy = getComputedStyle(document.querySelector('#items .buy'));
            return buy.color === color && buy.backgroundColor === backgroundColor";
        poll::within(PATIENCE, "the button has the shop's colour", async || {
            window.run(painted, &[&tones.ink, &tones.accent]).await == true
        })
        .await;
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_have_the_readers_own_form_and_the_zone() {
    let app = TestApp::start().await;
    let in_days = |days| rfc3339(Utc::now() + TimeDelta::days(days));
    let request = sale_with(&json!({"starts_at": in_days(3), "ends_at": in_days(4)}));
    let id = app.load_sale(&request).await;
    // A reader of another language gets English words, and no times in the American form.
    for (language, form) in [("en-AU", "en-AU"), ("de-DE", "en-GB")] {
        let appearance = Appearance {
            language,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        window
            .devtools("Emulation.setTimezoneOverride", json!({"timezoneId": "Asia/Kathmandu"}))
            .await;
        window.goto_sale(&id).await;
        let format =
            "const format = new Intl.DateTimeFormat(arguments[0], { year: 'numeric', month: 'short', day: 'numeric',
                hour: 'numeric', minute: '2-digit', timeZoneName: 'short' });
            return format.formatRange(new Date(arguments[1]), new Date(arguments[2]))";
        let [from, to] = ["starts_at", "ends_at"].map(|name| request[name].as_str().unwrap());
        let when = window.run(format, &[form, from, to]).await;
        let when = when.as_str().unwrap();
        assert!(when.contains("GMT+5:45"), "{when}");
        window.sees("#when", when).await;
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_of_today_or_tomorrow_is_dated_so_by_the_readers_zone() {
    let app = TestApp::start().await;
    let now = Utc::now();
    let window = Window::open(&app).await;
    // Where it is between noon and one, so that an hour more is the same day.
    let ahead = 12 - i64::from(now.hour());
    let zone = format!("Etc/GMT{:+}", -ahead);
    window
        .devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone }))
        .await;
    let time = "const format = new Intl.DateTimeFormat(arguments[0], { hour: 'numeric', minute: '2-digit', timeZoneName: 'short' });
        const [from, to] = [new Date(arguments[1]), new Date(arguments[2] ?? NaN)];
        return arguments[2] ? format.formatRange(from, to) : format.format(from)";
    let text = async |arguments: &[&str]| {
        let text = window.run(time, arguments).await;
        text.as_str().unwrap().to_owned()
    };
    let [hour, day, day_and_hour] = [1, 24, 25].map(|hours| rfc3339(now + TimeDelta::hours(hours)));
    let now = rfc3339(now);
    let of = |starts_at: &str, ends_at: &str| sale_with(&json!({"starts_at": starts_at, "ends_at": ends_at}));
    let today = app.load_sale(&of(&now, &hour)).await;
    let until_tomorrow = app.load_sale(&of(&now, &day)).await;
    let tomorrow = app.load_sale(&of(&day, &day_and_hour)).await;
    // The browser writes American English, and Chinese for a page that is switched to it.
    let of_today = ["en-US", "zh-CN"].map(|form| [form, &now, &hour]);
    window.goto_sale(&today).await;
    window
        .sees("#when", &format!("Today, {}", text(&of_today[0]).await))
        .await;
    window.change_language("zh-CN").await;
    window
        .sees("#when", &format!("今天 {}", text(&of_today[1]).await))
        .await;
    window.change_language("en").await;
    window.goto_sale(&until_tomorrow).await;
    let both = [text(&["en-US", &now]).await, text(&["en-US", &day]).await];
    let both = format!("Today, {} – Tomorrow, {}", both[0], both[1]);
    window.sees("#when", &both).await;
    window.goto_sale(&tomorrow).await;
    let next = text(&["en-US", &day, &day_and_hour]).await;
    window.sees("#when", &format!("Tomorrow, {next}")).await;
    // In the list, too, no time of tomorrow looks like one of today.
    window.goto("/").await;
    let of_list = format!("#sales li:has(a[href='/sales/{until_tomorrow}']) p");
    let end = text(&["en-US", &day]).await;
    window.sees(&of_list, &format!(" · tomorrow, {end}")).await;
    window.change_language("zh-CN").await;
    let end = text(&["zh-CN", &day]).await;
    window.sees(&of_list, &format!(" · 明天 {end}")).await;
    window.close().await;
}

/// Times in a sentence, shortly before midnight: within twelve hours, and later.
const NEAR_MIDNIGHT: &str =
    "return import(new URL('format.js', document.querySelector('script[type=module]').src)).then(({ momentNear }) => {
    const now = Date.parse('2026-01-01T23:55:00Z');
    return [5, 715, 780, 1500].map((minutes) => momentNear(now + minutes * 60_000, now).replaceAll('\u{202f}', ' '));
})";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_within_twelve_hours_is_not_called_tomorrows() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await;
    window
        .devtools("Emulation.setTimezoneOverride", json!({"timezoneId": "UTC"}))
        .await;
    window.goto("/").await;
    let times = [
        "12:00 AM",
        "11:50 AM",
        "tomorrow, 12:55 PM UTC",
        "Jan 3, 2026, 12:55 AM UTC",
    ];
    assert_eq!(window.run(NEAR_MIDNIGHT, &[]).await, json!(times));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_apis_own_detail_stands_beside_a_vague_code() {
    let app = TestApp::start().await;
    let own = "items[0].sku: wrong";
    let explain = |code: &str| {
        format!(
            "return import(new URL('problem.js', document.querySelector('script[type=module]').src)).then(({{ explained, write }}) => {{
                const node = document.createElement('p');
                write(node, explained({{ code: '{code}', body: {{ detail: '{own}' }} }}));
                return [node.textContent, node.querySelector('[lang=en]')?.textContent ?? ''];
            }})"
        )
    };
    for language in ["en-US", "zh-CN"] {
        let appearance = Appearance {
            language,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        window.goto("/").await;
        for (code, text, more) in [
            ("invalid_request", "请求无效。 ", true),
            ("invalid_transition", "目前的状态不允许此操作。 ", true),
            ("sold_out", "已售罄。", false),
            ("banned", "此账号已被封禁。", false),
            // One that is newer than the page.
            ("brand_new", "", true),
        ] {
            let said = window.run(&explain(code), &[]).await;
            let wanted = match (language, more) {
                ("zh-CN", true) => json!([format!("{text}{own}"), own]),
                ("zh-CN", false) => json!([text, ""]),
                _ => json!([own, ""]),
            };
            assert_eq!(said, wanted, "{language}: {code}");
        }
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_has_the_plural_form_of_its_number_and_is_english_where_a_language_lacks_it() {
    let app = TestApp::start().await;
    let say = "return import(new URL('language.js', document.querySelector('script[type=module]').src)).then(({ learn, say }) => {
        const cakes = { one: '{n} cake', other: '{n} cakes' };
        learn({ en: { cakes, tea: 'Tea' }, zh: { cakes: '{n} 块' } });
        return [say('cakes', { n: 1 }), say('cakes', { n: 2 }), say('tea'), say('water')];
    })";
    for (language, texts) in [
        ("en-US", ["1 cake", "2 cakes", "Tea", "water"]),
        ("zh-CN", ["1 块", "2 块", "Tea", "water"]),
    ] {
        let appearance = Appearance {
            language,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        window.goto("/").await;
        assert_eq!(window.run(say, &[]).await, json!(texts), "{language}");
        window.close().await;
    }
}
