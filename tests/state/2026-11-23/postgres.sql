SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE FUNCTION public.check_grants_add_up() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
    owned bigint;
    given bigint;
begin
    select stock into owned from items where sale_id = new.sale_id and sku = new.sku;
    select sum(granted) into given from grants where sale_id = new.sale_id and sku = new.sku;
    if given is not null and given <> owned then
        raise exception 'the grants of % add up to %, its stock is %', new.sku, given, owned
            using errcode = 'check_violation', constraint = 'grants_add_up';
    end if;
    return null;
end $$;
CREATE FUNCTION public.check_order_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if old.state is distinct from new.state and old.state <> 'reserved' then
        raise exception 'order % cannot go from % to %', old.order_id, old.state, new.state
            using errcode = 'check_violation', constraint = 'orders_leave_reserved_once';
    end if;
    return new;
end $$;
CREATE FUNCTION public.check_orders_have_grants() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
    part record;
    there bigint;
begin
    for part in
        select a.sale_id, a.shard, array_agg(a.sku) as skus
        from (select distinct sale_id, shard, sku from added) a group by a.sale_id, a.shard
    loop
        -- Locked as a foreign key does, so that no grant goes between the look and the commit.
        perform 1 from grants g
            where g.sale_id = part.sale_id and g.sku = any(part.skus) and g.shard = part.shard
            for key share;
        get diagnostics there = row_count;
        if there < cardinality(part.skus) then
            raise exception 'an order is of an item or a shard that its sale does not have'
                using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
        end if;
    end loop;
    return null;
end $$;
CREATE FUNCTION public.check_refund() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if old.refunded_at is not null and (old.refunded_at, old.refund_reference, old.outcome)
        is distinct from (new.refunded_at, new.refund_reference, new.outcome) then
        raise exception 'payment % was paid back already, as %', old.payment_id, old.refund_reference
            using errcode = 'check_violation', constraint = 'payments_refunded_once';
    end if;
    return new;
end $$;
CREATE FUNCTION public.refuse_to_move() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if tg_table_name = 'grants' then
        if not exists (
            select from orders where sale_id = old.sale_id and sku = old.sku and shard = old.shard
        ) then
            return case tg_op when 'DELETE' then old else new end;
        end if;
    end if;
    raise exception 'a row of % keeps its sale, item and shard', tg_table_name
        using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
end $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public._sqlx_migrations (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);
CREATE SEQUENCE public.ban_changes
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE public.bans (
    user_id text NOT NULL,
    reason text NOT NULL,
    banned_by text NOT NULL,
    banned_at timestamp with time zone DEFAULT now() NOT NULL,
    banned_until timestamp with time zone,
    lifted_at timestamp with time zone,
    sessions_from timestamp with time zone,
    revision integer DEFAULT 1 NOT NULL,
    change bigint NOT NULL,
    CONSTRAINT bans_banned_by_check CHECK ((banned_by = ANY (ARRAY['operator'::text, 'browsing'::text]))),
    CONSTRAINT bans_end_after_start CHECK (((banned_until IS NULL) OR (banned_until > banned_at))),
    CONSTRAINT bans_reason_check CHECK (((length(reason) >= 1) AND (length(reason) <= 500))),
    CONSTRAINT bans_revision_check CHECK (((revision >= 1) AND (revision <= 32767))),
    CONSTRAINT bans_user_id_check CHECK (((octet_length(user_id) >= 1) AND (octet_length(user_id) <= 128)))
);
CREATE TABLE public.console_sessions (
    session_id uuid DEFAULT gen_random_uuid() NOT NULL,
    digest bytea NOT NULL,
    address text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    operator text,
    CONSTRAINT console_sessions_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT console_sessions_end_after_start CHECK ((expires_at > created_at)),
    CONSTRAINT console_sessions_operator_check CHECK (((length(operator) >= 1) AND (length(operator) <= 64)))
);
CREATE TABLE public.dead_letters (
    sale_id uuid NOT NULL,
    shard smallint NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    event bytea NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    order_id uuid,
    settled_at timestamp with time zone,
    note text,
    CONSTRAINT dead_letters_note_check CHECK (((length(note) >= 1) AND (length(note) <= 200))),
    CONSTRAINT dead_letters_settled_have_note CHECK (((settled_at IS NULL) = (note IS NULL)))
);
CREATE TABLE public.grants (
    sale_id uuid NOT NULL,
    sku text NOT NULL,
    shard smallint NOT NULL,
    granted bigint NOT NULL,
    held bigint DEFAULT 0 NOT NULL,
    sold bigint DEFAULT 0 NOT NULL,
    CONSTRAINT grants_held_not_negative CHECK ((held >= 0)),
    CONSTRAINT grants_never_oversold CHECK (((held + sold) <= granted)),
    CONSTRAINT grants_sold_not_negative CHECK ((sold >= 0))
);
CREATE TABLE public.guard_alerts (
    alert_id bigint NOT NULL,
    raised_at timestamp with time zone DEFAULT now() NOT NULL,
    kind text NOT NULL,
    user_id text NOT NULL,
    detail text NOT NULL,
    webhook_id uuid DEFAULT gen_random_uuid() NOT NULL,
    delivered_at timestamp with time zone,
    given_up_at timestamp with time zone,
    attempts integer DEFAULT 0 NOT NULL,
    not_before timestamp with time zone DEFAULT now() NOT NULL,
    claimed_until timestamp with time zone,
    CONSTRAINT guard_alerts_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT guard_alerts_delivered_or_given_up CHECK (((delivered_at IS NULL) OR (given_up_at IS NULL))),
    CONSTRAINT guard_alerts_kind_check CHECK ((kind = ANY (ARRAY['browsing'::text, 'browsing_ban'::text])))
);
ALTER TABLE public.guard_alerts ALTER COLUMN alert_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.guard_alerts_alert_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.guard_settings (
    one boolean DEFAULT true NOT NULL,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT guard_settings_one_check CHECK (one),
    CONSTRAINT guard_settings_settings_check CHECK ((jsonb_typeof(settings) = 'object'::text))
);
CREATE TABLE public.guard_stopped (
    sale_id uuid NOT NULL,
    layer text NOT NULL,
    stopped bigint NOT NULL,
    CONSTRAINT guard_stopped_stopped_check CHECK ((stopped > 0))
);
CREATE TABLE public.heartbeat (
    one boolean DEFAULT true NOT NULL,
    beaten_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT heartbeat_one_check CHECK (one)
);
CREATE TABLE public.items (
    sale_id uuid NOT NULL,
    sku text NOT NULL,
    "position" smallint NOT NULL,
    name text NOT NULL,
    price_minor bigint NOT NULL,
    currency text NOT NULL,
    stock bigint NOT NULL,
    per_user_limit integer NOT NULL,
    CONSTRAINT items_currency_check CHECK ((currency ~ '^[A-Z]{3}$'::text)),
    CONSTRAINT items_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    CONSTRAINT items_per_user_limit_check CHECK (((per_user_limit >= 1) AND (per_user_limit <= 100000))),
    CONSTRAINT items_position_check CHECK ((("position" >= 0) AND ("position" <= 999))),
    CONSTRAINT items_price_minor_check CHECK (((price_minor >= 0) AND (price_minor <= '10000000000'::bigint))),
    CONSTRAINT items_sku_check CHECK ((sku ~ '^[A-Za-z0-9._-]{1,64}$'::text)),
    CONSTRAINT items_stock_check CHECK (((stock >= 0) AND (stock <= 1000000000)))
);
CREATE TABLE public.operator_actions (
    action_id bigint NOT NULL,
    begun_at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    session_id uuid,
    address text,
    action text NOT NULL,
    sale_id uuid,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    outcome text,
    ended_at timestamp with time zone,
    operator text,
    CONSTRAINT operator_actions_action_check CHECK (((length(action) >= 1) AND (length(action) <= 64))),
    CONSTRAINT operator_actions_actor_check CHECK ((actor = ANY (ARRAY['console'::text, 'api_key'::text]))),
    CONSTRAINT operator_actions_detail_check CHECK ((jsonb_typeof(detail) = 'object'::text)),
    CONSTRAINT operator_actions_ended_has_time CHECK (((outcome IS NULL) = (ended_at IS NULL))),
    CONSTRAINT operator_actions_of_console_have_session CHECK (((actor = 'console'::text) = (session_id IS NOT NULL))),
    CONSTRAINT operator_actions_operator_check CHECK (((length(operator) >= 1) AND (length(operator) <= 64))),
    CONSTRAINT operator_actions_outcome_check CHECK (((length(outcome) >= 1) AND (length(outcome) <= 64)))
);
ALTER TABLE public.operator_actions ALTER COLUMN action_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.operator_actions_action_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.orders (
    order_id uuid NOT NULL,
    sale_id uuid NOT NULL,
    shard smallint NOT NULL,
    sku text NOT NULL,
    user_id text NOT NULL,
    idempotency_key text NOT NULL,
    quantity integer NOT NULL,
    amount_minor bigint NOT NULL,
    currency text NOT NULL,
    state text DEFAULT 'reserved'::text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    paid_at timestamp with time zone,
    resolved_at timestamp with time zone,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    CONSTRAINT orders_amount_minor_check CHECK ((amount_minor >= 0)),
    CONSTRAINT orders_expire_after_creation CHECK ((expires_at > created_at)),
    CONSTRAINT orders_idempotency_key_check CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 64))),
    CONSTRAINT orders_paid_has_time CHECK (((state = 'paid'::text) = (paid_at IS NOT NULL))),
    CONSTRAINT orders_quantity_check CHECK (((quantity >= 1) AND (quantity <= 100000))),
    CONSTRAINT orders_resolved_has_time CHECK (((state = 'reserved'::text) = (resolved_at IS NULL))),
    CONSTRAINT orders_state_check CHECK ((state = ANY (ARRAY['reserved'::text, 'paid'::text, 'cancelled'::text, 'expired'::text, 'revoked'::text]))),
    CONSTRAINT orders_user_id_check CHECK (((octet_length(user_id) >= 1) AND (octet_length(user_id) <= 128)))
);
CREATE TABLE public.outages (
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT outages_check CHECK ((until > since))
);
CREATE TABLE public.outbox (
    outbox_id bigint NOT NULL,
    sale_id uuid NOT NULL,
    shard smallint NOT NULL,
    message jsonb NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    not_before timestamp with time zone DEFAULT now() NOT NULL,
    failure text,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.outbox ALTER COLUMN outbox_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.payments (
    payment_id text NOT NULL,
    webhook_id text NOT NULL,
    order_id text NOT NULL,
    amount_minor bigint NOT NULL,
    currency text NOT NULL,
    outcome text NOT NULL,
    reason text,
    matched_order_id uuid,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    settled_at timestamp with time zone,
    refunded_at timestamp with time zone,
    refund_reference text,
    CONSTRAINT payments_currency_check CHECK (((octet_length(currency) >= 1) AND (octet_length(currency) <= 16))),
    CONSTRAINT payments_matched CHECK (((outcome = ANY (ARRAY['applied'::text, 'refund_due'::text])) = (matched_order_id IS NOT NULL))),
    CONSTRAINT payments_order_id_check CHECK (((octet_length(order_id) >= 1) AND (octet_length(order_id) <= 255))),
    CONSTRAINT payments_outcome_check CHECK ((outcome = ANY (ARRAY['applied'::text, 'refund_due'::text, 'unmatched'::text, 'pending'::text]))),
    CONSTRAINT payments_payment_id_check CHECK (((octet_length(payment_id) >= 1) AND (octet_length(payment_id) <= 255))),
    CONSTRAINT payments_refund_has_reference CHECK (((refunded_at IS NULL) = (refund_reference IS NULL))),
    CONSTRAINT payments_refund_reference_check CHECK (((length(refund_reference) >= 1) AND (length(refund_reference) <= 200))),
    CONSTRAINT payments_refunded_were_due CHECK (((refunded_at IS NULL) OR (outcome = ANY (ARRAY['refund_due'::text, 'unmatched'::text])))),
    CONSTRAINT payments_settled_has_time CHECK (((outcome = 'pending'::text) = (settled_at IS NULL))),
    CONSTRAINT payments_webhook_id_check CHECK (((octet_length(webhook_id) >= 1) AND (octet_length(webhook_id) <= 255)))
);
CREATE TABLE public.restocks (
    sale_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    restock_id uuid NOT NULL,
    sku text NOT NULL,
    quantity bigint NOT NULL,
    state text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    decided_at timestamp with time zone,
    CONSTRAINT restocks_decided_has_time CHECK (((state = 'pending'::text) = (decided_at IS NULL))),
    CONSTRAINT restocks_quantity_check CHECK ((quantity <> 0)),
    CONSTRAINT restocks_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'applied'::text, 'refused'::text])))
);
CREATE TABLE public.sales (
    sale_id uuid NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    state text DEFAULT 'draft'::text NOT NULL,
    state_version bigint DEFAULT 1 NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    shards smallint NOT NULL,
    payment_window_seconds integer NOT NULL,
    rate_limit integer NOT NULL,
    rate_window_ms bigint NOT NULL,
    durability text NOT NULL,
    secret bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    retired_at timestamp with time zone,
    guards jsonb DEFAULT '{}'::jsonb NOT NULL,
    idempotency_key text,
    request_digest bytea,
    CONSTRAINT sales_durability_check CHECK ((durability = ANY (ARRAY['redis'::text, 'replica'::text, 'postgres'::text]))),
    CONSTRAINT sales_end_after_start CHECK ((ends_at > starts_at)),
    CONSTRAINT sales_guards_check CHECK ((jsonb_typeof(guards) = 'object'::text)),
    CONSTRAINT sales_idempotency_key_check CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 64))),
    CONSTRAINT sales_key_has_digest CHECK (((idempotency_key IS NULL) = (request_digest IS NULL))),
    CONSTRAINT sales_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    CONSTRAINT sales_payment_window_seconds_check CHECK (((payment_window_seconds >= 1) AND (payment_window_seconds <= 86400))),
    CONSTRAINT sales_rate_limit_check CHECK (((rate_limit >= 1) AND (rate_limit <= 100000))),
    CONSTRAINT sales_rate_window_ms_check CHECK (((rate_window_ms >= 1) AND (rate_window_ms <= 86400000))),
    CONSTRAINT sales_request_digest_check CHECK ((octet_length(request_digest) = 32)),
    CONSTRAINT sales_secret_check CHECK ((octet_length(secret) = 32)),
    CONSTRAINT sales_shards_check CHECK (((shards >= 1) AND (shards <= 256))),
    CONSTRAINT sales_state_check CHECK ((state = ANY (ARRAY['draft'::text, 'loading'::text, 'active'::text, 'paused'::text, 'closed'::text]))),
    CONSTRAINT sales_state_version_check CHECK ((state_version > 0))
);
ALTER TABLE public.sales ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.sales_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.shards (
    sale_id uuid NOT NULL,
    shard smallint NOT NULL,
    epoch bigint DEFAULT 1 NOT NULL,
    drained_epoch bigint DEFAULT 0 NOT NULL,
    drained_seq bigint DEFAULT 0 NOT NULL,
    run_id text,
    rebuilds integer DEFAULT 0 NOT NULL,
    rebuilt_at timestamp with time zone,
    lost_orders bigint DEFAULT 0 NOT NULL,
    extended_until timestamp with time zone DEFAULT now() NOT NULL,
    extending_since timestamp with time zone,
    extending_epoch bigint DEFAULT 0 NOT NULL,
    extending_seq bigint DEFAULT 0 NOT NULL,
    extending_to_epoch bigint DEFAULT 0 NOT NULL,
    extending_to_seq bigint DEFAULT 0 NOT NULL,
    CONSTRAINT shards_epoch_check CHECK ((epoch > 0)),
    CONSTRAINT shards_shard_check CHECK (((shard >= 0) AND (shard <= 255)))
);
CREATE TABLE public.superseded_servers (
    run_id text NOT NULL,
    superseded_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE UNLOGGED TABLE public.told_counts (
    sale_id uuid NOT NULL,
    instance_id uuid NOT NULL,
    instance text NOT NULL,
    told_at timestamp with time zone DEFAULT now() NOT NULL,
    counted_seconds double precision NOT NULL,
    counts jsonb NOT NULL,
    CONSTRAINT told_counts_counted_seconds_check CHECK ((counted_seconds >= (0)::double precision)),
    CONSTRAINT told_counts_counts_check CHECK ((jsonb_typeof(counts) = 'object'::text)),
    CONSTRAINT told_counts_instance_check CHECK (((length(instance) >= 1) AND (length(instance) <= 300)))
);
CREATE UNLOGGED TABLE public.watched_sales (
    sale_id uuid NOT NULL,
    watched_until timestamp with time zone NOT NULL
);
INSERT INTO public._sqlx_migrations VALUES
	(20261121000001, 'create sales', '2026-11-23 18:26:55.508461+00', true, '\x15e957c8bb8a6c70c21c98266e171fade9819fa1a372fb4b41acc1768ca4d25936b4f615934c2cadf72a3e12d2a95799', 78621268),
	(20261121000002, 'create orders', '2026-11-23 18:26:55.591016+00', true, '\xa66061e1bc9000952dfecaa23874f962a6536283396c3e1f3a4ea106c52ba0f44f5c45c32a984f9fa053ee0501ecc3f7', 119296046),
	(20261121000003, 'create payments', '2026-11-23 18:26:55.719092+00', true, '\x4c5078f6e8e2f1278712534f9af4e7d1fa3ac1a65743fbc16ba3708edfb9297b736e58a09bcd685189b51135a3b705ab', 52178982),
	(20261121000004, 'add reconciling', '2026-11-23 18:26:55.775026+00', true, '\x81d97944c0b6842c7e8889b994cc79df141da7950062caca9cecf34015e45ce4c7d1b62465c7b1985394ef55ef693234', 16032438),
	(20261121000005, 'add outages', '2026-11-23 18:26:55.799101+00', true, '\x6c825730a879cf4ba47d710657aee7d7eed3e4ded020ad925da1d2e677fafb0cf84aa53a79cded0f51446e0828f6c29b', 39704955),
	(20261121000006, 'name dead orders', '2026-11-23 18:26:55.843907+00', true, '\x4b27a0669c90f62b0157d058c31f44475afbd2320d09bdda9176efea1ef93c342c04f93cd7310450077286562c7a1366', 10283981),
	(20261121000007, 'index decided orders', '2026-11-23 18:26:55.859019+00', true, '\x637b75060baac1ac2db0eb39f0e0d2e435718ee565ea78499690bf1ce7c15bcca569168e615915c373de759a0d6726be', 25597049),
	(20261121000008, 'add guards', '2026-11-23 18:26:55.886991+00', true, '\xba2cb9619933e1dd629f67904a10fc8ec2afbbd8446fb0bede5bc4a2ceb848de0a0c2c743219528e9b7bc9d471179d06', 38071537),
	(20261121000009, 'remember superseded servers', '2026-11-23 18:26:55.926974+00', true, '\x49514f949e045b605007d9ebf99819465b5dcb598030eada2adae6bcbf3509a3e7feb33982ddf1c43801b14a1fe8e942', 12047723),
	(20261121000010, 'add bans', '2026-11-23 18:26:55.940083+00', true, '\x2947a371af838d9ff2848f169d063c66ed3899f6aefae72263d9fa750bba2e314f1a2e7ced3fd2f93519dada16b9a8cb', 26136942),
	(20261121000011, 'add guard alerts', '2026-11-23 18:26:55.970961+00', true, '\x4ecb8007cba08028b54328c49610e06ac30fec2ec97f9844ad067b7323c22c328433de0c3a2a9d5c60ef5cec0cf120ca', 24916447),
	(20261121000012, 'add sale guards', '2026-11-23 18:26:56.003051+00', true, '\x3dd4bee51dbdfee6de3d43ea4feefe647873762b346a16b4c093c8f6bbadb20b1877655f1ea37f49d8dd99977a808517', 2950027),
	(20261121000013, 'deliver guard alerts', '2026-11-23 18:26:56.010889+00', true, '\x639488e0f9449d0eab04321fdb12aa5ac09788d23ac38785a4f1d44f62c371737e0aa838b4e332ccef1745dda94015bd', 44790807),
	(20261122000001, 'check orders by batch', '2026-11-23 18:26:56.056606+00', true, '\x6fe30919c24a16f7a768b0194fb12f9651e696c4e2c13510eda7153aab721731b9720910d85d09face76ed196dbfed76', 10151323),
	(20261122000002, 'add console', '2026-11-23 18:26:56.070895+00', true, '\x8e58559792c241ef9c8d0e9095dcf0418a9390181cbcb865e2372c73c96e9adafcda83c804421bc09f4b6852d04e422c', 51397961),
	(20261122000003, 'add sale keys', '2026-11-23 18:26:56.131127+00', true, '\xad48d0087c857bd9e9c9e0bf7630c7ec7faf0ab06c8b7762701de806fec29f70f3c152753dd861e55f8f686cc6b1b0a0', 19439404),
	(20261122000004, 'extend holds by pages', '2026-11-23 18:26:56.159107+00', true, '\x29beba1d12c8da3a1c57e8f9f6fdc3c81e315d427152efd987611bb1328225a698d518a562f866a9a17395e24c56a37b', 6807331),
	(20261122000005, 'look at grants by index', '2026-11-23 18:26:56.170975+00', true, '\x3bd7052dbdcd8f1635fb68b516b11cce2322f920a7916a253a0488fc77ab744fb081eccaedfc9e870ff6df988ee782f2', 8085712),
	(20261122000006, 'settle refunds', '2026-11-23 18:26:56.180929+00', true, '\xb0aa1f39e84abdff543e7edc8f0601a14a7b128d2a48061667b561c295a0f933b1ae34fbf37a45310cba0cceae5ed9dc', 14120526),
	(20261122000007, 'name operators', '2026-11-23 18:26:56.201194+00', true, '\xd50cfe7713c212fae5d1ee303bce5fa72e2241678dc80605fc57ef7959ebfd4634ee95fa35427fe9063f1d90316dbb9a', 9938497),
	(20261122000008, 'tell counts', '2026-11-23 18:26:56.219065+00', true, '\x1c63e09c81645088649f5d670ba9b43899b0b5663532d582257d36d099e262be99c18d4b151e4d058d68f8ff6c3ee7fb', 40007004),
	(20261122000009, 'index messages that go ahead', '2026-11-23 18:26:56.267091+00', true, '\xf7fbd803fd1e35b2cb20cee56a9d1a9fb51012809546460d011d0ce94abfc8d0cd52c0c7b7e6184b43f124dc1c25dbac', 7972353),
	(20261122000010, 'index restocks', '2026-11-23 18:26:56.282272+00', true, '\xe0d5cfa06ad965d79b7dcf338358f9da45508d05af42b615a50b42c94484c49c66abdfaaa617efcc893f1cdd18fa88d0', 7499200),
	(20261123000001, 'settle dead letters', '2026-11-23 18:26:56.292319+00', true, '\x38c4b6c79432de8e33ff3f91ff7d0bb8106b2edf3446f803d17bf58f51aafd933cfe5b7e399199a0da958d05d77695f1', 17481022),
	(20261123000002, 'know payments by their ids', '2026-11-23 18:26:56.314999+00', true, '\xd5f08223c45eebe0f32430f26d3c1ed20ca07f0be08eed389f9579166daf718135f25f930b1ef7df584ea52309a766fd', 8096969);
INSERT INTO public.bans VALUES
	('fay', 'bot', 'operator', '2026-11-23 18:26:59.843593+00', NULL, NULL, NULL, 1, 1),
	('gus', 'bot', 'operator', '2026-11-23 18:27:00.038861+00', NULL, '2026-11-23 18:27:00.308628+00', NULL, 2, 3);
INSERT INTO public.grants VALUES
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-PHONE', 0, 25, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-PHONE', 1, 25, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-PHONE', 2, 25, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-PHONE', 3, 25, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-CASE', 0, 250, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-CASE', 1, 250, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-CASE', 2, 250, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-CASE', 3, 250, 0, 0),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'phone', 0, 20, 0, 0),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'case', 0, 2, 0, 0),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'case', 1, 1, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'phone', 0, 20, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'case', 0, 2, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'case', 1, 1, 0, 0),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'phone', 0, 20, 0, 0),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'case', 0, 2, 0, 0),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'case', 1, 1, 0, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'phone', 0, 20, 0, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'case', 0, 2, 0, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'case', 1, 1, 0, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'phone', 0, 20, 0, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'case', 0, 2, 0, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'case', 1, 1, 0, 0),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'phone', 0, 20, 0, 0),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'phone', 1, 20, 0, 0),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'case', 0, 2, 0, 0),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'case', 1, 1, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'phone', 1, 20, 0, 1),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'phone', 1, 20, 1, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'phone', 1, 20, 1, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'phone', 1, 20, 1, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'phone', 1, 25, 0, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'case', 1, 0, 0, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'case', 0, 3, 3, 0),
	('01a209a9-425b-7040-975c-527680a0f8d3', 'phone', 0, 1, 1, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'phone', 0, 22, 2, 3),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'phone', 1, 20, 0, 0);
INSERT INTO public.guard_settings VALUES
	(true, '{}');
INSERT INTO public.heartbeat VALUES
	(true, '2026-11-23 18:27:19.009088+00');
INSERT INTO public.items VALUES
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-PHONE', 0, 'Demo phone', 49900, 'USD', 100, 2),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 'DEMO-CASE', 1, 'Demo case', 1900, 'USD', 1000, 5),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-41db-74ae-877c-1b35400e5380', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-425b-7040-975c-527680a0f8d3', 'phone', 0, 'Phone', 49900, 'EUR', 1, 5),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-4346-746c-ab05-76d06f77960b', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-44d3-72cc-9a6b-47cf27aed9bc', 'phone', 0, 'Phone', 49900, 'EUR', 40, 5),
	('01a209a9-44d3-72cc-9a6b-47cf27aed9bc', 'case', 1, 'Case', 900, 'EUR', 3, 3),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'phone', 0, 'Phone', 49900, 'EUR', 47, 5);
INSERT INTO public.operator_actions OVERRIDING SYSTEM VALUE VALUES
	(1, '2026-11-23 18:26:56.585415+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', '{"name": "Demo sale", "items": [{"sku": "DEMO-PHONE", "name": "Demo phone", "stock": 100, "currency": "USD", "price_minor": 49900, "per_user_limit": 2}, {"sku": "DEMO-CASE", "name": "Demo case", "stock": 1000, "currency": "USD", "price_minor": 1900, "per_user_limit": 5}], "shards": 4, "ends_at": "2026-11-24T18:26:56.571Z", "starts_at": "2026-11-23T18:26:56.571Z"}', 'done', '2026-11-23 18:26:56.617495+00', NULL),
	(2, '2026-11-23 18:26:56.620032+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', '{}', 'done', '2026-11-23 18:26:56.754062+00', NULL),
	(3, '2026-11-23 18:26:57.014991+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-417b-7634-8276-3fc71ce0a26c', '{"name": "open", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.057215+00', NULL),
	(4, '2026-11-23 18:26:57.110786+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-41db-74ae-877c-1b35400e5380', '{"name": "short", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 6}', 'done', '2026-11-23 18:26:57.150871+00', NULL),
	(5, '2026-11-23 18:26:57.239068+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-425b-7040-975c-527680a0f8d3', '{"name": "one", "items": [{"sku": "phone", "name": "Phone", "stock": 1, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}], "shards": 1, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.287212+00', NULL),
	(6, '2026-11-23 18:26:57.367719+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-42df-7286-a3e4-c52cf37f3af3', '{"name": "committed", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "durability": "postgres", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.388996+00', NULL),
	(7, '2026-11-23 18:26:57.476236+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-4346-746c-ab05-76d06f77960b', '{"name": "guarded", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "guards": {"holds_max": 2, "unpaid_cooldown_seconds": 1}, "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.497913+00', NULL),
	(12, '2026-11-23 18:26:57.901048+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-417b-7634-8276-3fc71ce0a26c', '{}', 'done', '2026-11-23 18:26:58.00344+00', NULL),
	(14, '2026-11-23 18:26:58.099518+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-425b-7040-975c-527680a0f8d3', '{}', 'done', '2026-11-23 18:26:58.154577+00', NULL),
	(15, '2026-11-23 18:26:58.182571+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-42df-7286-a3e4-c52cf37f3af3', '{}', 'done', '2026-11-23 18:26:58.243065+00', NULL),
	(16, '2026-11-23 18:26:58.269274+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-4346-746c-ab05-76d06f77960b', '{}', 'done', '2026-11-23 18:26:58.322753+00', NULL),
	(19, '2026-11-23 18:26:58.545042+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-447f-77ad-b6ef-250154d9ebe7', '{}', 'done', '2026-11-23 18:26:58.58394+00', NULL),
	(21, '2026-11-23 18:26:59.67287+00', 'api_key', NULL, '127.0.0.1', 'sales.restock', '01a209a9-417b-7634-8276-3fc71ce0a26c', '{"sku": "phone", "quantity": 10}', 'done', '2026-11-23 18:26:59.705319+00', NULL),
	(24, '2026-11-23 18:27:00.031994+00', 'api_key', NULL, '127.0.0.1', 'bans.create', NULL, '{"user": "gus", "until": null, "reason": "bot", "end_sessions": false}', 'done', '2026-11-23 18:27:00.292235+00', NULL),
	(25, '2026-11-23 18:27:00.30226+00', 'api_key', NULL, '127.0.0.1', 'bans.lift', NULL, '{"user": "gus"}', 'done', '2026-11-23 18:27:00.457945+00', NULL),
	(8, '2026-11-23 18:26:57.579915+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-43b3-7702-9930-9635b5e49fe2', '{"name": "closed", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.597419+00', NULL),
	(20, '2026-11-23 18:26:59.150006+00', 'api_key', NULL, '127.0.0.1', 'payments.settle', NULL, '{"reference": "back-1", "payment_id": "settled"}', 'done', '2026-11-23 18:26:59.168209+00', NULL),
	(27, '2026-11-23 18:27:13.987254+00', 'api_key', NULL, '127.0.0.1', 'sales.close', '01a209a9-43b3-7702-9930-9635b5e49fe2', '{}', 'done', '2026-11-23 18:27:13.992179+00', NULL),
	(9, '2026-11-23 18:26:57.679113+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-4417-7736-972f-e773c9fe5e7a', '{"name": "paused", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.698868+00', NULL),
	(10, '2026-11-23 18:26:57.781507+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-447f-77ad-b6ef-250154d9ebe7', '{"name": "scheduled", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "9998-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.803627+00', NULL),
	(22, '2026-11-23 18:26:59.717594+00', 'api_key', NULL, '127.0.0.1', 'sales.restock', '01a209a9-417b-7634-8276-3fc71ce0a26c', '{"sku": "phone", "quantity": -3}', 'done', '2026-11-23 18:26:59.81544+00', NULL),
	(23, '2026-11-23 18:26:59.837911+00', 'api_key', NULL, '127.0.0.1', 'bans.create', NULL, '{"user": "fay", "until": null, "reason": "bot", "end_sessions": false}', 'done', '2026-11-23 18:27:00.022893+00', NULL),
	(26, '2026-11-23 18:27:13.94182+00', 'api_key', NULL, '127.0.0.1', 'sales.rebuild', '01a209a9-425b-7040-975c-527680a0f8d3', '{}', 'done', '2026-11-23 18:27:13.966855+00', NULL),
	(28, '2026-11-23 18:27:14.017203+00', 'api_key', NULL, '127.0.0.1', 'sales.pause', '01a209a9-4417-7736-972f-e773c9fe5e7a', '{}', 'done', '2026-11-23 18:27:14.025463+00', NULL),
	(11, '2026-11-23 18:26:57.862869+00', 'api_key', NULL, '127.0.0.1', 'sales.create', '01a209a9-44d3-72cc-9a6b-47cf27aed9bc', '{"name": "draft", "items": [{"sku": "phone", "name": "Phone", "stock": 40, "currency": "EUR", "price_minor": 49900, "per_user_limit": 5}, {"sku": "case", "name": "Case", "stock": 3, "currency": "EUR", "price_minor": 900, "per_user_limit": 3}], "shards": 2, "ends_at": "9999-01-01T00:00:00Z", "starts_at": "2026-01-01T00:00:00Z", "purchase_rate": {"limit": 1000, "window_ms": 60000}, "payment_window_seconds": 86400}', 'done', '2026-11-23 18:26:57.881286+00', NULL),
	(13, '2026-11-23 18:26:58.03576+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-41db-74ae-877c-1b35400e5380', '{}', 'done', '2026-11-23 18:26:58.082882+00', NULL),
	(17, '2026-11-23 18:26:58.344306+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-43b3-7702-9930-9635b5e49fe2', '{}', 'done', '2026-11-23 18:26:58.409367+00', NULL),
	(18, '2026-11-23 18:26:58.435059+00', 'api_key', NULL, '127.0.0.1', 'sales.preload', '01a209a9-4417-7736-972f-e773c9fe5e7a', '{}', 'done', '2026-11-23 18:26:58.514884+00', NULL);
INSERT INTO public.orders VALUES
	('00000002-b65a-87f7-82bd-dbdf6a68d274', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'ada', 'k-reserved', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:26:58.696+00', '2026-11-24 18:26:58.696+00', NULL, NULL, 1, 1),
	('00000002-a2a2-8ba0-a264-38b385326901', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'cyd', 'k-cancelled', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:26:58.843+00', '2026-11-24 18:26:58.843+00', NULL, '2026-11-23 18:26:58.928+00', 1, 3),
	('00000002-e668-8d3e-ae61-d938000114dc', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'ben', 'k-paid', 2, 99800, 'EUR', 'paid', '2026-11-23 18:26:58.792+00', '2026-11-24 18:26:58.792+00', '2026-11-23 18:26:59.032+00', '2026-11-23 18:26:59.032+00', 1, 2),
	('00000005-63e5-8f33-b52c-870c2d678a4a', '01a209a9-42df-7286-a3e4-c52cf37f3af3', 1, 'phone', 'lea', 'k-committed', 1, 49900, 'EUR', 'paid', '2026-11-23 18:26:59.306+00', '2026-11-24 18:26:59.306+00', '2026-11-23 18:26:59.356+00', '2026-11-23 18:26:59.356+00', 1, 1),
	('00000006-b8ef-8285-8e94-56f27449a643', '01a209a9-4346-746c-ab05-76d06f77960b', 1, 'phone', 'mia', 'k-guarded', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:26:59.458+00', '2026-11-24 18:26:59.458+00', NULL, NULL, 1, 1),
	('00000008-8f3b-8867-9ca2-5a973c8a911b', '01a209a9-4417-7736-972f-e773c9fe5e7a', 1, 'phone', 'oda', 'k-paused', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:26:59.571+00', '2026-11-24 18:26:59.571+00', NULL, NULL, 1, 1),
	('00000007-62e1-84f8-b7e0-c873438afc33', '01a209a9-43b3-7702-9930-9635b5e49fe2', 1, 'phone', 'ned', 'k-closed', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:26:59.529+00', '2026-11-24 18:26:59.529+00', NULL, NULL, 1, 1),
	('00000002-fffe-8417-8f80-e374fb24e5aa', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'case', 'pat', 'k-borrowed', 3, 2700, 'EUR', 'reserved', '2026-11-23 18:26:59.653+00', '2026-11-24 18:26:59.653+00', NULL, NULL, 1, 5),
	('00000002-674e-80a5-bf4e-386fd1f57044', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-1', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:00.496+00', '2026-11-24 18:27:00.496+00', NULL, '2026-11-23 18:27:00.547+00', 1, 6),
	('00000002-c891-8044-aad5-877e8ebb5a68', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-2', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:00.621+00', '2026-11-24 18:27:00.621+00', NULL, '2026-11-23 18:27:00.659+00', 1, 7),
	('00000002-29d9-83fc-8e54-f2f2941916ba', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-3', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:00.723+00', '2026-11-24 18:27:00.723+00', NULL, '2026-11-23 18:27:00.79+00', 1, 8),
	('00000002-5662-8bd8-a65a-afcc71dffe72', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-4', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:00.855+00', '2026-11-24 18:27:00.855+00', NULL, '2026-11-23 18:27:00.921+00', 1, 9),
	('00000002-45d2-85b7-9d33-2d4032e6c3d3', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-5', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:00.975+00', '2026-11-24 18:27:00.975+00', NULL, '2026-11-23 18:27:01.045+00', 1, 10),
	('00000002-49aa-8047-bf58-45b8c80390de', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-6', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.106+00', '2026-11-24 18:27:01.106+00', NULL, '2026-11-23 18:27:01.141+00', 1, 11),
	('00000002-04e1-857a-80b6-6b0e0f9b343d', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-7', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.213+00', '2026-11-24 18:27:01.213+00', NULL, '2026-11-23 18:27:01.268+00', 1, 12),
	('00000002-38ba-8c89-a1c3-e3f102fac900', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-8', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.386+00', '2026-11-24 18:27:01.386+00', NULL, '2026-11-23 18:27:01.435+00', 1, 13),
	('00000002-2fdc-854a-9055-d58a98f6351c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-9', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.544+00', '2026-11-24 18:27:01.544+00', NULL, '2026-11-23 18:27:01.647+00', 1, 14),
	('00000002-064d-8c4e-bcfd-51ac33491164', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-10', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.688+00', '2026-11-24 18:27:01.688+00', NULL, '2026-11-23 18:27:01.722+00', 1, 15),
	('00000002-5723-8ce0-ab8b-bb3b11be61f0', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-11', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.771+00', '2026-11-24 18:27:01.771+00', NULL, '2026-11-23 18:27:01.821+00', 1, 16),
	('00000002-9695-8a34-9aa1-a8b2dd15a11e', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-12', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.891+00', '2026-11-24 18:27:01.891+00', NULL, '2026-11-23 18:27:01.926+00', 1, 17),
	('00000002-1ffe-8d6a-9c4a-36ea600cebdd', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-13', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:01.987+00', '2026-11-24 18:27:01.987+00', NULL, '2026-11-23 18:27:02.024+00', 1, 18),
	('00000002-8316-84c6-8355-c957a3f42f32', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-14', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.066+00', '2026-11-24 18:27:02.066+00', NULL, '2026-11-23 18:27:02.118+00', 1, 19),
	('00000002-deec-8df2-9bb7-1568d9852f8b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-15', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.163+00', '2026-11-24 18:27:02.163+00', NULL, '2026-11-23 18:27:02.211+00', 1, 20),
	('00000002-f3e9-85e0-a827-04b9eca3703c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-16', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.238+00', '2026-11-24 18:27:02.238+00', NULL, '2026-11-23 18:27:02.303+00', 1, 21),
	('00000002-3343-8fbe-b74a-685d79e8fd71', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-17', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.356+00', '2026-11-24 18:27:02.356+00', NULL, '2026-11-23 18:27:02.416+00', 1, 22),
	('00000002-a99b-85c5-9c3b-14a53112a514', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-18', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.47+00', '2026-11-24 18:27:02.47+00', NULL, '2026-11-23 18:27:02.55+00', 1, 23),
	('00000002-e57c-8b70-bdc7-a438956d0d33', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-19', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.611+00', '2026-11-24 18:27:02.611+00', NULL, '2026-11-23 18:27:02.667+00', 1, 24),
	('00000002-0b62-811e-b81c-aff64e375ab0', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-20', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.729+00', '2026-11-24 18:27:02.729+00', NULL, '2026-11-23 18:27:02.771+00', 1, 25),
	('00000002-e12c-8b30-9369-8c5959d37018', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-21', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.819+00', '2026-11-24 18:27:02.819+00', NULL, '2026-11-23 18:27:02.879+00', 1, 26),
	('00000002-cd57-8baa-acf4-bc7636dd0235', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-22', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:02.919+00', '2026-11-24 18:27:02.919+00', NULL, '2026-11-23 18:27:02.996+00', 1, 27),
	('00000002-5f9b-8ea4-86ac-9d5ca965cca8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-23', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.048+00', '2026-11-24 18:27:03.048+00', NULL, '2026-11-23 18:27:03.092+00', 1, 28),
	('00000002-67c1-8063-ae64-edf001dd2f35', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-24', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.143+00', '2026-11-24 18:27:03.143+00', NULL, '2026-11-23 18:27:03.231+00', 1, 29),
	('00000002-bf17-8b8a-ba05-32b1868c4f70', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-25', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.296+00', '2026-11-24 18:27:03.296+00', NULL, '2026-11-23 18:27:03.327+00', 1, 30),
	('00000002-c582-857b-828b-698497db2296', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-26', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.397+00', '2026-11-24 18:27:03.397+00', NULL, '2026-11-23 18:27:03.439+00', 1, 31),
	('00000002-1bb0-8c33-b766-1ab85ca896dc', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-27', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.494+00', '2026-11-24 18:27:03.494+00', NULL, '2026-11-23 18:27:03.534+00', 1, 32),
	('00000002-0679-82f2-b687-72c20cb5808a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-28', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.608+00', '2026-11-24 18:27:03.608+00', NULL, '2026-11-23 18:27:03.669+00', 1, 33),
	('00000002-8020-824c-a802-fbc50b11fcc8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-29', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.719+00', '2026-11-24 18:27:03.719+00', NULL, '2026-11-23 18:27:03.771+00', 1, 34),
	('00000002-d79c-86f9-8da8-a765a497452a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-30', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.829+00', '2026-11-24 18:27:03.829+00', NULL, '2026-11-23 18:27:03.899+00', 1, 35),
	('00000002-d25f-810d-a658-0bb0cbf8481d', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-31', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:03.966+00', '2026-11-24 18:27:03.966+00', NULL, '2026-11-23 18:27:04.023+00', 1, 36),
	('00000002-630a-8949-a322-01ccc6adafe5', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-32', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.091+00', '2026-11-24 18:27:04.091+00', NULL, '2026-11-23 18:27:04.122+00', 1, 37),
	('00000002-0128-8fe2-835f-273ee249b69b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-33', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.187+00', '2026-11-24 18:27:04.187+00', NULL, '2026-11-23 18:27:04.227+00', 1, 38),
	('00000002-b832-866c-994e-23887bfe3498', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-34', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.284+00', '2026-11-24 18:27:04.284+00', NULL, '2026-11-23 18:27:04.363+00', 1, 39),
	('00000002-c709-8bee-8ae1-ab2f4a6a8f99', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-35', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.446+00', '2026-11-24 18:27:04.446+00', NULL, '2026-11-23 18:27:04.479+00', 1, 40),
	('00000002-ea51-855b-bd28-3c0dad60acac', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-36', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.535+00', '2026-11-24 18:27:04.535+00', NULL, '2026-11-23 18:27:04.567+00', 1, 41),
	('00000002-704b-889a-ac83-5ec4dc440918', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-37', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.63+00', '2026-11-24 18:27:04.63+00', NULL, '2026-11-23 18:27:04.669+00', 1, 42),
	('00000002-368e-8af6-831f-9b46c2b0ec4b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-38', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.736+00', '2026-11-24 18:27:04.736+00', NULL, '2026-11-23 18:27:04.797+00', 1, 43),
	('00000002-bc54-89d0-8218-44c71804af01', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-39', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:04.844+00', '2026-11-24 18:27:04.844+00', NULL, '2026-11-23 18:27:04.903+00', 1, 44),
	('00000002-1893-8935-a785-ead2f1ab36d1', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-40', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.024+00', '2026-11-24 18:27:05.024+00', NULL, '2026-11-23 18:27:05.071+00', 1, 45),
	('00000003-a0ae-85fe-95b4-5cc9946d2494', '01a209a9-41db-74ae-877c-1b35400e5380', 1, 'phone', 'ivy', 'k-expired', 1, 49900, 'EUR', 'expired', '2026-11-23 18:26:59.235+00', '2026-11-23 18:27:05.235+00', NULL, '2026-11-23 18:27:05.474258+00', 1, 1),
	('00000002-e4a2-8c0f-bc84-ee0cca40830e', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-41', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.155+00', '2026-11-24 18:27:05.155+00', NULL, '2026-11-23 18:27:05.191+00', 1, 46),
	('00000002-160a-8c77-8611-9f9c7e05aca6', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-45', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.587+00', '2026-11-24 18:27:05.587+00', NULL, '2026-11-23 18:27:05.611+00', 1, 50),
	('00000002-3d18-8707-81c1-765f2a0b40a8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-48', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.963+00', '2026-11-24 18:27:05.963+00', NULL, '2026-11-23 18:27:06.023+00', 1, 53),
	('00000002-be7c-81e2-8d23-9efa9d34286a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-58', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.077+00', '2026-11-24 18:27:07.077+00', NULL, '2026-11-23 18:27:07.111+00', 1, 63),
	('00000002-a562-8a0d-a7f7-ef22a35c57ef', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-63', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.623+00', '2026-11-24 18:27:07.623+00', NULL, '2026-11-23 18:27:07.663+00', 1, 68),
	('00000002-409a-8816-8265-433cccc83fa1', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-79', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.41+00', '2026-11-24 18:27:09.41+00', NULL, '2026-11-23 18:27:09.463+00', 1, 84),
	('00000002-a392-881c-a62f-33a907952e90', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-82', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.815+00', '2026-11-24 18:27:09.815+00', NULL, '2026-11-23 18:27:09.912+00', 1, 87),
	('00000002-2582-8ea6-aba7-b60f635e8f2b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-87', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.476+00', '2026-11-24 18:27:10.476+00', NULL, '2026-11-23 18:27:10.551+00', 1, 92),
	('00000002-5302-8394-8101-fed9fb96f6e8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-90', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.872+00', '2026-11-24 18:27:10.872+00', NULL, '2026-11-23 18:27:10.903+00', 1, 95),
	('00000002-7531-885a-b5fb-1283e8c66331', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-99', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.872+00', '2026-11-24 18:27:11.872+00', NULL, '2026-11-23 18:27:11.925+00', 1, 104),
	('00000002-bf82-8a31-8884-d0a4ecf1b88f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-102', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.272+00', '2026-11-24 18:27:12.272+00', NULL, '2026-11-23 18:27:12.302+00', 1, 107),
	('00000002-92da-8a5b-b7d6-69c6706d0049', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-42', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.283+00', '2026-11-24 18:27:05.283+00', NULL, '2026-11-23 18:27:05.337+00', 1, 47),
	('00000002-f71b-8bec-8155-91ef09966d8b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-51', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.307+00', '2026-11-24 18:27:06.307+00', NULL, '2026-11-23 18:27:06.339+00', 1, 56),
	('00000002-3913-8876-b688-cafb1cd1f26a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-59', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.181+00', '2026-11-24 18:27:07.181+00', NULL, '2026-11-23 18:27:07.251+00', 1, 64),
	('00000002-27d8-812f-9aa6-2c541393adc8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-65', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.858+00', '2026-11-24 18:27:07.858+00', NULL, '2026-11-23 18:27:07.907+00', 1, 70),
	('00000002-1db4-89b1-9429-b9aebae56144', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-68', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.208+00', '2026-11-24 18:27:08.208+00', NULL, '2026-11-23 18:27:08.268+00', 1, 73),
	('00000002-da17-8940-b974-595200423fb6', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-88', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.663+00', '2026-11-24 18:27:10.663+00', NULL, '2026-11-23 18:27:10.707+00', 1, 93),
	('00000002-1ff2-8e26-9cec-e87f93f48969', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-98', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.743+00', '2026-11-24 18:27:11.743+00', NULL, '2026-11-23 18:27:11.811+00', 1, 103),
	('00000002-a84a-818b-b1c8-32dbd21174bc', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-107', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.716+00', '2026-11-24 18:27:12.716+00', NULL, '2026-11-23 18:27:12.79+00', 1, 112),
	('00000002-0806-89e8-88f1-ffc64d231cff', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-114', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.389+00', '2026-11-24 18:27:13.389+00', NULL, '2026-11-23 18:27:13.418+00', 1, 119),
	('00000004-a57a-82d7-b992-32e493b751e0', '01a209a9-425b-7040-975c-527680a0f8d3', 0, 'phone', 'joy', 'k-kept', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:27:13.587+00', '2026-11-24 18:27:13.587+00', NULL, NULL, 1, 1),
	('00000002-e296-86d1-b064-ef653eedb923', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-last', 1, 49900, 'EUR', 'reserved', '2026-11-23 18:27:14.171+00', '2026-11-24 18:27:14.171+00', NULL, NULL, 1, 121),
	('00000002-8f62-8393-acaf-59812b62ad32', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-43', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.391+00', '2026-11-24 18:27:05.391+00', NULL, '2026-11-23 18:27:05.425+00', 1, 48),
	('00000002-bdd1-8e79-80e7-6e9a0d770481', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-44', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.484+00', '2026-11-24 18:27:05.484+00', NULL, '2026-11-23 18:27:05.537+00', 1, 49),
	('00000002-fc14-8dd4-8f77-e3a7e7e236c8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-47', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.822+00', '2026-11-24 18:27:05.822+00', NULL, '2026-11-23 18:27:05.883+00', 1, 52),
	('00000002-f959-8c17-b8fa-4bb115edad69', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-50', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.205+00', '2026-11-24 18:27:06.205+00', NULL, '2026-11-23 18:27:06.259+00', 1, 55),
	('00000002-4750-85b1-a1fc-497d1f1533ad', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-56', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.864+00', '2026-11-24 18:27:06.864+00', NULL, '2026-11-23 18:27:06.903+00', 1, 61),
	('00000002-6101-85ec-bb76-2eac18a216ae', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-70', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.432+00', '2026-11-24 18:27:08.432+00', NULL, '2026-11-23 18:27:08.507+00', 1, 75),
	('00000002-69b3-826a-bee0-f83c482b335f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-80', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.529+00', '2026-11-24 18:27:09.529+00', NULL, '2026-11-23 18:27:09.599+00', 1, 85),
	('00000002-bc88-867c-ade0-0d6fef16ca28', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-83', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.001+00', '2026-11-24 18:27:10.001+00', NULL, '2026-11-23 18:27:10.031+00', 1, 88),
	('00000002-924e-8981-af4d-8ee04212006b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-86', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.342+00', '2026-11-24 18:27:10.342+00', NULL, '2026-11-23 18:27:10.386+00', 1, 91),
	('00000002-1017-8148-a4ab-1fc59a58a2ed', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-93', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.135+00', '2026-11-24 18:27:11.135+00', NULL, '2026-11-23 18:27:11.179+00', 1, 98),
	('00000002-c237-8f2e-a428-85227b1d69fc', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-101', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.127+00', '2026-11-24 18:27:12.127+00', NULL, '2026-11-23 18:27:12.188+00', 1, 106),
	('00000002-bd83-8129-b5a2-aa548d676f03', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-104', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.411+00', '2026-11-24 18:27:12.411+00', NULL, '2026-11-23 18:27:12.458+00', 1, 109),
	('00000002-b02a-8ceb-abe8-00f61ae9ad23', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-106', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.663+00', '2026-11-24 18:27:12.663+00', NULL, '2026-11-23 18:27:12.692+00', 1, 111),
	('00000002-1a70-8deb-9900-8a92bc52e2a1', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-46', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:05.663+00', '2026-11-24 18:27:05.663+00', NULL, '2026-11-23 18:27:05.721+00', 1, 51),
	('00000002-9a0f-89dd-8b1d-ada4ba130b57', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-49', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.086+00', '2026-11-24 18:27:06.086+00', NULL, '2026-11-23 18:27:06.162+00', 1, 54),
	('00000002-266b-8769-b385-7723195a5b52', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-52', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.363+00', '2026-11-24 18:27:06.363+00', NULL, '2026-11-23 18:27:06.413+00', 1, 57),
	('00000002-3723-8914-9c04-72c80d3387e0', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-53', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.493+00', '2026-11-24 18:27:06.493+00', NULL, '2026-11-23 18:27:06.533+00', 1, 58),
	('00000002-7387-8082-9dcd-a7890584037a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-54', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.608+00', '2026-11-24 18:27:06.608+00', NULL, '2026-11-23 18:27:06.647+00', 1, 59),
	('00000002-f064-8d85-8d77-72b06c0e39b3', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-60', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.31+00', '2026-11-24 18:27:07.31+00', NULL, '2026-11-23 18:27:07.343+00', 1, 65),
	('00000002-6f39-8408-afee-7551c8715d92', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-64', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.719+00', '2026-11-24 18:27:07.719+00', NULL, '2026-11-23 18:27:07.788+00', 1, 69),
	('00000002-9db9-8608-9743-b0f86e5ae38e', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-66', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.97+00', '2026-11-24 18:27:07.97+00', NULL, '2026-11-23 18:27:08.025+00', 1, 71),
	('00000002-87e1-8ae9-8397-66d73f3eaf8a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-73', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.764+00', '2026-11-24 18:27:08.764+00', NULL, '2026-11-23 18:27:08.796+00', 1, 78),
	('00000002-d58c-8945-9c92-e4295460cd7f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-76', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.083+00', '2026-11-24 18:27:09.083+00', NULL, '2026-11-23 18:27:09.123+00', 1, 81),
	('00000002-f0ef-8021-9a89-6ddc3b1b1891', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-84', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.101+00', '2026-11-24 18:27:10.101+00', NULL, '2026-11-23 18:27:10.164+00', 1, 89),
	('00000002-2718-8f5c-80cc-f22bf49d5c13', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-91', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.967+00', '2026-11-24 18:27:10.967+00', NULL, '2026-11-23 18:27:10.997+00', 1, 96),
	('00000002-daf2-8dda-9e11-83c0713f7edf', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-94', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.252+00', '2026-11-24 18:27:11.252+00', NULL, '2026-11-23 18:27:11.315+00', 1, 99),
	('00000002-1a25-8498-8c84-87128d5ac83c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-96', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.519+00', '2026-11-24 18:27:11.519+00', NULL, '2026-11-23 18:27:11.571+00', 1, 101),
	('00000002-908f-8e46-8398-177c5ae4ec6a', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-110', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.015+00', '2026-11-24 18:27:13.015+00', NULL, '2026-11-23 18:27:13.054+00', 1, 115),
	('00000002-18bf-845a-abfe-2833b6ff658b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-113', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.291+00', '2026-11-24 18:27:13.291+00', NULL, '2026-11-23 18:27:13.351+00', 1, 118);
INSERT INTO public.orders VALUES
	('00000004-a5dd-8af8-98d1-e956fd89a917', '01a209a9-425b-7040-975c-527680a0f8d3', 0, 'phone', 'kim', 'k-revoked', 1, 49900, 'EUR', 'revoked', '2026-11-23 18:27:13.731+00', '2026-11-24 18:27:13.731+00', NULL, '2026-11-23 18:27:13.783768+00', 1, 2),
	('00000002-210d-896a-9691-07348e567ea5', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-55', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.719+00', '2026-11-24 18:27:06.719+00', NULL, '2026-11-23 18:27:06.783+00', 1, 60),
	('00000002-bdc2-892a-99ee-4a56fe48cf7b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-61', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.378+00', '2026-11-24 18:27:07.378+00', NULL, '2026-11-23 18:27:07.444+00', 1, 66),
	('00000002-803c-8d60-84e5-46c154214235', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-69', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.355+00', '2026-11-24 18:27:08.355+00', NULL, '2026-11-23 18:27:08.391+00', 1, 74),
	('00000002-b354-878b-9580-8383ea3232aa', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-71', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.564+00', '2026-11-24 18:27:08.564+00', NULL, '2026-11-23 18:27:08.639+00', 1, 76),
	('00000002-c1ea-8e62-8b56-895389924622', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-74', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.867+00', '2026-11-24 18:27:08.867+00', NULL, '2026-11-23 18:27:08.928+00', 1, 79),
	('00000002-7ca6-8f02-8905-90cb3de502d8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-77', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.206+00', '2026-11-24 18:27:09.206+00', NULL, '2026-11-23 18:27:09.245+00', 1, 82),
	('00000002-f0b6-84a5-a5b4-67a2cd5c1a37', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-81', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.672+00', '2026-11-24 18:27:09.672+00', NULL, '2026-11-23 18:27:09.726+00', 1, 86),
	('00000002-f8f2-879f-80ab-4da77344786f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-92', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.036+00', '2026-11-24 18:27:11.036+00', NULL, '2026-11-23 18:27:11.061+00', 1, 97),
	('00000002-c4e7-8bdb-b09f-596146f0dded', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-97', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.648+00', '2026-11-24 18:27:11.648+00', NULL, '2026-11-23 18:27:11.696+00', 1, 102),
	('00000002-2899-8170-990f-ef485644f9a3', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-100', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.011+00', '2026-11-24 18:27:12.011+00', NULL, '2026-11-23 18:27:12.046+00', 1, 105),
	('00000002-40bf-87c9-9f5a-f5baf83e91d4', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-103', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.332+00', '2026-11-24 18:27:12.332+00', NULL, '2026-11-23 18:27:12.358+00', 1, 108),
	('00000002-92dc-86d7-97d9-aca24910f3a5', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-105', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.515+00', '2026-11-24 18:27:12.515+00', NULL, '2026-11-23 18:27:12.575+00', 1, 110),
	('00000002-cb1f-858c-b71e-b69f4b1a79e8', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-109', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.927+00', '2026-11-24 18:27:12.927+00', NULL, '2026-11-23 18:27:12.967+00', 1, 114),
	('00000002-0395-847f-ae86-84b78d2ef54c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-112', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.226+00', '2026-11-24 18:27:13.226+00', NULL, '2026-11-23 18:27:13.259+00', 1, 117),
	('00000002-6500-8cf4-96ee-311d809daec3', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-115', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.466+00', '2026-11-24 18:27:13.466+00', NULL, '2026-11-23 18:27:13.527+00', 1, 120),
	('00000002-8a41-87d3-9505-603c63684dad', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-57', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:06.955+00', '2026-11-24 18:27:06.955+00', NULL, '2026-11-23 18:27:07.011+00', 1, 62),
	('00000002-0e24-88e4-9f8c-8d66d359fb90', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-62', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:07.511+00', '2026-11-24 18:27:07.511+00', NULL, '2026-11-23 18:27:07.57+00', 1, 67),
	('00000002-432f-8446-baec-95d7b8e0135c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-67', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.082+00', '2026-11-24 18:27:08.082+00', NULL, '2026-11-23 18:27:08.147+00', 1, 72),
	('00000002-2fcd-88bb-91b5-1474dc0f9c0f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-72', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.693+00', '2026-11-24 18:27:08.693+00', NULL, '2026-11-23 18:27:08.725+00', 1, 77),
	('00000002-5992-809b-8688-bc90bfbb6e3c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-75', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:08.953+00', '2026-11-24 18:27:08.953+00', NULL, '2026-11-23 18:27:09.028+00', 1, 80),
	('00000002-12bd-8818-8594-88f4e86fea8c', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-78', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:09.3+00', '2026-11-24 18:27:09.3+00', NULL, '2026-11-23 18:27:09.364+00', 1, 83),
	('00000002-b79c-8bbf-b7bc-dd9adc1319a2', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-85', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.206+00', '2026-11-24 18:27:10.206+00', NULL, '2026-11-23 18:27:10.279+00', 1, 90),
	('00000002-7652-8078-84f9-9cda7651b9d2', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-89', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:10.735+00', '2026-11-24 18:27:10.735+00', NULL, '2026-11-23 18:27:10.792+00', 1, 94),
	('00000002-12be-8c18-8c2c-317f69ab8827', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-95', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:11.38+00', '2026-11-24 18:27:11.38+00', NULL, '2026-11-23 18:27:11.442+00', 1, 100),
	('00000002-26f1-8d32-ae7e-e4db10a8a83b', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-108', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:12.847+00', '2026-11-24 18:27:12.847+00', NULL, '2026-11-23 18:27:12.891+00', 1, 113),
	('00000002-9491-8518-9d69-c951d1c5f56f', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'hal', 'k-111', 1, 49900, 'EUR', 'cancelled', '2026-11-23 18:27:13.116+00', '2026-11-24 18:27:13.116+00', NULL, '2026-11-23 18:27:13.154+00', 1, 116),
	('00000002-2ad8-800a-8a65-53748bc582ee', '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 'phone', 'dan', 'k-unpaid', 1, 49900, 'EUR', 'paid', '2026-11-23 18:26:58.889+00', '2026-11-24 18:26:58.889+00', '2026-11-23 18:27:14.871+00', '2026-11-23 18:27:14.871+00', 1, 4);
INSERT INTO public.outbox OVERRIDING SYSTEM VALUE VALUES
	(175, '01a209a9-417b-7634-8276-3fc71ce0a26c', 0, '{"at": 1795458434871, "sku": "phone", "kind": "resolve", "user": "dan", "order": "00000002-2ad8-800a-8a65-53748bc582ee", "state": "paid", "quantity": 1}', 1, '2026-11-23 18:27:16.50136+00', NULL, '2026-11-23 18:27:14.875323+00');
INSERT INTO public.payments VALUES
	('pay_a5f82306-ffc8-44dd-bb80-8222efa88296', 'msg_e25a443f71cd48aea100d24108d7a18d', '00000002-e668-8d3e-ae61-d938000114dc', 99800, 'EUR', 'applied', NULL, '00000002-e668-8d3e-ae61-d938000114dc', '2026-11-23 18:26:59.034887+00', '2026-11-23 18:26:59.034887+00', NULL, NULL),
	('again', 'msg_67c3ea5ed1b142c39f18a822c8adcbfe', '00000002-e668-8d3e-ae61-d938000114dc', 99800, 'EUR', 'refund_due', 'the order was paid already', '00000002-e668-8d3e-ae61-d938000114dc', '2026-11-23 18:26:59.096911+00', '2026-11-23 18:26:59.096911+00', NULL, NULL),
	('settled', 'msg_011a29a1e0364abead1af32305f16a5a', '00000002-a2a2-8ba0-a264-38b385326901', 49900, 'EUR', 'refund_due', 'the order was cancelled already', '00000002-a2a2-8ba0-a264-38b385326901', '2026-11-23 18:26:59.123781+00', '2026-11-23 18:26:59.123781+00', '2026-11-23 18:26:59.161692+00', 'back-1'),
	('pay_0a50653c-6201-41ac-8cc2-4788420210ef', 'msg_eb5e625e85924f11926edf07c664538d', '00000005-63e5-8f33-b52c-870c2d678a4a', 49900, 'EUR', 'applied', NULL, '00000005-63e5-8f33-b52c-870c2d678a4a', '2026-11-23 18:26:59.357195+00', '2026-11-23 18:26:59.357195+00', NULL, NULL),
	('pay_6f601a67-8f0a-4e7c-9cd2-0310c59c2fd7', 'msg_d153d8a32ee24e96b407e021aff3e8a6', '00000002-2ad8-800a-8a65-53748bc582ee', 49900, 'EUR', 'applied', NULL, '00000002-2ad8-800a-8a65-53748bc582ee', '2026-11-23 18:27:14.875323+00', '2026-11-23 18:27:14.875323+00', NULL, NULL);
INSERT INTO public.restocks VALUES
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'r-more', '01a209a9-4bdc-747f-8f44-a8f008bb59a2', 'phone', 10, 'applied', '2026-11-23 18:26:59.677241+00', '2026-11-23 18:26:59.679189+00'),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 'r-less', '01a209a9-4c0b-7359-8e7e-03d18c7bf0d3', 'phone', -3, 'applied', '2026-11-23 18:26:59.724998+00', '2026-11-23 18:26:59.78398+00');
INSERT INTO public.sales OVERRIDING SYSTEM VALUE VALUES
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 1, 'Demo sale', 'active', 2, '2026-11-23 18:26:56.571+00', '2026-11-24 18:26:56.571+00', 4, 900, 5, 60000, 'redis', '\x9b34c25345a991978c63b7a9717eed950f71026544cc669b0fc7bdc43bd2992d', '2026-11-23 18:26:56.587359+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-44d3-72cc-9a6b-47cf27aed9bc', 10, 'draft', 'draft', 1, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\x7495f9b2101a536ec299e3c3153f4f39e454ac2927f81289644906928ca42a00', '2026-11-23 18:26:57.876012+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 2, 'open', 'active', 2, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\x05983cc2bfc133957e8d8da6de86a919b47db4437030cd6adaa0bab9c9b5d5e1', '2026-11-23 18:26:57.027012+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-41db-74ae-877c-1b35400e5380', 3, 'short', 'active', 2, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 6, 1000, 60000, 'redis', '\xb76ecfebca9ef0864865516694c9c86832cbfd82add1bf61750ed70653eb2010', '2026-11-23 18:26:57.116963+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 9, 'scheduled', 'active', 2, '9998-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\x96d3a743cbce29f77bc1ee9b308ff709fadfcc5336dbff5d346a38a0f17120af', '2026-11-23 18:26:57.791718+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-425b-7040-975c-527680a0f8d3', 4, 'one', 'active', 2, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 1, 86400, 1000, 60000, 'redis', '\xb5516412525ede9c0912adea41c310eed2afc487bca44b7a811301575295cd92', '2026-11-23 18:26:57.246423+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 7, 'closed', 'closed', 3, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\xbf947dbad6c5d7a4b59367d588a962db0df48d43a4b3bf9a9aa399d01557fda1', '2026-11-23 18:26:57.590079+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 5, 'committed', 'active', 2, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'postgres', '\x4f4c327eb2f05cc15e27dd259b4cd5f50c7b22cb7dbc38d8ec96ce795135a795', '2026-11-23 18:26:57.375795+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 8, 'paused', 'paused', 3, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\xd7b126a35c2504c9c2278a61b0de195d646927dca0e5ae08ba34130546a4e978', '2026-11-23 18:26:57.687786+00', NULL, '{"challenge": "none", "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100}', NULL, NULL),
	('01a209a9-4346-746c-ab05-76d06f77960b', 6, 'guarded', 'active', 2, '2026-01-01 00:00:00+00', '9999-01-01 00:00:00+00', 2, 86400, 1000, 60000, 'redis', '\x796782224fe473a54756d270d66a20b1c17f429587c6efcafed3b97721c02ec9', '2026-11-23 18:26:57.479221+00', NULL, '{"challenge": "none", "holds_max": 2, "proof_cost": 1000, "admission_seconds": 300, "admissions_per_second": 100, "unpaid_cooldown_seconds": 1}', NULL, NULL);
INSERT INTO public.shards VALUES
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.549079+00', NULL, 0, 0, 0, 0),
	('01a209a9-447f-77ad-b6ef-250154d9ebe7', 1, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.549079+00', NULL, 0, 0, 0, 0),
	('01a209a9-4346-746c-ab05-76d06f77960b', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.272201+00', NULL, 0, 0, 0, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 1, 1, 1, 1, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.348245+00', NULL, 0, 0, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:56.622681+00', NULL, 0, 0, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 1, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:56.622681+00', NULL, 0, 0, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 2, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:56.622681+00', NULL, 0, 0, 0, 0),
	('01a209a9-3fcb-7582-8db4-0fe9d3dfd47f', 3, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:56.622681+00', NULL, 0, 0, 0, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 1, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:57.90849+00', NULL, 0, 0, 0, 0),
	('01a209a9-425b-7040-975c-527680a0f8d3', 0, 2, 2, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 1, '2026-11-23 18:27:13.950727+00', 0, '2026-11-23 18:26:58.101313+00', NULL, 0, 0, 0, 0),
	('01a209a9-41db-74ae-877c-1b35400e5380', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.038219+00', NULL, 0, 0, 0, 0),
	('01a209a9-417b-7634-8276-3fc71ce0a26c', 0, 1, 1, 121, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:57.90849+00', NULL, 0, 0, 0, 0),
	('01a209a9-43b3-7702-9930-9635b5e49fe2', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.348245+00', NULL, 0, 0, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.196081+00', NULL, 0, 0, 0, 0),
	('01a209a9-41db-74ae-877c-1b35400e5380', 1, 1, 1, 1, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.038219+00', NULL, 0, 0, 0, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 0, 1, 0, 0, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.443744+00', NULL, 0, 0, 0, 0),
	('01a209a9-42df-7286-a3e4-c52cf37f3af3', 1, 1, 1, 1, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.196081+00', NULL, 0, 0, 0, 0),
	('01a209a9-4346-746c-ab05-76d06f77960b', 1, 1, 1, 1, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.272201+00', NULL, 0, 0, 0, 0),
	('01a209a9-4417-7736-972f-e773c9fe5e7a', 1, 1, 1, 1, '949d453073866133ad8ffe3d17d7868fd4c7991a-d863868a24db9583a9fea53663e34d27b538b0ac-0000000000000000000000000000000000000000', 0, NULL, 0, '2026-11-23 18:26:58.443744+00', NULL, 0, 0, 0, 0);
SELECT pg_catalog.setval('public.ban_changes', 3, true);
SELECT pg_catalog.setval('public.guard_alerts_alert_id_seq', 1, false);
SELECT pg_catalog.setval('public.operator_actions_action_id_seq', 28, true);
SELECT pg_catalog.setval('public.outbox_outbox_id_seq', 175, true);
SELECT pg_catalog.setval('public.sales_number_seq', 10, true);
ALTER TABLE ONLY public._sqlx_migrations
    ADD CONSTRAINT _sqlx_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.bans
    ADD CONSTRAINT bans_change_key UNIQUE (change);
ALTER TABLE ONLY public.bans
    ADD CONSTRAINT bans_pkey PRIMARY KEY (user_id);
ALTER TABLE ONLY public.console_sessions
    ADD CONSTRAINT console_sessions_digest_key UNIQUE (digest);
ALTER TABLE ONLY public.console_sessions
    ADD CONSTRAINT console_sessions_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (sale_id, shard, epoch, seq);
ALTER TABLE ONLY public.grants
    ADD CONSTRAINT grants_pkey PRIMARY KEY (sale_id, sku, shard);
ALTER TABLE ONLY public.guard_alerts
    ADD CONSTRAINT guard_alerts_pkey PRIMARY KEY (alert_id);
ALTER TABLE ONLY public.guard_settings
    ADD CONSTRAINT guard_settings_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.guard_stopped
    ADD CONSTRAINT guard_stopped_pkey PRIMARY KEY (sale_id, layer);
ALTER TABLE ONLY public.heartbeat
    ADD CONSTRAINT heartbeat_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_pkey PRIMARY KEY (sale_id, sku);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_sale_id_position_key UNIQUE (sale_id, "position");
ALTER TABLE ONLY public.operator_actions
    ADD CONSTRAINT operator_actions_pkey PRIMARY KEY (action_id);
ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_one_event_each UNIQUE (sale_id, shard, epoch, seq);
ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_one_outcome_a_key UNIQUE (sale_id, user_id, idempotency_key);
ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_pkey PRIMARY KEY (order_id);
ALTER TABLE ONLY public.outages
    ADD CONSTRAINT outages_pkey PRIMARY KEY (until);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (outbox_id);
ALTER TABLE ONLY public.payments
    ADD CONSTRAINT payments_pkey PRIMARY KEY (payment_id);
ALTER TABLE ONLY public.restocks
    ADD CONSTRAINT restocks_pkey PRIMARY KEY (sale_id, idempotency_key);
ALTER TABLE ONLY public.restocks
    ADD CONSTRAINT restocks_restock_id_key UNIQUE (restock_id);
ALTER TABLE ONLY public.sales
    ADD CONSTRAINT sales_idempotency_key_key UNIQUE (idempotency_key);
ALTER TABLE ONLY public.sales
    ADD CONSTRAINT sales_number_key UNIQUE (number);
ALTER TABLE ONLY public.sales
    ADD CONSTRAINT sales_pkey PRIMARY KEY (sale_id);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT shards_pkey PRIMARY KEY (sale_id, shard);
ALTER TABLE ONLY public.superseded_servers
    ADD CONSTRAINT superseded_servers_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY public.told_counts
    ADD CONSTRAINT told_counts_pkey PRIMARY KEY (sale_id, instance_id);
ALTER TABLE ONLY public.watched_sales
    ADD CONSTRAINT watched_sales_pkey PRIMARY KEY (sale_id);
CREATE INDEX console_sessions_by_end ON public.console_sessions USING btree (expires_at);
CREATE INDEX dead_letters_to_settle ON public.dead_letters USING btree (sale_id, shard, epoch, seq) WHERE (settled_at IS NULL);
CREATE INDEX guard_alerts_by_age ON public.guard_alerts USING btree (raised_at);
CREATE INDEX guard_alerts_undelivered ON public.guard_alerts USING btree (alert_id) WHERE ((delivered_at IS NULL) AND (given_up_at IS NULL));
CREATE INDEX operator_actions_by_age ON public.operator_actions USING btree (begun_at);
CREATE INDEX operator_actions_by_sale ON public.operator_actions USING btree (sale_id, action_id);
CREATE INDEX orders_decided ON public.orders USING btree (sale_id, state) WHERE (state <> 'reserved'::text);
CREATE INDEX orders_due ON public.orders USING btree (sale_id, shard, expires_at) WHERE (state = 'reserved'::text);
CREATE INDEX outbox_ahead ON public.outbox USING btree (not_before, outbox_id) WHERE ((failure IS NULL) AND ((message ->> 'kind'::text) <> 'resolve'::text));
CREATE INDEX outbox_by_shard ON public.outbox USING btree (sale_id, shard);
CREATE INDEX outbox_failed ON public.outbox USING btree (sale_id) WHERE (failure IS NOT NULL);
CREATE INDEX outbox_restocks ON public.outbox USING btree (((message ->> 'id'::text))) WHERE ((message ->> 'kind'::text) = 'restock'::text);
CREATE INDEX outbox_waiting ON public.outbox USING btree (not_before, outbox_id) WHERE (failure IS NULL);
CREATE UNIQUE INDEX payments_one_applied_an_order ON public.payments USING btree (matched_order_id) WHERE (outcome = 'applied'::text);
CREATE INDEX payments_pending ON public.payments USING btree (received_at) WHERE (outcome = 'pending'::text);
CREATE INDEX payments_to_look_at ON public.payments USING btree (outcome) WHERE (outcome = ANY (ARRAY['refund_due'::text, 'unmatched'::text]));
CREATE INDEX payments_to_pay_back ON public.payments USING btree (outcome) WHERE ((outcome = ANY (ARRAY['refund_due'::text, 'unmatched'::text])) AND (refunded_at IS NULL));
CREATE INDEX restocks_pending ON public.restocks USING btree (created_at) WHERE (state = 'pending'::text);
CREATE CONSTRAINT TRIGGER grants_add_up AFTER INSERT OR UPDATE OF granted ON public.grants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.check_grants_add_up();
CREATE TRIGGER grants_stay BEFORE DELETE OR UPDATE OF sale_id, sku, shard ON public.grants FOR EACH ROW EXECUTE FUNCTION public.refuse_to_move();
CREATE CONSTRAINT TRIGGER items_add_up AFTER UPDATE OF stock ON public.items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.check_grants_add_up();
CREATE TRIGGER orders_have_grants AFTER INSERT ON public.orders REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.check_orders_have_grants();
CREATE TRIGGER orders_leave_reserved_once BEFORE UPDATE OF state ON public.orders FOR EACH ROW EXECUTE FUNCTION public.check_order_transition();
CREATE TRIGGER orders_stay BEFORE UPDATE OF sale_id, sku, shard ON public.orders FOR EACH ROW EXECUTE FUNCTION public.refuse_to_move();
CREATE TRIGGER payments_refunded_once BEFORE UPDATE ON public.payments FOR EACH ROW EXECUTE FUNCTION public.check_refund();
ALTER TABLE ONLY public.grants
    ADD CONSTRAINT grants_sale_id_shard_fkey FOREIGN KEY (sale_id, shard) REFERENCES public.shards(sale_id, shard);
ALTER TABLE ONLY public.grants
    ADD CONSTRAINT grants_sale_id_sku_fkey FOREIGN KEY (sale_id, sku) REFERENCES public.items(sale_id, sku);
ALTER TABLE ONLY public.guard_stopped
    ADD CONSTRAINT guard_stopped_sale_id_fkey FOREIGN KEY (sale_id) REFERENCES public.sales(sale_id);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_sale_id_fkey FOREIGN KEY (sale_id) REFERENCES public.sales(sale_id);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_sale_id_shard_fkey FOREIGN KEY (sale_id, shard) REFERENCES public.shards(sale_id, shard);
ALTER TABLE ONLY public.payments
    ADD CONSTRAINT payments_matched_order_id_fkey FOREIGN KEY (matched_order_id) REFERENCES public.orders(order_id);
ALTER TABLE ONLY public.restocks
    ADD CONSTRAINT restocks_sale_id_sku_fkey FOREIGN KEY (sale_id, sku) REFERENCES public.items(sale_id, sku);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT shards_sale_id_fkey FOREIGN KEY (sale_id) REFERENCES public.sales(sale_id);
