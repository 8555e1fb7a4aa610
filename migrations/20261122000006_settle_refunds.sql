-- Money that is owed back is owed until an operator says that it was paid back, and what the provider calls that refund.
-- `settled_at` is something else: when it was decided what became of the payment.

alter table payments
    add column refunded_at timestamptz,
    add column refund_reference text check (length(refund_reference) between 1 and 200),
    add constraint payments_refund_has_reference check ((refunded_at is null) = (refund_reference is null)),
    add constraint payments_refunded_were_due
        check (refunded_at is null or outcome in ('refund_due', 'unmatched'));

create function check_refund() returns trigger language plpgsql as $$
begin
    if old.refunded_at is not null and (old.refunded_at, old.refund_reference, old.outcome)
        is distinct from (new.refunded_at, new.refund_reference, new.outcome) then
        raise exception 'payment % was paid back already, as %', old.payment_id, old.refund_reference
            using errcode = 'check_violation', constraint = 'payments_refunded_once';
    end if;
    return new;
end $$;

create trigger payments_refunded_once before update on payments
    for each row execute function check_refund();

-- What is counted, each second while somebody watches, is what is still owed. Lists are of the others as well, which
-- `payments_to_look_at` finds.
create index payments_to_pay_back on payments (outcome)
    where outcome in ('refund_due', 'unmatched') and refunded_at is null;
