-- A session ends when nothing has used it for a while. Older instances leave the column as it is.

alter table console_sessions
    add column last_used_at timestamptz not null default now();
