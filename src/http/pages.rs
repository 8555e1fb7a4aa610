//! The web pages of shoppers and operators. They are files of the program, the same for every visitor of an instance.
//! Their scripts fetch all data from the API, so the pages themselves cost neither Redis nor Postgres anything.

use crate::domain::host::Origin;
use crate::domain::ids::SaleId;
use crate::domain::shop_link::{ShopLink, ShopLinks};
use crate::domain::shop_look::{Accent, ShopLook};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::file::{File, version};
use crate::http::problem::Problem;
use crate::http::{Api, found};
use actix_web::http::StatusCode;
use actix_web::http::header::LOCATION;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use maud::html;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The content security policy. A page may load its own files, its own API, and captchas (`data:`). It submits forms
/// only by script, and turns no text into markup or code. The policy `proof` lets it start its one worker.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types proof";
/// The part of the policy about pictures. The shop's pages also load them from the origins that are configured.
const PICTURES: &str = "img-src 'self' data:";

macro_rules! assets {
    ($($folder:literal: $($name:literal)*;)*) => {
        const ASSETS: &[(&str, &str)] =
            &[$($(($name, include_str!(concat!("../../web/", $folder, "/", $name)))),*),*];
    };
}

assets! {
    "shared":
        "api.js"
        "base.css"
        "clock.js"
        "dom.js"
        "format.js"
        "icon.svg"
        "language.js"
        "problem.js"
        "sale-state.js"
        "storage.js"
        "words.js";
    "shop":
        "attempt-store.js"
        "attempt.js"
        "captcha.js"
        "development.js"
        "item-card.js"
        "order-row.js"
        "payment.js"
        "poll.js"
        "proof-worker.js"
        "proof.js"
        "room.js"
        "sale-page.js"
        "sales-page.js"
        "shop-links.js"
        "shop.css"
        "sign-in.js"
        "token.js";
    "console":
        "console-accounts.js"
        "console-api.js"
        "console-asked.js"
        "console-attention.js"
        "console-badges.js"
        "console-change.js"
        "console-contract.js"
        "console-course.js"
        "console-dialog.js"
        "console-download.js"
        "console-fields.js"
        "console-form.js"
        "console-guards.js"
        "console-limits.js"
        "console-live.js"
        "console-money.js"
        "console-names.js"
        "console-orders.js"
        "console-plot.js"
        "console-price.js"
        "console-report.js"
        "console-sale.js"
        "console-sales.js"
        "console-sessions.js"
        "console-sign-in.js"
        "console-table.js"
        "console-terms.js"
        "console-audit-log.js"
        "console-time.js"
        "console-units.js"
        "console-verdict.js"
        "console-words.js"
        "console.css"
        "console.js";
}

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

/// The pages as files, without development mode and without anything of a shop.
const SALES_PAGE: &str = include_str!("../../web/shop/sales.html");
const SALE_PAGE: &str = include_str!("../../web/shop/sale.html");
/// The console. Its script shows the view that the address names.
const CONSOLE_PAGE: &str = include_str!("../../web/console/console.html");
/// The attribute that says whether development mode is on, and its value if it is.
const PRODUCTION: &str = "data-development=\"no\"";
const DEVELOPMENT: &str = "data-development=\"yes\"";

/// The shoppers' pages of one instance, with its configuration.
pub struct Pages {
    sales: File,
    sale: File,
}

impl Pages {
    /// Inserts development mode, the links to the shop's own pages and the shop's look into the files.
    #[must_use]
    pub fn new(is_development: bool, shop: &ShopLinks, look: &ShopLook) -> Self {
        let mut said = if is_development { DEVELOPMENT } else { PRODUCTION }.to_owned();
        let texts = [
            ("sign-in-url", shop.sign_in.as_ref().map(ShopLink::as_str)),
            ("pay-url", shop.pay.as_ref().map(ShopLink::as_str)),
            ("shop-name", Some(look.name.as_str())),
            ("shop-logo-url", look.logo_url.as_deref()),
            ("shop-accent", look.accent.as_ref().map(Accent::as_str)),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                said += &format!(" data-{name}=\"{}\"", html! { (text) }.into_string());
            }
        }
        let logo = look.logo_url.as_deref().and_then(Origin::of);
        let logo = logo.map(|origin| origin.to_string());
        let mut pictures = PICTURES.to_owned();
        for origin in logo.iter().chain(&look.image_origins) {
            pictures += &format!(" {origin}");
        }
        let policy = POLICY.replacen(PICTURES, &pictures, 1);
        let made = |text: &str| page(text.replacen(PRODUCTION, &said, 1), policy.clone());
        Self {
            sales: made(SALES_PAGE),
            sale: made(SALE_PAGE),
        }
    }
}

/// A page that loads its files by their present version. Scripts name each other without the folder.
fn page(text: impl Into<String>, policy: impl Into<Cow<'static, str>>) -> File {
    let text = text.into().replace("\"/assets/", &format!("\"/assets/{}/", *VERSION));
    File::new(text, "text/html; charset=utf-8", policy)
}

/// The version of all files together, because they work only together.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let texts = ASSETS.iter().map(|(_, text)| text.as_bytes());
    // A worker has the policy of its own file.
    version(texts.chain([POLICY.as_bytes()]))
});

static FILES: LazyLock<BTreeMap<&str, File>> = LazyLock::new(|| {
    let file = |(name, text): &(&'static str, &'static str)| {
        let kind = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        };
        (*name, File::new(*text, kind, POLICY))
    };
    ASSETS.iter().map(file).collect()
});

static CONSOLE: LazyLock<File> = LazyLock::new(|| page(CONSOLE_PAGE, POLICY));

/// The further views of the console, by the last part of their address.
const VIEWS: [&str; 6] = ["sales", "orders", "accounts", "money", "limits", "audit-log"];

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
    api.pages.sales.answer(&request)
}

/// The page is the same for every sale, and its script reports a sale that does not exist. An id that does not parse is
/// 404.
async fn sale(api: Data<Api>, request: HttpRequest) -> HttpResponse {
    let id = request.match_info().query("id");
    page_if(&api.pages.sale, &request, id.parse::<SaleId>().is_ok())
}

async fn asset(request: HttpRequest) -> Result<HttpResponse, Problem> {
    let file = found(FILES.get(request.match_info().query("name")), "such file")?;
    if request.match_info().query("version") == *VERSION {
        Ok(file.answer_for_ever(&request))
    } else {
        // A page of another version must not keep this file.
        Ok(file.answer(&request))
    }
}
