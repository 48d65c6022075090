"""``python -m costmodel_jax.cli``."""

import sys

from costmodel_jax.cli import main

sys.exit(main())
