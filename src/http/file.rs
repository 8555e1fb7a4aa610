//! Files that are the same for every client: pages, scripts and styles. A client keeps a file for ever under a path that
//! changes with its content. Elsewhere it asks by the file's `ETag` whether its copy is current. The file's headers limit
//! what a browser may do with it.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    AcceptEncoding, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ContentEncoding, ETag, Encoding, EntityTag, Header as _,
    IfNoneMatch, REFERRER_POLICY, VARY,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::io::Write as _;

/// Clients keep a copy but ask each time.
const ASK: &str = "no-cache";
/// Clients keep a copy, here for a year, and do not ask.
const KEEP: &str = "public, max-age=31536000, immutable";
/// Clients and proxies keep a copy for a second.
const SECOND: &str = "public, max-age=1";
/// Browser features that no page of ours uses.
const UNUSED: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

pub struct File {
    text: Bytes,
    /// The text as gzip.
    compressed: Bytes,
    kind: &'static str,
    policy: Cow<'static, str>,
    /// The headers of a request that the answer depends on.
    vary: &'static str,
    tag: EntityTag,
}

impl File {
    /// A file with this content, content type and content security policy.
    pub fn new(text: impl Into<Bytes>, kind: &'static str, policy: impl Into<Cow<'static, str>>) -> Self {
        Self::made(text.into(), kind, policy.into(), Compression::best())
    }

    /// The same for a file that is made several times a second, while other requests wait. It may have a megabyte.
    pub fn brief(text: impl Into<Bytes>, kind: &'static str, policy: impl Into<Cow<'static, str>>) -> Self {
        Self::made(text.into(), kind, policy.into(), Compression::fast())
    }

    fn made(text: Bytes, kind: &'static str, policy: Cow<'static, str>, compression: Compression) -> Self {
        Self {
            // Compressed and not, it is the same file.
            tag: EntityTag::new_weak(version([text.as_ref()])),
            compressed: gzip(&text, compression),
            text,
            kind,
            policy,
            vary: "Accept-Encoding",
        }
    }

    /// The same file, as one of several for readers of different languages.
    #[must_use]
    pub fn by_language(mut self) -> Self {
        self.vary = "Accept-Encoding, Accept-Language";
        self
    }

    /// Answers with the file, or 304 if the client's copy is current.
    pub fn answer(&self, request: &HttpRequest) -> HttpResponse {
        self.answer_with(request, ASK)
    }

    /// The same as a handler.
    pub async fn handle(&'static self, request: HttpRequest) -> HttpResponse {
        self.answer(&request)
    }

    /// The same under a path that changes with the content.
    pub fn answer_for_ever(&self, request: &HttpRequest) -> HttpResponse {
        self.answer_with(request, KEEP)
    }

    /// The same for a file that soon changes.
    pub fn answer_for_a_second(&self, request: &HttpRequest) -> HttpResponse {
        self.answer_with(request, SECOND)
    }

    fn answer_with(&self, request: &HttpRequest, caching: &'static str) -> HttpResponse {
        let is_known = match IfNoneMatch::parse(request) {
            Ok(IfNoneMatch::Any) => true,
            Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|tag| tag.weak_eq(&self.tag)),
            Err(_) => false,
        };
        if is_known {
            self.head(StatusCode::NOT_MODIFIED, caching).finish()
        } else {
            self.send(request, StatusCode::OK, caching)
        }
    }

    /// Answers with the file and this status, even if the client's copy is current.
    pub fn answer_as(&self, request: &HttpRequest, status: StatusCode) -> HttpResponse {
        self.send(request, status, ASK)
    }

    fn send(&self, request: &HttpRequest, status: StatusCode, caching: &'static str) -> HttpResponse {
        let mut answer = self.head(status, caching);
        answer.content_type(self.kind);
        if takes_gzip(request) {
            answer
                .insert_header(ContentEncoding::Gzip)
                .body(self.compressed.clone())
        } else {
            answer.body(self.text.clone())
        }
    }

    fn head(&self, status: StatusCode, caching: &'static str) -> HttpResponseBuilder {
        let mut answer = HttpResponse::build(status);
        answer
            .insert_header(ETag(self.tag.clone()))
            .insert_header((CACHE_CONTROL, caching))
            .insert_header((VARY, self.vary))
            .insert_header((CONTENT_SECURITY_POLICY, &*self.policy))
            // Pages that open this one, or that it opens, get no handle on its window.
            .insert_header(("Cross-Origin-Opener-Policy", "same-origin"))
            .insert_header(("Permissions-Policy", UNUSED))
            // No site learns a sale's address from the referrer. Orders are in no address.
            .insert_header((REFERRER_POLICY, "no-referrer"));
        answer
    }
}

/// A short text that changes with these contents. Half of a digest is enough to distinguish versions.
pub fn version<'a>(contents: impl IntoIterator<Item = &'a [u8]>) -> String {
    let digest = contents.into_iter().fold(Sha256::new(), |digest, content| {
        digest.chain_update(Sha256::digest(content))
    });
    URL_SAFE_NO_PAD.encode(&digest.finalize()[..16])
}

fn gzip(text: &[u8], compression: Compression) -> Bytes {
    let mut into = GzEncoder::new(Vec::new(), compression);
    // A vector takes all that is written.
    let written = into.write_all(text).and_then(|()| into.finish());
    written.unwrap_or_default().into()
}

fn takes_gzip(request: &HttpRequest) -> bool {
    let supported = [Encoding::gzip(), Encoding::identity()];
    let taken = AcceptEncoding::parse(request).ok();
    taken.and_then(|taken| taken.negotiate(supported.iter())) == Some(Encoding::gzip())
}
