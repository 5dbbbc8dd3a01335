"""Saved plans, and the idempotency keys that made them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "plans",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("engine_version", sa.String(32), nullable=False),
        sa.Column("model_name", sa.String(300), nullable=False),
        sa.Column("gpu_name", sa.String(300), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("search_text", sa.Text(), nullable=False),
        sa.Column("edit_token_hash", sa.String(64), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.CheckConstraint("verdict IN ('fits', 'tight', 'does_not_fit')", name="ck_plans_verdict"),
    )
    op.create_index("ix_plans_created_at_id", "plans", ["created_at", "id"])
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency"),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name="fk_idempotency_plan_id_plans", ondelete="CASCADE"),
    )
    op.create_index("ix_idempotency_plan_id", "idempotency", ["plan_id"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("idempotency")
    op.drop_table("plans")
