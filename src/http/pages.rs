//! The web pages of shoppers and operators.
//!
//! The shoppers' pages carry what they show in their HTML. It is made of the glance that the API shows, once for all
//! visitors with one language, and has nothing of any shopper. The console is a file of the program. Its scripts fetch all
//! data from the API.

mod assets;
mod bundle;
mod language;
mod look;
mod paint;

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::shop::language::Language;
use crate::domain::shop::link::{ShopLink, ShopLinks};
use crate::domain::shop::look::ShopLook;
use crate::flow::App;
use crate::flow::sell::glance::quick_glance;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::accepts;
use crate::http::file::File;
use crate::http::problem::Problem;
use crate::http::shop::sales::{newest, view};
use crate::http::views::{Page, PublicSale};
use crate::http::{Api, Shared};
use actix_web::http::header::{HeaderValue, LOCATION, RETRY_AFTER};
use actix_web::http::{Method, StatusCode};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use assets::{FILES, POLICY, VERSION, versioned};
use language::{language_of, translate};
use maud::{Markup, html};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::timeout;

pub const PEOPLE_ROUTES: &[Endpoint] = &[
    Endpoint::page("/", handler!(sales)),
    Endpoint::page("/sales/{id}", handler!(sale)),
];
pub const ASSET_ROUTES: &[Endpoint] = &[Endpoint::page("/assets/{version}/{name}", handler!(asset))];
pub const CONSOLE_ROUTES: &[Endpoint] = &[
    Endpoint::page("/console", handler!(console)),
    Endpoint::page("/console/{view}", handler!(console)),
    Endpoint::page("/console/sales/{id}", handler!(console_sale)),
    Endpoint::page("/console/sales/{id}/edit", handler!(console_sale)),
    Endpoint::page("/console/sales/{id}/attention", handler!(console_sale)),
    Endpoint::page("/console/sales/{id}/report", handler!(console_sale)),
];
/// On the operators' address, `/` leads to the console.
pub const CONSOLE_ADDRESS_ROUTES: &[Endpoint] = &[Endpoint::page("/", handler!(to_console))];

/// The content type of a page.
const HTML: &str = "text/html; charset=utf-8";

/// The shoppers' pages as files, without development mode, with holes for what they show and for the shop's look.
const SALES_PAGE: &str = include_str!("../../web/shop/sales.html");
const SALE_PAGE: &str = include_str!("../../web/shop/sale.html");
const MISSING_PAGE: &str = include_str!("../../web/shop/missing.html");
/// The parts that several of them have, by their holes.
const PARTS: [(&str, &str); 3] = [
    ("<!--who-->", include_str!("../../web/shop/who.html")),
    ("<!--offer-->", include_str!("../../web/shop/offer.html")),
    ("<!--sign-in-->", include_str!("../../web/shop/sign-in.html")),
];
/// The holes.
const HEAD: &str = "<!--head-->";
const COLOURS: &str = "<!--colours-->";
const BRAND: &str = "<!--brand-->";
const SHOWN: &str = "<!--shown-->";
const MESSAGE: &str = "<!--message-->";
const ITEMS: &str = "<!--items-->";
const READING: &str = "<!--reading-->";
const SWITCH: &str = "<!--switch-->";
const SCRIPT_NEEDED: &str = "<!--script-needed-->";
/// The console. Its script shows the view that the address names.
const CONSOLE_PAGE: &str = include_str!("../../web/console/console.html");
/// The attribute that says whether development mode is on, and its value if it is.
const PRODUCTION: &str = "data-development=\"no\"";
const DEVELOPMENT: &str = "data-development=\"yes\"";
/// The note of development mode, as it is hidden in the files.
const HIDDEN_NOTE: &str = "data-word=\"development\" hidden";

/// How long a page is served from memory: concurrent visitors share one.
const FRESH: Duration = Duration::from_millis(200);
/// How many pages are kept: some are of a megabyte with its gzip.
const PAGES_MAX: usize = 200;
/// How many sales the list shows at first, as its script asks for them.
const LIST_MAX: usize = 100;
/// No visitor of the list waits longer for Redis before the page comes without sales.
const LIST_WAIT: Duration = Duration::from_millis(500);

/// A page that shows a sale, or the list of sales, in a language.
type PageKey = (Option<SaleId>, Language);

/// The shoppers' pages of one instance, with its configuration. They are made for the first visitor: an instance that
/// serves programs alone starts sooner without them.
pub struct Pages {
    /// By the place of their language.
    files: LazyLock<Vec<Files>, Make>,
    /// Pages that were shown a moment ago.
    shown: Cache<PageKey, Arc<File>>,
}

type Make = Box<dyn FnOnce() -> Vec<Files> + Send>;

/// The shoppers' pages in one language.
struct Files {
    language: Language,
    /// The shop's name.
    shop: String,
    policy: String,
    /// With holes.
    sales: String,
    sale: String,
    /// Without what cannot be read now.
    unread_sales: File,
    unread_sale: File,
    no_sale: File,
    no_page: File,
}

impl Pages {
    pub fn new(is_development: bool, shop: &ShopLinks, look: &ShopLook) -> Self {
        let (shop, look) = (shop.clone(), look.clone());
        let make: Make = Box::new(move || Files::of_all(is_development, &shop, &look));
        Self {
            files: LazyLock::new(make),
            shown: Cache::fresh_for(FRESH, PAGES_MAX),
        }
    }

    fn of(&self, language: Language) -> &Files {
        &self.files[language.place()]
    }
}

impl Files {
    /// Inserts development mode, the links to the shop's own pages and the shop's look into the files of all languages.
    fn of_all(is_development: bool, shop: &ShopLinks, look: &ShopLook) -> Vec<Self> {
        let mut said = if is_development { DEVELOPMENT } else { PRODUCTION }.to_owned();
        let texts = [
            ("sign-in-url", shop.sign_in.as_ref().map(ShopLink::as_str)),
            ("pay-url", shop.pay.as_ref().map(ShopLink::as_str)),
            ("shop-name", Some(look.name.as_str())),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                said += &format!(" data-{name}=\"{}\"", html! { (text) }.into_string());
            }
        }
        let note = if is_development {
            "data-word=\"development\""
        } else {
            HIDDEN_NOTE
        };
        let (colours, brand) = (look::colours(look), look::brand(look));
        let made = |text: &str| {
            let parts = PARTS.iter();
            let whole = parts.fold(text.to_owned(), |whole, (hole, part)| whole.replacen(hole, part, 1));
            // Browsers need no indentation.
            let whole: String = whole.lines().flat_map(|line| [line.trim_start(), "\n"]).collect();
            let text = versioned(&whole)
                .replacen(PRODUCTION, &said, 1)
                .replacen(HIDDEN_NOTE, note, 1);
            filled(&text, &[(COLOURS, &colours), (BRAND, &brand)])
        };
        let templates = [SALES_PAGE, SALE_PAGE, MISSING_PAGE].map(made);
        Language::all()
            .map(|language| Self::new(language, &templates, look))
            .collect()
    }

    fn new(language: Language, templates: &[String; 3], look: &ShopLook) -> Self {
        let switch = paint::switch(language);
        let translated = |page: &String| filled(&translate(language, page), &[(SWITCH, &switch)]);
        let [sales, sale, missing] = templates.each_ref().map(translated);
        let (shop, policy, nothing) = (look.name.clone(), look::policy(look), html! {});
        let head = |title: &str| paint::head(language, &shop, language.say(title));
        let made = |text: &str, holes: &[(&str, &Markup)]| page_by_language(text, &policy, holes);
        let without = |title: &str, shown: &Markup| {
            let message = paint::message(language, None);
            let holes = [
                (HEAD, &head(title)),
                (SHOWN, shown),
                (MESSAGE, &message),
                (ITEMS, &nothing),
                (READING, &nothing),
            ];
            made(&sale, &holes)
        };
        Self {
            language,
            unread_sales: made(
                &sales,
                &[(HEAD, &head("sales")), (SHOWN, &nothing), (READING, &nothing)],
            ),
            unread_sale: without("sales", &paint::empty_hero(language, "loading", "")),
            no_sale: without("noSale", &paint::empty_hero(language, "noSale", "noSaleNote")),
            no_page: made(&missing, &[(HEAD, &head("noPage"))]),
            sales,
            sale,
            shop,
            policy,
        }
    }

    fn showing_sale(&self, sale: &PublicSale) -> File {
        let holes = [
            (HEAD, &paint::sale_head(self.language, &self.shop, sale)),
            (SHOWN, &paint::hero(self.language, sale)),
            (MESSAGE, &paint::message(self.language, Some(sale))),
            (ITEMS, &paint::items(self.language, sale)),
            (READING, &paint::reading(sale)),
        ];
        page_by_language(&self.sale, &self.policy, &holes)
    }

    fn showing_list(&self, list: &Page<PublicSale>) -> File {
        let holes = [
            (HEAD, &paint::list_head(self.language, &self.shop, &list.data)),
            (SHOWN, &paint::list(self.language, &list.data)),
            (READING, &paint::reading(list)),
        ];
        page_by_language(&self.sales, &self.policy, &holes)
    }
}

/// A text with its holes filled. No text fills the next hole: `<` is escaped in all of them.
fn filled(text: &str, holes: &[(&str, &Markup)]) -> String {
    let holes = holes.iter();
    holes.fold(text.to_owned(), |text, (hole, markup)| {
        text.replacen(hole, &markup.0, 1)
    })
}

fn page_by_language(text: &str, policy: &str, holes: &[(&str, &Markup)]) -> File {
    File::brief(filled(text, holes), HTML, policy.to_owned()).by_language()
}

static CONSOLE: LazyLock<File> = LazyLock::new(|| {
    let holes = [
        (SWITCH, &paint::switch(Language::ENGLISH)),
        (SCRIPT_NEEDED, &paint::script_needed()),
    ];
    File::new(filled(&versioned(CONSOLE_PAGE), &holes), HTML, POLICY)
});

/// The further views of the console, by the last part of their address.
const VIEWS: [&str; 7] = ["sales", "orders", "accounts", "money", "limits", "shadow", "audit-log"];

async fn to_console() -> HttpResponse {
    HttpResponse::TemporaryRedirect()
        .insert_header((LOCATION, "/console"))
        .finish()
}

async fn console(request: HttpRequest) -> HttpResponse {
    let view = request.match_info().get("view");
    page_if(&CONSOLE, &request, view.is_none_or(|view| VIEWS.contains(&view)))
}

/// The id `new` stands for a sale to be created.
async fn console_sale(request: HttpRequest) -> HttpResponse {
    let id = request.match_info().query("id");
    page_if(&CONSOLE, &request, id == "new" || id.parse::<SaleId>().is_ok())
}

/// The page says what is missing, so it also answers an address that is 404.
fn page_if(page: &File, request: &HttpRequest, is_there: bool) -> HttpResponse {
    if is_there {
        page.answer(request)
    } else {
        page.answer_as(request, StatusCode::NOT_FOUND)
    }
}

async fn sales(api: Data<Api>, request: HttpRequest) -> HttpResponse {
    let (shared, language) = (Arc::clone(&api.shared), language_of(&request));
    let key: PageKey = (None, language);
    let page = match api.pages.shown.get(&key) {
        Some(page) => Ok(page),
        None => api.for_shopper(move |app| list_page(app, shared, language)).await,
    };
    match page {
        Ok(page) => page.answer_for_a_second(&request),
        Err(_) => unread(&api.pages.of(language).unread_sales, &request),
    }
}

async fn list_page(app: Arc<App>, shared: Arc<Shared>, language: Language) -> Result<Arc<File>, Fault> {
    let late = |_| Fault::Unavailable("no list in time".to_owned());
    let (data, has_more) = timeout(LIST_WAIT, newest(app, LIST_MAX, None)).await.map_err(late)??;
    let pages = &shared.pages;
    let make = async { Arc::new(pages.of(language).showing_list(&Page { data, has_more })) };
    Ok(pages.shown.get_or_read(&(None, language), make).await)
}

/// A sale that does not exist is 404. The page says so, and its script goes on asking.
async fn sale(api: Data<Api>, request: HttpRequest) -> HttpResponse {
    let (shared, language) = (Arc::clone(&api.shared), language_of(&request));
    let files = api.pages.of(language);
    let Ok(id) = request.match_info().query("id").parse::<SaleId>() else {
        return files.no_sale.answer_as(&request, StatusCode::NOT_FOUND);
    };
    let key: PageKey = (Some(id), language);
    let page = match api.pages.shown.get(&key) {
        Some(page) => Ok(Some(page)),
        None => api.for_shopper(move |app| sale_page(app, shared, id, language)).await,
    };
    match page {
        Ok(Some(page)) => page.answer_for_a_second(&request),
        Ok(None) => files.no_sale.answer_as(&request, StatusCode::NOT_FOUND),
        Err(_) => unread(&files.unread_sale, &request),
    }
}

async fn sale_page(
    app: Arc<App>,
    shared: Arc<Shared>,
    id: SaleId,
    language: Language,
) -> Result<Option<Arc<File>>, Fault> {
    let Some(glance) = quick_glance(&app, id).await? else {
        return Ok(None);
    };
    let pages = &shared.pages;
    let make = async { Arc::new(pages.of(language).showing_sale(&view(app, glance).await)) };
    Ok(Some(
        pages.shown.get_or_read(&(Some(id), language), Box::pin(make)).await,
    ))
}

/// An address that nothing serves: people get a page, programs a problem.
pub async fn nowhere(api: Data<Api>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let is_reading = [Method::GET, Method::HEAD].contains(request.method());
    if !is_reading || !accepts(&request, "text/html") || request.path().starts_with("/v1/") {
        return Err(Problem::not_found("such path"));
    }
    let page = &api.pages.of(language_of(&request)).no_page;
    Ok(page.answer_as(&request, StatusCode::NOT_FOUND))
}

/// The page without what cannot be read now. Its script goes on asking.
fn unread(page: &File, request: &HttpRequest) -> HttpResponse {
    let mut answer = page.answer_as(request, StatusCode::SERVICE_UNAVAILABLE);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

async fn asset(api: Data<Api>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let Some(file) = FILES.get(request.match_info().query("name")) else {
        return nowhere(api, request).await;
    };
    if request.match_info().query("version") == *VERSION {
        Ok(file.answer_for_ever(&request))
    } else {
        // A page of another version must not keep this file.
        Ok(file.answer(&request))
    }
}
