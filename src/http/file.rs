//! Files that are part of the program and the same for everybody: what browsers are given. Each has a tag, by which a client
//! asks whether its copy is still good, and says what a browser may do with it.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETag, EntityTag, Header as _, IfNoneMatch, REFERRER_POLICY,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// What no page of ours asks a browser for.
const UNUSED: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

/// A file as it is served.
pub struct File {
    text: Bytes,
    kind: &'static str,
    policy: &'static str,
    tag: EntityTag,
}

impl File {
    /// A file with this content and content type, and what a page of it may load and do.
    #[must_use]
    pub fn new(text: impl Into<Bytes>, kind: &'static str, policy: &'static str) -> Self {
        let text = text.into();
        // Half of the digest tells versions apart.
        let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&text)[..16]);
        Self {
            text,
            kind,
            policy,
            tag: EntityTag::new_strong(tag),
        }
    }

    /// Answers with it, or that the client's copy is still good.
    #[must_use]
    pub fn answer(&self, request: &HttpRequest) -> HttpResponse {
        let is_known = match IfNoneMatch::parse(request) {
            Ok(IfNoneMatch::Any) => true,
            Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|tag| tag.weak_eq(&self.tag)),
            Err(_) => false,
        };
        if is_known {
            self.head(StatusCode::NOT_MODIFIED).finish()
        } else {
            self.answer_as(StatusCode::OK)
        }
    }

    /// Answers with it and this status, whatever the client has.
    #[must_use]
    pub fn answer_as(&self, status: StatusCode) -> HttpResponse {
        self.head(status).content_type(self.kind).body(self.text.clone())
    }

    fn head(&self, status: StatusCode) -> HttpResponseBuilder {
        let mut answer = HttpResponse::build(status);
        answer
            .insert_header(ETag(self.tag.clone()))
            // Kept, but asked about each time: files of two versions do not work together.
            .insert_header((CACHE_CONTROL, "no-cache"))
            .insert_header((CONTENT_SECURITY_POLICY, self.policy))
            // No page that opened this one, or that it opened, keeps a hand on it.
            .insert_header(("Cross-Origin-Opener-Policy", "same-origin"))
            .insert_header(("Permissions-Policy", UNUSED))
            // A sale's address is nobody's business; those of orders are in no address.
            .insert_header((REFERRER_POLICY, "no-referrer"));
        answer
    }
}
