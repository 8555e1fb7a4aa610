//! Files that are part of the program and the same for everybody: each has a tag, by which a client asks whether its copy
//! is still good.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETag, EntityTag, Header as _, IfNoneMatch, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// What a page may load and do: show itself in its own style.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file as it is served.
pub struct File {
    text: Bytes,
    kind: &'static str,
    tag: EntityTag,
}

impl File {
    /// A file with this content and content type.
    #[must_use]
    pub fn new(text: impl Into<Bytes>, kind: &'static str) -> Self {
        let text = text.into();
        // Half of the digest tells versions apart.
        let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&text)[..16]);
        Self {
            text,
            kind,
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
        let mut answer = HttpResponse::build(if is_known {
            StatusCode::NOT_MODIFIED
        } else {
            StatusCode::OK
        });
        answer
            .insert_header(ETag(self.tag.clone()))
            // Kept, but asked about each time: another version of the program has another one.
            .insert_header((CACHE_CONTROL, "no-cache"))
            .insert_header((CONTENT_SECURITY_POLICY, POLICY))
            .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .insert_header((REFERRER_POLICY, "no-referrer"));
        if is_known {
            answer.finish()
        } else {
            answer.content_type(self.kind).body(self.text.clone())
        }
    }
}
