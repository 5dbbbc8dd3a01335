PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES('0001');
CREATE TABLE plans (
	id VARCHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	note TEXT NOT NULL, 
	engine_version VARCHAR(32) NOT NULL, 
	model_name VARCHAR(300) NOT NULL, 
	gpu_name VARCHAR(300) NOT NULL, 
	verdict VARCHAR(16) NOT NULL, 
	search_text TEXT NOT NULL, 
	edit_token_hash VARCHAR(64) NOT NULL, 
	request JSON NOT NULL, 
	answer JSON NOT NULL, 
	CONSTRAINT pk_plans PRIMARY KEY (id), 
	CONSTRAINT ck_plans_ck_plans_verdict CHECK (verdict IN ('fits', 'tight', 'does_not_fit'))
);
INSERT INTO plans VALUES('plan-000000000000000000','2026-05-01 12:00:00.123456','GRÖSSE 50%',replace('第一 line\nsecond ''quoted'' \ back','\n',char(10)),'0.2.0','llama-3.1-8b','h100-sxm-80gb, t4','fits',replace('grösse 50%\nllama-3.1-8b\nh100-sxm-80gb, t4','\n',char(10)),'0000000000000000000000000000000000000000000000000000000000000000','{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}','{"verdict":"fits","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
INSERT INTO plans VALUES('plan-000000000000000001','2026-05-01 12:00:01.123456','"; rm -rf ~ #',replace('第一 line\nsecond ''quoted'' \ back','\n',char(10)),'0.2.0','llama-3.1-8b','h100-sxm-80gb, t4','tight',replace('"; rm -rf ~ #\nllama-3.1-8b\nh100-sxm-80gb, t4','\n',char(10)),'1111111111111111111111111111111111111111111111111111111111111111','{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}','{"verdict":"tight","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
INSERT INTO plans VALUES('plan-000000000000000002','2026-05-01 12:00:02.123456','',replace('第一 line\nsecond ''quoted'' \ back','\n',char(10)),'0.2.0','llama-3.1-8b','h100-sxm-80gb, t4','does_not_fit',replace('\nllama-3.1-8b\nh100-sxm-80gb, t4','\n',char(10)),'2222222222222222222222222222222222222222222222222222222222222222','{"zeta":7500000000.0,"alpha":1,"text":"模型 \u0000 😀","deep":[{"b":null,"a":[true,1.0]}]}','{"verdict":"does_not_fit","engine_version":"0.2.0","files":{"z.sh":"1\n","a.json":"{}"}}');
CREATE TABLE idempotency (
	"key" VARCHAR(200) NOT NULL, 
	request_hash VARCHAR(64) NOT NULL, 
	plan_id VARCHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency PRIMARY KEY ("key"), 
	CONSTRAINT fk_idempotency_plan_id_plans FOREIGN KEY(plan_id) REFERENCES plans (id) ON DELETE CASCADE
);
INSERT INTO idempotency VALUES('nightly-1','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','plan-000000000000000001','2026-05-01 12:00:01.123456');
CREATE INDEX ix_plans_created_at_id ON plans (created_at, id);
CREATE INDEX ix_idempotency_plan_id ON idempotency (plan_id);
COMMIT;
