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
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.idempotency (
    key character varying(200) NOT NULL,
    request_hash character varying(64) NOT NULL,
    plan_id character varying(32) NOT NULL,
    created_at timestamp with time zone NOT NULL
);
CREATE TABLE public.plans (
    id character varying(32) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    name character varying(200) NOT NULL,
    note text NOT NULL,
    engine_version character varying(32) NOT NULL,
    model_name character varying(300) NOT NULL,
    gpu_name character varying(300) NOT NULL,
    verdict character varying(16) NOT NULL,
    search_text text NOT NULL,
    edit_token_hash character varying(64) NOT NULL,
    request json NOT NULL,
    answer json NOT NULL,
    CONSTRAINT ck_plans_ck_plans_verdict CHECK (((verdict)::text = ANY ((ARRAY['fits'::character varying, 'tight'::character varying, 'does_not_fit'::character varying])::text[])))
);
INSERT INTO public.alembic_version VALUES ('0001');
INSERT INTO public.idempotency VALUES ('nightly-1', 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff', 'plan-000000000000000001', '2026-05-01 12:00:01.123456+00');
INSERT INTO public.plans VALUES ('plan-000000000000000000', '2026-05-01 12:00:00.123456+00', 'GRÖSSE 50%', '第一 line
second ''quoted'' \ back', '0.2.0', 'llama-3.1-8b', 'h100-sxm-80gb, t4', 'fits', 'grösse 50%
llama-3.1-8b
h100-sxm-80gb, t4', '0000000000000000000000000000000000000000000000000000000000000000', '{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}', '{"verdict":"fits","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
INSERT INTO public.plans VALUES ('plan-000000000000000001', '2026-05-01 12:00:01.123456+00', '"; rm -rf ~ #', '第一 line
second ''quoted'' \ back', '0.2.0', 'llama-3.1-8b', 'h100-sxm-80gb, t4', 'tight', '"; rm -rf ~ #
llama-3.1-8b
h100-sxm-80gb, t4', '1111111111111111111111111111111111111111111111111111111111111111', '{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}', '{"verdict":"tight","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
INSERT INTO public.plans VALUES ('plan-000000000000000002', '2026-05-01 12:00:02.123456+00', '', '第一 line
second ''quoted'' \ back', '0.2.0', 'llama-3.1-8b', 'h100-sxm-80gb, t4', 'does_not_fit', '
llama-3.1-8b
h100-sxm-80gb, t4', '2222222222222222222222222222222222222222222222222222222222222222', '{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}', '{"verdict":"does_not_fit","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT pk_idempotency PRIMARY KEY (key);
ALTER TABLE ONLY public.plans
    ADD CONSTRAINT pk_plans PRIMARY KEY (id);
CREATE INDEX ix_idempotency_plan_id ON public.idempotency USING btree (plan_id);
CREATE INDEX ix_plans_created_at_id ON public.plans USING btree (created_at, id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT fk_idempotency_plan_id_plans FOREIGN KEY (plan_id) REFERENCES public.plans(id) ON DELETE CASCADE;
