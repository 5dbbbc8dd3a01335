"""Saved plans never change: the database itself refuses an UPDATE of a plan, or of what an idempotency key stands for.

A later migration that has to fill a column drops the triggers and makes them again, in its one transaction; on SQLite, where
altering a table in batch mode makes it anew, they go with the old table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("plans", "idempotency")


def upgrade() -> None:
    """Make the triggers."""
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            op.execute(
                sa.text(
                    f"CREATE TRIGGER {table}_never_change BEFORE UPDATE ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, 'rows of {table} never change'); END"
                )
            )
        return
    op.execute(
        sa.text(
            "CREATE OR REPLACE FUNCTION shardplan_never_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'rows of % never change', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
    )
    for table in TABLES:
        op.execute(
            sa.text(f"CREATE TRIGGER {table}_never_change BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION shardplan_never_change()")
        )


def downgrade() -> None:
    """Drop the triggers."""
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            op.execute(sa.text(f"DROP TRIGGER {table}_never_change"))
        return
    for table in TABLES:
        op.execute(sa.text(f"DROP TRIGGER {table}_never_change ON {table}"))
    op.execute(sa.text("DROP FUNCTION shardplan_never_change()"))
