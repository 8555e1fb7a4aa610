-- A sale that is asked for again under the same key is created once.

alter table sales
    add column idempotency_key text unique check (octet_length(idempotency_key) between 1 and 64),
    -- Of what was asked for under the key.
    add column request_digest bytea check (octet_length(request_digest) = 32),
    add constraint sales_key_has_digest check ((idempotency_key is null) = (request_digest is null));
