-- The audit log of operators' actions is append-only: an entry is written once, its outcome once, and it is deleted only
-- after 90 days. The owner of the table can still drop this trigger: serve with a role that does not own it.

alter table operator_actions drop constraint operator_actions_actor_check;
-- 'nobody' was refused for lack of authority.
alter table operator_actions
    add constraint operator_actions_actor_check check (actor in ('console', 'api_key', 'nobody')) not valid;

create function protect_operator_actions() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' then
        if old.outcome is null and new.outcome is not null
            and (old.sale_id is null or new.sale_id is not distinct from old.sale_id)
            and to_jsonb(new) - '{outcome,ended_at,sale_id}'::text[] = to_jsonb(old) - '{outcome,ended_at,sale_id}'::text[]
        then
            return new;
        end if;
    elsif tg_op = 'DELETE' then
        if old.begun_at < now() - interval '90 days' then
            return old;
        end if;
    end if;
    raise exception 'operator_actions is append-only' using errcode = 'insufficient_privilege';
end
$$;

create trigger protect_operator_actions before update or delete on operator_actions
    for each row execute function protect_operator_actions();

create trigger keep_operator_actions before truncate on operator_actions
    for each statement execute function protect_operator_actions();
