-- What guards tell the operators of, for thirty days.

create table guard_alerts (
    alert_id bigint generated always as identity primary key,
    raised_at timestamptz not null default now(),
    kind text not null check (kind in ('browsing', 'browsing_ban')),
    user_id text not null,
    detail text not null
);

create index guard_alerts_by_age on guard_alerts (raised_at);
