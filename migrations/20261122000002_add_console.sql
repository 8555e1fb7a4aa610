-- The console: who is signed in, and what operators did.

create table console_sessions (
    session_id uuid primary key default gen_random_uuid(),
    -- A keyed digest of what the cookie says; the key follows from the operators' key, so that a new one signs all out.
    digest bytea not null unique check (octet_length(digest) = 32),
    address text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    constraint console_sessions_end_after_start check (expires_at > created_at)
);

create index console_sessions_by_end on console_sessions (expires_at);

create table operator_actions (
    action_id bigint generated always as identity primary key,
    begun_at timestamptz not null default now(),
    actor text not null check (actor in ('console', 'api_key')),
    -- Which session of the console; it may have ended since.
    session_id uuid,
    address text,
    action text not null check (length(action) between 1 and 64),
    -- As it was asked for: there may be none of that id.
    sale_id uuid,
    detail jsonb not null default '{}' check (jsonb_typeof(detail) = 'object'),
    -- Written when the action has been answered. Null is one that is under way, or whose process ended before it knew.
    outcome text check (length(outcome) between 1 and 64),
    ended_at timestamptz,
    constraint operator_actions_of_console_have_session check ((actor = 'console') = (session_id is not null)),
    constraint operator_actions_ended_has_time check ((outcome is null) = (ended_at is null))
);

create index operator_actions_by_sale on operator_actions (sale_id, action_id);
create index operator_actions_by_age on operator_actions (begun_at);
