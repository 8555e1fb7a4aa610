//! Files that are part of the program and the same for every client: pages, scripts and styles. A client asks by a
//! file's `ETag` whether its copy is current. The file's headers limit what a browser may do with it.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETag, EntityTag, Header as _, IfNoneMatch, REFERRER_POLICY,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// Browser features that no page of ours uses.
const UNUSED: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

pub struct File {
    text: Bytes,
    kind: &'static str,
    policy: &'static str,
    tag: EntityTag,
}

impl File {
    /// A file with this content, content type and content security policy.
    #[must_use]
    pub fn new(text: impl Into<Bytes>, kind: &'static str, policy: &'static str) -> Self {
        let text = text.into();
        // Half of the digest is enough to distinguish versions.
        let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&text)[..16]);
        Self {
            text,
            kind,
            policy,
            tag: EntityTag::new_strong(tag),
        }
    }

    /// Answers with the file, or 304 if the client's copy is current.
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

    /// Answers with the file and this status, even if the client's copy is current.
    #[must_use]
    pub fn answer_as(&self, status: StatusCode) -> HttpResponse {
        self.head(status).content_type(self.kind).body(self.text.clone())
    }

    fn head(&self, status: StatusCode) -> HttpResponseBuilder {
        let mut answer = HttpResponse::build(status);
        answer
            .insert_header(ETag(self.tag.clone()))
            // Clients keep a copy but ask each time: files of two versions do not work together.
            .insert_header((CACHE_CONTROL, "no-cache"))
            .insert_header((CONTENT_SECURITY_POLICY, self.policy))
            // Pages that open this one, or that it opens, get no handle on its window.
            .insert_header(("Cross-Origin-Opener-Policy", "same-origin"))
            .insert_header(("Permissions-Policy", UNUSED))
            // No site learns a sale's address from the referrer. Orders are in no address.
            .insert_header((REFERRER_POLICY, "no-referrer"));
        answer
    }
}
