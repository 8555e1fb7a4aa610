-- Accounts that may not buy.

create table bans (
    user_id text primary key check (octet_length(user_id) between 1 and 128),
    reason text not null check (length(reason) between 1 and 500),
    banned_by text not null check (banned_by in ('operator', 'browsing')),
    banned_at timestamptz not null default now(),
    -- Null is for ever.
    banned_until timestamptz,
    lifted_at timestamptz,
    -- Tokens that were issued before are no longer taken; null when all are.
    sessions_from timestamptz,
    -- Goes up with every decision about this account, from 1 to 32767 and then from 1 again: a shard goes by the newest.
    revision integer not null default 1 check (revision between 1 and 32767),
    -- Goes up with every decision about any account: what an instance has not heard of yet is beyond what it has.
    change bigint not null unique,
    constraint bans_end_after_start check (banned_until is null or banned_until > banned_at)
);

create sequence ban_changes;
