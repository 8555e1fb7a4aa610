//! A browser of a test's own: Chromium without a screen, led by chromedriver. When it is closed, it must not have asked
//! anybody but the test's instance, and its console must have nothing to complain of.

use super::root;
use crate::support::app::{ADMIN_KEY, Client, JWT_SECRET, TestApp};
use crate::support::poll::{self, Patience};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use thirtyfour::{By, ChromeCapabilities, ChromiumLikeCapabilities, Key, LoggingPrefsLogLevel, WebDriver};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Browsers at once. Each wants a processor while it starts, and mostly waits after that.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(3)));

const MISSING: &str = "the browser tests need Chromium and its driver: \
    apt-get install --no-install-recommends chromium chromium-driver";

/// How long something on a page may take: proofs of work and cold starts among it.
pub const PATIENCE: Duration = Duration::from_secs(15);

pub struct Window {
    driver: Option<WebDriver>,
    chromedriver: Child,
    /// Where it prints; kept open, so that it may.
    _printed: Option<BufReader<ChildStdout>>,
    home: String,
    /// Problems that the test gives the API reason to answer with; Chromium complains of each.
    expected: Vec<&'static str>,
    profile: tempfile::TempDir,
    _place: OwnedSemaphorePermit,
}

/// How a window is to be.
#[derive(Clone, Copy)]
pub struct Look {
    pub width: u32,
    pub height: u32,
    pub language: &'static str,
    pub is_dark: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self {
            width: 1000,
            height: 900,
            language: "en-US",
            is_dark: false,
        }
    }
}

/// The key that the instances of tests print in development mode.
pub fn development_key() -> String {
    flashsale::domain::development::key(JWT_SECRET)
}

/// An instance in development mode.
pub async fn development() -> TestApp {
    TestApp::with("all", &[("FLASHSALE_DEVELOPMENT", "true")]).await
}

impl Window {
    /// Opens a page of the console and signs in.
    pub async fn open_console(&self, path: &str) {
        self.goto(path).await;
        self.sees("#sign-in h1", "Operators sign in").await;
        self.fill("#key", ADMIN_KEY).await;
        self.press(Key::Enter).await;
        self.misses("#sign-in").await;
    }

    pub async fn open(app: &Client) -> Self {
        Self::with(app, Look::default()).await
    }

    pub async fn with(app: &Client, look: Look) -> Self {
        let place = Arc::clone(&PLACES).acquire_owned().await.unwrap();
        let profile = tempfile::tempdir().unwrap();
        // With all that it starts in a group of its own, which ends with this test, however that ends.
        let mut chromedriver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", profile.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error}; {MISSING}"));
        let mut printed = chromedriver.stdout.take().map(BufReader::new);
        let port = printed.as_mut().unwrap().lines().find_map(|line| {
            let line = line.ok()?;
            let port = line.split("started successfully on port ").nth(1)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let mut window = Self {
            driver: None,
            chromedriver,
            _printed: printed,
            home: app.url.clone(),
            expected: Vec::new(),
            profile,
            _place: place,
        };
        let port = port.unwrap_or_else(|| panic!("chromedriver does not start; {MISSING}"));
        let capabilities = window.capabilities(look);
        // Not by a proxy that the environment may name.
        let direct = reqwest::Client::builder().no_proxy().build().unwrap();
        let driver = WebDriver::builder(format!("http://127.0.0.1:{port}"), capabilities).client(direct);
        let driver = driver.connect().await;
        let driver = driver.unwrap_or_else(|error| panic!("Chromium does not start ({error}); {MISSING}"));
        window.driver = Some(driver);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": if look.is_dark { "dark" } else { "light" }}]});
        window.tell("Emulation.setEmulatedMedia", scheme).await;
        let size =
            json!({"width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": look.width < 500});
        window.tell("Emulation.setDeviceMetricsOverride", size).await;
        window
    }

    fn capabilities(&self, look: Look) -> ChromeCapabilities {
        let mut capabilities = ChromeCapabilities::new();
        let profile = format!("--user-data-dir={}", self.profile.path().display());
        let language = format!("--accept-lang={}", look.language);
        for argument in [
            "--headless=new",
            // Chromium does not sandbox itself under root; it is shown nothing but what the tests made.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--no-proxy-server",
            // Whatever asks for another host is told that there is none.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &profile,
            &language,
        ] {
            capabilities.add_arg(argument).unwrap();
        }
        for log in ["browser", "performance"] {
            capabilities.set_logging_prefs(log, LoggingPrefsLogLevel::All).unwrap();
        }
        capabilities
    }

    /// The test gives the API reason to answer so; `ERR` is a request without an answer.
    pub fn expect(mut self, statuses: &[&'static str]) -> Self {
        self.expected.extend(statuses);
        self
    }

    pub fn driver(&self) -> &WebDriver {
        self.driver.as_ref().unwrap()
    }

    /// Tells Chromium something that WebDriver has no word for.
    pub async fn tell(&self, method: &str, parameters: Value) -> Value {
        self.driver().cdp().send_raw(method, parameters).await.unwrap()
    }

    pub async fn goto(&self, path: &str) {
        self.driver().goto(format!("{}{path}", self.home)).await.unwrap();
    }

    pub async fn goto_sale(&self, sale: &str) {
        self.goto(&format!("/sales/{sale}")).await;
        self.sees("#countdown .part", "").await;
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

    /// What a script in the page returns.
    pub async fn run(&self, script: &str, arguments: &[&str]) -> Value {
        let arguments: Vec<Value> = arguments.iter().map(|it| json!(it)).collect();
        let returned = self.driver().execute(script, arguments).await.unwrap();
        returned.json().clone()
    }

    /// The text that is shown there; nothing when there is no such element, or nobody sees it.
    pub async fn text(&self, selector: &str) -> Option<String> {
        let script = "const node = document.querySelector(arguments[0]);
            return node?.checkVisibility() ? node.innerText : null";
        let text = self.run(script, &[selector]).await;
        text.as_str().map(str::to_owned)
    }

    /// Waits until that text is shown there.
    pub async fn sees(&self, selector: &str, text: &str) {
        self.waits_to_see(selector, text, async || {}).await;
    }

    /// The same for what the page finds out when it looks again, which it is told to do all the time.
    pub async fn finds(&self, selector: &str, text: &str) {
        let look_again = "document.dispatchEvent(new Event('visibilitychange'))";
        self.waits_to_see(selector, text, async || _ = self.run(look_again, &[]).await)
            .await;
    }

    async fn waits_to_see(&self, selector: &str, text: &str, meanwhile: impl AsyncFn()) {
        let patience = Patience::of(PATIENCE);
        while !self.text(selector).await.is_some_and(|found| found.contains(text)) {
            if patience.is_over() {
                let page = self.text("body").await.unwrap_or_default();
                panic!("{selector} does not show {text:?}; the page is:\n{page}");
            }
            meanwhile().await;
            Patience::moment().await;
        }
    }

    /// Waits until there is nothing to be seen.
    pub async fn misses(&self, selector: &str) {
        poll::within(PATIENCE, &format!("{selector} is gone"), async || {
            self.text(selector).await.is_none_or(|text| text.is_empty())
        })
        .await;
    }

    pub async fn click(&self, selector: &str) {
        let element = self.driver().find(By::Css(selector)).await.unwrap();
        element.scroll_into_view().await.unwrap();
        element.click().await.unwrap();
    }

    pub async fn fill(&self, selector: &str, text: &str) {
        let element = self.driver().find(By::Css(selector)).await.unwrap();
        if element.tag_name().await.unwrap() != "select" {
            element.clear().await.unwrap();
        }
        element.send_keys(text).await.unwrap();
    }

    /// Presses a key, wherever the focus is.
    pub async fn press(&self, key: Key) {
        let chain = self.driver().action_chain().send_keys(key);
        chain.perform().await.unwrap();
    }

    /// Waits until the tab is called so.
    pub async fn has_title(&self, title: &str) {
        poll::within(PATIENCE, &format!("the tab is called {title}"), async || {
            self.driver().title().await.unwrap() == title
        })
        .await;
    }

    /// What has the focus: its name, id and classes.
    pub async fn focus(&self) -> String {
        let script = "const { localName, id, className } = document.activeElement;
            return `${localName}#${id}.${className}`";
        self.run(script, &[]).await.as_str().unwrap().to_owned()
    }

    /// Lets no request come through whose address fits; nothing is blocked by none.
    pub async fn block(&self, patterns: &[&str]) {
        self.tell("Network.enable", json!({})).await;
        self.tell("Network.setBlockedURLs", json!({"urls": patterns})).await;
    }

    /// The attempt that the browser keeps, if there is one.
    pub async fn attempt(&self) -> Option<Value> {
        let script = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
            return name ? localStorage.getItem(name) : null";
        let kept = self.run(script, &[]).await;
        kept.as_str().map(|kept| serde_json::from_str(kept).unwrap())
    }

    /// Writes what is seen into `docs/screenshots`, where `SCREENSHOTS` asks for it; the other language's name wants a
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

    /// The events of a kind that the network has had since it was asked the last time.
    pub async fn network(&self) -> Vec<Value> {
        let log = self.driver().get_log("performance").await.unwrap();
        let events = log.into_iter().map(|entry| {
            let event: Value = serde_json::from_str(&entry.message).unwrap();
            event["message"].clone()
        });
        events.collect()
    }

    /// Checks that nobody else was asked for anything, in these events; returns how often the test's instance was.
    pub fn asked_nobody_else(&self, events: &[Value]) -> usize {
        let mut own = 0;
        for event in events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent")
        {
            let url = event["params"]["request"]["url"].as_str().unwrap();
            let is_own = url.starts_with(&format!("{}/", self.home));
            assert!(
                is_own || url.starts_with("data:") || url == "about:blank" || url.starts_with("chrome://"),
                "asks {url}"
            );
            own += usize::from(is_own);
        }
        own
    }

    /// Closes the window, after a look at what it did.
    pub async fn close(mut self) {
        let events = self.network().await;
        assert!(self.asked_nobody_else(&events) > 0, "no request was seen at all");
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
        self.driver.take().unwrap().quit().await.unwrap();
    }
}

impl Drop for Window {
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
