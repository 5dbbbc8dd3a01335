"""Sweeps and their chunks; and, on PostgreSQL, the schema of procrastinate, whose jobs work on them.

procrastinate's schema is that of the installed release, as its own SQL makes it. The newest of its migrations in there is noted as
the comment of ``procrastinate_jobs``, and pyproject.toml admits the releases that have no further one: a test fails where a release
does. The range is then raised together with a new revision here, which reads the comment, applies what came after it (procrastinate
names its files ``…_pre_…`` and ``…_post_…``: the former suit the release before as well, the latter wait for the revision after) and
notes the newest again; on a database that this revision made with the newer release it finds nothing to do.
"""

import sqlalchemy as sa
from alembic import op

from app.store.jobs import newest_library_migration, schema_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("finished_at", moment, nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("detail", sa.String(16), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("axes", sa.JSON(), nullable=False),
        sa.Column("edit_token_hash", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(200), nullable=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("idempotency_key", name="uq_sweeps_idempotency_key"),
        sa.CheckConstraint("state IN ('queued', 'running', 'done', 'cancelled')", name="ck_sweeps_state"),
        sa.CheckConstraint("detail IN ('figures', 'plan')", name="ck_sweeps_detail"),
    )
    op.create_index("ix_sweeps_state_created_at", "sweeps", ["state", "created_at"])
    op.create_index("ix_sweeps_finished_at", "sweeps", ["finished_at"])
    op.create_table(
        "sweep_chunks",
        sa.Column("sweep_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("leased_until", moment, nullable=True),
        sa.Column("done_at", moment, nullable=True),
        sa.Column("engine_version", sa.String(32), nullable=True),
        *(sa.Column(count, sa.Integer(), nullable=False) for count in ("fits", "tight", "does_not_fit", "failed")),
        sa.Column("requests", sa.LargeBinary(), nullable=False),
        sa.Column("results", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sweep_id", "number", name="pk_sweep_chunks"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name="fk_sweep_chunks_sweep_id_sweeps", ondelete="CASCADE"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.get_bind().connection.driver_connection.execute(schema_sql())  # several statements, which SQLAlchemy would prepare as one
        op.execute(sa.text(f"COMMENT ON TABLE procrastinate_jobs IS '{newest_library_migration()}'"))


def downgrade() -> None:
    """Drop the tables, and everything of procrastinate's."""
    op.drop_table("sweep_chunks")
    op.drop_table("sweeps")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(sa.text(_DROP_JOBS))


_DROP_JOBS = """DO $$ DECLARE item record; BEGIN
FOR item IN SELECT oid::regclass AS name FROM pg_class
    WHERE relkind = 'r' AND relname LIKE 'procrastinate\\_%' AND relnamespace = current_schema()::regnamespace
    LOOP EXECUTE format('DROP TABLE %s CASCADE', item.name); END LOOP;
FOR item IN SELECT oid::regprocedure AS name FROM pg_proc
    WHERE proname LIKE 'procrastinate\\_%' AND pronamespace = current_schema()::regnamespace
    LOOP EXECUTE format('DROP FUNCTION %s CASCADE', item.name); END LOOP;
FOR item IN SELECT oid::regtype AS name FROM pg_type
    WHERE typname LIKE 'procrastinate\\_%' AND typnamespace = current_schema()::regnamespace AND typcategory <> 'A'
    LOOP EXECUTE format('DROP TYPE %s CASCADE', item.name); END LOOP;
END $$"""
