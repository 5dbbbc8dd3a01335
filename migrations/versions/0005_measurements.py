"""What runs of saved plans really took."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "measurements",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("counter", sa.String(16), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("step_s", sa.Double(), nullable=True),
        sa.Column("tokens_per_s", sa.Double(), nullable=True),
        sa.Column("oom", sa.Boolean(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(16), nullable=False),
        sa.Column("engine_version", sa.String(32), nullable=False),
        sa.Column("idempotency_key", sa.String(200), nullable=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("predicted", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
        sa.UniqueConstraint("idempotency_key", name="uq_measurements_idempotency_key"),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name="fk_measurements_plan_id_plans", ondelete="CASCADE"),
        sa.CheckConstraint("counter IN ('allocated', 'reserved', 'device')", name="ck_measurements_counter"),
    )
    op.create_index("ix_measurements_plan_id", "measurements", ["plan_id"])
    op.create_index("ix_measurements_created_at", "measurements", ["created_at"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("measurements")
