//! A window of a test's own in Chromium without a screen, led by chromedriver. When it is closed, it must have sent
//! requests to the test's instance only, and its console must be empty. A browser has one window at a time. The next
//! window may get the browser, without cookies, storage, cache and history.

use super::root;
use crate::support::app::{ADMIN_KEY, Client, JWT_SECRET, Shared, Sharing, TestApp};
use crate::support::poll::{self, PATIENCE, Patience};
use crate::support::servers::own_folder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;
use thirtyfour::error::{WebDriverErrorInner, WebDriverResult};
use thirtyfour::{By, ChromeCapabilities, ChromiumLikeCapabilities, Key, LoggingPrefsLogLevel, WebDriver, WebElement};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Browsers at once. Each wants a processor while it starts, and mostly waits after that.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(6)));

/// Chromium without windows, which needs a quarter of the processor time of `chromium --headless` to start.
const BROWSER: &str = "/usr/bin/chromium-headless-shell";

const MISSING: &str = "the browser tests need Chromium and its driver: \
    apt-get install --no-install-recommends chromium-headless-shell chromium-driver";

/// Starts of chromedriver before a test gives up: it ends at once if another process takes its port.
const STARTS: usize = 5;

/// Starts chromedriver, in a group of its own with all its processes, which ends with the browser. The result is the
/// process, its output and its port; none if it ends at once.
fn chromedriver(home: &Path) -> Option<(Child, BufReader<ChildStdout>, String)> {
    let mut process = Command::new("chromedriver")
        .arg("--port=0")
        .env("HOME", home)
        .env("TMPDIR", home)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("chromedriver: {error}; {MISSING}"));
    let mut printed = BufReader::new(process.stdout.take().unwrap());
    let port = printed.by_ref().lines().find_map(|line| {
        let line = line.ok()?;
        let port = line.split("started successfully on port ").nth(1)?;
        Some(port.trim_end_matches('.').to_owned())
    });
    if port.is_none() {
        process.wait().unwrap();
    }
    Some((process, printed, port?))
}

/// Chromium and its chromedriver.
struct Browser {
    driver: Option<WebDriver>,
    chromedriver: Child,
    /// Where it prints; kept open, so that it may.
    _printed: BufReader<ChildStdout>,
    language: &'static str,
    /// Of chromedriver and its browser.
    _folder: tempfile::TempDir,
}

/// Browsers without a window. A start takes as much processor time as the rest of a test, so a browser serves several
/// windows. All end once no test has a window or waits for one.
#[derive(Default)]
struct Idle(Mutex<Vec<Browser>>);

impl Idle {
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Idle>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Self::default());
            *shared = Arc::downgrade(&fresh);
            fresh
        })
    }

    /// Takes one that asks for pages in this language.
    fn take(&self, language: &str) -> Option<Browser> {
        let mut idle = self.0.lock().unwrap();
        let at = idle.iter().position(|browser| browser.language == language)?;
        Some(idle.swap_remove(at))
    }
}

pub struct Window {
    browser: Option<Browser>,
    home: String,
    /// Problems that the test makes the API answer with; Chromium logs each.
    expected: Vec<&'static str>,
    /// The test has sent the browser commands of its own, so it ends with this window.
    is_changed: AtomicBool,
    idle: Arc<Idle>,
    _place: OwnedSemaphorePermit,
}

/// The settings of a window.
#[derive(Clone, Copy)]
pub struct Appearance {
    pub width: u32,
    pub height: u32,
    pub language: &'static str,
    pub is_dark: bool,
}

impl Default for Appearance {
    fn default() -> Self {
        Self {
            width: 1000,
            height: 900,
            language: "en-US",
            is_dark: false,
        }
    }
}

impl Appearance {
    /// A desk or a telephone, light or dark: the test's name decides, so each flow keeps its own, and together they try all.
    /// For pictures, the usual one.
    fn of_test() -> Self {
        if std::env::var_os("SCREENSHOTS").is_some() {
            return Self::default();
        }
        let thread = std::thread::current();
        let mut hasher = DefaultHasher::new();
        thread.name().expect("a test's thread has its name").hash(&mut hasher);
        let drawn = hasher.finish();
        let desk = Self {
            is_dark: drawn & 1 == 1,
            ..Self::default()
        };
        if drawn & 2 == 2 {
            let Self { width, height, .. } = TELEPHONE;
            return Self { width, height, ..desk };
        }
        desk
    }
}

/// A desk, a telephone, and the narrowest telephone that a page must fit.
const DESK: Appearance = Appearance {
    width: 1280,
    height: 800,
    language: "en-US",
    is_dark: false,
};
pub const TELEPHONE: Appearance = Appearance {
    width: 390,
    height: 844,
    ..DESK
};
const NARROW: Appearance = Appearance {
    width: 360,
    ..TELEPHONE
};

/// axe-core, which finds what hinders readers with a disability.
static AXE: LazyLock<String> = LazyLock::new(|| {
    let file = root().join("tests/javascript/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}; run ./dev javascript"))
});

/// Runs axe-core's rules once nothing changes its colour any more. In the API reference, the first operation of each group
/// stands for the others.
const FIND: &str = "for (const change of document.getAnimations()) {
        if (change.effect.getComputedTiming().endTime !== Infinity) { change.finish(); }
    }
    const options = { iframes: false, resultTypes: ['violations'] };
    const at = ({ target, failureSummary }) => `${target.join(' ')}: ${failureSummary}`;
    return axe.run({ exclude: ['article:not(:first-of-type)'] }, options)
        .then(({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id} at ${at(node)}`)))";

/// How long one question of [`SHOWS`] lasts. The page itself checks again and again meanwhile, since each question passes
/// through four processes.
const WITHIN_MAX: Duration = Duration::from_millis(250);

/// Whether an element shows a text within so many milliseconds; without a text, whether it shows nothing.
const SHOWS: &str = "const [selector, text, millis] = arguments;
    const holds = () => {
        const node = document.querySelector(selector);
        const shown = node?.checkVisibility() ? node.innerText : null;
        return text === null ? !shown : shown !== null && shown.includes(text);
    };
    const end = performance.now() + millis;
    return new Promise((resolve) => {
        const check = () => {
            const does = holds();
            if (does || performance.now() >= end) {
                resolve(does);
            } else {
                setTimeout(check, 20);
            }
        };
        check();
    })";

/// Changes the page to a language, if the page has a control for that, and no dialog is open. Returns the one before.
const CHANGE_LANGUAGE: &str = "const before = document.documentElement.lang;
    const control = document.getElementById('language');
    if (control !== null && before !== arguments[0] && document.querySelector('dialog[open]') === null) {
        const option = control.querySelector(`[lang='${arguments[0]}']`);
        if (option) {
            option.selected = true;
            control.dispatchEvent(new Event('change'));
        } else {
            control.click();
        }
    }
    return before";

/// The key that the instances of tests print in development mode.
pub fn development_key() -> String {
    flashsale::domain::deployment::development::key(JWT_SECRET)
}

const DEVELOPMENT: &[(&str, &str)] = &[("FLASHSALE_DEVELOPMENT", "true")];

/// An instance in development mode.
pub async fn development() -> TestApp {
    TestApp::with("all", DEVELOPMENT).await
}

/// The same, for a test that shows the page of a sale of its own.
pub async fn shared_development() -> Shared {
    static SHARED: Sharing = Sharing::of("all", DEVELOPMENT);
    SHARED.app().await
}

impl Window {
    /// Opens a page of the console and signs in.
    pub async fn open_console(&self, path: &str) {
        self.open_console_with(path, ADMIN_KEY).await;
    }

    pub async fn open_console_with(&self, path: &str, key: &str) {
        self.goto(path).await;
        self.sees("#sign-in h1", "Operators sign in").await;
        self.fill("#key", key).await;
        self.press(Key::Enter).await;
        self.misses("#sign-in").await;
    }

    pub async fn open(app: &Client) -> Self {
        Self::with(app, Appearance::of_test()).await
    }

    /// A window on a sale, with this shopper signed in.
    pub async fn of_shopper(app: &Client, sale: &str, user: &str) -> Self {
        let window = Self::open(app).await;
        window.goto_sale(sale).await;
        window.sign_in(user).await;
        window
    }

    pub async fn with(app: &Client, appearance: Appearance) -> Self {
        // First, so that browsers stay while this test waits.
        let idle = Idle::shared();
        let place = Arc::clone(&PLACES).acquire_owned().await.unwrap();
        let browser = match idle.take(appearance.language) {
            Some(browser) => browser,
            None => Browser::start(appearance.language).await,
        };
        let window = Self {
            browser: Some(browser),
            home: app.url.clone(),
            expected: Vec::new(),
            is_changed: AtomicBool::new(false),
            idle,
            _place: place,
        };
        // What the browser has logged since its last window was closed.
        let _earlier = window.network().await;
        let _earlier = window.driver().browser_log().await.unwrap();
        window.appear(appearance).await;
        window
    }

    /// Sets size and scheme, also of a page that is open. The language is the browser's.
    pub async fn appear(&self, appearance: Appearance) {
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": if appearance.is_dark { "dark" } else { "light" }}]});
        self.sends("Emulation.setEmulatedMedia", scheme).await.unwrap();
        let size = json!({"width": appearance.width, "height": appearance.height, "deviceScaleFactor": 1, "mobile": appearance.width < 500});
        self.sends("Emulation.setDeviceMetricsOverride", size).await.unwrap();
    }

    /// The test makes the API answer so; `ERR` is a request without an answer.
    pub fn expect(mut self, statuses: &[&'static str]) -> Self {
        self.expected.extend(statuses);
        self
    }

    pub fn driver(&self) -> &WebDriver {
        self.browser.as_ref().and_then(|it| it.driver.as_ref()).unwrap()
    }

    /// Sends Chromium a DevTools command that WebDriver lacks, after which no other window gets the browser.
    pub async fn devtools(&self, method: &str, parameters: Value) -> Value {
        self.is_changed.store(true, Ordering::Relaxed);
        self.sends(method, parameters).await.unwrap()
    }

    async fn sends(&self, method: &str, parameters: Value) -> WebDriverResult<Value> {
        self.driver().cdp().send_raw(method, parameters).await
    }

    /// Opens a page; again, if a busy machine kept the instance from reading it in time.
    pub async fn goto(&self, path: &str) {
        let patience = Patience::of(PATIENCE);
        loop {
            self.driver().goto(format!("{}{path}", self.home)).await.unwrap();
            let status = "return performance.getEntriesByType('navigation')[0].responseStatus";
            if self.expected.contains(&"503") || patience.is_over() || self.run(status, &[]).await != 503 {
                return;
            }
            let _refusal = self.driver().browser_log().await.unwrap();
        }
    }

    pub async fn goto_sale(&self, sale: &str) {
        self.goto(&format!("/sales/{sale}")).await;
        self.sees("#countdown .part", "").await;
        // The buttons of the HTML do nothing until the script has replaced them.
        self.sees("#items .buy:not([disabled])", "").await;
    }

    /// Opens the link of development mode, on the page that is open.
    pub async fn open_link(&self) {
        let link = format!("location.hash = 'development={}'", development_key());
        self.run(&link, &[]).await;
        self.sees("#as-anybody", "").await;
    }

    /// Signs in as somebody, in development mode, with the link that was printed if it was not opened yet.
    pub async fn sign_in(&self, user: &str) {
        if self.text("#as-anybody").await.is_none() {
            self.open_link().await;
        }
        self.fill("#user", user).await;
        self.click("#as-anybody button").await;
        self.sees("#who", user).await;
    }

    /// Runs a script that leaves the page, after the driver has its answer: the driver runs a script again if the page is
    /// left meanwhile.
    pub async fn leave_by(&self, script: &str) {
        self.run(&format!("setTimeout(() => {script})"), &[]).await;
    }

    /// The result of a script in the page.
    pub async fn run(&self, script: &str, arguments: &[&str]) -> Value {
        let arguments: Vec<Value> = arguments.iter().map(|it| json!(it)).collect();
        let returned = self.driver().execute(script, arguments).await.unwrap();
        returned.json().clone()
    }

    /// The visible text there; empty without such an element, or if it is hidden.
    pub async fn text(&self, selector: &str) -> Option<String> {
        let script = "const node = document.querySelector(arguments[0]);
            return node?.checkVisibility() ? node.innerText : null";
        let text = self.run(script, &[selector]).await;
        text.as_str().map(str::to_owned)
    }

    /// Waits until that text is shown there.
    pub async fn sees(&self, selector: &str, text: &str) {
        self.waits_for(selector, Some(text), WITHIN_MAX, async || {}).await;
    }

    /// The same for text that comes with the page's next poll, which it is asked for all the time.
    pub async fn finds(&self, selector: &str, text: &str) {
        let refresh = "document.dispatchEvent(new Event('visibilitychange'))";
        let asks = async || _ = self.run(refresh, &[]).await;
        self.waits_for(selector, Some(text), Duration::ZERO, asks).await;
    }

    /// Waits until it is invisible.
    pub async fn misses(&self, selector: &str) {
        self.waits_for(selector, None, WITHIN_MAX, async || {}).await;
    }

    /// Waits until that text is shown there; without a text, until nothing is.
    async fn waits_for(&self, selector: &str, text: Option<&str>, first: Duration, meanwhile: impl AsyncFn()) {
        let (patience, mut within) = (Patience::of(PATIENCE), first);
        while !self.shows(selector, text, within).await {
            if patience.is_over() {
                let page = self.text("body").await.unwrap_or_default();
                let wish = text.map_or("is still there".to_owned(), |text| format!("does not show {text:?}"));
                panic!("{selector} {wish}; the page is:\n{page}");
            }
            meanwhile().await;
            patience.pause(selector).await;
            within = WITHIN_MAX;
        }
    }

    /// Whether the page shows that text there within a time; without a text, whether it shows nothing.
    async fn shows(&self, selector: &str, text: Option<&str>, within: Duration) -> bool {
        let within = u64::try_from(within.as_millis()).unwrap();
        let arguments = vec![json!(selector), json!(text), json!(within)];
        let shown = self.driver().execute(SHOWS, arguments).await;
        // A page that is left meanwhile has no answer.
        shown.is_ok_and(|shown| shown.json().as_bool() == Some(true))
    }

    pub async fn click(&self, selector: &str) {
        self.acts(selector, async |element| {
            element.scroll_into_view().await?;
            element.click().await
        })
        .await;
    }

    /// Changes the page to the language with this tag, by its button or its menu.
    pub async fn change_language(&self, tag: &str) {
        let present = "return document.documentElement.lang";
        if self.run(present, &[]).await != tag {
            self.click(&format!("button#language, #language [lang='{tag}']")).await;
            assert_eq!(self.run(present, &[]).await, tag);
        }
    }

    pub async fn fill(&self, selector: &str, text: &str) {
        self.acts(selector, async |element| {
            if element.tag_name().await? != "select" {
                element.clear().await?;
            }
            element.send_keys(text).await
        })
        .await;
    }

    /// Finds the element and acts on it; again, if the page has no such element yet, or has replaced it in between.
    async fn acts(&self, selector: &str, act: impl AsyncFn(&WebElement) -> WebDriverResult<()>) {
        use WebDriverErrorInner::{NoSuchElement, StaleElementReference};
        let patience = Patience::of(PATIENCE);
        loop {
            let acted = async {
                let element = self.driver().find(By::Css(selector)).await?;
                act(&element).await
            };
            match acted.await {
                Err(error) if matches!(error.as_inner(), NoSuchElement(_) | StaleElementReference(_)) => {
                    patience.pause(selector).await;
                }
                done => return done.unwrap(),
            }
        }
    }

    /// Presses a key, wherever the focus is.
    pub async fn press(&self, key: Key) {
        let chain = self.driver().action_chain().send_keys(key);
        chain.perform().await.unwrap();
    }

    /// The names that a screen reader finds, by role.
    pub async fn accessible_names(&self) -> BTreeMap<String, Vec<String>> {
        self.sends("Accessibility.enable", json!({})).await.unwrap();
        let tree = self.sends("Accessibility.getFullAXTree", json!({})).await.unwrap();
        self.sends("Accessibility.disable", json!({})).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut names = BTreeMap::<String, Vec<String>>::new();
        for node in tree["nodes"].as_array().unwrap() {
            if node["ignored"] == false {
                let of_role = names.entry(text(&node["role"]["value"])).or_default();
                of_role.push(text(&node["name"]["value"]));
            }
        }
        names
    }

    /// What axe-core finds at a desk in one scheme, and on a telephone in the other: no colour depends on the size. On the
    /// telephone the page is in Chinese, and must not be wider than a narrow one. `anchor` is visible in both languages.
    pub async fn findings(&self, anchor: &str, is_desk_dark: bool) -> Vec<String> {
        let schemes = [(DESK, is_desk_dark), (TELEPHONE, !is_desk_dark)];
        let [desk, telephone] = schemes.map(|(appearance, is_dark)| Appearance { is_dark, ..appearance });
        let mut found = self.findings_as(desk).await;
        let before = self.run(CHANGE_LANGUAGE, &["zh-CN"]).await;
        self.sees(anchor, "").await;
        found.extend(self.findings_as(telephone).await);
        self.appear(NARROW).await;
        let width = self.run("return document.documentElement.scrollWidth", &[]).await;
        if width.as_u64().unwrap() > u64::from(NARROW.width) {
            found.push(format!("it is {width} wide"));
        }
        self.run(CHANGE_LANGUAGE, &[before.as_str().unwrap()]).await;
        self.appear(DESK).await;
        found
    }

    /// What axe-core finds now.
    pub async fn findings_as(&self, appearance: Appearance) -> Vec<String> {
        self.appear(appearance).await;
        if self.run("return typeof axe", &[]).await == "undefined" {
            let axe = json!({"expression": *AXE});
            self.sends("Runtime.evaluate", axe).await.unwrap();
        }
        serde_json::from_value(self.run(FIND, &[]).await).unwrap()
    }

    /// Waits until the tab has this title.
    pub async fn has_title(&self, title: &str) {
        poll::within(PATIENCE, &format!("the tab is called {title}"), async || {
            self.driver().title().await.unwrap() == title
        })
        .await;
    }

    /// The element with the focus: its name, id and classes.
    pub async fn focus(&self) -> String {
        let script = "const { localName, id, className } = document.activeElement;
            return `${localName}#${id}.${className}`";
        self.run(script, &[]).await.as_str().unwrap().to_owned()
    }

    /// Blocks requests whose address fits one of these; an empty list blocks nothing.
    pub async fn block(&self, patterns: &[&str]) {
        self.sends("Network.enable", json!({})).await.unwrap();
        let blocked = json!({"urls": patterns});
        self.sends("Network.setBlockedURLs", blocked).await.unwrap();
    }

    /// Presses a button that saves a file of this name. Returns the file's text.
    pub async fn saves(&self, selector: &str, name: &str) -> String {
        let folder = own_folder();
        let place = json!({"behavior": "allow", "downloadPath": folder.path()});
        self.devtools("Page.setDownloadBehavior", place).await;
        self.click(selector).await;
        let file = folder.path().join(name);
        poll::answer(&format!("{name} is saved"), || async {
            let text = std::fs::read_to_string(&file).ok();
            text.filter(|text| !text.is_empty())
        })
        .await
    }

    /// The attempt that the browser keeps, if there is one.
    pub async fn attempt(&self) -> Option<Value> {
        let script = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
            return name ? localStorage.getItem(name) : null";
        let kept = self.run(script, &[]).await;
        kept.as_str().map(|kept| serde_json::from_str(kept).unwrap())
    }

    /// Writes a screenshot into `docs/screenshots`, if `SCREENSHOTS` is set; the other language's name wants a
    /// Chinese font, such as that of Debian's `fonts-wqy-microhei`.
    pub async fn picture(&self, name: &str) {
        if std::env::var_os("SCREENSHOTS").is_none() {
            return;
        }
        self.run("scrollTo(0, 0)", &[]).await;
        let folder = root().join("docs/screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        self.driver().screenshot(&folder.join(name)).await.unwrap();
    }

    /// The same in another size, which the page keeps.
    pub async fn picture_as(&self, appearance: Appearance, name: &str) {
        if std::env::var_os("SCREENSHOTS").is_some() {
            self.appear(appearance).await;
            self.picture(name).await;
        }
    }

    /// The network's events of a kind since the last call.
    pub async fn network(&self) -> Vec<Value> {
        let log = self.driver().get_log("performance").await.unwrap();
        let events = log.into_iter().map(|entry| {
            let event: Value = serde_json::from_str(&entry.message).unwrap();
            event["message"].clone()
        });
        events.collect()
    }

    /// Checks in these events that no other host got a request. Returns how often the test's instance did.
    pub fn requests_to_home(&self, events: &[Value]) -> usize {
        let mut own = 0;
        for event in events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent")
        {
            let url = event["params"]["request"]["url"].as_str().unwrap();
            // A file that a page makes and saves has an address with the page's own in it.
            let url = url.strip_prefix("blob:").unwrap_or(url);
            let is_own = url.starts_with(&format!("{}/", self.home));
            assert!(
                is_own || url.starts_with("data:") || url == "about:blank" || url.starts_with("chrome://"),
                "asks {url}"
            );
            own += usize::from(is_own);
        }
        own
    }

    /// Closes the window, and checks what it did.
    pub async fn close(mut self) {
        let events = self.network().await;
        assert!(self.requests_to_home(&events) > 0, "no request was seen at all");
        for entry in self.driver().browser_log().await.unwrap() {
            let is_expected = entry.source.as_deref() == Some("network")
                && self.expected.iter().any(|status| {
                    let status = if *status == "ERR" {
                        "net::ERR_".to_owned()
                    } else {
                        format!("status of {status} ")
                    };
                    entry.message.contains(&status)
                });
            assert!(is_expected, "the console says {}: {}", entry.level, entry.message);
        }
        // A browser that cannot be emptied ends with this window.
        if !self.is_changed.load(Ordering::Relaxed) && self.empties().await.unwrap_or(false) {
            let browser = self.browser.take().unwrap();
            self.idle.0.lock().unwrap().push(browser);
        }
    }

    /// Leaves the page, and deletes everything that the browser keeps. Returns whether it has this window alone.
    async fn empties(&self) -> WebDriverResult<bool> {
        self.driver().goto("about:blank").await?;
        for (method, parameters) in [
            ("Network.setBlockedURLs", json!({"urls": []})),
            (
                "Storage.clearDataForOrigin",
                json!({"origin": self.home, "storageTypes": "all"}),
            ),
            ("Network.clearBrowserCookies", json!({})),
            ("Network.clearBrowserCache", json!({})),
            ("Page.resetNavigationHistory", json!({})),
        ] {
            self.sends(method, parameters).await?;
        }
        Ok(self.driver().windows().await?.len() == 1)
    }
}

impl Browser {
    async fn start(language: &'static str) -> Self {
        let folder = own_folder();
        let (chromedriver, printed, port) = (0..STARTS)
            .find_map(|_| chromedriver(folder.path()))
            .unwrap_or_else(|| panic!("chromedriver does not start; {MISSING}"));
        let mut browser = Self {
            driver: None,
            chromedriver,
            _printed: printed,
            language,
            _folder: folder,
        };
        // Not by a proxy that the environment may name. No connection is kept: it belongs to the runtime of the test that
        // has made it, and ends with that.
        let direct = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
        let driver = WebDriver::builder(format!("http://127.0.0.1:{port}"), capabilities(language));
        let driver = driver.client(direct.build().unwrap()).connect().await;
        browser.driver = Some(driver.unwrap_or_else(|error| panic!("Chromium does not start ({error}); {MISSING}")));
        browser
    }
}

fn capabilities(language: &str) -> ChromeCapabilities {
    let mut capabilities = ChromeCapabilities::new();
    let language = format!("--accept-lang={language}");
    for argument in [
        // Chromium does not sandbox itself under root; it shows only pages of the tests.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--disable-sync",
        "--hide-scrollbars",
        "--no-proxy-server",
        // No other host resolves.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        &language,
    ] {
        capabilities.add_arg(argument).unwrap();
    }
    capabilities.set_binary(BROWSER).unwrap();
    for log in ["browser", "performance"] {
        capabilities.set_logging_prefs(log, LoggingPrefsLogLevel::All).unwrap();
    }
    capabilities
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            // Its browser ends with the group.
            let _left = driver.leak();
        }
        let group = self.chromedriver.id();
        let script = format!("kill -s KILL -- -{group}");
        // It may have ended by itself.
        let _sent = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status();
        let _status = self.chromedriver.wait();
    }
}
