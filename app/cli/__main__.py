"""``python -m app.cli`` is the ``shardplan`` command."""

import sys

from app.cli import main

sys.exit(main())
