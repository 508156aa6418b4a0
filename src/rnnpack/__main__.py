"""`python -m rnnpack`."""

import sys

from rnnpack.cli import main

sys.exit(main())
