"""Alembic's entry: runs migrations on the connection that ``app.store.migrate`` opened, inside its transaction."""

from alembic import context

from app.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=context.config.attributes["connection"].dialect.name == "sqlite",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
