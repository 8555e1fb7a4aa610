-- What guards tell is also sent to a webhook, if there is one: at least once, with the same id every time.

alter table guard_alerts
    -- By it, the webhook's owner knows a repetition.
    add column webhook_id uuid not null default gen_random_uuid(),
    add column delivered_at timestamptz,
    -- Set once nobody tries any more.
    add column given_up_at timestamptz,
    add column attempts integer not null default 0 check (attempts >= 0),
    add column not_before timestamptz not null default now(),
    -- Until then somebody is at it.
    add column claimed_until timestamptz,
    add constraint guard_alerts_delivered_or_given_up check (delivered_at is null or given_up_at is null);

create index guard_alerts_undelivered on guard_alerts (alert_id) where delivered_at is null and given_up_at is null;
